"""The operators of the structured classes: shifts, diagonals, subdiagonals, tridiagonals."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.checks import checked_vector
from .base import Entries, Operator, Power, TransposedOperator
from .blocks import BlockDiagonal

Scalar = float | complex | Tensor


class Shift(Operator):
    """Z_f: ones below the diagonal, f in the top right corner.

    Args:
        n: size.
        f: a number, or a tensor of shape ().
        dtype, device: of `to_dense()` and `eigenvalues()`; products take those of their input.
    """

    def __init__(
        self,
        n: int,
        f: Scalar = 0.0,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n)
        given = f if isinstance(f, Tensor) else torch.tensor(f)
        if given.ndim:
            raise ValueError(f"Shift: f must be a number or of shape (), got shape {tuple(given.shape)}.")
        default = given.dtype if isinstance(f, Tensor) or given.is_complex() else torch.get_default_dtype()
        self.f = f
        self._dtype = dtype or default
        self._device = torch.device(device) if device is not None else given.device

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def corner(self) -> Tensor:
        """f as a tensor of shape ()."""
        return torch.as_tensor(self.f, dtype=self.dtype, device=self.device)

    def _matmul(self, x: Tensor) -> Tensor:
        return torch.cat((self.f * x[..., -1:], x[..., :-1]), -1)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return torch.cat((y[..., 1:], self.f * y[..., :1]), -1)

    def _power_matmul(self, x: Tensor, p: int) -> Tensor:
        turns, p = divmod(p, self.n)
        moved = torch.cat((self.f * x[..., self.n - p :], x[..., : self.n - p]), -1)
        return self.f**turns * moved if turns else moved

    def _power_rmatmul(self, y: Tensor, p: int) -> Tensor:
        turns, p = divmod(p, self.n)
        moved = torch.cat((y[..., p:], self.f * y[..., :p]), -1)
        return self.f**turns * moved if turns else moved

    def entries(self) -> Entries:
        # A number f is compared in float64: in the default dtype, 0.1 would not equal Python's 0.1.
        wide = torch.complex128 if isinstance(self.f, complex) else torch.float64
        exact = self.f if isinstance(self.f, Tensor) else torch.tensor(self.f, dtype=wide)
        corner = exact.to(self.device).reshape(1)
        ones = torch.ones(self.n - 1, dtype=corner.dtype, device=self.device)
        return _cyclic(torch.cat((corner, ones)))

    def eigenvalues(self) -> Tensor:
        return _roots(self.n, self.corner, self.corner.abs().log())

    def inverse(self) -> Operator:
        if self.f == 0:
            raise ValueError(f"Shift: Z_0 of size {self.n} is nilpotent and has no inverse.")
        return Shift(self.n, 1 / self.f, dtype=self.dtype, device=self.device).T

    def krylov(self, v: Tensor, k: int) -> Tensor:
        """As for every operator, by indexing alone: column j is v moved down by j."""
        i = torch.arange(self.n, device=v.device).unsqueeze(-1)
        source = i - torch.arange(self._columns(k), device=v.device)  # n of these fewer for each turn
        moved = self._checked(v)[..., source % self.n]
        turns = -torch.div(source, self.n, rounding_mode="floor")
        # Products instead of a power: 0 ** 0 has no derivative, and is nan if complex.
        powers = [torch.ones((), dtype=v.dtype, device=v.device)]
        while len(powers) <= (k + self.n - 2) // self.n:
            powers.append(self.f * powers[-1])
        dtype = powers[-1].dtype
        return moved * torch.stack([power.to(dtype) for power in powers])[turns]

    def __repr__(self) -> str:
        f = self.f.item() if isinstance(self.f, Tensor) else self.f
        return f"Shift({self.n}, {f:.6g})"


class Diagonal(Operator):
    """diag(d), real or complex, d of shape (n,)."""

    made_of = ("d",)

    def __init__(self, d: Tensor) -> None:
        self.d = checked_vector(d, "Diagonal", "d", least=0)
        super().__init__(d.shape[0])

    @property
    def T(self) -> Operator:
        return self

    def _matmul(self, x: Tensor) -> Tensor:
        return self.d * x

    def _rmatmul(self, y: Tensor) -> Tensor:
        return self.d * y

    def entries(self) -> Entries:
        i = torch.arange(self.n, device=self.device)
        return Entries(i, i, self.d)

    def eigenvalues(self) -> Tensor:
        return self.d

    def inverse(self) -> Operator:
        if bool((self.d == 0).any()):
            raise ValueError(f"Diagonal: entry {int((self.d == 0).nonzero()[0])} is 0: there is no inverse.")
        return Diagonal(1 / self.d)

    def __pow__(self, p: int) -> Operator:
        return self.inverse() ** -p if p < 0 else Diagonal(self.d**p)

    def krylov(self, v: Tensor, k: int) -> Tensor:
        """As for every operator: the columns of a Vandermonde matrix, each row times v_i."""
        if self.d.is_complex():  # where 0 ** 0 is not a number
            return super().krylov(v, k)
        powers = torch.arange(self._columns(k), device=v.device)
        return self._checked(v).unsqueeze(-1) * self.d.unsqueeze(-1) ** powers


class Subdiagonal(Operator):
    """s_1 .. s_{n-1} below the diagonal and a corner in the top right.

    Args:
        s: shape (n - 1,).
        corner: a number, or shape ().
    """

    made_of = "s", "corner"

    def __init__(self, s: Tensor, corner: Scalar = 0.0) -> None:
        self.s = checked_vector(s, "Subdiagonal", "s", least=0)
        self.corner = torch.as_tensor(corner, device=s.device).reshape(())
        if not isinstance(corner, Tensor) and not isinstance(corner, complex):
            self.corner = self.corner.to(s.dtype)
        super().__init__(s.shape[0] + 1)

    def _matmul(self, x: Tensor) -> Tensor:
        return torch.cat((self.corner * x[..., -1:], self.s * x[..., :-1]), -1)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return torch.cat((self.s * y[..., 1:], self.corner * y[..., :1]), -1)

    def _power_weights(self, p: int) -> Tensor:
        """w with (A^p v)_i = w_i v_{i-p}, i modulo n: products of p weights in a row, by doubling."""
        step, moved = torch.cat((self.corner.reshape(1), self.s)), 1
        weights, done = torch.ones_like(step), 0
        while p:
            if p & 1:
                weights, done = weights * step.roll(done), done + moved
            step, moved, p = step * step.roll(moved), 2 * moved, p >> 1
        return weights

    def _power_matmul(self, x: Tensor, p: int) -> Tensor:
        return self._power_weights(p) * x.roll(p, -1)

    def _power_rmatmul(self, y: Tensor, p: int) -> Tensor:
        return (self._power_weights(p) * y).roll(-p, -1)

    def entries(self) -> Entries:
        return _cyclic(torch.cat((self.corner.reshape(1), self.s)))

    def eigenvalues(self) -> Tensor:
        weights = torch.cat((self.corner.reshape(1), self.s))
        size = weights.abs()
        turn = torch.where(size > 0, weights / size, torch.zeros_like(weights)).prod()
        return _roots(self.n, turn, size.log().sum())

    def inverse(self) -> Operator:
        if bool((self.corner == 0) | (self.s == 0).any()):
            raise ValueError(f"Subdiagonal: a weight or the corner is 0 (n={self.n}): there is no inverse.")
        return Subdiagonal(1 / self.s, 1 / self.corner).T


class Tridiagonal(Operator):
    """Three diagonals and two corners.

    Args:
        sub: below the diagonal, shape (n - 1,).
        diag: the diagonal, shape (n,).
        super: above the diagonal, shape (n - 1,).
        corners: top right and bottom left, two numbers or shape (2,). Where a corner meets another entry
            (n <= 2) they add.
    """

    made_of = "diag", "sub", "super", "corners"

    def __init__(
        self, sub: Tensor, diag: Tensor, super: Tensor, corners: Tensor | tuple[Scalar, Scalar] = (0.0, 0.0)
    ) -> None:
        self.diag = checked_vector(diag, "Tridiagonal", "diag", least=0)
        n = diag.shape[0]
        for name, t in (("sub", sub), ("super", super)):
            if checked_vector(t, "Tridiagonal", name, least=0).shape[0] != n - 1:
                raise ValueError(
                    f"Tridiagonal: {name} must have shape ({n - 1},) beside a diagonal of {n}, "
                    f"got {tuple(t.shape)}."
                )
        if not isinstance(corners, Tensor):
            dtype = torch.promote_types(diag.dtype, sub.dtype)
            like = [torch.as_tensor(c, device=diag.device) for c in corners]
            corners = torch.stack([c if c.is_complex() else c.to(dtype) for c in like])
        if corners.shape != (2,):
            raise ValueError(f"Tridiagonal: corners must be two numbers, got shape {tuple(corners.shape)}.")
        self.sub, self.super, self.corners = sub, super, corners
        Operator.__init__(self, n)

    @property
    def T(self) -> Operator:
        return Tridiagonal(self.super, self.diag, self.sub, self.corners.flip(0))

    @classmethod
    def from_ring(cls, lower: Tensor, diagonal: Tensor, upper: Tensor) -> Tridiagonal:
        """The operator of which these are the `ring`."""
        return cls(lower[1:], diagonal, upper[:-1], torch.stack((lower[0], upper[-1])))

    def ring(self) -> tuple[Tensor, Tensor, Tensor]:
        """Three vectors (n,) with (Av)_i = lower_i v_{i-1} + diagonal_i v_i + upper_i v_{i+1}, i modulo n."""
        lower = torch.cat((self.corners[:1], self.sub))
        return lower, self.diag, torch.cat((self.super, self.corners[1:]))

    def _matmul(self, x: Tensor) -> Tensor:
        lower, diagonal, upper = self.ring()
        return diagonal * x + lower * x.roll(1, -1) + upper * x.roll(-1, -1)

    def _rmatmul(self, y: Tensor) -> Tensor:
        lower, diagonal, upper = self.ring()
        return diagonal * y + (lower * y).roll(-1, -1) + (upper * y).roll(1, -1)

    def entries(self) -> Entries:
        lower, diagonal, upper = self.ring()
        i = torch.arange(self.n, device=self.device)
        columns = torch.cat(((i - 1) % self.n, i, (i + 1) % self.n))
        return Entries(i.repeat(3), columns, torch.cat((lower, diagonal, upper)))

    def eigenvalues(self) -> Tensor:
        """The diagonal, if the operator is triangular."""
        if self.n == 1:
            return self.diag + self.corners.sum()
        upper = bool((self.sub == 0).all() & (self.corners[1] == 0))
        lower = bool((self.super == 0).all() & (self.corners[0] == 0))
        return self.diag if upper or lower else super().eigenvalues()


def conjugated(A: Operator, D: Diagonal) -> Operator | None:
    """D A D^-1 as an operator of the same kind; None if D has a zero or the kind is unknown.

    A shift becomes a subdiagonal operator.
    """
    if bool((D.d == 0).any()):
        return None
    d = D.d
    if isinstance(A, Diagonal):
        return A
    if isinstance(A, Shift):
        return Subdiagonal(d[1:] / d[:-1], A.corner.to(d.dtype) * d[0] / d[-1])
    if isinstance(A, Subdiagonal):
        return Subdiagonal(A.s * d[1:] / d[:-1], A.corner * d[0] / d[-1])
    if isinstance(A, Tridiagonal):
        corners = A.corners * torch.stack((d[0] / d[-1], d[-1] / d[0]))
        return Tridiagonal(A.sub * d[1:] / d[:-1], A.diag, A.super * d[:-1] / d[1:], corners)
    if isinstance(A, TransposedOperator):  # D A^T D^-1 = (D^-1 A D)^T
        of = conjugated(A.of, Diagonal(1 / d))
        return None if of is None else of.T
    if isinstance(A, Power):
        of = conjugated(A.of, D)
        return None if of is None else of**A.p
    if isinstance(A, BlockDiagonal):
        blocks = [
            conjugated(block, Diagonal(part)) for block, part in zip(A.blocks, d.split(A.sizes), strict=True)
        ]
        return None if None in blocks else BlockDiagonal([block for block in blocks if block is not None])
    return None


def _cyclic(weights: Tensor) -> Entries:
    """The operator that moves entry i - 1 to i, times weights[i], the last one to the top."""
    i = torch.arange(weights.shape[0], device=weights.device)
    return Entries(i, (i - 1) % weights.shape[0], weights)


def _roots(n: int, turn: Tensor, log_size: Tensor) -> Tensor:
    """The n-th roots of the number of this sign (or phase) and logarithm: an underflow would lose them."""
    real = torch.promote_types(log_size.dtype, torch.float32)
    turns = torch.arange(n, dtype=real, device=turn.device) * (2 * math.pi / n)
    angle = torch.angle(turn).to(real) / n + turns
    return torch.polar(torch.exp(log_size.to(real) / n).expand(n).contiguous(), angle)
