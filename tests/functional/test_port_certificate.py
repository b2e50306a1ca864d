"""The certificate of the port product: never exceeded, and finite where the product is right."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchldr.functional.port import observed_rmatmul, port_matmul
from torchldr.functional.port_certificate import certified_port_rmatmul, observed_columns
from torchldr.functional.reference import krylov_of_ring_reference

pytestmark = pytest.mark.usefixtures("small_leaves")

REGIMES = ("near shift", "raw shift", "uniform", "signs", "normal", "zeros", "drift", "growing")


def ring(regime: str, n: int, corners: bool, generator: torch.Generator) -> list[Tensor]:
    uniform = torch.rand(3, n, generator=generator, dtype=torch.float64)
    normal = torch.randn(3, n, generator=generator, dtype=torch.float64)
    shift = torch.stack((1 + 0.05 * normal[0], 0.1 * normal[1], 0.1 * normal[2]))
    share = torch.rand((), generator=generator, dtype=torch.float64) / 2
    A = {
        "near shift": shift,
        "raw shift": shift,
        "uniform": uniform,
        "signs": 2 * uniform - 1,
        "normal": normal,
        "zeros": normal * (uniform > 0.3),
        "drift": torch.stack((1 - share, 0 * share, share)).unsqueeze(1).expand(3, n).clone(),
        "growing": 0.8 * normal,
    }[regime]
    if regime not in ("raw shift", "growing"):
        A = A / A.abs().sum(0).max()
    if not corners:
        A[0, 0] = A[2, -1] = 0
    return list(A)


def measured(
    A: list[Tensor], V: Tensor, U: Tensor, k: int, c: int = 4
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The largest errors (b, r), their bound, its part without rounding, and the tails."""
    got, certificate = certified_port_rmatmul(*A, V, U, k, oversampling=c)
    exact = [x.double() for x in A]
    want = torch.stack([U.double() @ krylov_of_ring_reference(*exact, v.double(), k) for v in V], 1)
    errors = (got.double() - want).abs().amax(-1).nan_to_num(nan=math.inf)
    return errors, certificate.bound, certificate.truncation, certificate.tails


OPERATORS = 60  # of a case: 2880 in all


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("regime", REGIMES)
def test_no_column_is_further_off(regime: str, corners: bool) -> None:
    """All columns at once, as products with all unit vectors, of many operators at once.

    Where the series are at hand without noise, in float64, the part without rounding holds too, but for
    roundings of the size of the result. Finite for all that are bounded and forget: among zeros an index that
    is coupled to nothing may not, and a raw shift closed to a ring grows with every turn.
    """
    generator = torch.Generator().manual_seed(len(regime) + corners)
    cases = ((20, 45, 2, torch.float64), (50, 50, 2, torch.float64), (66, 40, 4, torch.float32))
    for n, k, c, dtype in cases:
        rings = torch.stack([torch.stack(ring(regime, n, corners, generator)) for _ in range(OPERATORS)])
        rings, units = rings.to(dtype), torch.eye(n, dtype=dtype)
        V = torch.randn(OPERATORS, n, generator=generator, dtype=dtype)

        def products(A: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            got, certificate = observed_columns(*A, v.unsqueeze(0), units, k, oversampling=c)  # noqa: B023
            return got[:, 0], certificate.bound, certificate.truncation

        def exact(A: Tensor, v: Tensor) -> Tensor:
            return krylov_of_ring_reference(A[0], A[1], A[2], v, k)  # noqa: B023

        got, bound, truncation = torch.vmap(products)(rings, V)
        want = torch.vmap(exact)(rings.double(), V.double())
        errors = (got.double() - want).norm(dim=1).amax(-1).nan_to_num(nan=math.inf)
        assert (errors <= bound[:, 0]).all(), (n, (errors / bound[:, 0]).max())
        assert (truncation <= bound).all()
        if dtype == torch.float64:
            rounding = 1e-12 * (want.abs().sum(1).amax(-1) + truncation[:, 0])
            grows = want.norm(dim=1).amax(-1) > 10 * V.norm(dim=-1)
            assert ((errors <= truncation[:, 0] + rounding) | grows).all(), (n, c)
        if regime not in ("drift", "growing") and not (regime == "raw shift" and corners):
            assert bound.isfinite().float().mean() >= (0.9 if regime == "zeros" else 1)


@pytest.mark.parametrize("regime", REGIMES)
def test_both_products_of_any_input(regime: str) -> None:
    """Six operators a case, larger ones, with inputs of their own."""
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        n = int(torch.randint(60, 200, (), generator=generator))
        c, k = (2, 4, 8)[seed % 3], max(1, (n, 2 * n, n, n // 2)[seed % 4])
        dtype = (torch.float64, torch.float32)[seed % 2]
        A = [x.to(dtype) for x in ring(regime, n, bool(seed & 4), generator)]
        V, U = torch.randn(2, 2, n, generator=generator, dtype=dtype)
        errors, bound, truncation, tails = measured(A, V, U, k, c)
        assert (errors <= bound).all(), (seed, n, k, errors / bound)
        assert (truncation <= bound).all()
        assert tails.shape == (max(0, math.ceil(math.log2(n / 32))) + 1,)
        w = torch.randn(1, 2, k, generator=generator, dtype=dtype)
        columns = observed_columns(*A, V, U, k, oversampling=c)[1]
        exact = [x.double() for x in A]
        want = sum(
            krylov_of_ring_reference(*exact, v.double(), k) @ x.double() for v, x in zip(V, w[0], strict=True)
        )
        error = (port_matmul(*A, V, w, oversampling=c)[0].double() - want).norm().nan_to_num(nan=math.inf)
        assert error <= (columns.bound * w[0].double().abs().sum(-1)).sum(), (seed, n, k)


@pytest.mark.parametrize("corner", [1.0, -1.0])
@pytest.mark.parametrize("n", [5, 64, 200])
def test_a_ring_without_loss(n: int, corner: float) -> None:
    lower, zeros = torch.ones(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    lower[0] = corner
    generator = torch.Generator().manual_seed(n)
    V, U = torch.randn(2, 2, n, generator=generator, dtype=torch.float64) / n**0.5
    errors, bound, _, tails = measured([lower, zeros, zeros], V, U, n)
    assert (errors <= bound).all()
    assert bound.max() < 1e-7
    assert tails.max() < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_symmetric_walk_is_told(dtype: torch.dtype) -> None:
    """It never forgets: the product is wrong, the tails are large and the bound is infinite."""
    n, generator = 200, torch.Generator().manual_seed(0)
    half, zeros = torch.full((n,), 0.5, dtype=dtype), torch.zeros(n, dtype=dtype)
    V, U = torch.randn(2, 1, n, generator=generator, dtype=dtype) / n**0.5
    errors, bound, truncation, tails = measured([half, zeros, half], V, U, n)
    assert errors.max() > 1e-4
    assert tails.max() > 0.1
    assert bound.isinf().all()
    assert truncation.isinf().all()


def test_oversampling_lowers_the_part_without_rounding() -> None:
    """Where truncation rules the error, the bound follows it down until rounding is left."""
    n, generator = 256, torch.Generator().manual_seed(1)
    lower, zeros = torch.full((n,), 0.8, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    upper = 1 - lower
    lower[0] = upper[-1] = 0
    V, U = torch.randn(2, 1, n, generator=generator, dtype=torch.float64) / n**0.5
    seen = [measured([lower, zeros, upper], V, U, n, c) for c in (2, 4, 8, 16)]
    truncations = [float(truncation) for _, _, truncation, _ in seen]
    assert all(errors <= bound for errors, bound, _, _ in seen)
    assert truncations == sorted(truncations, reverse=True)
    assert truncations[0] > 1e-9
    assert truncations[-1] < 1e-13
    assert float(seen[-1][3].max()) < 1e-10


def test_watching_changes_nothing_and_takes_no_gradient() -> None:
    generator = torch.Generator().manual_seed(2)
    A = ring("near shift", 100, True, generator)
    V, U = torch.randn(2, 2, 100, generator=generator, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (*A, V, U)]
    result, certificate = certified_port_rmatmul(*inputs, 100)
    assert torch.equal(result, observed_rmatmul(*inputs, 100, 4, None))
    assert result.requires_grad
    assert not any(x.requires_grad for x in certificate)


@pytest.mark.parametrize(("share", "c"), [(0.03, 2), (0.05, 2), (0.1, 2), (0.15, 4), (0.2, 4)])
def test_where_truncation_rules_the_bound_is_near(share: float, c: int) -> None:
    """Errors far above rounding: the part without rounding is above them, by a factor of 2000 at most."""
    n, generator = 256, torch.Generator().manual_seed(0)
    lower, zeros = torch.full((n,), 1 - share, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    upper = 1 - lower
    lower[0] = upper[-1] = 0
    V, units = torch.randn(1, n, generator=generator, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
    got, certificate = observed_columns(lower, zeros, upper, V, units, n, oversampling=c)
    error = (got[:, 0] - krylov_of_ring_reference(lower, zeros, upper, V[0], n)).norm(dim=0).max()
    assert error > 1e-12
    assert error <= certificate.truncation <= 2e3 * error


@pytest.mark.parametrize("strength", [0.9, 0.95])
@pytest.mark.parametrize(("n", "cut"), [(64, 32), (128, 32)])
def test_a_resonator_across_a_cut(n: int, cut: int, strength: float) -> None:
    """Two neighbours in different leaves ring on; the leaves alone forget at once: all is folding."""
    generator = torch.Generator().manual_seed(0)
    lower, zeros = torch.full((n,), 0.5, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    upper = zeros.clone()
    lower[0], lower[cut], upper[cut - 1] = 0, strength, strength
    V, units = torch.randn(1, n, generator=generator, dtype=torch.float64), torch.eye(n, dtype=torch.float64)
    got, certificate = observed_columns(lower, zeros, upper, V, units, 4 * n, oversampling=2)
    error = (got[:, 0] - krylov_of_ring_reference(lower, zeros, upper, V[0], 4 * n)).norm(dim=0).max()
    assert error > 1e-7
    assert error <= certificate.truncation <= 1e4 * error
