"""A sweep of the port product on a CPU, by the compiled loops of `kernels.cpu.port`.

Leaves are run by the stencil, in as many steps as their series have coefficients, which takes less than
reading the same numbers from memory would. Series and spectra are laid out as `kernels.cpu.port.levels` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.cpu.threads import in_parts
from . import series

Array = np.ndarray[Any, Any]


@cache
def _loops() -> tuple[Any, Any, Any]:
    from ...kernels.cpu.port import leaves, levels, spectra  # they import numba

    return leaves, levels, spectra


class Level(NamedTuple):
    """A level of the tree: N coefficients for each of its blocks, R numbers in a row of spectra."""

    N: int
    R: int
    cuts: int
    B: Array


class CompiledSweep:
    """A `sweep.Sweep` by these loops, in float32 or float64: a line of n indices dealt to 2^depth leaves."""

    def __init__(self, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, oversampling: int) -> None:
        _, _, spectra = _loops()
        ring = torch.stack((lower, diagonal, upper)).detach()
        self._V = V.detach().clone(memory_format=torch.contiguous_format).numpy()
        self._ring = ring.numpy()
        self._transposed = torch.stack((ring[2].roll(1), ring[1], ring[0].roll(-1))).numpy()
        self._r, self._n = self._V.shape
        starts = series.dealt(self._n, series.LEAF)
        self._starts, self._depth = np.array([*starts, self._n]), len(starts).bit_length() - 1
        self._N = oversampling * series.LEAF  # of a leaf
        self._whole = self._N << self._depth
        dtype = str(self._V.dtype)
        self._constants, self._z = spectra.constants(self._whole, dtype), spectra.roots(self._whole, dtype)
        self._levels: list[Level] = []
        self.top = torch.from_numpy(self._columns()).view(2, -1, self._whole)

    def rows_up(self, U: Tensor, k: int, *, top: bool) -> tuple[Tensor, Tensor | None]:
        given = U.detach().contiguous().numpy()
        (leaves, levels, _), b = _loops(), len(given)
        r, N, width = self._r, self._N, 2 + self._r
        u, sums = self._empty(1 << self._depth, 2, b, N), dict[int, Array]()

        def leaf_rows(*given: Any) -> None:
            *rest, size, room, start, stop = given
            sums[start] = np.zeros(b * r * N * 4, self._V.dtype)
            leaves.leaf_rows(*rest, sums[start], size, room, start, stop)

        self._over_leaves(b * (r + 1), 5 + r, leaf_rows, self._transposed, self._V, given, self._starts, N, u)
        heard = np.sum([sums[start] for start in sorted(sums)], 0).reshape(b, r, N, 4).sum(-1)
        result = np.zeros((b, r, k), given.dtype)
        result[..., : min(N, k)] = heard[..., :k]
        flat = result.reshape(-1)
        for index, (N, R, cuts, B) in enumerate(self._levels):
            Y, hats = self._empty(cuts, 2, b, R), self._empty(b, r, R)
            self._over_rows(cuts * 2 * b, R, levels.rows_to_cuts, u, Y, b, N)
            _over_places(R, cuts * b * r, partial(levels.hear, Y, B, hats, b, width, N, cuts))
            self._over_rows(b * r, R, levels.add_series, hats, 2 * N, flat, k)
            if top or index + 1 < len(self._levels):
                joined = self._empty(cuts, 2, b, 2 * N)
                self._over_rows(cuts * 2 * b, R, levels.rows_up, u, Y, B, joined, b, width, N)
                u = joined
        return torch.from_numpy(result), torch.from_numpy(u).view(2, -1, self._whole) if top else None

    def rows_down(self, w: Tensor, du: Tensor | None) -> Tensor:
        (leaves, levels, _), (b, r, k) = _loops(), w.shape
        flat = w.detach().reshape(-1).numpy()
        given = w.new_zeros(2 * b * self._whole) if du is None else du.detach().reshape(-1)
        cotangents = given.numpy()
        for N, R, cuts, B in reversed(self._levels):
            hats = self._spectra(flat, b * r, k, 2 * N)
            W = self._spectra(cotangents, cuts * 2 * b, 2 * N, 2 * N)
            found = self._empty(2 * cuts, 2, b, N)
            self._over_rows(cuts * 2 * b, R, levels.rows_down, cotangents, W, hats, B, found, b, 2 + r, N)
            cotangents = found
        y = np.empty((b, self._n), flat.dtype)
        last = self._ring, self._V, cotangents, flat, k, self._starts, self._N, y
        self._over_leaves(b * (r + 1), 6 + r, leaves.leaf_rows_down, *last)
        return torch.from_numpy(y)

    def _columns(self) -> Array:
        """Make all levels, and return the columns of the whole, flat (2, 2 + r, N)."""
        leaves, levels, _ = _loops()
        width, N, J = 2 + self._r, self._N, 1 << self._depth
        Z = self._empty(J, 2, width, N)
        given = self._ring, self._transposed, self._V, self._starts, N, Z
        self._over_leaves(width, 5, leaves.leaf_columns, *given)
        for level in range(self._depth):
            at = self._starts[1 << level : -1 : 2 << level]
            s, p = self._ring[0, at], self._ring[2, at - 1]  # the couplings across the cuts, right and back
            cuts, R = J >> (level + 1), 2 * N + 8
            X, B = self._empty(cuts, 2 * width + 2, R), self._empty(cuts, 2, width, R)
            joined = self._empty(cuts, 2, width, 2 * N)
            self._over_rows(cuts * (2 * width + 2), R, levels.columns_to_cuts, Z, X, width, N)
            _over_places(R, cuts * width, partial(levels.arrive, X, B, self._z, s, p, width, N))
            self._over_rows(cuts * 2 * width, R, levels.columns_up, Z, X, B, joined, width, N)
            self._levels.append(Level(N, R, cuts, B))
            Z, N = joined, 2 * N
        return Z

    def _spectra(self, x: Array, rows: int, stride: int, M: int) -> Array:
        """Spectra modulo X^M - 1 of rows of numbers, as many as fit."""
        out = self._empty(rows, M + 8)
        self._over_rows(rows, M + 8, _loops()[1].to_spectra, x, stride, min(stride, M), out, M)
        return out

    def _empty(self, *shape: int) -> Array:
        return np.empty(math.prod(shape), self._V.dtype)

    def _over_rows(self, count: int, size: int, loop: Callable[..., object], *given: object) -> None:
        """A loop over `count` rows whose spectra have `size` numbers, in threads."""

        def part(start: int, stop: int) -> None:
            loop(*given, start, stop, self._empty(5, size), self._constants)

        in_parts(count, 2 * size, part)

    def _over_leaves(self, work: int, arrays: int, loop: Callable[..., object], *given: object) -> None:
        """A loop over leaves, with room for some arrays of a leaf, in threads; `work` steps an entry."""
        size = _loops()[0].places(self._starts)

        def part(start: int, stop: int) -> None:
            loop(*given, size, self._empty(arrays, size), start, stop)

        in_parts(1 << self._depth, work * self._N * size // 4, part)


def _over_places(R: int, work: int, call: Callable[[int, int], object]) -> None:
    """Places of a row of R numbers, in threads; `work` steps each."""
    in_parts(R // 8, 8 * work, lambda start, stop: call(8 * start, 8 * stop))
