"""One pass of the port product over the tree of blocks: columns once, then rows up, rows down, gradients.

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
from ..reference import krylov_of_ring_reference
from . import levels, series
from .compiled import CompiledSweep
from .series import (
    Series,
    close,
    closed,
    closing_roots,
    laid_out,
    leaf_blocks,
    leaf_columns,
    lengthened,
    roots,
)


class Sweep(Protocol):
    """What is known of an operator without corners after one pass over its columns."""

    top: Tensor  # the columns of the whole, (2, 2 + r, N)

    def rows_up(self, U: Tensor, k: int, *, top: bool) -> tuple[Tensor, Tensor | None]:
        """K_k(A, v_i)^T u_b, (b, r, k), and if asked the rows of the whole, (2, b, N)."""

    def rows_down(self, w: Tensor, du: Tensor | None) -> Tensor:
        """K_k(A, v_i) w_i, (b, n), and what cotangents of the rows of the whole bring."""

    def gradients(
        self, U: Tensor, w: Tensor, dZ: Tensor | None, du: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of <w, K_k(A, v_i)^T u> in lower, diagonal, upper (3, n), V and U.

        After `rows_up` of the same U and, if `rows_down` was run, of the same w, in a sweep that keeps.

        dZ, du: cotangents of the columns and rows of the whole.
        """


def sweep(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, oversampling: int, *, keep: bool
) -> Sweep:
    """A sweep that runs where the tensors are; `keep` what `gradients` needs."""
    lower, diagonal, upper, V = (x.detach() for x in (lower, diagonal, upper, V))
    tensors = lower, diagonal, upper, V
    if LOOPS.serves(*tensors) and (not keep or GRADIENTS.serves(*tensors)):
        return CompiledSweep(lower, diagonal, upper, V, oversampling, keep=keep)
    return TorchSweep(lower, diagonal, upper, V, oversampling, keep=keep)


class TorchSweep:
    """A sweep in torch operations. Leaves are dense Krylov matrices, so that rows are one batched product."""

    @torch.no_grad()
    def __init__(
        self, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, oversampling: int, *, keep: bool
    ) -> None:
        self._operands, self._keep = (lower, diagonal, upper, V) if keep else (), keep
        self.r, self.n = V.shape
        self._layout, N = laid_out(self.n, series.LEAF, V.device), oversampling * series.LEAF
        self._N = N
        first, ends = self._layout.first, self._layout.ends
        self._right = torch.arange(len(first), device=V.device), ends - first - 1  # the right ports
        K = self._leaves(lower, diagonal, upper, V)
        self._K = K.flatten(2)  # (J, size, (2 + r) N)
        Z = torch.stack((K[:, 0], K[self._right])).movedim(2, 1)
        every = roots(N << len(self._layout.cuts), V)
        self._levels: list[tuple[Tensor, levels.Cuts | None, Tensor]] = []  # B, cuts, z
        self._at_cuts: list[Tensor] = []
        for at in self._layout.cuts:
            z = every[:: len(at)]
            cut = levels.cuts(Z, lower[at], upper[at - 1], z)
            B = levels.arriving(cut, levels.crossing(cut))
            Z = levels.columns_up(Z, cut, B)
            self._levels.append((B, cut if keep else None, z))
        self.top = Z[:, :, 0]

    def _leaves(self, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor) -> Tensor:
        """(J, size, 2 + r, N); on a GPU in float64, where float32 might mean TF32."""
        dtype = torch.float64 if V.is_cuda else V.dtype
        blocks = leaf_blocks(lower.to(dtype), diagonal.to(dtype), upper.to(dtype), self._layout)
        return leaf_columns(blocks, V.to(dtype), self._N).to(V.dtype)

    @torch.no_grad()
    def rows_up(self, U: Tensor, k: int, *, top: bool) -> tuple[Tensor, Tensor | None]:
        b, N = U.shape[0], self._N
        rows = (self._dealt(U) @ self._K).view(-1, b, 2 + self.r, N)
        u, result = rows[:, :, :2].permute(2, 1, 0, 3), lengthened(rows[:, :, 2:].sum(0), k)
        self._at_cuts = []
        arriving = [B for B, _, _ in self._levels]
        if not self._keep and port_cuda.serves(arriving, b):
            whole = port_cuda.rows_up(u, arriving, result, top=top)
            return result, None if whole is None else whole[:, :, 0]
        for index, (B, _, _) in enumerate(self._levels):
            N *= 2
            at_cut = levels.rows_at_cut(u)
            part = torch.fft.irfft(levels.heard(at_cut, B), n=N)[..., :k]
            result[..., : part.shape[-1]] += part
            if top or index + 1 < len(self._levels):
                u = levels.rows_up(u, at_cut, B)
            if self._keep:
                self._at_cuts.append(at_cut)
        return result, u[:, :, 0] if top else None

    @torch.no_grad()
    def rows_down(self, w: Tensor, du: Tensor | None) -> Tensor:
        b, N = w.shape[0], self._N << len(self._levels)
        du = w.new_zeros(2, b, 1, N) if du is None else du.unsqueeze(2)
        arriving = [B for B, _, _ in self._levels]
        if port_cuda.serves(arriving, b):
            return self._from_leaves(w, port_cuda.rows_down(du.contiguous(), arriving, w))
        for B, _, _ in reversed(self._levels):
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

    @torch.no_grad()
    def gradients(
        self, U: Tensor, w: Tensor, dZ: Tensor | None, du: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        b, N = U.shape[0], self._N << len(self._levels)
        dZ = w.new_zeros(2, 2 + self.r, 1, N) if dZ is None else dZ.unsqueeze(2)
        du = w.new_zeros(2, b, 1, N) if du is None else du.unsqueeze(2)
        d_ring = w.new_zeros(3, self.n)
        for level, at in reversed(list(enumerate(self._layout.cuts))):
            _, cut, z = self._levels[level]
            assert cut is not None
            found = levels.columns_down(dZ, du, self._spectra(w, N), cut, self._at_cuts[level], z)
            dZ, du, N = found.Z, found.u, N // 2
            d_ring[0, at], d_ring[2, at - 1] = found.s, found.p
        dK = (self._dealt(U).mT @ self._at_leaves(w, du)).view(*self._K.shape[:2], 2 + self.r, N)
        left, right = dZ.movedim(2, 1)
        dK[:, 0] += left
        dK[self._right] += right
        inside = torch.func.vjp(self._leaves, *self._operands)[1](dK)
        return d_ring + torch.stack(inside[:3]), inside[3], self._from_leaves(w, du)


class Closing:
    """What the corners add to the products of a line, for the columns of the whole (2, 2 + r, N)."""

    def __init__(self, top: Tensor, a: Tensor, b: Tensor, k: int) -> None:
        self._k, self.length = k, top.shape[-1]
        self.roots, radius = closing_roots(k, top.dtype)
        self.weights = radius ** torch.arange(k, dtype=torch.float64, device=top.device)
        hats = torch.fft.rfft(lengthened(top, k).double() * self.weights, n=self.roots)
        z = radius * roots(self.roots, self.weights)
        block = Series(hats[:, :2].flatten(0, 1), hats[:, 2:], hats[:, :1])
        pairs = close(block, a.double() * z, b.double() * z)
        self.arriving = torch.stack([q for _, q in pairs])  # z a q_R and z b q_L of `close`, (2, r, roots)

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


def closing(top: Tensor, a: Tensor, b: Tensor, k: int) -> Closing | None:
    """None where there are no corners, as far as that can be told without waiting for a device."""
    return None if _absent(a, b) else Closing(top, a, b, k)


def _absent(a: Tensor, b: Tensor) -> bool:
    return a.device.type == "cpu" and not bool(a) and not bool(b)


def closing_gradients(
    top: Tensor, u: Tensor, a: Tensor, b: Tensor, w: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """Gradients of <w, what the corners add> in columns and rows of the whole and in the corners.

    The first two are None where there are no corners; what a first one would add is uL vR and uR vL.
    """
    k = w.shape[-1]
    if _absent(a, b):
        z = roots(2 * k, w)
        v_hat, u_hat, w_hat = (torch.fft.rfft(lengthened(x, k), n=2 * k) for x in (top[:, 2:], u, w))
        weights = torch.full_like(z, 1 / k)  # of a root and its conjugate among 2k
        weights[::k] /= 2
        around = weights * z
        # conj(w) summed over the batch with either row, then over the start vectors with the other port.
        heard = torch.stack([(w_hat.conj() * row.unsqueeze(1)).sum(0) for row in u_hat])
        da, db = ((heard * v_hat.flip(0)).sum(1) * around).sum(-1).real
        return None, None, da, db

    def added(top: Tensor, u: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return closed(Series(top[:, :2].flatten(0, 1), top[:, 2:], u), a, b, k)

    pull = torch.func.vjp(added, top, u, a, b)[1]
    return pull(w.double())


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
    right = TorchSweep(wide(a), wide(b), wide(c), wide(V), 4, keep=False)
    yield from zip(_forward(CompiledSweep(a, b, c, V, 4, keep=False)), _forward(right), strict=True)


def _check_gradients(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    operands = _contraction(dtype)
    U, w = numbers(2, _SIZE, dtype=dtype), numbers(2, 2, _SIZE, dtype=dtype)
    made = CompiledSweep(*operands, 4, keep=True)
    made.rows_up(U, _SIZE, top=False)
    d_ring, dV, dU = made.gradients(U, w, None, None)
    a, b, c, V, vectors = copies = [wide(x).requires_grad_() for x in (*operands, U)]
    K = krylov_of_ring_reference(a, b, c, V, _SIZE)
    right = torch.autograd.grad((wide(w) * torch.einsum("bm,imk->bik", vectors, K)).sum(), copies)
    for gradient in (right[0][:1], right[2][-1:]):
        gradient.zero_()  # of the corners, which a sweep knows nothing of
    yield from zip((*d_ring, dV, dU), right, strict=True)


LOOPS = compiled.Loops("the port product", _check)
GRADIENTS = compiled.Loops("the port product's gradients", _check_gradients)
