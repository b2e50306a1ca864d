"""A sweep of the port product on a CPU, by the compiled loops of `kernels.cpu.port`.

Leaves are run by the stencil, in as many steps as their series have coefficients, which takes less than
reading the same numbers from memory would. Series and spectra are laid out as `kernels.cpu.port.up` says.
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
Run = Callable[..., None]

CACHE = 1 << 19  # bytes of spectra that are worked on at a time


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
    X: Array | None
    B: Array


def _rows(ring: Ring, count: int, size: int, loop: Callable[..., object], *given: object) -> None:
    """A loop over `count` rows whose spectra have `size` numbers, in threads."""

    def part(start: int, stop: int) -> None:
        loop(*given, start, stop, ring.empty(5, size), ring.constants)

    in_parts(count, 2 * size, part)


def _alone(ring: Ring, count: int, size: int, loop: Callable[..., object], *given: object) -> None:
    """The same in this thread."""
    loop(*given, 0, count, ring.empty(5, size), ring.constants)


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


def columns(ring: Ring, keep: bool) -> tuple[list[Level], Array]:
    """All levels, with X if they are to be kept, and the columns of the whole, flat (2, 2 + r, N)."""
    from ...kernels.cpu.port import leaves, up

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
        _rows(ring, cuts * (2 * width + 2), R, up.columns_to_cuts, Z, X, width, N)
        _places(R, cuts * width, partial(up.arrive, X, B, ring.z, s, p, width, N))
        _rows(ring, cuts * 2 * width, R, up.columns_up, Z, X, B, joined, width, N)
        levels.append(Level(N, R, cuts, X if keep else None, B))
        Z, N = joined, 2 * N
    return levels, Z


def rows_up(
    ring: Ring, levels: list[Level], U: Array, k: int, keep: bool, top: bool
) -> tuple[Array, list[Array], Array | None]:
    """K_k(A, v_i)^T u, (b, r, k), what meets at the cuts if kept, and rows of the whole if asked."""
    from ...kernels.cpu.port import leaves, up

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
    flat, kept = result.reshape(-1), []
    for index, (N, R, cuts, _, B) in enumerate(levels):
        Y, hats = ring.empty(cuts, 2, b, R), ring.empty(b, r, R)
        _rows(ring, cuts * 2 * b, R, up.rows_to_cuts, u, Y, b, N)
        _places(R, cuts * b * r, partial(up.hear, Y, B, hats, b, width, N, cuts))
        _rows(ring, b * r, R, up.add_series, hats, 2 * N, flat, k)
        if keep:
            kept.append(Y)
        if top or index + 1 < len(levels):
            joined = ring.empty(cuts, 2, b, 2 * N)
            _rows(ring, cuts * 2 * b, R, up.rows_up, u, Y, B, joined, b, width, N)
            u = joined
    return result, kept, u if top else None


def _spectra(ring: Ring, x: Array, rows: int, stride: int, M: int, run: Run = _rows) -> Array:
    """Spectra modulo X^M - 1 of rows of numbers, as many as fit."""
    from ...kernels.cpu.port.up import to_spectra

    out = ring.empty(rows, M + 8)
    run(ring, rows, M + 8, to_spectra, x, stride, min(stride, M), out, M)
    return out


class Down(NamedTuple):
    """Cotangents of rows that were taken down."""

    W: list[Array]  # spectra, of the joined rows of each level
    u: Array  # of the leaves


def rows_down(ring: Ring, levels: list[Level], w: Array, du: Array, keep: bool) -> tuple[Array, Down | None]:
    """K_k(A, v_i) w, (b, n), for w (b, r, k) and cotangents of the rows of the whole, (2, b, N)."""
    from ...kernels.cpu.port import leaves

    b, r, k = w.shape
    flat, kept = w.reshape(-1), []
    for level in reversed(levels):
        hats, found = _spectra(ring, flat, b * r, k, 2 * level.N), ring.empty(2 * level.cuts, 2, b, level.N)
        W = _rows_down(ring, level, du, hats, found, b)
        if keep:
            kept.append(W)
        du = found
    y = np.empty((b, ring.n), w.dtype)
    given = ring.ring, ring.V, du, flat, k, ring.starts, ring.N, y
    _leaves(ring, b * (r + 1), 6 + r, leaves.leaf_rows_down, *given)
    return y, Down(kept[::-1], du) if keep else None


def _rows_down(
    ring: Ring, level: Level, du: Array, hats: Array, found: Array, b: int, run: Run = _rows
) -> Array:
    """Find the cotangents of the rows of a level; the spectra of those of the joined rows."""
    from ...kernels.cpu.port.down import rows_down

    N, R, cuts, _, B = level
    W = _spectra(ring, du, cuts * 2 * b, 2 * N, 2 * N, run)
    run(ring, cuts * 2 * b, R, rows_down, du, W, hats, B, found, b, 2 + ring.r, N)
    return W


class Gradients(NamedTuple):
    ring: Array  # lower, diagonal, upper (3, n); zero at the corners
    V: Array
    U: Array


def gradients(
    ring: Ring,
    levels: list[Level],
    Y: list[Array],
    U: Array,
    w: Array,
    dZ: Array,
    du: Array,
    down: Down | None,
) -> Gradients:
    """Gradients of <w, K_k(A, v_i)^T u> for levels and rows that were kept.

    dZ, du: cotangents of the columns and rows of the whole, which the corners add.
    down: of `rows_down` for this w, if that was run.
    """
    from ...kernels.cpu.port import leaves

    (b, r, k), width = w.shape, 2 + ring.r
    flat, d_ring = w.reshape(-1), np.empty_like(ring.ring)
    for index in reversed(range(ring.depth)):
        level = levels[index]
        hats = _spectra(ring, flat, b * r, k, 2 * level.N)
        at, *couplings = ring.cuts(index)
        joined = _Joined(dZ, du if down is None else down.W[index], Y[index], *couplings)
        J, N = 2 * level.cuts, level.N
        dZ, du = ring.empty(J, 2, width, N), ring.empty(0 if down else J, 2, b, N)
        d_ring[0, at], d_ring[2, at - 1] = _level_down(ring, level, joined, hats, dZ, du).T
    du = du if down is None else down.u
    dV, dU = np.empty_like(ring.V), np.empty_like(U)
    inside = np.empty_like(ring.ring)
    given = ring.ring, ring.transposed, ring.V, U, dZ, du, flat, k, ring.starts, ring.N, inside, dV, dU
    room = 12 + 2 * r + ring.N
    _leaves(ring, 2 * (b + width) * (r + 1), room, leaves.leaf_gradients, *given)
    cuts = ring.starts[1:-1]
    inside[0, cuts], inside[2, cuts - 1] = d_ring[0, cuts], d_ring[2, cuts - 1]
    return Gradients(inside, dV, dU)


class _Joined(NamedTuple):
    """What comes back to a level, what was kept of its rows, and its couplings."""

    Z: Array  # (cuts, 2, 2 + r, 2N)
    u: Array  # (cuts, 2, b, 2N), or if cotangents of the rows are known their spectra, (cuts, 2, b, R)
    Y: Array  # (cuts, 2, b, R)
    s: Array  # (cuts,)
    p: Array


def _level_down(ring: Ring, level: Level, joined: _Joined, hats: Array, dZ: Array, du: Array) -> Array:
    """Find the cotangents of columns and rows of a level; those of the couplings, (cuts, 2).

    A few cuts at a time, so that their spectra stay in cache, or where there are few of them all together.
    """
    cuts, parts = level.cuts, {}
    if cuts < 4 * torch.get_num_threads():
        return _cuts_down(ring, level, joined, hats, dZ, du, _rows)
    row = 2 * joined.Y.nbytes // cuts + 8 * (2 + ring.r) * level.R * joined.Y.itemsize
    step = max(1, CACHE // row)

    def part(start: int, stop: int) -> None:
        for first in range(start, stop, step):
            some = slice(first, min(first + step, stop))
            arrays: list[Any] = [level.X, level.B, dZ, du, *joined]
            X, B, *found, Z, u, Y, s, p = (x.reshape(cuts, -1)[some].reshape(-1) for x in arrays)
            few = Level(level.N, level.R, some.stop - first, X, B)
            parts[first] = _cuts_down(ring, few, _Joined(Z, u, Y, s, p), hats, found[0], found[1], _alone)

    in_parts(cuts, row, part)
    return np.concatenate([parts[first] for first in sorted(parts)])


def _cuts_down(
    ring: Ring, level: Level, joined: _Joined, hats: Array, dZ: Array, du: Array, run: Run
) -> Array:
    from ...kernels.cpu.port import down

    N, R, cuts, X, B = level
    width, b = 2 + ring.r, joined.Y.size // (2 * cuts * R)
    W = _rows_down(ring, level, joined.u, hats, du, b, run) if du.size else joined.u
    V = _spectra(ring, joined.Z, cuts * 2 * width, 2 * N, 2 * N, run)
    dX, parts = ring.empty(cuts, 2 * width + 2, R), {}

    def meet(start: int, stop: int) -> None:
        given = X, joined.Y, B, ring.z, joined.s, joined.p, V, W, hats, dX, b, width, N
        parts[start] = down.meet(*given, start, stop)

    if run is _alone:
        meet(0, R)
    else:
        _places(R, cuts * b * width, meet)
    run(ring, 2 * cuts * 2 * width, R, down.columns_down, joined.Z, dX, dZ, width, N)
    return np.sum([parts[start] for start in sorted(parts)], 0)


class CompiledSweep:
    """A `sweep.Sweep` by these loops, in float32 or float64."""

    def __init__(
        self, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, oversampling: int, *, keep: bool
    ) -> None:
        self._ring, self._keep = Ring(lower, diagonal, upper, V, oversampling), keep
        self._levels, top = columns(self._ring, keep)
        self._at_cuts: list[Array] = []
        self._down: Down | None = None
        self._N = self._ring.N << self._ring.depth
        self.top = torch.from_numpy(top).view(2, -1, self._N)

    def rows_up(self, U: Tensor, k: int, *, top: bool) -> tuple[Tensor, Tensor | None]:
        u = U.detach().contiguous().numpy()
        result, self._at_cuts, rows = rows_up(self._ring, self._levels, u, k, self._keep, top)
        whole = None if rows is None else torch.from_numpy(rows).view(2, -1, self._N)
        return torch.from_numpy(result), whole

    def rows_down(self, w: Tensor, du: Tensor | None) -> Tensor:
        weights, whole = w.detach().contiguous().numpy(), self._cotangent(du, w.shape[0])
        y, self._down = rows_down(self._ring, self._levels, weights, whole, self._keep)
        return torch.from_numpy(y)

    def gradients(
        self, U: Tensor, w: Tensor, dZ: Tensor | None, du: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        u, weights = (x.detach().contiguous().numpy() for x in (U, w))
        whole = self._cotangent(dZ, 2 + self._ring.r), self._cotangent(du, len(u))
        found = gradients(self._ring, self._levels, self._at_cuts, u, weights, *whole, self._down)
        return torch.from_numpy(found.ring), torch.from_numpy(found.V), torch.from_numpy(found.U)

    def _cotangent(self, x: Tensor | None, rows: int) -> Array:
        if x is None:
            return np.zeros(2 * rows * self._N, self._ring.V.dtype)
        return x.detach().contiguous().numpy().reshape(-1)
