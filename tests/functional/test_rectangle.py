"""The matrix of a wide layer by recurrences, against its definition; the kernel run as plain C++."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchldr.experiments.stacked_rectangle import STRUCTURES, rectangle_product
from torchldr.functional import rectangle as rectangles
from torchldr.functional.reference import subdiagonal_reference
from torchldr.matrices import get_structure

EPS = torch.finfo(torch.float64).eps

sizes = st.integers(1, 9).flatmap(lambda m: st.tuples(st.just(m), st.integers(m, 14)))
seeds = st.integers(0, 2**32 - 1)


def operands(m: int, n: int, seed: int, R: int = 2) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    a, c = (torch.empty(R, k, dtype=torch.float64).normal_(generator=draw) for k in (m, n))
    a[torch.rand(a.shape, generator=draw) < 0.15] = 0  # corners and entries of 0 are like any other
    return a, c, torch.empty(R, m, n, dtype=torch.float64).normal_(generator=draw)


def reference(
    a: torch.Tensor, c: torch.Tensor, e: torch.Tensor, *, adjoint: bool
) -> tuple[torch.Tensor, ...]:
    """The sum over t, and the same of absolute values."""
    sums = []
    for absolute in (False, True):
        term = e.abs() if absolute else e
        A, C = (torch.stack([subdiagonal_reference(v[1:], v[0]) for v in vs]) for vs in (a, c))
        A, C = (A.abs(), C.abs()) if absolute else (A, C)
        total = torch.zeros_like(e)
        for _ in range(a.shape[-1]):
            total = total + term
            term = A.mT @ term @ C if adjoint else A @ term @ C.mT
        sums.append(total)
    return tuple(sums)


@given(size=sizes, seed=seeds)
@settings(deadline=None, max_examples=60)
def test_it_is_the_sum_of_powers(size: tuple[int, int], seed: int) -> None:
    m, n = size
    a, c, e = operands(m, n, seed)
    for adjoint, got in (
        (False, rectangles.rectangle(a, c, e)),
        (True, rectangles.rectangle_adjoint(a, c, e)),
    ):
        expected, magnitude = reference(a, c, e, adjoint=adjoint)
        # The terms that are taken away have gone around once: they may be larger than what is left.
        reach = 1 + (a.abs().amax(-1) * c.abs().amax(-1)).clamp(min=1).pow(2 * m).view(-1, 1, 1)
        assert ((got - expected).abs() <= 40 * m * EPS * magnitude.amax((1, 2), keepdim=True) * reach).all()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernel's source, its threads run one after the other."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder: Path = tmp_path_factory.mktemp("kernel")
    head = """
#define T double
#define __global__
struct Three { int x, y, z; };
static Three blockIdx, blockDim, threadIdx;
"""
    tail = """
extern "C" void run(const T* a, const T* c, const T* e, const T* q, const T* before, T* X,
                    int m, int n, int crossed, int back, int R) {
    blockDim.x = 4;
    for (blockIdx.y = 0; blockIdx.y < R; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x * 4 < n; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < 4; threadIdx.x++)
                rectangle(a, c, e, q, before, X, m, n, crossed, back);
}
"""
    file = folder / "kernel.cpp"
    file.write_text(head + rectangles.SOURCE + tail)
    library = folder / "kernel.so"
    subprocess.run(["g++", "-O1", "-w", "-shared", "-fPIC", str(file), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@given(size=sizes | st.sampled_from([(17, 17), (32, 33), (40, 41), (33, 70)]), seed=seeds, back=st.booleans())
@settings(deadline=None, max_examples=90)
def test_the_kernel_does_what_the_rows_do(
    compiled: ctypes.CDLL, size: tuple[int, int], seed: int, back: bool
) -> None:
    m, n = size
    a, c, e = operands(m, n, seed)
    q = (-a[:, 1:].prod(-1, keepdim=True) * rectangles.window_products(c, m)).contiguous()
    straight, crossing = torch.empty_like(e), torch.empty_like(e)

    def run(before: torch.Tensor, out: torch.Tensor, crossed: int) -> None:
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (a, c, e, q, before, out)]
        compiled.run(*pointers, m, n, crossed, int(back), len(a))

    run(e, straight, 0)
    run(straight, crossing, 1)
    expected = rectangles.rectangle_parts(a, c, e, back=back)
    torch.testing.assert_close(straight, expected.straight)
    torch.testing.assert_close(crossing, expected.crossing)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("m", "n"), [(4, 12), (6, 8), (5, 7), (8, 8), (1, 3)])
@pytest.mark.parametrize("shared", [False, True])
def test_products_and_gradients_are_those_of_the_class(structure: str, m: int, n: int, shared: bool) -> None:
    draw = torch.Generator().manual_seed(m + n)
    kind, R, b = get_structure(structure), 3, 5
    r = min(2, m)
    tensors = {
        name: torch.stack(
            [kind.random(m, n, r, dtype=torch.float64, generator=draw).tensors[name] for _ in range(R)]
        ).requires_grad_()
        for name in kind.parameter_shapes(m, n, r)
    }
    x = torch.randn(*((b, n) if shared else (R, b, n)), dtype=torch.float64, generator=draw).requires_grad_()
    u = torch.randn(R, b, m, dtype=torch.float64, generator=draw)
    leaves = [*tensors.values(), x]
    y = rectangle_product(structure, tensors, x)
    dense = torch.stack(
        [kind(m, n, **{name: t[i] for name, t in tensors.items()}).to_dense() for i in range(R)]
    )
    expected = x @ dense.mT
    torch.testing.assert_close(y, expected)
    got = torch.autograd.grad(y, leaves, u)
    # At m = 1 nothing moves and an operator has no gradient.
    wanted = torch.autograd.grad(expected, leaves, u, allow_unused=True)
    for name, ours, theirs in zip([*tensors, "x"], got, wanted, strict=True):
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        torch.testing.assert_close(
            ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )
