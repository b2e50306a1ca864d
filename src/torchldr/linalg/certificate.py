"""Solving with a measured error: iterative refinement, backward error, condition number.

Two random systems are solved along with the given ones. For w with independent normal entries
E |M^-1 w|^2 = |M^-1|_F^2, so their solutions z estimate the size of the inverse. Their residual |w - M z| is
about 1 if rounding errors can make M singular; then no result of the solver can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .solvers import Solver

PROBES = 2
REFINEMENTS = 4
LOST = 0.1  # the residual of a random system with unit entries above which M counts as singular
FLOOR = 4.0  # rounding units: refinement cannot lower the backward error further

Product = Callable[[Tensor], Tensor]


class Certified(NamedTuple):
    """Solutions and their measured errors.

    `condition` estimates |M|_2 |M^-1|_F, within a factor of about 2; that is at least the condition number in
    the 2-norm. It is inf for a singular matrix, a lower bound for an iteration, and nan for one that gave up.
    """

    x: Tensor  # solutions, rows (p, n)
    residual: float  # the largest |b - M x| / |b|
    backward_error: float  # the largest |b - M x| / (|M| |x| + |b|)
    condition: float


def certified(
    product: Product, adjoint: Product, solver: Solver, b: Tensor, *, transposed: bool, tol: float
) -> Certified:
    """Solve and refine until |b - M x| <= tol |b|, or until rounding prevents more.

    `product` and `adjoint` take rows to rows, by M and by its conjugate transpose (by M^T where
    `transposed`). The error is measured, whatever the solver claims.
    """
    p, n = b.shape
    random = random_rows(PROBES, n, b)
    rhs = torch.cat((b, random)) if solver.exact else b
    size = lengths(rhs)
    if solver.exact:
        x = solver.solve_with(b, random, transposed=transposed)
    else:
        x = solver.solve(b, transposed=transposed)
    length = lengths(x)
    if not all(map(math.isfinite, length)):
        return Certified(x[:p], torch.inf, torch.inf, _unknown(solver))
    y = product(torch.cat((x, random[:1])))
    left = rhs - y[:-1]
    lost = lengths(left)
    if solver.exact and not all(each < LOST for each in lost[p:]):
        return Certified(x[:p], torch.inf, torch.inf, _unknown(solver))
    norm = _norm(random[:1], y[-1:], adjoint)
    if solver.exact:
        condition = norm * math.hypot(*length[p:]) / PROBES**0.5
    else:
        condition = norm * _largest([length[i] / (size[i] or 1.0) for i in range(p)])
    x, left, rhs = x[:p], left[:p], rhs[:p]
    if condition > solver.trusted:
        return Certified(x, torch.inf, torch.inf, torch.nan)
    floor = FLOOR * torch.finfo(torch.float64).eps
    error, backward = _errors(lost[:p], length, size, norm)
    for _ in range(REFINEMENTS):
        if not p or error <= tol or backward <= floor:
            break
        trial = x + solver.solve(left, transposed=transposed)
        after = rhs - product(trial)
        errors = _errors(lengths(after), lengths(trial), size, norm)
        if not errors[1] < 0.5 * backward:
            break
        x, left, (error, backward) = trial, after, errors
    return Certified(x, error, backward, condition)


def _unknown(solver: Solver) -> float:
    """The condition number of an unsolved system: inf if the solver fails only for singular matrices."""
    return torch.inf if solver.trusted == torch.inf else torch.nan


def lengths(rows: Tensor) -> list[float]:
    """The 2-norms of rows."""
    found: list[float] = torch.linalg.vector_norm(rows, dim=-1).tolist()
    if not all(1e-140 < length < 1e150 for length in found):  # the squares may be out of range
        largest = torch.linalg.vector_norm(rows, torch.inf, -1, keepdim=True)
        unit = rows / torch.where(largest > 0, largest, 1)
        found = (largest.squeeze(-1) * torch.linalg.vector_norm(unit, dim=-1)).tolist()
    return found


def _errors(lost: list[float], length: list[float], size: list[float], norm: float) -> tuple[float, float]:
    """The largest |b - M x| / |b| and |b - M x| / (|M| |x| + |b|) of the rows of `lost`."""
    rows = range(len(lost))
    return (
        _largest([lost[i] / (size[i] or 1.0) for i in rows]),
        _largest([lost[i] / (norm * length[i] + size[i] or 1.0) for i in rows]),
    )


def _largest(values: list[float]) -> float:
    """nan if one is among them, else 0."""
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


def _norm(before: Tensor, after: Tensor, adjoint: Product) -> float:
    """A lower bound of |M|, from a vector and its product."""
    first, second = lengths(torch.cat((before, after)))
    (third,) = lengths(adjoint(after / (second or 1.0)))
    return max(second / first if first else 0.0, third)


def random_rows(count: int, n: int, like: Tensor) -> Tensor:
    """Normal rows (count, n), the same every time."""
    generator = torch.Generator().manual_seed(count * n)
    return torch.randn(count, n, generator=generator, dtype=torch.float64, device="cpu").to(like)


def norm_estimate(product: Product, adjoint: Product, n: int, like: Tensor, steps: int) -> float:
    """A lower bound of the 2-norm by power iteration from a random vector, with 2 steps - 1 products."""
    x = random_rows(1, n, like)
    largest = 0.0
    for step in range(steps):
        (length,) = lengths(x)
        if not length > 0:
            break
        y = product(x / length)
        (length,) = lengths(y)
        largest = max(largest, length)
        if step < steps - 1:
            x = adjoint(y / (length or 1.0))
    return largest


def condition_by(
    product: Product, adjoint: Product, solver: Solver, n: int, like: Tensor, *, steps: int
) -> float:
    """A lower bound of |M| |M^-1| in the 2-norm, by two power iterations, one with an exact solver."""
    adjoint_inverse = lambda y: solver.solve(y.conj().resolve_conj(), transposed=True).conj().resolve_conj()
    inverse = norm_estimate(solver.solve, adjoint_inverse, n, like, steps)
    return norm_estimate(product, adjoint, n, like, steps) * inverse
