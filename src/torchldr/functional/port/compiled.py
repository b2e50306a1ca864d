"""A sweep of the port product on a CPU, by the compiled loops of `kernels.cpu.port`.

Leaves are run by the stencil, in as many steps as their series have coefficients, which takes less than
reading the same numbers from memory would. Series and spectra are laid out as `kernels.cpu.port.levels` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.cpu.threads import in_parts
from . import series

Array = np.ndarray[Any, Any]


class Ring:
    """A line of n indices dealt to leaves, with its coefficients, for compiled loops."""

    def __init__(self, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, oversampling: int) -> None:
        from ...kernels.cpu.port import spectra

        ring = torch.stack((lower, diagonal, upper)).detach()
        self.V = V.detach().clone(memory_format=torch.contiguous_format).numpy()
        self.ring = ring.numpy()
        self.transposed = torch.stack((ring[2].roll(1), ring[1], ring[0].roll(-1))).numpy()
        self.r, self.n = self.V.shape
        starts = series.dealt(self.n, series.LEAF)
        self.starts = np.array([*starts, self.n])
        self.N = oversampling * series.LEAF
        self.depth = len(starts).bit_length() - 1
        dtype = str(self.V.dtype)
        self.constants = spectra.constants(self.N << self.depth, dtype)
        self.z = spectra.roots(self.N << self.depth, dtype)

    def cuts(self, level: int) -> tuple[Array, Array, Array]:
        """Where the cuts of a level are, and the couplings across them, right and back."""
        at = self.starts[1 << level : -1 : 2 << level]
        return at, self.ring[0, at], self.ring[2, at - 1]

    def empty(self, *shape: int) -> Array:
        return np.empty(math.prod(shape), self.V.dtype)


class Level(NamedTuple):
    """A level of the tree: N coefficients for each of its blocks, R numbers in a row of spectra."""

    N: int
    R: int
    cuts: int
    B: Array


def _rows(ring: Ring, count: int, size: int, loop: Callable[..., object], *given: object) -> None:
    """A loop over `count` rows whose spectra have `size` numbers, in threads."""

    def part(start: int, stop: int) -> None:
        loop(*given, start, stop, ring.empty(5, size), ring.constants)

    in_parts(count, 2 * size, part)


def _leaves(ring: Ring, work: int, arrays: int, loop: Callable[..., object], *given: object) -> None:
    """A loop over leaves, with room for some arrays of a leaf, in threads; `work` steps for each entry."""
    from ...kernels.cpu.port.leaves import places

    size = places(ring.starts)

    def part(start: int, stop: int) -> None:
        loop(*given, size, ring.empty(arrays, size), start, stop)

    in_parts(1 << ring.depth, work * ring.N * size // 4, part)


def _places(R: int, work: int, call: Callable[[int, int], object]) -> None:
    """Places of a row of R numbers, in threads; `work` steps each."""
    in_parts(R // 8, 8 * work, lambda start, stop: call(8 * start, 8 * stop))


def columns(ring: Ring) -> tuple[list[Level], Array]:
    """All levels, and the columns of the whole, flat (2, 2 + r, N)."""
    from ...kernels.cpu.port import leaves
    from ...kernels.cpu.port import levels as loops

    width, N = 2 + ring.r, ring.N
    J = 1 << ring.depth
    Z = ring.empty(J, 2, width, N)
    given = ring.ring, ring.transposed, ring.V, ring.starts, N, Z
    _leaves(ring, width, 5, leaves.leaf_columns, *given)
    levels = []
    for level in range(ring.depth):
        _, s, p = ring.cuts(level)
        cuts, R = J >> (level + 1), 2 * N + 8
        X, B = ring.empty(cuts, 2 * width + 2, R), ring.empty(cuts, 2, width, R)
        joined = ring.empty(cuts, 2, width, 2 * N)
        _rows(ring, cuts * (2 * width + 2), R, loops.columns_to_cuts, Z, X, width, N)
        _places(R, cuts * width, partial(loops.arrive, X, B, ring.z, s, p, width, N))
        _rows(ring, cuts * 2 * width, R, loops.columns_up, Z, X, B, joined, width, N)
        levels.append(Level(N, R, cuts, B))
        Z, N = joined, 2 * N
    return levels, Z


def rows_up(ring: Ring, levels: list[Level], U: Array, k: int, top: bool) -> tuple[Array, Array | None]:
    """K_k(A, v_i)^T u, (b, r, k), and rows of the whole if asked."""
    from ...kernels.cpu.port import leaves
    from ...kernels.cpu.port import levels as loops

    b, r, N = len(U), ring.r, ring.N
    J, width = 1 << ring.depth, 2 + ring.r
    u = ring.empty(J, 2, b, N)
    sums: dict[int, Array] = {}

    def leaf_rows(*given: Any) -> None:
        *rest, size, room, start, stop = given
        sums[start] = np.zeros(b * r * N * 4, U.dtype)
        leaves.leaf_rows(*rest, sums[start], size, room, start, stop)

    _leaves(ring, b * (r + 1), 5 + r, leaf_rows, ring.transposed, ring.V, U, ring.starts, N, u)
    heard = np.sum([sums[start] for start in sorted(sums)], 0).reshape(b, r, N, 4).sum(-1)
    result = np.zeros((b, r, k), U.dtype)
    result[..., : min(N, k)] = heard[..., :k]
    flat = result.reshape(-1)
    for index, (N, R, cuts, B) in enumerate(levels):
        Y, hats = ring.empty(cuts, 2, b, R), ring.empty(b, r, R)
        _rows(ring, cuts * 2 * b, R, loops.rows_to_cuts, u, Y, b, N)
        _places(R, cuts * b * r, partial(loops.hear, Y, B, hats, b, width, N, cuts))
        _rows(ring, b * r, R, loops.add_series, hats, 2 * N, flat, k)
        if top or index + 1 < len(levels):
            joined = ring.empty(cuts, 2, b, 2 * N)
            _rows(ring, cuts * 2 * b, R, loops.rows_up, u, Y, B, joined, b, width, N)
            u = joined
    return result, u if top else None


def _spectra(ring: Ring, x: Array, rows: int, stride: int, M: int) -> Array:
    """Spectra modulo X^M - 1 of rows of numbers, as many as fit."""
    from ...kernels.cpu.port.levels import to_spectra

    out = ring.empty(rows, M + 8)
    _rows(ring, rows, M + 8, to_spectra, x, stride, min(stride, M), out, M)
    return out


def rows_down(ring: Ring, levels: list[Level], w: Array, du: Array) -> Array:
    """K_k(A, v_i) w, (b, n), for w (b, r, k) and cotangents of the rows of the whole, (2, b, N)."""
    from ...kernels.cpu.port import leaves
    from ...kernels.cpu.port import levels as loops

    b, r, k = w.shape
    flat = w.reshape(-1)
    for N, R, cuts, B in reversed(levels):
        hats, W = _spectra(ring, flat, b * r, k, 2 * N), _spectra(ring, du, cuts * 2 * b, 2 * N, 2 * N)
        found = ring.empty(2 * cuts, 2, b, N)
        _rows(ring, cuts * 2 * b, R, loops.rows_down, du, W, hats, B, found, b, 2 + r, N)
        du = found
    y = np.empty((b, ring.n), w.dtype)
    given = ring.ring, ring.V, du, flat, k, ring.starts, ring.N, y
    _leaves(ring, b * (r + 1), 6 + r, leaves.leaf_rows_down, *given)
    return y


class CompiledSweep:
    """A `sweep.Sweep` by these loops, in float32 or float64."""

    def __init__(self, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, oversampling: int) -> None:
        self._ring = Ring(lower, diagonal, upper, V, oversampling)
        self._levels, top = columns(self._ring)
        self._N = self._ring.N << self._ring.depth
        self.top = torch.from_numpy(top).view(2, -1, self._N)

    def rows_up(self, U: Tensor, k: int, *, top: bool) -> tuple[Tensor, Tensor | None]:
        result, rows = rows_up(self._ring, self._levels, U.detach().contiguous().numpy(), k, top)
        whole = None if rows is None else torch.from_numpy(rows).view(2, -1, self._N)
        return torch.from_numpy(result), whole

    def rows_down(self, w: Tensor, du: Tensor | None) -> Tensor:
        du = w.new_zeros(2 * w.shape[0] * self._N) if du is None else du
        given = (x.detach().contiguous().numpy() for x in (w, du.reshape(-1)))
        return torch.from_numpy(rows_down(self._ring, self._levels, *given))
