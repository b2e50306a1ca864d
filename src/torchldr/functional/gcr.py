"""Generalised conjugate residuals with a preconditioner, for many right-hand sides, that gives up early.

Step j takes the direction z_j = C^-1 r_j from the residual r_j and makes M z_j orthogonal to those before, so
that it minimises |b - M x| over the same space as GMRES does after as many products. Nothing but residuals
and products is kept, and the residual is at hand after every step: from its decrease follows how many more it
will take.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


def gcr(product: Product, precondition: Product, b: Tensor, target: Tensor, *, most: int) -> Tensor | None:
    """Solve M x = b for every row of b, or return None as soon as `most` steps will not do.

    Args:
        product: (p, n) to (p, n), by M.
        precondition: the same, by C^-1 with C near M.
        b: right-hand sides, real, shape (p, n).
        target: what |b - M x| should come to, shape (p,). A row that is there leaves the others alone.
        most: steps.

    Returns:
        The solutions (p, n). Rounding errors have a part in them: the caller measures b - M x.

    Cost: a product and a preconditioning a step, and 2 most n memory a row.
    """
    x, rows = torch.zeros_like(b), torch.arange(len(b), device=b.device)
    left = start = torch.linalg.vector_norm(b, dim=-1)
    space = _Space(b, most)
    for step in range(most + 1):
        done = left <= target
        if bool(done.any()):
            x[rows[done]] = precondition(space.solution(done))
            rows, left, start, target = (t[~done] for t in (rows, left, start, target))
            if not len(rows):
                return x
            space.keep(~done)
        if step == most or (step and step % 8 == 0 and not _will_do(left, start, target, step, most)):
            break
        left = space.add(product(precondition(space.residual)))
    return None


def _will_do(left: Tensor, start: Tensor, target: Tensor, step: int, most: int) -> bool:
    """Whether rows that go on as they have until this step come to their targets."""
    gained, wanted = (torch.log(start / t) for t in (left, target))
    return bool((gained * most >= wanted * step).all()) and math.isfinite(float(gained.sum()))


class _Space:
    """The residuals r_j, and orthonormal v_j with M C^-1 r_j = sum_i H_ij v_i."""

    def __init__(self, b: Tensor, most: int) -> None:
        p, n = b.shape
        self.residual, self.size = b, 0
        self.residuals, self.V = b.new_empty(2, p, most, n)
        self.H, self.along = b.new_zeros(p, most, most), b.new_zeros(p, most)

    def add(self, v: Tensor) -> Tensor:
        """Take M C^-1 r in, and return the length of the residual that is left, shape (p,)."""
        j, r = self.size, self.residual
        V = self.V[:, :j]
        if j:
            h = V @ v.unsqueeze(-1)
            v = torch.baddbmm(v.unsqueeze(1), h.mT, V, alpha=-1).squeeze(1)
            self.H[:, :j, j] = h.squeeze(-1)
        length = torch.linalg.vector_norm(v, dim=-1)
        v = v / length.unsqueeze(-1)
        along = torch.linalg.vecdot(v, r)
        self.residuals[:, j], self.V[:, j] = r, v
        self.H[:, j, j], self.along[:, j] = length, along
        self.residual, self.size = torch.addcmul(r, along.unsqueeze(-1), v, value=-1), j + 1
        return torch.linalg.vector_norm(self.residual, dim=-1)

    def solution(self, rows: Tensor) -> Tensor:
        """C x for these rows."""
        j = self.size
        H, along = self.H[rows, :j, :j], self.along[rows, :j]
        share = torch.linalg.solve_triangular(H, along.unsqueeze(-1), upper=True)
        return (share.mT @ self.residuals[rows, :j]).squeeze(1)

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows alone."""
        self.residual, self.residuals, self.V = self.residual[rows], self.residuals[rows], self.V[rows]
        self.H, self.along = self.H[rows], self.along[rows]
