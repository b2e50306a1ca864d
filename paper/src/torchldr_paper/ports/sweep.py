"""A plan's passes over the tree of blocks: columns once, then rows up or rows down.

Sweeps know the line of blocks only. What the corners add passes through the series at the two ports of the
whole: `Closing`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import levels, series
from .series import close, closing_roots, laid_out, leaf_blocks, leaf_columns, lengthened, roots


class Sweep:
    """An operator without corners after one pass over its columns.

    Leaves are dense Krylov matrices, so that rows are one batched product.

    Attributes:
        top: the columns of the whole, (2, 2 + r, N).
    """

    @torch.no_grad()
    def __init__(self, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, oversampling: int) -> None:
        self.r, self.n = V.shape
        self._layout, N = laid_out(self.n, series.LEAF, V.device), oversampling * series.LEAF
        self._N = N
        first, ends = self._layout.first, self._layout.ends
        right = torch.arange(len(first), device=V.device), ends - first - 1  # the right ports
        K = self._leaves(lower, diagonal, upper, V)
        self._K = K.flatten(2)  # (J, size, (2 + r) N)
        Z = torch.stack((K[:, 0], K[right])).movedim(2, 1)
        every = roots(N << len(self._layout.cuts), V)
        self._arriving: list[Tensor] = []  # B of each level
        for at in self._layout.cuts:
            cut = levels.cuts(Z, lower[at], upper[at - 1], every[:: len(at)])
            B = levels.arriving(cut)
            Z = levels.columns_up(Z, cut, B)
            self._arriving.append(B)
        self.top = Z[:, :, 0]

    def _leaves(self, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor) -> Tensor:
        """(J, size, 2 + r, N); on a GPU in float64, where float32 might mean TF32."""
        dtype = torch.float64 if V.is_cuda else V.dtype
        blocks = leaf_blocks(lower.to(dtype), diagonal.to(dtype), upper.to(dtype), self._layout)
        return leaf_columns(blocks, V.to(dtype), self._N)[0].to(V.dtype)

    @torch.no_grad()
    def rows_up(self, U: Tensor, k: int, *, top: bool) -> tuple[Tensor, Tensor | None]:
        """K_k(A, v_i)^T u_b, (b, r, k), and with `top` the rows of the whole, (2, b, N)."""
        b, N = U.shape[0], self._N
        rows = (self._dealt(U) @ self._K).view(-1, b, 2 + self.r, N)
        u, result = rows[:, :, :2].permute(2, 1, 0, 3), lengthened(rows[:, :, 2:].sum(0), k)
        for index, B in enumerate(self._arriving):
            N *= 2
            at_cut = levels.rows_at_cut(u)
            part = torch.fft.irfft(levels.heard(at_cut, B), n=N)[..., :k]
            result[..., : part.shape[-1]] += part
            if top or index + 1 < len(self._arriving):
                u = levels.rows_up(u, at_cut, B)
        return result, u[:, :, 0] if top else None

    @torch.no_grad()
    def rows_down(self, w: Tensor, du: Tensor | None) -> Tensor:
        """K_k(A, v_i) w_i, (b, n), with what cotangents (2, b, N) of the rows of the whole add."""
        b, N = w.shape[0], self._N << len(self._arriving)
        du = w.new_zeros(2, b, 1, N) if du is None else du.unsqueeze(2)
        for B in reversed(self._arriving):
            du = levels.rows_down(du, torch.fft.rfft(w[..., :N], n=N).unsqueeze(2), B)
            N //= 2
        return self._from_leaves(w, du)

    def _dealt(self, U: Tensor) -> Tensor:
        """(b, n) to (J, b, size), zeros behind leaves that are shorter."""
        J, size, _ = self._K.shape
        if J * size == self.n:
            return U.unflatten(1, (J, size)).transpose(0, 1)
        padded = U.new_zeros(U.shape[0], J * size)
        padded[:, self._layout.places] = U
        return padded.unflatten(1, (J, size)).transpose(0, 1)

    def _at_leaves(self, w: Tensor, du: Tensor) -> Tensor:
        """The cotangents of what the leaves give, (J, b, (2 + r) N)."""
        heard = lengthened(w, self._N).expand(len(self._K), -1, -1, -1)
        return torch.cat((du.permute(2, 1, 0, 3), heard), 2).flatten(2)

    def _from_leaves(self, w: Tensor, du: Tensor) -> Tensor:
        y = (self._at_leaves(w, du) @ self._K.mT).transpose(0, 1).flatten(1)
        return y if y.shape[1] == self.n else y[:, self._layout.places]


class Closing:
    """What the corners add to the products of a line, for the columns of the whole (2, 2 + r, N)."""

    def __init__(self, top: Tensor, a: Tensor, b: Tensor, k: int) -> None:
        self._k, self.length = k, top.shape[-1]
        self.roots, radius = closing_roots(k, top.dtype)
        self.weights = radius ** torch.arange(k, dtype=torch.float64, device=top.device)
        hats = torch.fft.rfft(lengthened(top, k).double() * self.weights, n=self.roots)
        z = radius * roots(self.roots, self.weights)
        self.arriving = close(hats, a.double() * z, b.double() * z)  # (2, r, roots)

    def add(self, u: Tensor) -> Tensor:
        """To K_k(A, v_i)^T u, (b, r, k), for rows of the whole (2, b, N)."""
        k, N = self._k, self.roots
        hats = torch.fft.rfft(lengthened(u, k).double() * self.weights, n=N).unsqueeze(2)
        total = torch.addcmul(hats[0] * self.arriving[0], hats[1], self.arriving[1])
        return (torch.fft.irfft(total, n=N)[..., :k] / self.weights).to(u.dtype)

    def transpose(self, w: Tensor) -> Tensor:
        """The transpose of `add`: (b, r, k) to (2, b, N)."""
        hats = torch.fft.rfft(w.double() / self.weights, n=self.roots)
        hats = (hats * self.arriving.conj().unsqueeze(1)).sum(2)
        down = torch.fft.irfft(hats, n=self.roots)[..., : self._k] * self.weights
        return lengthened(down.to(w.dtype), self.length)
