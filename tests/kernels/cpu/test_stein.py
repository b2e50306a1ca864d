"""The C scan against its definition in float64, in all regimes of operators."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from torchldr.functional.doubling import shifted_sum
from torchldr.kernels.cpu import library, stein, threads

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

SIZES = [(1, 1, 1), (1, 1, 5), (2, 2, 7), (1, 7, 7), (3, 16, 37), (5, 33, 40), (1, 64, 64), (2, 61, 130)]


def normal(size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64)


def ones(size: int) -> Tensor:
    return torch.ones(size, dtype=torch.float64)


def halves(factor: float, size: int) -> Tensor:
    return torch.cat((ones(size // 2) * factor, ones(size - size // 2) / factor))


def with_zero(values: Tensor) -> Tensor:
    values[len(values) // 3] = 0
    return values


# The weights of A and of C, m and n of them, corners first.
REGIMES = {
    "ones": lambda m, n: (ones(m), ones(n)),
    "near one": lambda m, n: (1 + 0.01 * normal(m), 1 + 0.01 * normal(n)),
    "around one": lambda m, n: (1 + 0.1 * normal(m), 1 + 0.1 * normal(n)),
    "uniform": lambda m, n: (0.5 + torch.rand(m).double(), 0.5 + torch.rand(n).double()),
    "normal": lambda m, n: (normal(m), normal(n)),
    "signs": lambda m, n: (normal(m).sign(), normal(n).sign()),
    "shrinking": lambda m, n: (0.8 * ones(m), 0.99 * ones(n)),
    "growing": lambda m, n: (1.01 * ones(m), 1.005 * ones(n)),
    "tiny": lambda m, n: (1e-6 * ones(m), 0.3 * ones(n)),
    "flat": lambda m, n: (1.5 * ones(m), ones(n) / 1.5),
    "opposing": lambda m, n: (halves(1.05, m), halves(1 / 1.05, n)),
    "a zero": lambda m, n: (with_zero(0.5 + torch.rand(m).double()), 0.5 + torch.rand(n).double()),
    "zeros": lambda m, n: (with_zero(1 + 0.1 * normal(m)), with_zero(1 + 0.1 * normal(n))),
}
CORNERS = {
    "none": (0.0, 0.0),
    "of A": (0.4, 0.0),
    "of C": (0.0, -0.7),
    "both": (0.4, -0.7),
    "heavy": (0.9, -0.9),
    "heavier": (0.85, 0.85),
    "near one": (0.99, 0.99),
    "over one": (-1.9, 2.0),
    "as they are": (None, None),
}


def operands(
    regime: str, corners: str, r: int, m: int, n: int, dtype: torch.dtype, R: int = 1
) -> list[Tensor]:
    """G, H, a, c and D, rounded to the dtype."""
    pairs = [REGIMES[regime](m, n) for _ in range(R)]
    a, c = torch.stack([a for a, _ in pairs]), torch.stack([c for _, c in pairs])
    for weights, corner in zip((a, c), CORNERS[corners], strict=True):
        if corner is not None:
            weights[:, 0] = corner
    G, H = normal(R * r * m).view(R, r, m), normal(R * r * n).view(R, r, n)
    return [t.to(dtype) for t in (G, H, a, c, normal(R * m * n).view(R, m, n))]


def parts(a: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.contiguous() for t in (a[:, :1], a[:, 1:], c[:, :1], c[:, 1:]))


def defined(tensors: list[Tensor]) -> list[Tensor]:
    """The matrix and the gradients of sum(D * M) in G, H, a and c, by the definition in float64."""
    *given, D = (t.double() for t in tensors)
    G, H, a, c = (t.requires_grad_() for t in given)
    M = shifted_sum(G.mT @ H, a, c, G.shape[-1])
    found = torch.autograd.grad((D * M).sum(), (G, H, a, c), allow_unused=True)
    zeros = (torch.zeros_like(t) for t in given)
    return [M.detach(), *(z if t is None else t for t, z in zip(found, zeros, strict=True))]


def hold(found: list[Tensor], tensors: list[Tensor]) -> None:
    """Each number within the rounding of sums of products as large as those of absolute values."""
    right, size = defined(tensors), defined([t.abs() for t in tensors])
    r, (m, n) = tensors[0].shape[1], tensors[-1].shape[-2:]
    unit = 4 * (m + n + r) * torch.finfo(tensors[0].dtype).eps
    for got, wanted, bound in zip(found, right, size, strict=True):
        assert torch.isfinite(got).all()
        assert ((got.double() - wanted).abs() <= unit * bound + 1e-37).all()


def by_kernels(tensors: list[Tensor]) -> list[Tensor]:
    G, H, a, c, D = tensors
    M = stein.fill(G, H, *parts(a, c))
    dG, dH, *operators = stein.gradients(D, M, G, H, *parts(a, c), True)
    a0, a1, c0, c1 = (t for t in operators if t is not None)
    return [M, dG, dH, torch.cat((a0, a1), 1), torch.cat((c0, c1), 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("corners", CORNERS)
@pytest.mark.parametrize("regime", REGIMES)
def test_matrix_and_gradients(regime: str, corners: str, dtype: torch.dtype) -> None:
    for seed, (r, m, n) in enumerate(SIZES):
        torch.manual_seed(seed)
        tensors = operands(regime, corners, r, m, n, dtype)
        hold(by_kernels(tensors), tensors)


@pytest.mark.parametrize("regime", ["ones", "around one", "growing", "flat", "normal"])
def test_without_gradients_of_operators(regime: str) -> None:
    for (r, m, n), corners in product(SIZES, CORNERS):
        torch.manual_seed(m + n)
        tensors = operands(regime, corners, r, m, n, torch.float32)
        G, H, a, c, D = tensors
        M = stein.fill(G, H, *parts(a, c))
        dG, dH, *none = stein.gradients(D, M, G, H, *parts(a, c), False)
        assert none == [None] * 4
        *_, da, dc = defined(tensors)
        hold([M, dG, dH, da, dc], tensors)


@pytest.mark.parametrize("corner_a", [1, -1, 0])
@pytest.mark.parametrize("corner_c", [1, -1, 0])
@pytest.mark.parametrize("size", SIZES)
def test_shifts(size: tuple[int, int, int], corner_c: int, corner_a: int) -> None:
    r, m, n = size
    tensors = operands("ones", "none", r, m, n, torch.float32, R=2)
    G, H, a, c, D = tensors
    a[:, 0], c[:, 0] = corner_a, corner_c
    M = stein.fill(G, H, corner_a, None, corner_c, None)
    dG, dH, *none = stein.gradients(D, M, G, H, corner_a, None, corner_c, None, True)
    assert none == [None] * 4
    *_, da, dc = defined(tensors)
    hold([M, dG, dH, da, dc], tensors)


def test_factors_far_outside_of_the_range() -> None:
    """1.5^1024."""
    tensors = operands("flat", "both", 1, 1000, 1024, torch.float32)
    hold(by_kernels(tensors), tensors)


def test_a_small_step_beside_large_corners() -> None:
    """A path around weighs little, and without that step very much."""
    tensors = operands("tiny", "none", 1, 2, 2, torch.float32)
    for weights in tensors[2:4]:
        weights[:, 0] = 900.0
    hold(by_kernels(tensors), tensors)


@pytest.mark.parametrize("regime", ["near one", "around one", "growing"])
@pytest.mark.parametrize("corners", ["of C", "both"])
def test_larger(regime: str, corners: str) -> None:
    tensors = operands(regime, corners, 1, 250, 272, torch.float32)
    hold(by_kernels(tensors), tensors)


@pytest.mark.parametrize("rank", [1, 2, 3, 8, 64])
def test_ranks_and_stacks(rank: int) -> None:
    tensors = operands("near one", "both", rank, 48, 50, torch.float32, R=3)
    hold(by_kernels(tensors), tensors)


@pytest.mark.parametrize("corners", ["none", "both"])
@pytest.mark.parametrize("regime", ["near one", "growing"])
@pytest.mark.parametrize("R", [1, 3, 5])
def test_threads(R: int, regime: str, corners: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stein, "_WORTHWHILE", 1)
    monkeypatch.setattr(threads, "WORTHWHILE", 1)
    tensors = operands(regime, corners, 2, 207, 260, torch.float32, R)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert stein._bands(R, 260, 10) == {1: 4, 3: 2, 5: 0}[R]
        hold(by_kernels(tensors), tensors)
    finally:
        torch.set_num_threads(before)


def test_outputs_are_contiguous_with_storage_of_their_own() -> None:
    tensors = by_kernels(operands("near one", "both", 2, 9, 11, torch.float32))
    assert all(t.is_contiguous() and t.storage_offset() == 0 for t in tensors)
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)
