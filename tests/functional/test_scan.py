"""Matrices by recurrences along diagonals and their gradients, against the definition; kernels as C++."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr.functional import scan
from torchldr.functional.reference import subdiagonal_reference
from torchldr.functional.stein_scan import column_scan, stein_matrix
from torchldr.kernels.cuda import scan as scan_kernels

EPS = torch.finfo(torch.float64).eps

sizes = st.integers(1, 9).flatmap(lambda m: st.tuples(st.just(m), st.integers(m, 14)))
seeds = st.integers(0, 2**32 - 1)


def operands(m: int, n: int, seed: int, R: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """a, c, e, D: operators of any range, corners and entries of 0 among them."""
    draw = torch.Generator().manual_seed(seed)
    a, c = (torch.empty(R, k, dtype=torch.float64).normal_(generator=draw) for k in (m, n))
    a[torch.rand(a.shape, generator=draw) < 0.15] = 0
    c[torch.rand(c.shape, generator=draw) < 0.05] = 0
    e, D = (torch.empty(R, m, n, dtype=torch.float64).normal_(generator=draw) for _ in range(2))
    return a, c, e, D


def definition(a: Tensor, c: Tensor, e: Tensor, *, adjoint: bool = False) -> Tensor:
    """The sum over t."""
    A, C = (torch.stack([subdiagonal_reference(v[1:], v[0]) for v in vs]) for vs in (a, c))
    total = torch.zeros_like(e)
    for _ in range(min(e.shape[-2:])):
        total = total + e
        e = A.mT @ e @ C if adjoint else A @ e @ C.mT
    return total


def gradients(a: Tensor, c: Tensor, e: Tensor, D: Tensor) -> tuple[Tensor, ...]:
    leaves = [t.clone().requires_grad_() for t in (a, c, e)]
    return torch.autograd.grad(definition(*leaves), leaves, D, allow_unused=True, materialize_grads=True)


def assert_near(got: Tensor, expected: Tensor, magnitude: Tensor, size: int) -> None:
    """Entry by entry: sums of products, so that the error is relative to that of absolute values."""
    assert ((got - expected).abs() <= 8 * size * EPS * magnitude + 1e-300).all()


@given(size=sizes, seed=seeds)
@settings(deadline=None, max_examples=60)
def test_it_is_the_sum_of_powers(size: tuple[int, int], seed: int) -> None:
    m, n = size
    a, c, e, D = operands(m, n, seed)
    absolute = a.abs(), c.abs(), e.abs(), D.abs()
    for adjoint, got in ((False, scan.stein_scan(a, c, e)), (True, scan.stein_scan_adjoint(a, c, e))):
        magnitude = definition(*absolute[:3], adjoint=adjoint)
        assert_near(got, definition(a, c, e, adjoint=adjoint), magnitude, n)
    found = scan.stein_scan_gradients(a, c, e, D)
    for got, expected, magnitude in zip(found, gradients(a, c, e, D), gradients(*absolute), strict=True):
        assert_near(got, expected, magnitude, n)


# The kernels.

HEAD = """
#define __global__
#define __device__
#define __shared__ static
struct Three { int x, y, z; };
static Three blockIdx, threadIdx, gridDim;
"""
TAIL = """
#define RUN(name, ...) \
    gridDim = {gx, gy, gz}; \
    for (blockIdx.z = 0; blockIdx.z < gz; blockIdx.z++) \
        for (blockIdx.y = 0; blockIdx.y < gy; blockIdx.y++) \
            for (blockIdx.x = 0; blockIdx.x < gx; blockIdx.x++) \
                for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) name(__VA_ARGS__, m, n, segments);
#define GRID int gx, int gy, int gz, int threads
#define SIZES int m, int n, int segments
extern "C" void run_sums(GRID, T* a, T* c, T* e, T* D, T* sum, SIZES) { RUN(sums, a, c, e, D, sum) }
extern "C" void run_chain(GRID, T* sum, T* state, SIZES) { RUN(chain, sum, state) }
extern "C" void run_fill(GRID, T* a, T* c, T* e, T* state, T* M, SIZES) { RUN(fill, a, c, e, state, M) }
extern "C" void run_gradients(GRID, T* a, T* c, T* e, T* D, T* state, T* dw, T* dE, SIZES) {
    RUN(gradients, a, c, e, D, state, dw, dE)
}
"""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder: Path = tmp_path_factory.mktemp("kernels")

    @cache
    def compiled(source: str) -> ctypes.CDLL:
        stem = folder / hashlib.sha256(source.encode()).hexdigest()
        file, library = stem.with_suffix(".cpp"), stem.with_suffix(".so")
        file.write_text(HEAD + source + TAIL)
        subprocess.run(
            ["g++", "-O1", "-Wno-unknown-pragmas", "-shared", "-fPIC", file, "-o", library], check=True
        )
        return ctypes.CDLL(str(library))

    return compiled


@pytest.fixture
def kernels(compiler: Callable[[str], ctypes.CDLL], monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything goes through the kernels, as plain C++ whose threads run one after the other."""

    def launch(
        source: str, name: str, device: object, grid: scan_kernels.nvrtc.Grid, threads: int, given: list
    ) -> None:
        for tensor in (t for t in given if isinstance(t, Tensor)):
            assert tensor.is_contiguous()
            assert tensor.dtype == torch.float64
        values = [ctypes.c_void_p(t.data_ptr()) if isinstance(t, Tensor) else t for t in given]
        getattr(compiler(source), f"run_{name}")(*grid, threads, *values)

    monkeypatch.setattr(scan, "serves", lambda *tensors: True)
    monkeypatch.setattr(scan_kernels.nvrtc, "launch", launch)


LONGER = [(31, 31), (32, 33), (33, 33), (40, 65), (64, 64), (70, 100), (97, 97)]


def by_rows(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *inputs: Tensor, **how: bool
) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(scan, "serves", lambda *tensors: False)
        return function(*inputs, **how)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 5), (2, 2), (3, 7), (9, 9), *LONGER])
@pytest.mark.parametrize("R", [0, 1, 3])
@pytest.mark.usefixtures("kernels")
def test_the_kernels_do_what_the_rows_do(m: int, n: int, R: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, c, e, D = operands(m, n, seed=m + n, R=R)
    e, D = e.mT.contiguous().mT, D.mT.contiguous().mT  # as they may come
    for function, inputs in ((scan.stein_scan, (a, c, e)), (scan.stein_scan_adjoint, (a, c, D))):
        torch.testing.assert_close(function(*inputs), by_rows(monkeypatch, function, *inputs))
    found = scan.stein_scan_gradients(a, c, e, D)
    for ours, theirs in zip(found, by_rows(monkeypatch, scan.stein_scan_gradients, a, c, e, D), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 7), (70, 33), (33, 70)])
@pytest.mark.usefixtures("kernels")
def test_columns_by_the_kernels(m: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _, e, _ = operands(m, n, seed=m)
    a, nodes = torch.ones_like(a), torch.rand(1, n, dtype=torch.float64).expand(2, n)
    a[:, 0] = 0
    for function in (scan.stein_scan, scan.stein_scan_adjoint):
        expected = by_rows(monkeypatch, function, a, nodes, e, straight=True)
        torch.testing.assert_close(function(a, nodes, e, straight=True), expected)


@pytest.mark.usefixtures("kernels")
def test_what_autograd_may_ask_of_the_kernels() -> None:
    a, c, e, _ = (t.requires_grad_() for t in operands(3, 5, 1))
    checks = {"check_forward_ad": True, "check_batched_grad": True}
    assert torch.autograd.gradcheck(stein_matrix, (a, c, e), **checks)
    assert torch.autograd.gradgradcheck(stein_matrix, (a, c, e))
    assert torch.autograd.gradcheck(column_scan, (c, e), **checks)
    (only,) = torch.autograd.grad(stein_matrix(a.detach(), c.detach(), e).sum(), e)
    torch.testing.assert_close(only, scan.stein_scan_adjoint(a, c, torch.ones_like(e)).detach())


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("m", "n"), [(4, 4), (3, 5)])
def test_a_stack_beyond_a_grid_goes_in_parts(monkeypatch: pytest.MonkeyPatch, m: int, n: int) -> None:
    a, c, e, D = operands(m, n, 0, R=5)
    whole = scan.stein_scan(a, c, e), *scan.stein_scan_gradients(a, c, e, D)
    monkeypatch.setattr(scan_kernels, "_MOST", 2)
    assert len(scan_kernels.parts(e)) == 3
    for ours, theirs in zip(
        (scan.stein_scan(a, c, e), *scan.stein_scan_gradients(a, c, e, D)), whole, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.usefixtures("kernels")
def test_what_is_too_large_is_said() -> None:
    e = torch.zeros(1, dtype=torch.float64).expand(65536, 1, 1)
    with pytest.raises(ValueError, match="65536 matrices of 1 x 1 are too many"):
        scan_kernels.launch("sums", scan_kernels.Form(), e, [])


# As differentiable functions.


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 3), (3, 5), (5, 3)])
def test_derivatives_of_any_order(m: int, n: int) -> None:
    a, c, e, _ = (t.requires_grad_() for t in operands(m, n, 1))
    assert torch.autograd.gradcheck(stein_matrix, (a, c, e), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(stein_matrix, (a, c, e))


@pytest.mark.parametrize(("m", "n"), [(4, 4), (3, 5), (6, 2)])
def test_columns_and_their_derivatives(m: int, n: int) -> None:
    _, nodes, e, _ = operands(m, n, 2)
    X = column_scan(nodes, e)
    for i in range(m):
        expected = sum(nodes ** (i - j) * e[:, j] for j in range(i + 1))
        torch.testing.assert_close(X[:, i], expected)
    inputs = nodes.requires_grad_(), e.requires_grad_()
    assert torch.autograd.gradcheck(column_scan, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(column_scan, inputs)


def test_vmap_makes_one_stack_of_all() -> None:
    a, c, e, _ = operands(3, 5, 3, R=4)
    cut = lambda t: t.unflatten(0, (2, 2))
    together = torch.vmap(stein_matrix)(cut(a), cut(c), cut(e))
    torch.testing.assert_close(together.flatten(0, 1), stein_matrix(a, c, e))
    shared = torch.vmap(stein_matrix, in_dims=(None, None, 0))(a[:2], c[:2], cut(e))
    torch.testing.assert_close(shared[1], stein_matrix(a[:2], c[:2], e[2:]))
