"""Projection onto sums of Kronecker products: Van Loan's SVD, and in a metric alternating least squares.

With the entries of each block of W as a row, R(W) (a c, b d), a Kronecker product is a matrix of rank one, so
that the best sum of r products is the truncated SVD of R(W). Cropped products leave entries of R(W) open, and
activations weigh entries together: then the best B_k given all A_k are least squares for each row of B, and
the best A_k given all B_k as well. With moments Sigma[j q, J Q] of the inputs, j a block and q a place in it,
the normal equations of a row of B are

    N[k q, l Q] = sum_{i, j, J} A[k, i, j] Sigma[j q, J Q] A[l, i, J],  right = (G R(W Sigma))[:, row].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core.rules import rule
from ...project.climbing import State, ascend, measured, repeated
from ...project.methods import solve
from ...project.problem import Problem, Tensors
from ...project.solving import balanced, ridged
from . import Kronecker, sizes

_SWEEPS, _TOLERANCE = 30, 1e-3


@rule("project", Kronecker)
def project(problem: Problem, rank: int) -> Tensors:
    alternation = Factors(problem)
    if problem.moments is None and not alternation.cropped:
        return alternation.nearest(problem.W, rank)
    return ascend(problem, rank, alternation.starts, alternation.descend).tensors


class Factors:
    """The alternation for one problem, over both factors."""

    def __init__(self, problem: Problem) -> None:
        self.problem, (m, n) = problem, problem.shape
        self.plain = None if problem.root is None else problem.without_activations()
        self.a, self.b, self.c, self.d = a, b, c, d = sizes(m, n, **problem.options)
        self.cropped = (a * b, c * d) != (m, n)
        moments = torch.eye(n, dtype=torch.float64) if problem.moments is None else problem.moments
        self.right = self.rearranged(problem.W @ moments)
        padded = pad(moments, (0, c * d - n, 0, c * d - n)).view(c, d, c, d)
        self.moments = padded.permute(0, 2, 1, 3).reshape(c * c, d * d)
        self.known = (torch.arange(a * b) < m).view(a, b)  # which rows are not cropped

    def rearranged(self, W: Tensor) -> Tensor:
        """R(W), with zeros where it is cropped."""
        W = pad(W, (0, self.c * self.d - W.shape[1], 0, self.a * self.b - W.shape[0]))
        return W.view(self.a, self.b, self.c, self.d).permute(0, 2, 1, 3).reshape(self.a * self.c, -1)

    def nearest(self, W: Tensor, rank: int) -> Tensors:
        """By the SVD of R(W), with terms that are zero where it has no more."""
        U, S, V = torch.linalg.svd(self.rearranged(W), full_matrices=False)
        root = S[:rank].sqrt()
        missing = max(rank - len(S), 0)
        G, H = (U[:, :rank] * root).mT, root.unsqueeze(1) * V[:rank]
        return {name: pad(t, (0, 0, 0, missing)).contiguous() for name, t in (("G", G), ("H", H))}

    def starts(self, rank: int, before: State | None) -> list[Tensors]:
        """The best without activations, and the rank before with what is best for the rest."""
        first = self.nearest(self.problem.W, rank) if self.plain is None else solve(self.plain, rank)
        if before is None:
            return [first]
        found, new = [first], self.nearest(self.problem.W - self.problem.dense(before.tensors), 1)
        for term in (new, {**new, "G": torch.zeros_like(new["G"])}):  # the second is not worse than before
            found.append({name: torch.cat((before.tensors[name], t)) for name, t in term.items()})
        return found

    def descend(self, best: State) -> State:
        """Both factors in turn until a sweep gains little."""
        problem = self.problem

        def sweep(tensors: Tensors) -> State:
            G = tensors["G"]
            A = G.view(len(G), self.a, self.c)
            H = _solved(A, self.moments, G @ self.right, self.known).flatten(1)
            B = H.view(len(H), self.b, self.d)
            G = _solved(B, self.moments.mT, H @ self.right.mT, self.known.mT).flatten(1)
            return measured(problem, dict(zip("GH", balanced(G, H), strict=True)))

        return repeated(problem, best, sweep, problem.steps(_SWEEPS), _TOLERANCE / problem.effort)


def _solved(F: Tensor, moments: Tensor, right: Tensor, known: Tensor) -> Tensor:
    """The best other factors, (r, b, d) for F (r, a, c); moments (c c, d d), right (r, b d), known (a, b)."""
    (r, _, c), b = F.shape, known.shape[1]
    right = right.view(r, b, -1).transpose(0, 1).flatten(1)  # (b, r d)
    found = torch.empty_like(right)
    kinds, kind = torch.unique(known, dim=1, return_inverse=True)  # rows of the other factor that see alike
    for i, rows in enumerate(kinds.unbind(1)):
        seen = F[:, rows].transpose(1, 2).flatten(0, 1)  # (r c, rows)
        pairs = (seen @ seen.mT).view(r, c, r, c).transpose(1, 2).reshape(r * r, c * c)
        normal = (pairs @ moments).view(r, r, *[int(moments.shape[1] ** 0.5)] * 2).transpose(1, 2)
        normal = ridged(normal.reshape(right.shape[1], -1))
        found[kind == i] = torch.linalg.solve(normal, right[kind == i].mT).mT
    return found.view(b, r, -1).transpose(0, 1)
