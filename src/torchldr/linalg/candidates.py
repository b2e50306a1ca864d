"""The solvers for each map, in the order in which they are tried.

    class                      by
    circulant, ACDC, ..        a formula of its inverse
    LDR-SD, r = 1              its two Krylov factors: triangular where the operator is nilpotent
    Toeplitz, Hankel           conjugate residuals, if they converge
    Toeplitz- .. Cauchy-like   GKO; also LDR-SD, if its scales stay within a range
    compositions, inverses     their parts
    others with Z-like operators  GKO, by the generators from the closure rules
    everything                 GMRES or the dense matrix: `general`

On a GPU the dense matrix comes before GKO and GMRES, whose steps are too small for a GPU.

Each class's rule for "solvers" is in its folder and returns a list of `Candidate`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..algebra.closure import displaced
from ..algebra.lazy import Composition, Inverse, Scaled, Transposed
from ..algebra.members import opposite_shifts
from ..algebra.multiply import multiply, rmultiply
from ..core import rules
from ..core.linear_map import LinearMap
from ..core.rules import rule
from .cauchy_forms import complex_toeplitz_form, gko, real_toeplitz_form
from .solvers import Candidate, Formula, RealSolver, Solver, Swapped, dense, formula, general, last_resort

# Up to here Gaussian elimination on the dense matrix is as fast as on generators.
GKO_FROM = 192

Map = Callable[[Tensor], Tensor]


def candidates(M: LinearMap) -> list[Candidate]:
    """The solvers for a square map in float64 or complex128, in the order in which they are tried."""
    found: list[Candidate] = rules.apply("solvers", M)
    return sorted(found, key=lambda each: each.stepwise) if M.device.type == "cuda" else found


def by_generators(M: LinearMap, rank: int, forms: list[Candidate]) -> list[Candidate]:
    """GKO and the dense matrix, the faster one first; the other one is the fallback."""
    if M.in_features < max(GKO_FROM, 8 * rank):
        return [dense(M), *forms]
    return [*forms, *last_resort(M)]


def toeplitz_candidates(generators: Callable[[], tuple[Tensor, Tensor]]) -> list[Candidate]:
    """Elimination for T, given a function for P and Q of T - Z_1 T Z_{-1}^T = P^T Q."""
    return [
        gko("gko", lambda: real_toeplitz_form(*generators())),
        real(gko("gko, complex nodes", lambda: complex_toeplitz_form(*generators()))),
    ]


def around(of: Candidate, before: tuple[Map, Map], after: tuple[Map, Map]) -> Candidate:
    """A solver of L M R, given one of M and the maps L^-1, L^-T and R^-1, R^-T of rows."""

    def make() -> Solver:
        solver = of.make()
        return Formula(
            lambda b: after[0](solver.solve(before[0](b))),
            lambda b: before[1](solver.solve(after[1](b), transposed=True)),
            solver,
        )

    return of._replace(make=make)


def keep(x: Tensor) -> Tensor:
    return x


def _flip(x: Tensor) -> Tensor:
    return x.flip(-1)


def rows_reversed(of: list[Candidate]) -> list[Candidate]:
    """The same for the matrix with its rows in reverse order."""
    return [around(candidate, (_flip, _flip), (keep, keep)) for candidate in of]


@rule("solvers", LinearMap)
def _(M: LinearMap) -> list[Candidate]:
    n = M.in_features
    own = M.displacement_structure() if n >= GKO_FROM else None
    if own is None or M.dtype.is_complex or own.A.dtype.is_complex or own.B.dtype.is_complex:
        return general(M)
    A, B, _ = opposite_shifts(M)
    found = displaced(M, A, B.T, "stein")
    if found is None or 8 * found.rank > n:
        return general(M)
    P, Q = (v.detach().double() for v in found.reduced().generators())
    return [*toeplitz_candidates(lambda: (P, Q)), *general(M)]


def real(of: Candidate) -> Candidate:
    """The same for a real matrix: the imaginary parts of its solutions are rounding errors."""
    part = lambda x: x.real if x.is_complex() else x
    return around(of, (keep, part), (part, keep))


# Lazy maps ask their parts.


@rule("solvers", Transposed)
def _(M: Transposed) -> list[Candidate]:
    swapped = lambda of: of._replace(make=lambda: Swapped(of.make()))
    return [swapped(of) for of in candidates(M.of)]


@rule("solvers", Scaled)
def _(M: Scaled) -> list[Candidate]:
    divide = lambda b: b / M.scalar
    wide = lambda of: of._replace(make=lambda: _for_any(M.of, of))
    return [around(wide(of), (divide, divide), (keep, keep)) for of in candidates(M.of)]


def _for_any(M: LinearMap, of: Candidate) -> Solver:
    """The candidate for M, extended to complex right-hand sides."""
    return of.make() if M.dtype.is_complex else RealSolver(of.make())


@rule("solvers", Inverse)
def _(M: Inverse) -> list[Candidate]:
    return [formula("product", lambda b: multiply(M.of, b), lambda b: rmultiply(M.of, b))]


def _steady(M: LinearMap) -> Candidate:
    """The first solver that never gives up on a matrix that others can solve."""
    return next(candidate for candidate in candidates(M) if candidate.largest is None)


@rule("solvers", Composition)
def _(M: Composition) -> list[Candidate] | None:
    if M.left.out_features != M.left.in_features:
        return None

    def make() -> Solver:
        left, right = (_for_any(part, _steady(part)) for part in (M.left, M.right))
        return Formula(
            lambda b: right.solve(left.solve(b)),
            lambda b: left.solve(right.solve(b, transposed=True), transposed=True),
            left,
            right,
        )

    return [Candidate("parts", make), *general(M)]
