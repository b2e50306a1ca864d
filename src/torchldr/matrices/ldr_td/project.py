"""LDR-TD: from the best of the classes that it contains, then descent on everything."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.rules import rule
from ...project.climbing import State, climb
from ...project.methods import starts
from ...project.pointwise import with_one_more
from ...project.problem import Problem, Tensors
from ...project.refining import refine
from ...project.solving import halves, leading
from ...project.stein import displacement, fit_operators
from . import LDRTridiagonal

OFFSETS = (-1, 0, 1)


class Effort:
    """How much to try: every evaluation takes 6 r k m n operations."""

    def __init__(self, problem: Problem) -> None:
        large = problem.large
        self.operator_steps = 2 if large else 20
        self.screening = problem.steps(4 if large else 40)
        self.descent = problem.steps(15 if large else 250)


def from_rings(A: Tensor, C: Tensor, G: Tensor, H: Tensor) -> Tensors:
    """The parameters by name, from rings (3, m) and (3, n) of lower, diagonal and upper entries."""
    tensors = {"G": G, "H": H}
    for side, (lower, diagonal, upper) in (("A", A), ("C", C)):
        tensors[f"subdiagonal_{side}"] = lower[1:].clone()
        tensors[f"diagonal_{side}"] = diagonal.clone()
        tensors[f"superdiagonal_{side}"] = upper[:-1].clone()
        tensors[f"corners_{side}"] = torch.stack((lower[0], upper[-1]))
    return tensors


@rule("project", LDRTridiagonal)
def project(problem: Problem, rank: int) -> Tensors:
    """Contains LDR-SD, Hankel-like and (for n <= m) Vandermonde-like matrices: starts from all of them."""
    effort, (m, n) = Effort(problem), problem.shape

    def evaluate(tensors: Tensors) -> Tensor:
        return LDRTridiagonal.unchecked(m, n, tensors, problem.options).materialize()

    def descend(tensors: Tensors, steps: int, stage: str) -> State:
        return refine(problem, tensors, steps, evaluate=evaluate, stage=stage)

    def fresh(q: int) -> State:
        contained = {name: of(problem, q) for name, of in starts(LDRTridiagonal).items()}
        found = [refine(problem, start, 0, evaluate=evaluate) for start in contained.values()]
        for state in found:
            if problem.done(state.loss):
                return state
        contained["displacement"] = _by_displacement(problem, q, effort)
        screened = [
            descend(start, effort.screening, f"rank {q} from {name}") for name, start in contained.items()
        ]
        best = min([*found, *screened], key=lambda state: state.loss)
        return descend(best.tensors, effort.descent, f"rank {q}")

    def grown(state: State) -> State:
        q, M = len(state.tensors["G"]) + 1, LDRTridiagonal.unchecked(m, n, state.tensors, problem.options)
        A, C = (torch.stack(M._ring(side)) for side in "AC")
        rest = displacement(problem.W - evaluate(state.tensors), A, C, OFFSETS)
        start = with_equal_more(state.tensors, halves(*leading(rest, 1, seed=problem.seed))[1])
        if problem.done(state.loss):
            return State(start, state.loss)
        return descend(start, effort.descent, f"rank {q} from {q - 1}")

    return climb(problem, rank, fresh, grown).tensors


def with_equal_more(tensors: Tensors, more: Tensor) -> Tensors:
    """One rank more, of the others' length in H and nothing in G: the same matrix, free to move."""
    H = tensors["H"]
    more = more * (H.norm() / len(H) ** 0.5 / more.norm().clamp(min=1e-300))
    return {**tensors, **dict(zip("GH", with_one_more(tensors["G"], H, more), strict=True))}


def ring(lower: Tensor | None = None, diagonal: Tensor | None = None, upper: Tensor | None = None) -> Tensor:
    given = [part for part in (lower, diagonal, upper) if part is not None]
    zero = torch.zeros_like(given[0])
    return torch.stack([zero if part is None else part for part in (lower, diagonal, upper)])


def _by_displacement(problem: Problem, rank: int, effort: Effort) -> Tensors:
    """A few steps from shifts towards a displacement of low rank.

    Only a few: the displacement leaves out A^k G^T H (C^k)^T, and A = C = I would make it zero.
    """
    m, n = problem.shape
    A, C = (ring(lower=torch.ones(size, dtype=torch.float64)) for size in (m, n))
    A[0, 0] = C[0, 0] = 0  # Z_0
    A, C, _ = fit_operators(problem.W, rank, OFFSETS, A, C, steps=effort.operator_steps, damping=1.0)
    D = displacement(problem.W, A, C, OFFSETS)
    return from_rings(A, C, *halves(*leading(D, rank, seed=problem.seed)))
