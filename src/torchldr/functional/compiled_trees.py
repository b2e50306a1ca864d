"""The loops of the compiled split product, see `split_single`; imports numba.

A batch of trees of `total` indices in blocks of `block`, r start vectors: constants are
    leaves (blocks, r, block, block)    lower triangular matrices, transposed for the transposed product
    spectra (levels, r total)           of the nodes of a level and, in each, of the start vectors, 2N each
    rows (levels, total / 2)            the scalings of the right halves, over N
    twists, turns                       the tables of the FFTs of all levels, one after the other
"""

# mypy: ignore-errors
from __future__ import annotations

import numpy as np

from .compiled_fft import (
    LANES,
    add_correlation,
    add_product,
    analyse,
    clear,
    compiled,
    copy,
    load,
    minus,
    plus,
    splat,
    store,
    synthesise,
    times,
    transform,
)


@compiled
def _tables(level, block, twists, turns):
    n = block << level
    before = n - block  # the lengths of all shorter levels together
    twist = twists[2 * before : 2 * before + 2 * n].reshape(2, n)
    return twist, turns[6 * before // 4 : 6 * before // 4 + 6 * n // 4].reshape(6, n // 4)


@compiled
def _add_rows(matrix, coefficients, start, stop, out, column):
    """out[column : column + 4] += sum of rows start .. stop of a matrix, weighed by the coefficients."""
    even, odd = load(out, column), splat(out.dtype.type(0))
    for j in range(start, stop, 2):  # two sums at a time: they need not wait for each other
        even = plus(even, times(load(matrix[j], column), splat(coefficients[j])))
        odd = plus(odd, times(load(matrix[j + 1], column), splat(coefficients[j + 1])))
    store(out, column, plus(even, odd))


@compiled
def _product(a, b, out):
    """out = a b, its imaginary parts first."""
    n = a.shape[0] // 2
    for j in range(0, n, LANES):
        ar, ai, br, bi = load(a, j), load(a, n + j), load(b, j), load(b, n + j)
        store(out, j, plus(times(ar, bi), times(ai, br)))
        store(out, n + j, minus(times(ar, br), times(ai, bi)))


@compiled
def _add_high(v, scale, twist, out):
    """Add the scaled upper half of what `synthesise` would make of the transformed v."""
    n, c, s = out.shape[0], twist[0], twist[1]
    for j in range(0, n, LANES):
        high = minus(times(load(v, j), load(c, j)), times(load(v, n + j), load(s, j)))
        store(out, j, plus(load(out, j), times(high, load(scale, j))))


@compiled
def _twisted_high(part, scale, twist, out):
    """What `analyse` would transform for the upper half `part`, scaled, and a lower half of zeros."""
    n, c, s = part.shape[0], twist[0], twist[1]
    for j in range(0, n, LANES):
        high = times(load(part, j), load(scale, j))
        store(out, j, times(minus(splat(part.dtype.type(0)), high), load(s, j)))
        store(out, n + j, times(high, load(c, j)))


@compiled
def trees_matmul(w, y, leaves, spectra, rows, twists, turns):
    """y (b, total) = sum_i T_i w_i for w (b, r, k)."""
    blocks, r, block, _ = leaves.shape
    levels, total = rows.shape[0], blocks * block
    for row in range(w.shape[0]):
        out = y[row]
        clear(out, 0)
        for q in range(blocks):
            part = out[q * block : (q + 1) * block]
            for i in range(r):
                for column in range(0, block, LANES):
                    _add_rows(leaves[q, i], w[row, i], 0, column + LANES, part, column)
        for level in range(levels):
            n = block << level
            twist, turn = _tables(level, block, twists, turns)
            hats, a, b = np.empty((r, 2 * n), w.dtype), np.empty(2 * n, w.dtype), np.empty(2 * n, w.dtype)
            for i in range(r):
                copy(w[row, i, : 2 * n], a)
                a, b = analyse(a, b, twist, turn)
                copy(a, hats[i])
            for node in range(total // (2 * n)):
                at = 2 * n * node * r
                _product(hats[0], spectra[level, at : at + 2 * n], a)
                for i in range(1, r):
                    at += 2 * n
                    add_product(hats[i], spectra[level, at : at + 2 * n], a)
                a, b = transform(a, b, turn)
                part = out[n * (2 * node + 1) : 2 * n * (node + 1)]
                _add_high(a, rows[level, n * node : n * node + n], twist, part)


@compiled
def trees_rmatmul(u, z, leaves, spectra, rows, twists, turns):
    """z (b, r, k) = T_i^T u for u (b, total)."""
    blocks, r, block, _ = leaves.shape
    levels, total = rows.shape[0], blocks * block
    for row in range(u.shape[0]):
        source = u[row]
        for i in range(r):
            clear(z[row, i], 0)
        for q in range(blocks):
            part = source[q * block : (q + 1) * block]
            for i in range(r):
                for column in range(0, block, LANES):
                    _add_rows(leaves[q, i], part, column, block, z[row, i], column)
        for level in range(levels):
            n = block << level
            twist, turn = _tables(level, block, twists, turns)
            sums, a, b = np.zeros((r, 2 * n), u.dtype), np.empty(2 * n, u.dtype), np.empty(2 * n, u.dtype)
            for node in range(total // (2 * n)):
                part = source[n * (2 * node + 1) : 2 * n * (node + 1)]
                _twisted_high(part, rows[level, n * node : n * node + n], twist, a)
                a, b = transform(a, b, turn)
                for i in range(r):
                    at = 2 * n * (node * r + i)
                    add_correlation(a, spectra[level, at : at + 2 * n], sums[i])
            for i in range(r):
                a, b = synthesise(sums[i], b, twist, turn)
                for j in range(2 * n):
                    z[row, i, j] += a[j]
                b = np.empty(2 * n, u.dtype)
