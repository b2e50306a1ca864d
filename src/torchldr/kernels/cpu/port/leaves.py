"""The leaves of the port product by the stencil, see `functional.port.compiled`; imports numba.

A leaf's indices are copied to arrays that a step can cross without looking at their ends: four places before
the first index, whole lanes, and coefficients that couple to the outside zero. `ring` is lower, diagonal,
upper (3, n), `transposed` that of the transposed operator; series are laid out as in `up`. Rows
and columns take `room` from the caller: places(starts) numbers for each array of a leaf.
"""

# mypy: ignore-errors
from __future__ import annotations

import numpy as np

from ..fft import LANES, _shuffle, compiled, plus, splat, times
from ..pointers import get, get4, number, pointer, put, put4, shifted

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
        put4(x, i, splat(number(x, 0.0)))


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
    sides = plus(times(get4(leaf, i), left), times(get4(leaf, 2 * size + i), right))
    return plus(sides, times(get4(leaf, size + i), x))


@compiled
def _step(leaf, x, y, size):
    """y = A x."""
    last, now = get4(x, 0), get4(x, PAD)
    for i in range(PAD, size - PAD, LANES):
        coming = get4(x, i + LANES)
        put4(y, i, _stepped(leaf, i, size, _before(last, now), now, _after(now, coming)))
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
                    even, odd = get4(heard, to), splat(number(heard, 0.0))
                    for at in range(PAD, size - PAD, 2 * LANES):  # two sums need not wait for each other
                        even = plus(even, times(get4(vs, v + at), get4(x, at)))
                        odd = plus(odd, times(get4(vs, v + at + LANES), get4(x, at + LANES)))
                    put4(heard, to, plus(even, odd))
                _step(leaf, x, y, size)
                x, y = y, x


@compiled
def _mark(marks, end):
    """Ones at the two ports, in marks (2, 4), and where the lanes of the right port start."""
    put4(marks, 0, splat(number(marks, 0.0)))
    put4(marks, LANES, splat(number(marks, 0.0)))
    put(marks, 0, number(marks, 1.0))
    put(marks, LANES + (end - PAD) % LANES, number(marks, 1.0))
    return end - (end - PAD) % LANES


@compiled
def _inject(x, du, left, right, last, marks):
    """Add what comes in at the ports."""
    put4(x, PAD, plus(get4(x, PAD), times(get4(marks, 0), splat(get(du, left)))))
    put4(x, last, plus(get4(x, last), times(get4(marks, LANES), splat(get(du, right)))))


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
                            put4(x, at, plus(get4(x, at), times(get4(vs, i * size + at), weight)))
                _inject(x, du, left + t, left + batch * N + t, place, marks)
            for i in range(start, stop):
                y[which, i] = get(x, PAD + i - start)


@compiled
def _history(leaf, steps, size, N):
    """A x, A^2 x, .. after x in `steps` (N, size)."""
    for t in range(1, N):
        _step(leaf, shifted(steps, (t - 1) * size), shifted(steps, t * size), size)


@compiled
def _back(leaf, grads, step, x, y, size):
    """y = A x, and step x^T on the three diagonals of A, added to grads."""
    last, now = get4(x, 0), get4(x, PAD)
    for i in range(PAD, size - PAD, LANES):
        coming, value = get4(x, i + LANES), get4(step, i)
        left, right = _before(last, now), _after(now, coming)
        put4(y, i, _stepped(leaf, i, size, left, now, right))
        put4(grads, i, plus(get4(grads, i), times(value, left)))
        put4(grads, size + i, plus(get4(grads, size + i), times(value, now)))
        put4(grads, 2 * size + i, plus(get4(grads, 2 * size + i), times(value, right)))
        last, now = now, coming


@compiled
def _back_column(leaf, grads, step, x, y, size):
    """y = A^T x, whose coefficients are `leaf`, and x step^T on the three diagonals of A, added to grads."""
    last, now = get4(x, 0), get4(x, PAD)
    for i in range(PAD, size - PAD, LANES):
        coming = get4(x, i + LANES)
        put4(y, i, _stepped(leaf, i, size, _before(last, now), now, _after(now, coming)))
        put4(grads, i, plus(get4(grads, i), times(now, get4(step, i - 1))))
        put4(grads, size + i, plus(get4(grads, size + i), times(now, get4(step, i))))
        put4(grads, 2 * size + i, plus(get4(grads, 2 * size + i), times(now, get4(step, i + 1))))
        last, now = now, coming


@compiled
def _weigh(x, step, vs, dvs, w, which, r, k, t, size):
    """x += sum_i v_i w_i[t] and dv_i += step w_i[t]."""
    for i in range(r):
        weight = splat(get(w, (which * r + i) * k + t))
        for at in range(PAD, size - PAD, LANES):
            to = i * size + at
            put4(x, at, plus(get4(x, at), times(get4(vs, to), weight)))
            put4(dvs, to, plus(get4(dvs, to), times(get4(step, at), weight)))


@compiled
def leaf_gradients(ring, transposed, V, U, dZ, du, w, k, starts, N, d_ring, dV, dU, size, room, first, last):
    """Gradients of the coefficients inside leaves, of V and of U from cotangents of series and result.

    Rows are run forward by A^T and cotangents back by A; columns the other way round. The gradient of A is
    the sum over t of step t of a row, times what comes back to step t + 1. Room for 12 + 2r + N arrays.
    """
    r, batch, dZ, du, w = V.shape[0], U.shape[0], pointer(dZ), pointer(du), pointer(w)
    width, leaf = 2 + r, pointer(room)
    turned, grads = shifted(leaf, 3 * size), shifted(leaf, 6 * size)
    x, y, vs = shifted(leaf, 9 * size), shifted(leaf, 10 * size), shifted(leaf, 11 * size)
    dvs, steps = shifted(vs, r * size), shifted(vs, 2 * r * size)
    marks = shifted(steps, N * size)
    _clear(leaf, (12 + 2 * r + N) * size)
    for j in range(first, last):
        start, stop = starts[j], starts[j + 1]
        end = PAD + stop - start - 1
        _cut_out(ring, start, stop, leaf, size)
        _cut_out(transposed, start, stop, turned, size)
        place = _mark(marks, end)
        _clear(grads, 3 * size)
        _clear(dvs, r * size)
        for i in range(r):
            _fill(shifted(vs, i * size), V, i, start, stop, size)
        for which in range(batch + 2):  # the ports are sensors, too
            row = which < batch
            if row:
                _fill(steps, U, which, start, stop, size)
                left = (2 * j * batch + which) * N
                right = left + batch * N
            else:
                _start_at_port(steps, which - batch, end, size)
                left = (2 * j + which - batch) * width * N
                right = left + N
            _history(turned, steps, size, N)
            _clear(x, size)
            for t in range(N - 1, -1, -1):
                step = shifted(steps, t * size)
                _back(leaf, grads, step, x, y, size)
                x, y = y, x
                if row and t < k:
                    _weigh(x, step, vs, dvs, w, which, r, k, t, size)
                _inject(x, du if row else dZ, left + t, right + t, place, marks)
            if row:
                for i in range(start, stop):
                    dU[which, i] = get(x, PAD + i - start)
        for i in range(r):
            _fill(steps, V, i, start, stop, size)
            _history(leaf, steps, size, N)
            left = (2 * j * width + 2 + i) * N
            _clear(x, size)
            for t in range(N - 1, -1, -1):
                _back_column(turned, grads, shifted(steps, t * size), x, y, size)
                x, y = y, x
                _inject(x, dZ, left + t, left + width * N + t, place, marks)
            for at in range(start, stop):
                dV[i, at] = get(dvs, i * size + PAD + at - start) + get(x, PAD + at - start)
        for at in range(start, stop):
            for o in range(3):
                d_ring[o, at] = get(grads, o * size + PAD + at - start)
        d_ring[0, start] = d_ring[2, stop - 1] = 0
