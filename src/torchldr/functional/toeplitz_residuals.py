"""Toeplitz systems by conjugate residuals, preconditioned by the inverse of a smoothed symbol.

T has the symbol f(z) = sum_k t_k z^k. As a part of a circulant or skew-circulant matrix of twice its size it
multiplies by FFTs, with values of f for a spectrum. The same part of the one with the spectrum 1 / F is near
its inverse, F(z) = sum_k (1 - |k| / n) t_k z^k: the mean of f under Fejer's kernel, smooth also where
f is not.

Step j takes the direction z_j = C^-1 r_j from the residual r_j and makes T z_j orthogonal to those before, so
that it minimises |b - T x| over the same space as GMRES does after as many products (generalised conjugate
residuals). The residual is at hand after every step: from its decrease follows how many more it will take.

`Plain` and `Compiled` compute the same, by batched operations of torch and by loops over the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ..kernels.cpu import library
from ..kernels.cpu.residuals import conjugate_residuals
from ..kernels.cpu.tables import half_length
from ..torch_private import are_recorded
from .fft import fast_length
from .ring import twist

Map = Callable[[Tensor], Tensor]

RANGE = 1e6  # |F| may vary by: more is no preconditioner


class Form(Protocol):
    def solve(self, b: Tensor, target: Tensor, most: int, *, transposed: bool) -> Tensor | None:
        """T x = b for rows of b (p, n) to |b - T x| <= target (p,), or None where `most` steps do not do."""


class Plain:
    """On any device; column and row are T's first, real and of shape (n,)."""

    def __init__(self, column: Tensor, row: Tensor) -> None:
        self.n = column.shape[-1]
        self.length = fast_length(2 * self.n - 1)
        weights = 1 - torch.arange(self.n, dtype=column.dtype, device=column.device) / self.n
        self.spectrum = self._spectrum(column, row)
        self.smooth = self._spectrum(weights * column, weights * row)

    def _spectrum(self, column: Tensor, row: Tensor) -> Tensor:
        middle = column.new_zeros(self.length - 2 * self.n + 1)
        return torch.fft.rfft(torch.cat((column, middle, row[1:].flip(0))))

    def solve(self, b: Tensor, target: Tensor, most: int, *, transposed: bool) -> Tensor | None:
        sizes = self.smooth.abs()
        if not float(sizes.min()) * RANGE > float(sizes.max()):
            return None
        pair = self.spectrum, 1 / self.smooth
        spectrum, inverse = (s.conj().resolve_conj() for s in pair) if transposed else pair
        return gcr(
            lambda x: self._times(spectrum, x), lambda r: self._times(inverse, r), b, target, most=most
        )

    def _times(self, spectrum: Tensor, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x, self.length) * spectrum, self.length)[..., : self.n]


def gcr(product: Map, precondition: Map, b: Tensor, target: Tensor, *, most: int) -> Tensor | None:
    """Solve M x = b for every row of b, or return None as soon as `most` steps will not do.

    Args:
        product: (p, n) to (p, n), by M.
        precondition: the same, by C^-1 with C near M.
        b: right-hand sides, real, shape (p, n).
        target: of |b - M x|, shape (p,). Rows that reach it are finished; the others go on without them.
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
    """Whether rows will reach their targets if they continue as they have until this step."""
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


class Compiled:
    """The same in C, on a CPU and in float64."""

    def __init__(self, column: Tensor, row: Tensor) -> None:
        n = len(column)
        self.half = half_length(2 * n)
        # As a part of a skew-circulant matrix: what wraps around changes its sign.
        weights = 1 - torch.arange(n, dtype=torch.float64) / n
        middle = column.new_zeros(2 * self.half - 2 * n + 1)
        self.spectrum, self.smooth = (
            self._spectrum(torch.cat((w * column, middle, -(w * row)[1:].flip(0))))
            for w in (torch.ones_like(weights), weights)
        )

    def _spectrum(self, v: Tensor) -> Tensor:
        return torch.fft.fft(
            torch.complex(v[: self.half], v[self.half :]) * twist(len(v), v.dtype, v.device, 1)
        )

    def solve(self, b: Tensor, target: Tensor, most: int, *, transposed: bool) -> Tensor | None:
        sizes = self.smooth.abs()
        if not float(sizes.min()) * RANGE > float(sizes.max()):
            return None
        pair = torch.stack((self.spectrum, 1 / self.smooth)) / self.half
        spectrum, inverse = torch.cat((pair.real, pair.imag if transposed else -pair.imag), -1)
        return conjugate_residuals(b.contiguous(), target.contiguous(), spectrum, inverse, most)


def compiles(column: Tensor, row: Tensor) -> bool:
    """Whether `form` takes C for them."""
    recorded = torch.compiler.is_compiling() or are_recorded()
    return column.dtype is torch.float64 and library.serves(column, row) and not recorded


def form(column: Tensor, row: Tensor) -> Form:
    return Compiled(column, row) if compiles(column, row) else Plain(column, row)
