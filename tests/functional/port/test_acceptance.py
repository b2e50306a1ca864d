"""What `judge` accepts is within its bound, for every input that a search comes up with.

The search goes over profiles of the subdiagonals, over what else the operators have, over start vectors, and
for each accepted pair over inputs: every unit vector, the inputs that the error likes best, and random ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from torchldr.functional.port import acceptance
from torchldr.functional.port.acceptance import judge, tolerance
from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.functional.tridiagonal import Operator

pytestmark = pytest.mark.usefixtures("small_leaves")

Draw = Callable[[int, torch.Generator], Tensor]


def _steps(n: int, share: float, parts: int = 2) -> Tensor:
    """Factors 1 + share and its inverse in turn."""
    rising = torch.arange(n) * parts // n % 2 == 0
    return torch.where(rising, 1 + share, 1 / (1 + share)).double()


def _spiked(n: int, factor: float) -> Tensor:
    s = torch.ones(n, dtype=torch.float64)
    s[n // 3], s[2 * n // 3] = factor, 1 / factor
    return s


def _walk(n: int, g: torch.Generator, size: float) -> Tensor:
    """The logarithms of the factors' products walk at random."""
    return (size * torch.randn(n, generator=g, dtype=torch.float64)).exp()


def _sine(n: int, size: float, waves: int = 1) -> Tensor:
    return (size * (2 * math.pi * waves * torch.arange(n, dtype=torch.float64) / n).sin()).exp()


PROFILES: dict[str, Draw] = {
    "ones": lambda n, g: torch.ones(n, dtype=torch.float64),
    "steps": lambda n, g: _steps(n, 0.01),
    "large steps": lambda n, g: _steps(n, 0.1),
    "many steps": lambda n, g: _steps(n, 0.05, 16),
    "sine": lambda n, g: _sine(n, 0.01),
    "large sine": lambda n, g: _sine(n, 0.1),
    "fast sine": lambda n, g: _sine(n, 0.2, 7),
    "spike": lambda n, g: _spiked(n, 100.0),
    "large spike": lambda n, g: _spiked(n, 1e12),
    "walk": lambda n, g: _walk(n, g, 0.05),
    "long walk": lambda n, g: _walk(n, g, 0.5),
    "alternating": lambda n, g: torch.where(torch.arange(n) % 2 == 0, 1.0, -1.0).double(),
    "alternating sizes": lambda n, g: torch.where(torch.arange(n) % 2 == 0, 2.0, 0.5).double(),
    "decaying": lambda n, g: torch.full((n,), 0.9, dtype=torch.float64),
    "growing": lambda n, g: torch.full((n,), 1.05, dtype=torch.float64),
    "gaps": lambda n, g: (torch.arange(n) % 97 != 5).double(),
    "uniform": lambda n, g: 1 + 0.05 * (2 * torch.rand(n, generator=g, dtype=torch.float64) - 1),
    "normal": lambda n, g: 1 + 0.05 * torch.randn(n, generator=g, dtype=torch.float64),
}
OTHERS: dict[str, Draw] = {  # diagonals and superdiagonals
    "none": lambda n, g: torch.zeros(n, dtype=torch.float64),
    "small": lambda n, g: 0.05 * (2 * torch.rand(n, generator=g, dtype=torch.float64) - 1),
    "normal": lambda n, g: 0.1 * torch.randn(n, generator=g, dtype=torch.float64),
    "positive": lambda n, g: torch.full((n,), 0.2, dtype=torch.float64),
}
STARTS: dict[str, Draw] = {
    "unit": lambda n, g: torch.eye(n, dtype=torch.float64)[0],
    "middle": lambda n, g: torch.eye(n, dtype=torch.float64)[n // 2],
    "random": lambda n, g: torch.randn(n, generator=g, dtype=torch.float64),
    "sparse": lambda n, g: torch.randn(n, generator=g, dtype=torch.float64) * (torch.arange(n) % 61 == 3),
    "tiny and large": lambda n, g: 10.0 ** (12 * torch.rand(n, generator=g, dtype=torch.float64) - 6),
}


def pair(
    profile: str, other: str, start: str, n: int, opposing: bool, corners: float, seed: int
) -> list[Operator]:
    """Two operators of float32 numbers; if opposing, the second subdiagonal is the inverse of the first."""
    g = torch.Generator().manual_seed(seed)
    found: list[Operator] = []
    for _ in range(2):
        lower, diagonal, upper = PROFILES[profile](n, g), OTHERS[other](n, g), OTHERS[other](n, g)
        if opposing and found:
            lower = torch.where(found[0][0] == 0, 1, 1 / found[0][0])
        V = torch.stack([STARTS[start](n, g) for _ in range(1 + seed % 2)])
        parts = (x.float().double() for x in (lower, diagonal, upper, V))
        found.append(tuple(parts))  # type: ignore[arg-type]
    for lower, _, upper, _ in found:
        lower[0] = upper[-1] = corners
    return found


def excess(A: Operator, C: Operator) -> float | None:
    """The largest error of an accepted product over its bound, for inputs searched for; None if refused."""
    verdict = judge(A, C)
    if verdict.ports is None:
        assert verdict.reason
        return None
    m, n = A[3].shape[-1], C[3].shape[-1]
    assert verdict.bound <= acceptance.CERTAIN * tolerance(max(m, n))
    assert verdict.found <= tolerance(max(m, n))
    k = min(m, n)
    left, right = krylov_of_ring_reference(*A, k), krylov_of_ring_reference(*C, k).mT
    M, S = (left @ right).sum(0), (left.abs() @ right.abs()).sum(0)
    wide = lambda x: verdict.ports.of_scaled(torch.where(verdict.ports._seen, x * verdict.ports._sizes, 0))
    units = torch.eye(n, dtype=torch.float64)
    error = wide(units).mT - M
    sizes = S.norm(dim=0).clamp(min=1e-300)
    _, _, right = torch.linalg.svd(error / sizes, full_matrices=False)
    worst = error.abs().amax(1).topk(8).indices
    inputs = torch.cat(
        (
            units,
            right[:8] / sizes,  # what the error amplifies most for its size
            error[worst].sign() / sizes,
            error[worst].sign(),
            torch.randn(8, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
            torch.randn(8, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / sizes,
        )
    )
    off = (wide(inputs) - inputs @ M.mT).abs().amax(-1)
    size = (inputs.abs() @ S.mT).amax(-1)
    return float(torch.where(off == 0, 0, off / (verdict.bound * size)).max())


def search(n: int, first: int, step: int) -> Iterator[tuple[tuple[object, ...], float | None]]:
    """Every so-manieth combination, each with a seed of its own from the first on."""
    every = list(itertools.product(PROFILES, OTHERS, STARTS, (False, True), (0.0, 0.3, 1.0)))
    for seed, case in enumerate(every[::step], first):
        profile, other, start, opposing, corners = case
        yield (*case, seed), excess(*pair(profile, other, start, n, opposing, corners, seed))


@pytest.mark.parametrize("start", STARTS)
def test_a_search_finds_no_accepted_product_beyond_its_bound(start: str) -> None:
    """Some of the combinations; run the file as a program for all."""
    accepted = total = 0
    for index, case in enumerate(itertools.product(PROFILES, OTHERS, (False, True), (0.0, 0.3))):
        if index % 79 != len(start):
            continue
        profile, other, opposing, corners = case
        found = excess(*pair(profile, other, start, 256, opposing, corners, index))
        total += 1
        if found is not None:
            accepted += 1
            assert found <= 1, (start, *case, index)
    assert accepted >= total // 4


def test_what_is_accepted_and_what_is_not() -> None:
    """Near shifts as they come, and operators whose errors cannot be bounded."""
    for profile in ("ones", "steps", "sine", "walk", "decaying", "growing", "uniform", "normal"):
        assert judge(*pair(profile, "small", "random", 512, False, 0.0, 1)).ports is not None, profile
    refused = judge(*pair("large steps", "none", "unit", 1024, True, 0.0, 0))
    assert refused.ports is None
    assert "|factors||x|" in refused.reason
    half = torch.full((300,), 0.5, dtype=torch.float64)
    ringing = half, torch.zeros_like(half), half, torch.ones(1, 300, dtype=torch.float64)
    assert judge(ringing, ringing, (2, 4)).ports is None


def test_verdicts_of_zero_and_of_what_overflows() -> None:
    A, C = pair("ones", "small", "random", 100, False, 0.0, 0)
    zero = (*C[:3], torch.zeros_like(C[3]))
    assert judge(A, zero).reason == "the matrix is zero"
    huge = tuple(1e3 * x for x in C[:3])
    assert "range of float64" in judge(A, (*huge, C[3])).reason
    assert judge(A, (*C[:3], C[3] * math.nan)).ports is None


def test_entries_of_an_input_that_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of the matrix that are zero: even infinities there change nothing."""
    A, C = pair("ones", "none", "middle", 256, False, 0.0, 0)
    ports = judge(A, C).ports
    assert ports is not None
    x = torch.randn(2, 256)
    y = ports(x)
    x[:, :128] = math.inf
    assert torch.equal(ports(x), y)


def test_the_same_operators_are_judged_alike() -> None:
    A, C = pair("uniform", "normal", "random", 300, False, 0.0, 0)
    assert judge(A, C).bound == judge(A, C).bound
    assert acceptance.fingerprint(*A) != acceptance.fingerprint(*A[:3], A[3] + 1e-15)


def test_rectangular_and_other_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without compiled loops the verdict is the same one to some digits."""
    A, _ = pair("uniform", "small", "random", 300, False, 0.0, 2)
    _, C = pair("uniform", "small", "random", 180, False, 0.3, 2)
    for left, right in ((A, C), (C, A)):
        assert (found := excess(left, right)) is not None
        assert found <= 1
    before = judge(A, C)
    monkeypatch.setattr(acceptance.stencil, "serves", lambda *tensors: False)
    after = judge(A, C)
    assert after.ports is not None
    assert abs(math.log(after.bound / before.bound)) < 0.1


if __name__ == "__main__":
    import sys

    size, start_seed, step = (int(argument) for argument in sys.argv[1:4])
    worst, count = 0.0, [0, 0]
    for case, ratio in search(size, start_seed, step):
        count[ratio is not None] += 1
        if ratio is not None and ratio > worst:
            worst = ratio
            print(size, *case, ratio, flush=True)
    print("refused, accepted", count, "largest error over bound", worst)
