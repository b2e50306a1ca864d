"""Both factors of a forecaster with all entries free: dense matrices, for a past that is not long.

The error tr(E K E^T), E = W_k - W, is quadratic in the left factors and in the right ones. In the eigenbases
of the shifts W_k has the entries g_i . h_j C_ij, C_ij = e_i d_j / (a_i - c_j). With e = d = 1 the factors are
those of the displacement; with `generators` they are the parameters of a Toeplitz-like layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..matrices.toeplitz_like import corner_sign
from .gram import dense_gram
from .moments import Moments
from .roots import Roots

Pair = tuple[Tensor, Tensor]
DAMPING, TRIES = 1e-3, 6  # of a step: relative to the diagonal, at first; how often it is shortened
_CHUNK = 1 << 20  # numbers in a part of the mixed derivatives


class Bilinear:
    """The problem of one group: its moments, ridge and exact factors (r, H) and (r, L)."""

    def __init__(self, of: Moments, ridge: Tensor, exact: Pair, *, generators: bool = False) -> None:
        m, n = of.horizon, of.past
        s = float(corner_sign(m, n))
        self.rows, self.columns = rows, columns = Roots(m, s), Roots(n, -s)
        K = dense_gram(of, n)[0] + ridge * torch.eye(n, dtype=ridge.dtype)
        self.K = columns.analyse(columns.analyse(K).mH).mH  # V^H K V
        a, c = rows.values[: rows.half], columns.values
        self.cauchy = 1 / (a[:, None] - c)
        g = rows.analyse(exact[0]).conj()[:, : rows.half].mT
        self.W = (g @ columns.analyse(exact[1])) * self.cauchy
        self.WK = self.W @ self.K
        if generators:  # left = -G, right = Z^-1 H of the displacement, up to the term with k-th powers
            shorter = 1 - s * c.conj() ** m if m <= n else torch.ones_like(c)
            longer = torch.ones_like(a) if m <= n else 1 + s * a**n
            self.cauchy = -longer[:, None] * self.cauchy * (c * shorter)

    def error(self, left: Tensor, right: Tensor) -> float:
        """tr(E K E^T) for these factors."""
        return self._error(self.rows.analyse(left).conj()[:, : self.rows.half].mT, right)

    def _error(self, g: Tensor, right: Tensor) -> float:
        E = (g @ self.columns.analyse(right)) * self.cauchy - self.W
        return float((self.rows.weight * ((E @ self.K) * E.conj()).sum(-1).real).sum())

    def best_left(self, right: Tensor) -> Tensor:
        """The best g for right factors (k, L), at half of the roots: (i, k)."""
        Y = self.columns.analyse(right)[:, None] * self.cauchy
        N = torch.einsum("pil,qil->ipq", Y @ self.K, Y.conj())
        return solved(N.mT, torch.einsum("il,qil->iq", self.WK, Y.conj())[..., None]).squeeze(-1)

    def right_system(self, g: Tensor) -> Pair:
        """For these g the normal equations of the right factors: (k L, k L) and (k L,)."""
        k, n, columns = g.shape[1], self.columns.n, self.columns
        weighted = (self.rows.weight[:, None] * g.conj()).mT
        normal = torch.empty(k, n, k, n, dtype=torch.float64)
        for p in range(k):
            for q in range(p + 1):
                both = ((weighted[p] * g[:, q])[:, None] * self.cauchy).mT @ self.cauchy.conj() * self.K
                block = columns.combine(columns.combine(both.mT).mH).real.mT  # conj(V) .. V^T
                normal[p, :, q], normal[q, :, p] = block, block.mT
        target = columns.combine((weighted @ (self.cauchy.conj() * self.WK)).conj()).real
        return normal.view(k * n, k * n), target.flatten()

    def swept(self, right: Tensor, sweeps: int) -> Pair:
        """Steps down in the right factors, the left ones always the best for them.

        Best left and best right factors in turn creep along narrow valleys: a step of the right ones alone
        does not know that the left ones follow. These steps do (variable projection, Golub and Pereyra 1973,
        damped as by Levenberg and Marquardt): a few go further than dozens in turn.
        """
        g, damping = self.best_left(right), DAMPING
        least = self._error(g, right)
        for _ in range(sweeps):
            normal, target = self.right_system(g)
            slope = target - normal @ right.flatten()
            reduced, diagonal = normal - self._made_up(g, right), normal.diagonal().diag()
            for _ in range(TRIES):
                step = solved(reduced + damping * diagonal, slope[:, None]).view(right.shape)
                g = self.best_left(right + step)
                error = self._error(g, right + step)
                if error < least:
                    right, least, damping = right + step, error, damping / 5
                    break
                damping *= 8
            else:
                break
        return self.rows.real_rows(self.best_left(right).mT), right

    def _made_up(self, g: Tensor, right: Tensor) -> Tensor:
        """What the left factors, as they follow, take off the normal matrix of the right ones: (k L, k L)."""
        h, k, columns = self.columns.analyse(right), len(right), self.columns
        found = torch.zeros(right.numel(), right.numel(), dtype=right.dtype)
        size = max(1, _CHUNK // (k * right.numel()))
        for rows, cauchy, weight in zip(
            *(part.split(size) for part in (g, self.cauchy, self.rows.weight)), strict=True
        ):
            Y = h * cauchy[:, None]  # (i, k, L)
            YK = Y @ self.K
            both = YK[:, :, None] * (rows[:, :, None] * cauchy[:, None]).conj()[:, None]
            mixed = columns.combine(both.conj()).conj().flatten(2)  # (i, k, k L)
            by_left = solved(YK @ Y.mH, mixed) * weight[:, None, None]
            found += (mixed.flatten(0, 1).mH @ by_left.flatten(0, 1)).real
        return found


def solved(normal: Tensor, target: Tensor) -> Tensor:
    """normal^-1 target, positive matrices that may be singular by rounding."""
    diagonal = normal.diagonal(dim1=-2, dim2=-1).real
    scale = diagonal.clamp(min=torch.finfo(diagonal.dtype).tiny).rsqrt()
    normal = normal * scale[..., None] * scale[..., None, :]
    normal = normal + 1e-13 * torch.eye(normal.shape[-1], dtype=normal.dtype)
    return scale[..., None] * torch.linalg.solve(normal, scale[..., None] * target)
