"""Solving with a measured result: iterative refinement, backward error, condition.

Two random systems are solved along with the given ones. For w with independent normal entries
E |M^-1 w|^2 = |M^-1|_F^2, so they tell the size of the inverse, and what they leave over, |w - M z|, is
about 1 as soon as the rounding errors of a solver can make M singular: then nothing that it says is
worth anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .solvers import Solver

PROBES = 2
REFINEMENTS = 4
LOST = 0.1  # what a random system may leave over of its unit entries before M counts as singular
FLOOR = 4.0  # rounding units: a backward error that no refinement lowers

Product = Callable[[Tensor], Tensor]


class Certified(NamedTuple):
    """Solutions and what is known of them.

    Attributes:
        x: solutions, rows (p, n).
        residual: the largest |b - M x| / |b|.
        backward_error: the largest |b - M x| / (|M| |x| + |b|).
        condition: |M|_2 |M^-1|_F, estimated: at least the 2-norm condition number, up to a factor of about
            2; inf for a singular matrix. For an iteration, a lower bound; nan for one that gave up.
    """

    x: Tensor
    residual: float
    backward_error: float
    condition: float


def certified(
    product: Product, adjoint: Product, solver: Solver, b: Tensor, *, transposed: bool, tol: float
) -> Certified:
    """Solve and refine until |b - M x| <= tol |b|, or until rounding errors allow no more.

    Args:
        product, adjoint: rows to rows, by M and by its conjugate transpose (by M^T where `transposed`).
        solver: solves approximately; its error is measured, not believed.
        b: right-hand sides, rows (p, n), float64 or complex128.
    """
    p, n = b.shape
    random = random_rows(PROBES, n, b)
    rhs = torch.cat((b, random)) if solver.exact else b
    size = torch.linalg.vector_norm(rhs, dim=-1)
    if solver.exact:
        x = solver.solve_with(b, random, transposed=transposed)
    else:
        x = solver.solve(b, transposed=transposed)
    if not bool(torch.isfinite(torch.view_as_real(x) if x.is_complex() else x).all()):
        return Certified(x[:p], torch.inf, torch.inf, _unknown(solver))
    y = product(torch.cat((x, random[:1])))
    left = rhs - y[:-1]
    if solver.exact and not bool((torch.linalg.vector_norm(left[p:], dim=-1) < LOST).all()):
        return Certified(x[:p], torch.inf, torch.inf, _unknown(solver))
    norm = max(_gain(random[:1], y[-1:]), _gain(y[-1:], adjoint(y[-1:])))
    length = torch.linalg.vector_norm(x, dim=-1)
    inverse = length[p:] if solver.exact else length / torch.where(size == 0, 1, size)
    condition = norm * float(inverse.square().mean().sqrt() if solver.exact else inverse.max())
    x, left, rhs, size = x[:p], left[:p], rhs[:p], size[:p]
    if condition > solver.trusted:
        return Certified(x, torch.inf, torch.inf, torch.nan)
    floor = FLOOR * torch.finfo(torch.float64).eps
    error, backward = _errors(left, x, size, norm)
    for _ in range(REFINEMENTS):
        if not p or error <= tol or backward <= floor:
            break
        trial = x + solver.solve(left, transposed=transposed)
        after = rhs - product(trial)
        errors = _errors(after, trial, size, norm)
        if not errors[1] < 0.5 * backward:
            break
        x, left, (error, backward) = trial, after, errors
    return Certified(x, error, backward, condition)


def _unknown(solver: Solver) -> float:
    """The condition number of what was not solved: inf by a solver that solves all but singular systems."""
    return torch.inf if solver.trusted == torch.inf else torch.nan


def _errors(left: Tensor, x: Tensor, size: Tensor, norm: float) -> tuple[float, float]:
    """The largest |left| / |b| and |left| / (|M| |x| + |b|) of the rows."""
    if not left.shape[0]:
        return 0.0, 0.0
    lost = torch.linalg.vector_norm(left, dim=-1)
    scale = norm * torch.linalg.vector_norm(x, dim=-1) + size
    whole = torch.where(size == 0, 1, size)
    return float((lost / whole).max()), float((lost / torch.where(scale == 0, 1, scale)).max())


def _gain(before: Tensor, after: Tensor) -> float:
    """|after| / |before|: from M and its adjoint a bound of |M| from below."""
    length = float(torch.linalg.vector_norm(before))
    return float(torch.linalg.vector_norm(after)) / length if length else 0.0


def random_rows(count: int, n: int, like: Tensor) -> Tensor:
    """Normal rows (count, n), the same every time."""
    generator = torch.Generator().manual_seed(count * n)
    return torch.randn(count, n, generator=generator, dtype=torch.float64, device="cpu").to(like)


def norm_estimate(product: Product, adjoint: Product, n: int, like: Tensor, steps: int) -> float:
    """The 2-norm from below, by power iteration from a random vector: 2 steps - 1 products."""
    x = random_rows(1, n, like)
    largest = 0.0
    for step in range(steps):
        length = torch.linalg.vector_norm(x)
        if not length > 0:
            break
        y = product(x / length)
        largest = max(largest, float(torch.linalg.vector_norm(y)))
        if step < steps - 1:
            x = adjoint(y)
    return largest


def condition_by(
    product: Product, adjoint: Product, solver: Solver, n: int, like: Tensor, *, steps: int
) -> float:
    """|M| |M^-1| in the 2-norm, from below: two power iterations, one of them by an exact solver."""
    inverse = lambda x: solver.solve(x)
    adjoint_inverse = lambda y: solver.solve(y.conj().resolve_conj(), transposed=True).conj().resolve_conj()
    return norm_estimate(product, adjoint, n, like, steps) * norm_estimate(
        inverse, adjoint_inverse, n, like, steps
    )
