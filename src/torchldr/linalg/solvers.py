"""Solvers of square systems, for the classes' rules "solvers".

A solver takes right-hand sides as rows (p, n) in float64 or complex128 and returns approximate solutions.
`certificate` measures their error. Only `solve` is differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..algebra.multiply import multiply, rmultiply
from ..core.linear_map import LinearMap
from ..core.matrix import StructuredMatrix
from ..functional.gmres import gmres

# Up to here Gaussian elimination on the dense matrix is quick (some 50 ms): no iteration is tried first.
DENSE_FIRST = 1024
# Up to here the dense matrix (512 MiB) is the last resort.
DENSE_LIMIT = 8192
# GMRES stops at this part of |b|, unless `solve` has another tolerance.
GMRES_TOLERANCE = 1e-13
ACCEPTED = 1e-10  # of the backward error: with more, the next solver is tried


class Solver:
    """Solves with one matrix and its transpose, possibly many times."""

    exact = True  # up to rounding; an iteration may fail to converge instead
    final = False  # if this one fails, all do
    trusted = torch.inf  # the condition number up to which its result counts
    accepted = ACCEPTED  # the backward error up to which its result counts

    def solve(self, b: Tensor, *, transposed: bool = False) -> Tensor:
        """Approximate solutions of M x = b, or of M^T x = b, for every row of b (p, n).

        For a singular matrix they hold inf, nan or arbitrary values.
        """
        raise NotImplementedError

    def solve_with(self, b: Tensor, probes: Tensor, *, transposed: bool = False) -> Tensor:
        """The same for the rows of b and then of probes; a percent of accuracy is enough for the probes."""
        return self.solve(torch.cat((b, probes)), transposed=transposed)

    def _as(self, *parts: Solver) -> None:
        """Take the weakest guarantees of these parts."""
        self.exact = all(part.exact for part in parts)
        self.final = bool(parts) and all(part.final for part in parts)
        self.trusted = min((part.trusted for part in parts), default=torch.inf)
        self.accepted = min((part.accepted for part in parts), default=ACCEPTED)


class Candidate(NamedTuple):
    """A solver that may be tried, by name.

    `largest` limits the numbers in the right-hand sides, for a solver that may give up where others succeed.
    """

    name: str
    make: Callable[[], Solver]  # does the work before the first system
    largest: int | None = None
    stepwise: bool = False  # many small sequential steps: slow on a GPU


class Formula(Solver):
    """Two functions of rows, for the matrix and its transpose; `parts` are the solvers that they call."""

    def __init__(
        self, direct: Callable[[Tensor], Tensor], transposed: Callable[[Tensor], Tensor], *parts: Solver
    ) -> None:
        self.direct, self.transposed = direct, transposed
        self._as(*parts)

    def solve(self, b: Tensor, *, transposed: bool = False) -> Tensor:
        return self.transposed(b) if transposed else self.direct(b)


def formula(
    name: str, direct: Callable[[Tensor], Tensor], transposed: Callable[[Tensor], Tensor]
) -> Candidate:
    return Candidate(name, lambda: Formula(direct, transposed))


class RealSolver(Solver):
    """A solver of a real matrix, for right-hand sides that may be complex."""

    def __init__(self, of: Solver) -> None:
        self.of = of
        self._as(of)

    def solve(self, b: Tensor, *, transposed: bool = False) -> Tensor:
        if not b.is_complex():
            return self.of.solve(b, transposed=transposed)
        return torch.complex(*self.of.solve(torch.cat((b.real, b.imag)), transposed=transposed).chunk(2))


class DenseSolver(Solver):
    """Gaussian elimination on the dense matrix."""

    final = True

    def __init__(self, M: LinearMap) -> None:
        self.factors, self.pivots, _ = torch.linalg.lu_factor_ex(_dense_matrix(M))

    def solve(self, b: Tensor, *, transposed: bool = False) -> Tensor:
        b = b.to(self.factors.dtype)
        if not transposed:
            return torch.linalg.lu_solve(self.factors, self.pivots, b.mT).mT
        # `adjoint` conjugates too.
        x = torch.linalg.lu_solve(self.factors, self.pivots, b.conj().mT, adjoint=True)
        return x.mT.conj().resolve_conj()


def _dense_matrix(M: LinearMap) -> Tensor:
    """The dense matrix in float64 or complex128, from the class or by products with unit vectors."""
    if isinstance(M, StructuredMatrix):
        return M.materialize()
    n = M.in_features
    eye = torch.eye(n, dtype=torch.promote_types(M.dtype, torch.float64), device=M.device)
    return torch.cat([multiply(M, part) for part in eye.split(max(256, n // 8))]).mT


class IterativeSolver(Solver):
    """GMRES on the fast product, to |b - M x| <= tol |b|."""

    exact = False

    def __init__(self, M: LinearMap) -> None:
        self.M, self.tol = M, GMRES_TOLERANCE

    def solve(self, b: Tensor, *, transposed: bool = False) -> Tensor:
        product = rmultiply if transposed else multiply
        # Scale both sides to ordinary size, because lengths are squared.
        size = _power_of_two(torch.linalg.vector_norm(b, torch.inf, -1, keepdim=True))
        norm = _power_of_two(product(self.M, b / size).abs().max())
        return gmres(lambda x: product(self.M, x) / norm, b / size, tol=self.tol)[0] / norm * size


def _power_of_two(size: Tensor) -> Tensor:
    """The power of two below, for exact division; arbitrary for 0 and values that are not finite."""
    return torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent - 1)


class Swapped(Solver):
    """A solver of the transposed matrix."""

    def __init__(self, of: Solver) -> None:
        self.of = of
        self._as(of)

    def solve(self, b: Tensor, *, transposed: bool = False) -> Tensor:
        return self.of.solve(b, transposed=not transposed)

    def solve_with(self, b: Tensor, probes: Tensor, *, transposed: bool = False) -> Tensor:
        return self.of.solve_with(b, probes, transposed=not transposed)


def dense(M: LinearMap) -> Candidate:
    return Candidate("dense", lambda: DenseSolver(M))


def iterative(M: LinearMap) -> Candidate:
    return Candidate("gmres", lambda: IterativeSolver(M), stepwise=True)


def general(M: LinearMap) -> list[Candidate]:
    """The candidates for any matrix: elimination for a small one, else GMRES first."""
    if M.in_features <= DENSE_FIRST:
        return [dense(M), iterative(M)]
    return [iterative(M), *last_resort(M)]


def last_resort(M: LinearMap) -> list[Candidate]:
    """The dense matrix, unless it is too large."""
    return [dense(M)] if M.in_features <= DENSE_LIMIT else []
