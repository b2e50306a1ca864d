"""Projection onto Monarch matrices: the SVD of each block, and in a metric one column of blocks at a time.

Without activations each block is best by its truncated SVD. With their moments Sigma, the blocks of one row
are weighed together. But given the others, a column of blocks is again a problem of low rank for each: with
Sigma_ii P P^T Sigma_ii = Sigma_ii, and E what the other columns leave, M_ji = N P^T for the nearest matrix N
of rank r to (E Sigma)_ji P. Every step is exact, so the error never rises.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core.rules import rule
from ...functional.grid import cut, joined
from ...project.climbing import State, ascend, repeated
from ...project.methods import starts
from ...project.problem import Problem, Tensors
from ...project.solving import inverse_root
from . import Monarch, grid

Pairs = list[tuple[Tensor, Tensor]]

_SWEEPS, _TOLERANCE = 12, 2e-3


@rule("project", Monarch)
def project(problem: Problem, rank: int) -> Tensors:
    alternation = Columns(problem)
    if problem.moments is None:
        return alternation.nearest(rank)
    return ascend(problem, rank, alternation.starts, alternation.descend).tensors


class Columns:
    """The alternation for one problem, over columns of blocks."""

    def __init__(self, problem: Problem) -> None:
        self.problem, (self.m, self.n) = problem, problem.shape
        (self.u, self.p), (self.v, self.q) = grid(self.m, self.n, problem.options["blocks"])
        self.parts = [slice(i * self.q, min((i + 1) * self.q, self.n)) for i in range(self.v)]
        moments = problem.moments
        self.roots = [] if moments is None else [inverse_root(moments[part, part]) for part in self.parts]

    def nearest(self, rank: int) -> Tensors:
        """The truncated SVD of every block: the best without activations."""
        pairs = [_leading(self.rows(self.problem.W[:, part]), rank) for part in self.parts]
        return self.tensors([left for left, _ in pairs], [right for _, right in pairs])

    def rows(self, N: Tensor) -> Tensor:
        """(m, q) in blocks of rows (u, p, q), zeros behind the last."""
        return cut(N.mT, self.u, self.p).movedim(0, -1)

    def tensors(self, left: list[Tensor], right: list[Tensor]) -> Tensors:
        """G and H from the factors of each column of blocks, (u, p, r) and (u, r, q)."""
        G = joined(torch.stack(left).permute(3, 0, 1, 2), self.m)  # (r, v, m)
        H = torch.cat(right, -1).transpose(0, 1)  # (r, u, n)
        return {"G": G.flatten(1), "H": H.flatten(1).contiguous()}

    def starts(self, rank: int, before: State | None) -> list[Tensors]:
        """The best without activations, classes that this one contains, and the rank before."""
        found = [self.nearest(rank), *(start(self.problem, rank) for start in starts(Monarch).values())]
        return found + (
            [{name: pad(t, (0, 0, 0, 1)) for name, t in before.tensors.items()}] if before else []
        )

    def descend(self, best: State) -> State:
        """Sweeps until they gain little."""
        problem, Sigma = self.problem, self.problem.moments
        assert Sigma is not None
        M, rank, pairs = problem.dense(best.tensors), len(best.tensors["G"]), None
        rest = (problem.W - M) @ Sigma

        def sweep(_: Tensors) -> State:
            nonlocal pairs
            pairs = self.sweep(M, rest, Sigma, rank, pairs)
            right = [C @ P.mT for (_, C), P in zip(pairs, self.roots, strict=True)]
            loss = ((problem.W - M) * rest).sum().item() / problem.norm_squared
            return State(self.tensors([U for U, _ in pairs], right), loss)

        return repeated(problem, best, sweep, problem.steps(_SWEEPS), _TOLERANCE / problem.effort)

    def sweep(self, M: Tensor, rest: Tensor, Sigma: Tensor, rank: int, pairs: Pairs | None) -> Pairs:
        """Every column of blocks anew, given the others; M and rest = (W - M) Sigma change in place.

        The factors before, if any, are improved by one step of alternating least squares: an SVD takes long.
        """
        found = []
        for i, (part, P) in enumerate(zip(self.parts, self.roots, strict=True)):
            N = self.rows((rest[:, part] + M[:, part] @ Sigma[part, part]) @ P)
            U, C = _leading(N, rank) if pairs is None else _improved(N, pairs[i][1])
            found.append((U, C))
            step = (U @ (C @ P.mT)).flatten(0, 1)[: self.m] - M[:, part]
            rest -= step @ Sigma[part]
            M[:, part] += step
        return found


def _leading(N: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors (..., p, r) and (..., r, q) of the nearest matrices of this rank, with zeros to spare."""
    U, S, V = torch.linalg.svd(N, full_matrices=False)
    missing = max(rank - S.shape[-1], 0)
    root = S[..., :rank].sqrt()
    left, right = U[..., :rank] * root.unsqueeze(-2), root.unsqueeze(-1) * V[..., :rank, :]
    return pad(left, (0, missing)), pad(right, (0, 0, 0, missing))


def _improved(N: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Factors as `_leading` has them, the best left one for these right ones, then the best right one."""
    U, _ = torch.linalg.qr(N @ C.mT)
    U = pad(U, (0, C.shape[-2] - U.shape[-1]))
    return U, U.mT @ N
