"""The leaves of the port product by the stencil, see `functional.port.compiled`; imports numba.

A leaf's indices are copied to arrays that a step can cross without looking at their ends: four places before
the first index, whole lanes, and coefficients that couple to the outside zero. `ring` is lower, diagonal,
upper (3, n), `transposed` that of the transposed operator; series are laid out as in `levels`. Rows
and columns take `room` from the caller: places(starts) numbers for each array of a leaf.
"""

# mypy: ignore-errors
from __future__ import annotations

import numpy as np

from ..fft import LANES, _shuffle, compiled, get, load, plus, splat, store, times
from ..pointers import number, pointer, put, shifted

PAD = LANES

# Lanes that were just stored are read again as they were: a load across two of them waits for both.
_before, _after = _shuffle([3, 4, 5, 6]), _shuffle([1, 2, 3, 4])


def places(starts: np.ndarray) -> int:
    """Numbers of an array that holds a leaf."""
    longest = int(np.diff(starts).max())
    return (longest + LANES - 1) // LANES * LANES + 2 * PAD


@compiled
def _cut_out(ring, start, stop, leaf, size):
    """The coefficients of a leaf without couplings to the outside, in leaf (3, size)."""
    for o in range(3):
        for i in range(size):
            put(leaf, o * size + i, number(leaf, 0.0))
        for i in range(start, stop):
            put(leaf, o * size + PAD + i - start, ring[o, i])
    put(leaf, PAD, number(leaf, 0.0))
    put(leaf, 2 * size + PAD + stop - start - 1, number(leaf, 0.0))


@compiled
def _clear(x, size):
    for i in range(0, size, LANES):
        store(x, i, splat(number(x, 0.0)))


@compiled
def _fill(x, rows, row, start, stop, size):
    _clear(x, size)
    for i in range(start, stop):
        put(x, PAD + i - start, rows[row, i])


@compiled
def _start_at_port(x, side, end, size):
    _clear(x, size)
    put(x, end if side else PAD, number(x, 1.0))


@compiled
def _stepped(leaf, i, size, left, x, right):
    """Four entries of A x, given x and its neighbours."""
    sides = plus(times(load(leaf, i), left), times(load(leaf, 2 * size + i), right))
    return plus(sides, times(load(leaf, size + i), x))


@compiled
def _step(leaf, x, y, size):
    """y = A x."""
    last, now = load(x, 0), load(x, PAD)
    for i in range(PAD, size - PAD, LANES):
        coming = load(x, i + LANES)
        store(y, i, _stepped(leaf, i, size, _before(last, now), now, _after(now, coming)))
        last, now = now, coming


@compiled
def _record(leaf, x, y, end, size, N, to, left, right):
    """The first and the last entry of x, A x, A^2 x, .. in to[left:] and to[right:]."""
    for t in range(N):
        put(to, left + t, get(x, PAD))
        put(to, right + t, get(x, end))
        _step(leaf, x, y, size)
        x, y = y, x


@compiled
def leaf_columns(ring, transposed, V, starts, N, Z, size, room, first, last):
    """Columns Z of leaves first .. last; room for 5 arrays."""
    width, Z = 2 + V.shape[0], pointer(Z)
    leaf = pointer(room)
    x, y = shifted(leaf, 3 * size), shifted(leaf, 4 * size)
    _clear(y, size)
    for j in range(first, last):
        start, stop = starts[j], starts[j + 1]
        end = PAD + stop - start - 1
        _cut_out(transposed, start, stop, leaf, size)
        for side in range(2):
            _start_at_port(x, side, end, size)
            at = (2 * j + side) * width * N
            _record(leaf, x, y, end, size, N, Z, at, at + N)
        _cut_out(ring, start, stop, leaf, size)
        for i in range(V.shape[0]):
            _fill(x, V, i, start, stop, size)
            left = (2 * j * width + 2 + i) * N
            _record(leaf, x, y, end, size, N, Z, left, left + width * N)


@compiled
def leaf_rows(transposed, V, U, starts, N, u, heard, size, room, first, last):
    """Rows u of leaves first .. last, and the sum over them of u^T A^t v in four parts, heard (b, r, N, 4).

    Room for 5 + r arrays.
    """
    r, batch, u, heard = V.shape[0], U.shape[0], pointer(u), pointer(heard)
    leaf = pointer(room)
    x, y, vs = shifted(leaf, 3 * size), shifted(leaf, 4 * size), shifted(leaf, 5 * size)
    _clear(y, size)
    for j in range(first, last):
        start, stop = starts[j], starts[j + 1]
        end = PAD + stop - start - 1
        _cut_out(transposed, start, stop, leaf, size)
        for i in range(r):
            _fill(shifted(vs, i * size), V, i, start, stop, size)
        for which in range(batch):
            _fill(x, U, which, start, stop, size)
            left = (2 * j * batch + which) * N
            right = left + batch * N
            for t in range(N):
                put(u, left + t, get(x, PAD))
                put(u, right + t, get(x, end))
                for i in range(r):
                    to, v = ((which * r + i) * N + t) * LANES, i * size
                    even, odd = load(heard, to), splat(number(heard, 0.0))
                    for at in range(PAD, size - PAD, 2 * LANES):  # two sums need not wait for each other
                        even = plus(even, times(load(vs, v + at), load(x, at)))
                        odd = plus(odd, times(load(vs, v + at + LANES), load(x, at + LANES)))
                    store(heard, to, plus(even, odd))
                _step(leaf, x, y, size)
                x, y = y, x


@compiled
def _mark(marks, end):
    """Ones at the two ports, in marks (2, 4), and where the lanes of the right port start."""
    store(marks, 0, splat(number(marks, 0.0)))
    store(marks, LANES, splat(number(marks, 0.0)))
    put(marks, 0, number(marks, 1.0))
    put(marks, LANES + (end - PAD) % LANES, number(marks, 1.0))
    return end - (end - PAD) % LANES


@compiled
def _inject(x, du, left, right, last, marks):
    """Add what comes in at the ports."""
    store(x, PAD, plus(load(x, PAD), times(load(marks, 0), splat(get(du, left)))))
    store(x, last, plus(load(x, last), times(load(marks, LANES), splat(get(du, right)))))


@compiled
def leaf_rows_down(ring, V, du, w, k, starts, N, y, size, room, first, last):
    """The transpose of `leaf_rows`: y (b, n) from the cotangents du of rows and w (b, r, k) of the result.

    Room for 6 + r arrays.
    """
    r, batch, du, w = V.shape[0], y.shape[0], pointer(du), pointer(w)
    leaf = pointer(room)
    marks = shifted(leaf, (5 + r) * size)
    x, after, vs = shifted(leaf, 3 * size), shifted(leaf, 4 * size), shifted(leaf, 5 * size)
    _clear(after, size)
    for j in range(first, last):
        start, stop = starts[j], starts[j + 1]
        end = PAD + stop - start - 1
        _cut_out(ring, start, stop, leaf, size)
        for i in range(r):
            _fill(shifted(vs, i * size), V, i, start, stop, size)
        place = _mark(marks, end)
        for which in range(batch):
            left = (2 * j * batch + which) * N
            _clear(x, size)
            for t in range(N - 1, -1, -1):
                _step(leaf, x, after, size)
                x, after = after, x
                if t < k:
                    for i in range(r):
                        weight = splat(get(w, (which * r + i) * k + t))
                        for at in range(PAD, size - PAD, LANES):
                            store(x, at, plus(load(x, at), times(load(vs, i * size + at), weight)))
                _inject(x, du, left + t, left + batch * N + t, place, marks)
            for i in range(start, stop):
                y[which, i] = get(x, PAD + i - start)
