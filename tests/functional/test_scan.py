"""Matrices by recurrences along diagonals and their gradients, against the definition.

By the kernels of a GPU, which run as C++, and by C on a CPU; its own tests are those of `kernels/cpu`.
"""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr.functional import columns, scan, stein
from torchldr.functional.columns import column_scan
from torchldr.functional.reference import subdiagonal_reference
from torchldr.functional.stein import stein_matrix
from torchldr.kernels.cpu import library
from torchldr.kernels.cuda import scan as scan_kernels

from ..cuda_as_cpp import compiler

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


def operators(a: Tensor, c: Tensor) -> scan.Operators:
    return scan.Operators(a[:, :1], a[:, 1:], c[:, :1], c[:, 1:])


def factors(e: Tensor) -> tuple[Tensor, Tensor]:
    """G and H with E = G^T H, exactly."""
    return torch.eye(e.shape[-2], dtype=e.dtype).expand(len(e), -1, -1), e


def scanned(a: Tensor, c: Tensor, e: Tensor) -> Tensor:
    return matrix(a, c, *factors(e))


def adjoint_scanned(a: Tensor, c: Tensor, D: Tensor) -> Tensor:
    e = torch.zeros_like(D).requires_grad_()
    return torch.autograd.grad(scanned(a.detach(), c.detach(), e), e, D)[0]


def scan_gradients(a: Tensor, c: Tensor, e: Tensor, D: Tensor) -> tuple[Tensor, ...]:
    """In a, c and e."""
    leaves = [t.detach().clone().requires_grad_() for t in (a, c, e)]
    return torch.autograd.grad(scanned(*leaves), leaves, D)


def matrix(a: Tensor, c: Tensor, G: Tensor, H: Tensor) -> Tensor:
    """`stein_matrix` of weights in one."""
    return stein_matrix((a[:, :1], a[:, 1:]), (c[:, :1], c[:, 1:]), G, H)


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


@pytest.mark.usefixtures("each_way")
@given(size=sizes, seed=seeds)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_is_the_sum_of_powers(size: tuple[int, int], seed: int) -> None:
    m, n = size
    a, c, e, D = operands(m, n, seed)
    absolute = a.abs(), c.abs(), e.abs(), D.abs()
    for adjoint, got in ((False, scanned(a, c, e)), (True, adjoint_scanned(a, c, e))):
        magnitude = definition(*absolute[:3], adjoint=adjoint)
        assert_near(got, definition(a, c, e, adjoint=adjoint), magnitude, n)
    found = scan_gradients(a, c, e, D)
    for got, expected, magnitude in zip(found, gradients(a, c, e, D), gradients(*absolute), strict=True):
        assert_near(got, expected, magnitude, n)


# The kernels.

TAIL = """
#define RUN(name) extern "C" void run_##name( \\
    int gx, int gy, int gz, int threads, P* ka, P* a, P* kc, P* c, int fa, int fc, P* G, P* H, O* e, int r, \\
    O* D, O* M, P* weights, T* sum, T* state, T* rows, T* columns, int m, int n, int segments \\
) { \\
    run(gx, gy, gz, threads, [=] { name( \\
        ka, a, kc, c, fa, fc, G, H, e, r, D, M, weights, sum, state, rows, columns, m, n, segments); }); \\
}
RUN(sums) RUN(chain) RUN(fill) RUN(gradients) RUN(totals)
"""
NUMBERS = 4, 5, 9, 17, 18, 19  # among the arguments; the others are addresses


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ctypes.CDLL]:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return compiler(tmp_path_factory.mktemp("kernels"), TAIL)


@pytest.fixture
def kernels(compiled: Callable[[str], ctypes.CDLL], monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything goes through the kernels, as plain C++, with blocks of a few threads."""

    class Kernels(scan_kernels.nvrtc.Kernels):
        def queue(self, device: object, arguments: list) -> None:
            values = []
            for place, value in enumerate(arguments):
                if isinstance(value, Tensor):
                    assert value.is_contiguous()
                    value = value.data_ptr()
                values.append(value if place in NUMBERS else ctypes.c_void_p(value))
            for name, grid, threads in self._launches:
                getattr(compiled(self._source), f"run_{name}")(*grid, threads, *values)

    def kernel(G: Tensor, H: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        *operators, f_A, f_C, dtype = rest
        return (scan.stein_scan(stein._operators(operators, f_A, f_C), G, H, dtype),)

    def gradient(D: Tensor, arguments: Any, saved: Any, wanted: Any) -> list[Tensor | None]:
        G, H, *operators, f_A, f_C, _ = arguments
        return stein._gradient_on_gpu(D, G, H, stein._operators(operators, f_A, f_C), wanted)

    monkeypatch.setattr(stein.STEIN, "_serves", lambda *given: True)
    monkeypatch.setattr(stein.STEIN, "_kernel", kernel)
    monkeypatch.setattr(stein.STEIN, "_gradient_kernel", gradient)
    monkeypatch.setattr(scan, "serves", lambda *tensors: True)
    monkeypatch.setattr(scan, "passes", scan_kernels.passes.__wrapped__)
    monkeypatch.setattr(scan_kernels, "THREADS", 32)
    monkeypatch.setattr(scan_kernels, "CHAIN_THREADS", 8)
    monkeypatch.setattr(scan_kernels, "ENTRIES", 4)
    monkeypatch.setattr(scan_kernels, "source", scan_kernels.source.__wrapped__)
    monkeypatch.setattr(scan_kernels.nvrtc, "Kernels", Kernels)


@pytest.fixture(params=["kernels", "loops", "plain"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernels":
        request.getfixturevalue("kernels")
    elif request.param == "plain":
        monkeypatch.setattr(stein.STEIN, "_serves", lambda *given: False)
        monkeypatch.setattr(columns.COLUMNS, "_serves", lambda *given: False)
    elif library.why_not():
        pytest.skip(library.why_not())


SHAPES = [(1, 1), (1, 5), (2, 2), (3, 7), (9, 9), (16, 16), (17, 33), (33, 33), (20, 50)]


@pytest.mark.parametrize(("m", "n"), SHAPES)
@pytest.mark.parametrize("R", [0, 2])
@pytest.mark.usefixtures("each_way")
def test_shapes_and_strides(m: int, n: int, R: int) -> None:
    a, c, e, D = operands(m, n, seed=m + n, R=R)
    e, D = e.mT.contiguous().mT, D.mT.contiguous().mT  # as they may come
    if R == 0:
        assert scanned(a, c, e).shape == adjoint_scanned(a, c, D).shape == e.shape
        assert [t.shape for t in scan_gradients(a, c, e, D)] == [a.shape, c.shape, e.shape]
        return
    torch.testing.assert_close(scanned(a, c, e), definition(a, c, e))
    torch.testing.assert_close(adjoint_scanned(a, c, D), definition(a, c, D, adjoint=True))
    torch.testing.assert_close(scan_gradients(a, c, e, D), gradients(a, c, e, D))


def profiles(n: int) -> list[Tensor]:
    """Weights that grow, shrink, do one and then the other, jump, or are 0 at a place or in the corner."""
    ones, half = torch.ones(n, dtype=torch.float64), n // 2
    turning = torch.cat((1.5 * ones[:half], ones[half:] / 1.5))
    jump, broken, open_ring = ones.clone(), 1.5 * ones, 1.5 * ones
    jump[n // 3], jump[2 * n // 3], broken[half], open_ring[0] = 1e15, 1e-15, 0, 0
    return [1.5 * ones, ones / 1.5, turning, turning.flip(0), jump, jump.flip(0), broken, open_ring]


@pytest.mark.usefixtures("each_way")
def test_float32_in_every_profile_of_both_operators() -> None:
    a, c = map(torch.stack, zip(*product(profiles(20), profiles(20)), strict=True))
    e, D = torch.randn(2, len(a), 20, 20, dtype=torch.float64)
    narrow = [t.float() for t in (a, c, e, D)]
    wide, absolute = [t.double() for t in narrow], [t.double().abs() for t in narrow]
    found = scanned(*narrow[:3]), *scan_gradients(*narrow)
    exact = definition(*wide[:3]), *gradients(*wide)
    magnitudes = definition(*absolute[:3]), *gradients(*absolute)
    for got, right, magnitude in zip(found, exact, magnitudes, strict=True):
        held = magnitude < 1e37
        assert ((got - right).abs() <= 1e-4 * magnitude + 1e-37)[held].all()


@pytest.mark.parametrize("threads", [32, 128])
@pytest.mark.parametrize(("m", "n"), [(150, 150), (20, 140)])
@pytest.mark.usefixtures("kernels")
def test_blocks_of_any_size(m: int, n: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """128 is what a GPU gets."""
    monkeypatch.setattr(scan_kernels, "THREADS", threads)
    a, c, e, D = operands(m, n, seed=m, R=1)
    a, c = a.clamp(-1, 1), c.clamp(-1, 1)
    torch.testing.assert_close(adjoint_scanned(a, c, D), definition(a, c, D, adjoint=True))
    exact = gradients(a, c, e, D)
    torch.testing.assert_close(scan_gradients(a, c, e, D), exact)
    narrow = scan_gradients(*(t.float() for t in (a, c, e, D)))
    torch.testing.assert_close(narrow, tuple(t.float() for t in exact), rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("kernels")
def test_shifts_ranks_and_bfloat16_by_the_kernels() -> None:
    shift = scan.Operators(1, None, -1, None)
    G, H, D = (torch.randn(2, *shape) for shape in ((19, 35), (19, 40), (35, 40)))
    a, c = torch.ones(2, 35), torch.ones(2, 40)
    c[:, 0] = -1

    def near(got: Tensor, exact: Tensor) -> None:
        # A number between two of bfloat16 may go to either, and G and H are rounded to it.
        torch.testing.assert_close(got.double(), exact, rtol=1e-2, atol=1e-3 * exact.abs().max().item())

    wide = [t.double() for t in (a, c)]
    near(scan.stein_scan(shift, G, H, torch.bfloat16), definition(*wide, G.double().mT @ H.double()))
    narrow = G.bfloat16(), H.bfloat16()
    near(scan.stein_scan(shift, *narrow), definition(*wide, narrow[0].double().mT @ narrow[1].double()))
    target = D.bfloat16()
    near(scan.stein_scan_adjoint(shift, target), definition(*wide, target.double(), adjoint=True))
    found = scan.stein_scan_gradients(shift, G, H, target)
    da, dc, dE = gradients(*wide, G.double().mT @ H.double(), target.double())
    near(torch.cat(found.of[:2], -1), da)
    near(torch.cat(found.of[2:], -1), dc)
    near(found.e, dE)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 7), (40, 33), (33, 40)])
@pytest.mark.usefixtures("kernels")
def test_columns_by_the_kernels(m: int, n: int) -> None:
    _, _, e, _ = operands(m, n, seed=m)
    nodes = torch.rand(1, n, dtype=torch.float64).expand(2, n)
    X = [e[:, 0]]
    for row in e.unbind(1)[1:]:
        X.append(nodes * X[-1] + row)
    torch.testing.assert_close(scan.column_scan(nodes, e), torch.stack(X, 1))
    back = scan.column_scan(nodes, e.flip(1)).flip(1)
    torch.testing.assert_close(scan.column_scan_adjoint(nodes, e), back)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("m", "n"), [(33, 33), (20, 40)])
def test_sums_along_diagonals(m: int, n: int) -> None:
    D = torch.randn(2, m, n, dtype=torch.float64)
    expected = sum(D[:, i].roll(-i, -1) for i in range(m))
    torch.testing.assert_close(scan.diagonal_sums(D), expected)


@pytest.mark.usefixtures("each_way")
def test_what_autograd_may_ask() -> None:
    a, c, _, _ = operands(3, 5, 1)
    G, H = torch.randn(2, 2, 3, dtype=torch.float64), torch.randn(2, 2, 5, dtype=torch.float64)
    inputs = tuple(t.requires_grad_() for t in (a, c, G, H))
    assert torch.autograd.gradcheck(matrix, inputs, check_forward_ad=True, check_batched_grad=True)
    E = (G.detach().mT @ H.detach()).requires_grad_()
    assert torch.autograd.gradcheck(column_scan, (c, E), check_forward_ad=True, check_batched_grad=True)
    M = matrix(a.detach(), c.detach(), G, H)
    found = torch.autograd.grad(M.sum(), (G, H))
    dE = adjoint_scanned(a, c, torch.ones_like(E)).detach()
    torch.testing.assert_close(found, (H @ dE.mT, G @ dE))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("m", "n"), [(4, 4), (3, 5)])
def test_a_stack_beyond_a_grid_goes_in_parts(monkeypatch: pytest.MonkeyPatch, m: int, n: int) -> None:
    a, c, e, D = operands(m, n, 0, R=5)
    whole = scanned(a, c, e), *scan_gradients(a, c, e, D)
    for module in (scan, scan_kernels):
        monkeypatch.setattr(module, "MOST", 2)
    assert len(scan_kernels.parts(5)) == 3
    for ours, theirs in zip((scanned(a, c, e), *scan_gradients(a, c, e, D)), whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.usefixtures("kernels")
def test_what_is_too_large_is_said() -> None:
    with pytest.raises(ValueError, match="65536 matrices of 1 x 1 are too many"):
        scan_kernels.passes(scan_kernels.Form(), 65536, 1, 1)


# As differentiable functions.


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 3), (3, 5), (5, 3)])
def test_derivatives_of_any_order(m: int, n: int) -> None:
    a, c, _, _ = operands(m, n, 1)
    G, H = torch.randn(2, 1, m, dtype=torch.float64), torch.randn(2, 1, n, dtype=torch.float64)
    inputs = tuple(t.requires_grad_() for t in (a, c, G, H))
    assert torch.autograd.gradcheck(matrix, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(matrix, inputs)


@pytest.mark.usefixtures("each_way")
def test_derivatives_of_shifts() -> None:
    G, H = (torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (4, 3))
    shifts = partial(stein_matrix, (1, None), (-1, None))
    assert torch.autograd.gradcheck(shifts, (G, H), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(shifts, (G, H))


@pytest.mark.usefixtures("kernels")
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


@pytest.mark.usefixtures("each_way")
def test_vmap_makes_one_stack_of_all() -> None:
    a, c, e, _ = operands(3, 5, 3, R=4)
    G, H = factors(e)
    cut = lambda t: t.unflatten(0, (2, 2))
    together = torch.vmap(matrix)(cut(a), cut(c), cut(G), cut(H))
    torch.testing.assert_close(together.flatten(0, 1), matrix(a, c, G, H))
    shared = torch.vmap(matrix, in_dims=(None, None, None, 0))(a[:2], c[:2], G[:2], cut(H))
    torch.testing.assert_close(shared[1], matrix(a[:2], c[:2], G[:2], H[2:]))
    shifts = partial(stein_matrix, (1, None), (-1, None))
    torch.testing.assert_close(torch.vmap(shifts)(cut(G), cut(H)).flatten(0, 1), shifts(G, H))
