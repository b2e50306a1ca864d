"""Diagonals between fixed matrices, M = diag(S) L diag(D) R diag(B): Fastfood, and with B = 1 ACDC.

M is linear in each diagonal, so each one solves a least-squares problem exactly, given the others. For D the
normal equations are an entrywise product, (L^T S^2 L) o (R B Sigma B R^T), Sigma the moments of the
activations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .climbing import State, repeated
from .problem import Problem, Tensors
from .solving import ridged

_SWEEPS, _SWEEPS_LARGE, _TOLERANCE, _SHORT = 60, 25, 1e-6, 6


class Diagonals:
    """Alternating least squares for one problem; L (m, N) and R (N, n)."""

    def __init__(self, problem: Problem, L: Tensor, R: Tensor, *, learn_B: bool) -> None:
        self.problem, self.L, self.R, self.learn_B = problem, L, R, learn_B
        self.W = problem.W
        self.WSigma = self.W if problem.moments is None else self.W @ problem.moments

    def dense(self, S: Tensor, D: Tensor, B: Tensor) -> Tensor:
        return S.unsqueeze(1) * ((self.L * D) @ self.R) * B

    def best_S(self, D: Tensor, B: Tensor) -> Tensor:
        N = self.problem.weighted(((self.L * D) @ self.R) * B)
        return (N * self.problem.target).sum(1) / N.square().sum(1).clamp(min=1e-300)

    def best_B(self, S: Tensor, D: Tensor) -> Tensor:
        N = S.unsqueeze(1) * ((self.L * D) @ self.R)
        right = (N * self.WSigma).sum(0)
        if self.problem.moments is None:
            return right / N.square().sum(0).clamp(min=1e-300)
        return torch.linalg.solve(ridged((N.mT @ N) * self.problem.moments), right)

    def best_D(self, S: Tensor, B: Tensor) -> Tensor:
        left, right = S.unsqueeze(1) * self.L, self.R * B
        moved = right if self.problem.moments is None else right @ self.problem.moments
        normal = (left.mT @ left) * (moved @ right.mT)
        return torch.linalg.solve(ridged(normal), ((left.mT @ self.WSigma) * right).sum(1))

    def descend(self, S: Tensor, B: Tensor, sweeps: int, stage: str) -> State:
        """Solve for D, B and S in turn; every solve is exact, so the loss never rises."""

        def sweep(tensors: Tensors) -> State:
            S, B = tensors["S"], tensors["B"]
            D = self.best_D(S, B)
            B = self.best_B(S, D) if self.learn_B else B
            S, D, B = _balanced(self.best_S(D, B), D, B)
            return State({"S": S, "D": D, "B": B}, self.problem.loss(self.dense(S, D, B)).item())

        start = State({"S": S, "B": B}, float("inf"))
        return repeated(self.problem, start, sweep, sweeps, _TOLERANCE, stage)

    def inverse_start(self, B: Tensor) -> Tensor:
        """S from the smallest eigenvector: diag(1/S) W should lie in the span of the L_l R_l^T B.

        With u = 1/S what lies outside is u^T Q u, Q = diag(|w_i|^2) - E^T N^{-1} E, so on members an
        eigenvector of the eigenvalue 0 is exact. Rows are scaled to norm 1 first.
        """
        norms = self.W.norm(dim=1).clamp(min=1e-300)
        W, right = self.W / norms.unsqueeze(1), self.R * B
        normal = ridged((self.L.mT @ self.L) * (right @ right.mT))
        E = self.L.mT * (right @ W.mT)  # E[l, i] = L_il (R B w_i)_l
        inside = E.mT @ torch.linalg.solve(normal, E)
        u = torch.linalg.eigh(inside)[1][:, -1]
        floor = 1e-6 * u.abs().max()
        return norms / torch.where(u.abs() < floor, floor, u)


def _balanced(S: Tensor, D: Tensor, B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same matrix with mean squares of D and B equal to 1."""
    d, b = D.square().mean().sqrt(), B.square().mean().sqrt()
    if d * b == 0:
        return S, D, B
    return S * (d * b), D / d, B / b


def best_of(alternation: Diagonals, starts: list[tuple[Tensor, Tensor]]) -> Tensors:
    """A few sweeps from every start, then all sweeps from the best one."""
    problem = alternation.problem
    short = [
        alternation.descend(S, B, problem.steps(_SHORT), f"start {i + 1} of {len(starts)}")
        for i, (S, B) in enumerate(starts)
    ]
    best = min(short, key=lambda state: state.loss)
    S, B = best.tensors["S"], best.tensors["B"]
    sweeps = problem.steps(_SWEEPS_LARGE if problem.large else _SWEEPS)
    last = alternation.descend(S, B, sweeps, "descent")
    return min(best, last, key=lambda state: state.loss).tensors
