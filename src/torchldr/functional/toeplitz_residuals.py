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
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..kernels.cpu.arrays import as_array
from ..kernels.cpu.compiled import Loops, numbers, wide
from .fft import fast_length

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


class Compiled:
    """The same on a CPU, in float64."""

    def __init__(self, column: Tensor, row: Tensor) -> None:
        from ..kernels.cpu import fft  # imports numba

        c, r = column.numpy(), row.numpy()
        n = len(c)
        self.half = max(fft.SMALLEST, 1 << (n - 1).bit_length())
        # As a part of a skew-circulant matrix: what wraps around changes its sign.
        entries = np.zeros((2, 2 * self.half))
        entries[0, :n] = c
        entries[0, 2 * self.half - n + 1 :] = -r[:0:-1]
        weights = 1 - np.arange(n) / n
        entries[1, :n] = weights * c
        entries[1, 2 * self.half - n + 1 :] = entries[0, 2 * self.half - n + 1 :] * weights[:0:-1]
        spectra = fft.spectra(entries, self.half, "float64")
        self.spectrum, self.smooth = spectra[:, : self.half] + 1j * spectra[:, self.half :]

    def solve(self, b: Tensor, target: Tensor, most: int, *, transposed: bool) -> Tensor | None:
        from ..kernels.cpu import fft, residuals

        sizes = np.abs(self.smooth)
        if not sizes.min() * RANGE > sizes.max():
            return None
        pair = np.stack((self.spectrum, 1 / self.smooth)) / self.half
        spectra = np.concatenate((pair.real, pair.imag if transposed else -pair.imag), -1)
        x, tables = b.new_empty(b.shape), fft.tables(self.half, "float64")
        given, wanted, found = (as_array(t.contiguous()) for t in (b, target, x))
        return x if residuals.conjugate_residuals(given, wanted, found, *spectra, *tables, most) else None


def form(column: Tensor, row: Tensor) -> Form:
    return Compiled(column, row) if LOOPS.serves(column, row, dtype=torch.float64) else Plain(column, row)


def _check(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    n = 20
    column, row = numbers(2, n, dtype=dtype)
    column[0] = row[0] = 2 * n
    lags = torch.arange(n).unsqueeze(-1) - torch.arange(n)
    T = torch.where(lags >= 0, column[lags.clamp(min=0)], row[(-lags).clamp(min=0)])
    b = numbers(2, n, dtype=dtype)
    for transposed in (False, True):
        x = Compiled(column, row).solve(b, torch.full((2,), 1e-13, dtype=dtype), 40, transposed=transposed)
        assert x is not None
        yield x @ (wide(T) if transposed else wide(T).mT), b


LOOPS = Loops("conjugate residuals", _check)
