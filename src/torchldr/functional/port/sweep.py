"""One pass of the port product over the tree of blocks: columns once, then rows up or rows down.

A sweep is made for an operator and its start vectors, and is run by torch (`TorchSweep`, any device) or by
compiled loops (`compiled.CompiledSweep`, CPU memory); `sweep` chooses. Sweeps know the line of blocks
only. What the corners add passes through the series at the two ports of the whole: `Closing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from ...kernels.cpu import compiled
from ...kernels.cpu.compiled import numbers, wide
from ...kernels.cuda import port as port_cuda
from . import levels, series
from .compiled import CompiledSweep
from .series import close, closing_roots, laid_out, leaf_blocks, leaf_columns, lengthened, roots


class Sweep(Protocol):
    """What is known of an operator without corners after one pass over its columns."""

    top: Tensor  # the columns of the whole, (2, 2 + r, N)

    def rows_up(self, U: Tensor, k: int, *, top: bool) -> tuple[Tensor, Tensor | None]:
        """K_k(A, v_i)^T u_b, (b, r, k), and if asked the rows of the whole, (2, b, N)."""

    def rows_down(self, w: Tensor, du: Tensor | None) -> Tensor:
        """K_k(A, v_i) w_i, (b, n), and what cotangents of the rows of the whole bring."""


def sweep(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, oversampling: int) -> Sweep:
    """A sweep that runs where the tensors are."""
    lower, diagonal, upper, V = (x.detach() for x in (lower, diagonal, upper, V))
    kind = CompiledSweep if LOOPS.serves(lower, diagonal, upper, V) else TorchSweep
    return kind(lower, diagonal, upper, V, oversampling)


class TorchSweep:
    """A sweep in torch operations. Leaves are dense Krylov matrices, so that rows are one batched product."""

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
        b, N = U.shape[0], self._N
        rows = (self._dealt(U) @ self._K).view(-1, b, 2 + self.r, N)
        u, result = rows[:, :, :2].permute(2, 1, 0, 3), lengthened(rows[:, :, 2:].sum(0), k)
        if port_cuda.serves(self._arriving, b):
            whole = port_cuda.rows_up(u, self._arriving, result, top=top)
            return result, None if whole is None else whole[:, :, 0]
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
        b, N = w.shape[0], self._N << len(self._arriving)
        du = w.new_zeros(2, b, 1, N) if du is None else du.unsqueeze(2)
        if port_cuda.serves(self._arriving, b):
            return self._from_leaves(w, port_cuda.rows_down(du.contiguous(), self._arriving, w))
        for B in reversed(self._arriving):
            du = levels.rows_down(du, self._spectra(w, N), B)
            N //= 2
        return self._from_leaves(w, du)

    def _spectra(self, w: Tensor, N: int) -> Tensor:
        return torch.fft.rfft(w[..., :N], n=N).unsqueeze(2)

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
        down = torch.fft.irfft(self.down(w).sum(2), n=self.roots)[..., : self._k] * self.weights
        return lengthened(down.to(w.dtype), self.length)

    def down(self, w: Tensor) -> Tensor:
        """Spectra of the cotangents of rows at the radius, for each start vector, (2, b, r, roots)."""
        hats = torch.fft.rfft(w.double() / self.weights, n=self.roots)
        return hats * self.arriving.conj().unsqueeze(1)


_SIZE = 2 * series.LEAF + 8  # four leaves, two levels of joins


def _forward(made: Sweep) -> Iterator[Tensor]:
    """What a sweep for two start vectors computes."""
    U, w = numbers(2, _SIZE, dtype=made.top.dtype), numbers(2, 2, _SIZE, dtype=made.top.dtype)
    heard, top = made.rows_up(U, _SIZE, top=True)
    assert top is not None
    yield from (made.top, heard, top, made.rows_down(w, numbers(*top.shape, dtype=top.dtype)))


def _contraction(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lower, diagonal, upper of an operator without corners, and start vectors."""
    lower, diagonal, upper = numbers(3, _SIZE, dtype=dtype) / 4
    lower[0] = upper[-1] = 0
    return lower, diagonal, upper, numbers(2, _SIZE, dtype=dtype)


def _check(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    a, b, c, V = _contraction(dtype)
    right = TorchSweep(wide(a), wide(b), wide(c), wide(V), 4)
    yield from zip(_forward(CompiledSweep(a, b, c, V, 4)), _forward(right), strict=True)


LOOPS = compiled.Loops("the port product", _check)
