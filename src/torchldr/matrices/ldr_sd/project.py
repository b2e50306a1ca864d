"""LDR-SD: operators by the displacement, then descent on everything, from several starts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...core.rules import rule
from ...functional.stein import stein_matrix
from ...project.climbing import State, climb
from ...project.methods import solve, start_for, starts
from ...project.problem import Problem, Tensors
from ...project.refining import refine
from ...project.solving import halves, leading
from ...project.stein import Operators, displacement, fit_operators
from ..ldr_td import LDRTridiagonal
from ..ldr_td.project import from_rings, ring, with_equal_more
from . import LDRSubdiagonal

OFFSETS = (-1,)


class Effort:
    """How much to try: less for large matrices, so that 1024 x 1024 takes minutes."""

    def __init__(self, problem: Problem) -> None:
        large = problem.large
        self.starts = min(6, problem.steps(2 if large else 6))
        self.operator_steps = 12 if large else 60
        self.screening = problem.steps(25 if large else 40)
        self.descent = problem.steps(150 if large else 250)


def edges(tensors: Tensors, side: str) -> Tensor:
    """The ring of an operator: its corner, then its subdiagonal."""
    return torch.cat((tensors[f"corner_{side}"].reshape(1), tensors[f"subdiagonal_{side}"]))


def from_edges(a: Tensor, c: Tensor, G: Tensor, H: Tensor) -> Tensors:
    """The parameters by name. A and C are scaled to the same size, which changes nothing in M."""
    size_a, size_c = a[1:].square().sum().sqrt(), c[1:].square().sum().sqrt()
    if size_a > 0 and size_c > 0:
        ratio = (size_c / size_a * (a[1:].numel() / c[1:].numel()) ** 0.5).sqrt()
        a, c = a * ratio, c / ratio
    tensors = {"G": G, "H": H}
    for side, weights in (("A", a), ("C", c)):
        tensors |= {f"subdiagonal_{side}": weights[1:].clone(), f"corner_{side}": weights[:1].clone()}
    return tensors


def evaluate(tensors: Tensors) -> Tensor:
    A, C = ((tensors[f"corner_{side}"].reshape(1), tensors[f"subdiagonal_{side}"]) for side in "AC")
    return stein_matrix(A, C, tensors["G"], tensors["H"])


@rule("project", LDRSubdiagonal)
def project(problem: Problem, rank: int) -> Tensors:
    """Contains Toeplitz-like matrices (shifts with corners) and those of low rank (A = 0): starts both."""
    effort = Effort(problem)

    def descend(tensors: Tensors, steps: int, stage: str) -> State:
        return refine(problem, tensors, steps, evaluate=evaluate, stage=stage)

    def fresh(q: int) -> State:
        found = refine(problem, _by_displacement(problem, q, effort), 0, evaluate=evaluate)
        if problem.done(found.loss):
            return found
        screened = []
        for name, start in _starts(problem, q, found.tensors, effort):
            screened.append(descend(start, effort.screening, f"rank {q} from {name}"))
            if problem.done(screened[-1].loss):
                return screened[-1]
        best = min(screened, key=lambda state: state.loss)
        return descend(best.tensors, effort.descent, f"rank {q}")

    def grown(state: State) -> State:
        if problem.done(state.loss):
            return State(_padded(problem, state.tensors), state.loss)
        q = len(state.tensors["G"]) + 1
        return descend(_padded(problem, state.tensors), effort.descent, f"rank {q} from {q - 1}")

    return climb(problem, rank, fresh, grown).tensors


def generators(W: Tensor, a: Tensor, c: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """G and H of the matrix whose displacement is nearest to that of W.

    The displacement is G^T H - A^k G^T H (C^k)^T and the power on the shorter side a multiple of the
    identity, so one side is right and the other to be solved for.
    """
    G, H = halves(*leading(displacement(W, a.unsqueeze(0), c.unsqueeze(0), OFFSETS), rank, seed=seed))
    m, n = W.shape
    return (G, _unwrapped(a, c, m, H)) if m <= n else (_unwrapped(c, a, n, G), H)


def _unwrapped(short: Tensor, long: Tensor, k: int, H: Tensor) -> Tensor:
    f = short.prod()
    if f == 0:
        return H
    eye = torch.eye(len(long), dtype=H.dtype)
    X, failed = torch.linalg.solve_ex(eye - f * ring_power(long, k, eye).mT, H.mT)
    return H if failed or not X.isfinite().all() else X.mT


def ring_power(c: Tensor, k: int, H: Tensor) -> Tensor:
    """C^k h for every row h of H, C the ring with edges c: by doubling, log2(k) products of edges."""
    # w holds the products of `done` successive edges that end at each place.
    w, done = torch.ones_like(c), 0
    for bit in bin(k)[2:]:
        w, done = w * w.roll(done), 2 * done
        if bit == "1":
            w, done = c * w.roll(1), done + 1
    return w * H.roll(k, -1)


def _by_displacement(problem: Problem, rank: int, effort: Effort) -> Tensors:
    """Operators that make the displacement's rank small, from shifts and then from random rings."""
    m, n = problem.shape
    best: Operators | None = None
    for start in range(effort.starts):
        A, C = shift(m), shift(n)
        if start > 1:
            generator = problem.generator(rank, start)
            for ring in (A, C):
                ring[:, 1:].uniform_(0.5, 1.5, generator=generator)
        problem.report(f"{problem.cls.name}: rank {rank} operators", start, effort.starts)
        found = _fit(problem.W, rank, A, C, effort.operator_steps, (0.1, 1.0)[start % 2])
        best = found if best is None or found.loss < best.loss else best
        if problem.done(best.loss):
            break
    assert best is not None
    a, c = best.A[0], best.C[0]
    return from_edges(a, c, *generators(problem.W, a, c, rank, problem.seed))


def _fit(W: Tensor, rank: int, A: Tensor, C: Tensor, steps: int, damping: float) -> Operators:
    """The subdiagonals without the corners, the corners by least squares, and all together."""
    m, n = W.shape
    if min(m, n) > rank + 1:
        A, C, _ = fit_operators(W, rank, OFFSETS, A, C, steps=steps, damping=damping, first=1)
        U, _, V = leading(displacement(W, A, C, OFFSETS)[1:, 1:], rank)
        A[0, 0] = _slope(W[0, 1:], C[0, 1:] * W[-1, :-1], V.mT)
        C[0, 0] = _slope(W[1:, 0], A[0, 1:] * W[:-1, -1], U)
    return fit_operators(W, rank, OFFSETS, A, C, steps=steps, damping=damping)


def _slope(y: Tensor, x: Tensor, U: Tensor) -> Tensor:
    """The t with y - t x nearest to the columns of U."""
    x = x - U @ (U.mT @ x)
    return (x @ y) / (x @ x).clamp(min=1e-300)


def _starts(problem: Problem, rank: int, found: Tensors, effort: Effort) -> Iterator[tuple[str, Tensors]]:
    """The start by displacement, and the projections onto classes that this one contains, one by one."""
    yield "displacement", found
    for name, contained in starts(LDRSubdiagonal).items():
        yield name, contained(problem, rank)
    yield "shifts", _shifts(problem, rank, effort)


def _shifts(problem: Problem, rank: int, effort: Effort) -> Tensors:
    """The Toeplitz-like matrices of Z_0 and Z_0: generators alone descend first."""
    (m, n), frozen = problem.shape, [f"{part}_{side}" for part in ("subdiagonal", "corner") for side in "AC"]
    a, c = shift(m)[0], shift(n)[0]
    start = from_edges(a, c, *generators(problem.W, a, c, rank, problem.seed))
    stage = f"rank {rank} shifts"
    return refine(problem, start, effort.screening, evaluate=evaluate, frozen=frozen, stage=stage).tensors


def _padded(problem: Problem, tensors: Tensors) -> Tensors:
    """One rank more: the residual's own direction for H, nothing in G, the same matrix."""
    a, c = edges(tensors, "A"), edges(tensors, "C")
    _, more = generators(problem.W - evaluate(tensors), a, c, 1, problem.seed)
    return with_equal_more(tensors, more)


def shift(n: int, corner: float = 0.0) -> Tensor:
    """Z_f as a ring, shape (1, n)."""
    ring = torch.ones(1, n, dtype=torch.float64)
    ring[0, 0] = corner
    return ring


@start_for(LDRTridiagonal, LDRSubdiagonal, place=1)
def in_ldr_td(problem: Problem, rank: int) -> Tensors:
    found = solve(problem.for_class(LDRSubdiagonal), rank)
    A, C = (ring(lower=edges(found, side)) for side in "AC")
    return from_rings(A, C, found["G"], found["H"])
