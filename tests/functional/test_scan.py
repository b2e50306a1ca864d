"""Matrices by recurrences along diagonals and their gradients, against the definition; kernels as C++."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr.experiments.stacked_scan import scan_product, serves
from torchldr.functional import scan
from torchldr.functional.reference import subdiagonal_reference
from torchldr.functional.scanned import column_scan, stein_matrix
from torchldr.matrices import get_structure

EPS = torch.finfo(torch.float64).eps

sizes = st.integers(1, 9).flatmap(lambda m: st.tuples(st.just(m), st.integers(m, 14)))
longer = st.sampled_from([(31, 31), (32, 33), (33, 33), (40, 65), (64, 64), (70, 100), (97, 97)])
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
#define __shared__ static
struct Three { int x, y, z; };
static Three blockIdx, threadIdx, gridDim;
"""
TAIL = """
#define EACH(threads, blocks, call) \
    gridDim.z = R; \
    for (blockIdx.z = 0; blockIdx.z < R; blockIdx.z++) \
        for (blockIdx.y = 0; blockIdx.y < (blocks); blockIdx.y++) \
            for (blockIdx.x = 0; blockIdx.x * (threads) < n; blockIdx.x++) \
                for (threadIdx.x = 0; threadIdx.x < (threads); threadIdx.x++) call;
extern "C" void matrix(T* a, T* c, T* e, T* sum, T* state, T* M, int m, int n, int S, int R, int back,
                       int straight) {
    EACH(THREADS, S, sums(a, c, e, e, sum, m, n, S, back, straight, 0))
    EACH(CHAIN_THREADS, 1, chain(sum, state, m, n, S, 0))
    EACH(THREADS, S, fill(a, c, e, state, M, m, n, S, back, straight))
}
extern "C" void derivative(T* a, T* c, T* e, T* D, T* sum, T* state, T* dw, T* dE, int m, int n, int S,
                           int R) {
    EACH(THREADS, S, sums(a, c, e, D, sum, m, n, S, 0, 0, 1))
    EACH(CHAIN_THREADS, 1, chain(sum, state, m, n, S, 1))
    EACH(GRADIENT_THREADS, S, gradients(a, c, e, D, state, dw, dE, m, n, S))
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[ctypes.CDLL]:
    """The kernels' source for others and for squares, their threads run one after the other."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder: Path = tmp_path_factory.mktemp("kernel")
    libraries = []
    for square in (False, True):
        file, library = folder / f"kernel{square}.cpp", folder / f"kernel{square}.so"
        file.write_text(HEAD + scan.source(torch.float64, square) + TAIL)
        subprocess.run(["g++", "-O1", "-w", "-shared", "-fPIC", str(file), "-o", str(library)], check=True)
        libraries.append(ctypes.CDLL(str(library)))
    return libraries


def run(kernels: object, *arguments: Tensor | int) -> None:
    values = [ctypes.c_void_p(t.data_ptr()) if isinstance(t, Tensor) else t for t in arguments]
    kernels(*values)  # type: ignore[operator]


def scratch(e: Tensor, *counts: int) -> list[Tensor]:
    R, _, n = e.shape
    return [torch.full((count, R, scan.segments(e), n), torch.nan, dtype=e.dtype) for count in counts]


@given(size=sizes | longer, seed=seeds, back=st.booleans())
@settings(deadline=None, max_examples=90)
def test_the_kernels_do_what_the_rows_do(
    compiled: list[ctypes.CDLL], size: tuple[int, int], seed: int, back: bool
) -> None:
    m, n = size
    a, c, e, D = operands(m, n, seed)
    M, dw, dE = (torch.full_like(e, torch.nan) for _ in range(3))
    S, kernels = scan.segments(e), compiled[m == n]
    run(kernels.matrix, a, c, e, *scratch(e, 2, 4), M, m, n, S, 2, int(back), 0)
    torch.testing.assert_close(M, scan._scan(a, c, e, back, False))
    run(kernels.derivative, a, c, e, D, *scratch(e, 4, 8), dw, dE, m, n, S, 2)
    for got, expected in zip((dw, dE), scan._plain_gradients(a, c, e, D), strict=True):
        torch.testing.assert_close(got, expected)


@given(n=st.sampled_from([1, 2, 7, 33, 70]), seed=seeds, back=st.booleans())
@settings(deadline=None, max_examples=20)
def test_columns_by_the_kernels(compiled: list[ctypes.CDLL], n: int, seed: int, back: bool) -> None:
    _, nodes, e, _ = operands(n, n, seed)
    a = torch.ones_like(nodes)
    a[:, 0] = 0
    M = torch.full_like(e, torch.nan)
    run(compiled[True].matrix, a, nodes, e, *scratch(e, 2, 4), M, n, n, scan.segments(e), 2, int(back), 1)
    torch.testing.assert_close(M, scan._scan(a, nodes, e, back, True))


# As differentiable functions.


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 3), (3, 5), (5, 3)])
def test_derivatives_of_any_order(m: int, n: int) -> None:
    a, c, e, _ = (t.requires_grad_() for t in operands(m, n, 1))
    assert torch.autograd.gradcheck(stein_matrix, (a, c, e), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(stein_matrix, (a, c, e))


def test_columns_and_their_derivatives() -> None:
    _, nodes, e, _ = operands(4, 4, 2)
    X = column_scan(nodes, e)
    for i in range(4):
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


@pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like", "hankel_like", "vandermonde_like"])
@pytest.mark.parametrize(("m", "n"), [(4, 12), (6, 8), (5, 7), (8, 8), (1, 3), (9, 4)])
@pytest.mark.parametrize("shared", [False, True])
def test_products_and_gradients_are_those_of_the_class(structure: str, m: int, n: int, shared: bool) -> None:
    if not serves(structure, (m, n)):
        assert m != n
        return
    draw = torch.Generator().manual_seed(m + n)
    kind, R, b = get_structure(structure), 3, 5
    r = min(2, m)
    members = [kind.random(m, n, r, dtype=torch.float64, generator=draw) for _ in range(R)]
    tensors = {
        name: torch.stack([M.tensors[name] for M in members]).requires_grad_() for name in members[0].tensors
    }
    x = torch.randn(*((b, n) if shared else (R, b, n)), dtype=torch.float64, generator=draw).requires_grad_()
    u = torch.randn(R, b, m, dtype=torch.float64, generator=draw)
    leaves = [*tensors.values(), x]
    y = scan_product(structure, tensors, x)
    dense = torch.stack(
        [
            kind.unchecked(m, n, {k: t[i] for k, t in tensors.items()}, M.options).to_dense()
            for i, M in enumerate(members)
        ]
    )
    expected = x @ dense.mT
    torch.testing.assert_close(y, expected)
    # At m = 1 nothing moves and an operator has no gradient.
    got, wanted = (
        torch.autograd.grad(out, leaves, u, allow_unused=True, materialize_grads=True)
        for out in (y, expected)
    )
    for name, ours, theirs in zip([*tensors, "x"], got, wanted, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )
