"""Projection onto BLAST matrices: alternating least squares in bases and couplings.

M is linear in each of U, S and V, and every solve is exact, so that the error never rises. The bases U_j of
the rows of blocks do not meet: with the rows K_j[s] = S[s, j, i(q)] H[s, q], U_j = W_j Sigma K_j^T
(K_j Sigma K_j^T)^-1, Sigma the moments of the activations. In Sigma columns of blocks do, so that couplings
and bases of one column are solved at a time, given the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.rules import rule
from ...functional.grid import cut, joined
from ...project.climbing import State, ascend, measured, repeated
from ...project.methods import solve, starts
from ...project.problem import Problem, Tensors
from ...project.solving import inverse_root, ridged
from . import Blast, grid

_SWEEPS, _TOLERANCE, _TERM = 40, 1e-3, 4


@rule("project", Blast)
def project(problem: Problem, rank: int) -> Tensors:
    alternation = Bases(problem)
    return ascend(problem, rank, alternation.starts, alternation.descend).tensors


class Bases:
    """The alternation for one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem, (self.m, self.n), self.Sigma = problem, problem.shape, problem.moments
        self.plain = None if problem.root is None else problem.without_activations()
        (self.u, self.p), (self.v, self.q) = grid(self.m, self.n, problem.options["blocks"])
        self.parts = [slice(i * self.q, min((i + 1) * self.q, self.n)) for i in range(self.v)]
        self.column = torch.arange(self.n) // self.q
        self.right, self.inverses = problem.W, list[Tensor]()
        if self.Sigma is not None:
            self.right = problem.W @ self.Sigma
            roots = [inverse_root(self.Sigma[part, part]) for part in self.parts]
            self.inverses = [P @ P.mT for P in roots]

    def rows(self, N: Tensor) -> Tensor:
        """(m, q) in blocks of rows (u, p, q), zeros behind the last."""
        return cut(N.mT, self.u, self.p).movedim(0, -1)

    def starts(self, rank: int, before: State | None) -> list[Tensors]:
        """Classes that this one contains, the best without activations, the rank before and one term."""
        found = [start(self.problem, rank) for start in starts(Blast).values()]
        found += [] if self.plain is None else [solve(self.plain, rank)]
        if before is None:
            return found + ([self.term(self.problem.W)] if rank == 1 or not found else [])
        new = self.term(self.problem.W - self.problem.dense(before.tensors))
        for term in (new, {**new, "S": torch.zeros_like(new["S"])}):  # the second is not worse than before
            found.append({name: torch.cat((before.tensors[name], t)) for name, t in term.items()})
        return found

    def term(self, E: Tensor) -> Tensors:
        """One term for a matrix: bases that are the best for each other, and their couplings."""
        blocks = cut(self.rows(E), self.v, self.q).transpose(1, 2)  # (u, v, p, q)
        V = torch.linalg.svd(blocks.transpose(0, 1).flatten(1, 2), full_matrices=False)[2][:, 0]  # (v, q)
        for _ in range(_TERM):
            seen = torch.einsum("uvpq,vq->upv", blocks, V)
            U = torch.linalg.svd(seen, full_matrices=False)[0][..., 0]
            V = torch.linalg.svd(torch.einsum("uvpq,up->vqu", blocks, U), full_matrices=False)[0][..., 0]
        S = torch.einsum("uvpq,up,vq->uv", blocks, U, V)
        return _balanced(joined(U, self.m).unsqueeze(0), S.unsqueeze(0), joined(V, self.n).unsqueeze(0))

    def descend(self, best: State) -> State:
        """Sweeps until they gain little."""
        problem = self.problem
        sweep = lambda tensors: measured(problem, self.sweep(**tensors))
        return repeated(problem, best, sweep, problem.steps(_SWEEPS), _TOLERANCE / problem.effort)

    def sweep(self, G: Tensor, S: Tensor, H: Tensor) -> Tensors:
        """Couplings and bases of every column of blocks, then the bases of all rows."""
        Sigma, M = self.Sigma, self.problem.dense({"G": G, "S": S, "H": H})
        rest = self.right if Sigma is None else self.right - M @ Sigma  # of the right hand sides, without M
        S, H, U = S.clone(), H.clone(), cut(G, self.u, self.p).permute(1, 2, 0)  # (u, p, r)
        for i, part in enumerate(self.parts):
            V, N = H[:, part], self.right[:, part]
            weighed = V
            if Sigma is not None:
                weighed, N = V @ Sigma[part, part], rest[:, part] + M[:, part] @ Sigma[part, part]
            seen = U.mT @ self.rows(N)  # (u, r, q)
            normal = (U.mT @ U) * (weighed @ V.mT)
            s = torch.linalg.solve(ridged(normal), (seen * V).sum(-1))  # (u, r)
            A = (U * s.unsqueeze(1)).flatten(0, 1)[: self.m]
            V = torch.linalg.solve(ridged(A.mT @ A), (seen * s.unsqueeze(-1)).sum(0))
            if Sigma is not None:
                V = V @ self.inverses[i]
                step = A @ V - M[:, part]
                rest -= step @ Sigma[part]
                M[:, part] += step
            S[:, :, i], H[:, part] = s.mT, V
        K = S.transpose(0, 1)[:, :, self.column] * H  # (u, r, n)
        normal = (K if Sigma is None else K @ Sigma) @ K.mT
        U = torch.linalg.solve(ridged(normal), K @ self.rows(self.right).mT)  # (u, r, p)
        return _balanced(joined(U.transpose(0, 1), self.m), S, H)


def _balanced(G: Tensor, S: Tensor, H: Tensor) -> Tensors:
    """The same terms, with couplings of mean square 1 and bases of one norm."""
    g, h, s = G.norm(dim=1), H.norm(dim=1), S.square().mean((1, 2)).sqrt()
    size = g * h * s
    root, known = size.sqrt(), size > 0
    g, h, s = (torch.where(known, t, 1.0) for t in (root / g, root / h, 1 / s))
    return {"G": G * g[:, None], "S": S * s[:, None, None], "H": H * h[:, None]}
