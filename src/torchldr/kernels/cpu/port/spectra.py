"""Values of real series at roots of unity, for compiled loops; imports numba.

A series modulo X^M - 1, M a power of two from 16, is held by its values at the M-th roots of unity, as the
factors X^M - 1 = (X^16 - 1)(X^16 + 1)(X^32 + 1) .. (X^{M/2} + 1) give them: a row of M + 8 numbers,

    [0, 8)          the values at 1 and -1
    [8, 24)         at the other 16th roots
    [8 + h, 8 + 2h) at the roots of X^h + 1, for h = 16, 32, .. M/2

of each pair of conjugates the one whose h/2-th power is i. Four real parts are followed by their four
imaginary parts, so that what happens root by root is one loop over a row, whatever the factors. Places that
stand for no root hold zero.

The FFTs are those of `fft` with the weighing of `analyse` and `synthesise` and the folding into the
other factors done in their first and last stages. Rows are often short, so nothing here makes a view of an
array, which would cost as much as an FFT of 16: all that is passed on are pointers (`pointers`).
"""

# mypy: ignore-errors
from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..fft import (
    LANES,
    _imag,
    _real,
    butterfly,
    compiled,
    gather,
    get,
    load,
    minus,
    plus,
    splat,
    stage,
    store,
    store_first,
    tables,
    times,
)
from ..pointers import number, put, put8

SMALLEST = 16  # M
EXTRA = 8  # numbers of a row beyond M


@compiled
def _small(x, start, count, matrix, y, at):
    """y[at : at + 16] = x[start : start + count] matrix, for a flat matrix (count, 16)."""
    p = q = r = s = splat(number(y, 0.0))
    for j in range(count):
        value, row = splat(get(x, start + j)), 16 * j
        p = plus(p, times(load(matrix, row), value))
        q = plus(q, times(load(matrix, row + 4), value))
        r = plus(r, times(load(matrix, row + 8), value))
        s = plus(s, times(load(matrix, row + 12), value))
    store(y, at, p)
    store(y, at + 4, q)
    store(y, at + 8, r)
    store(y, at + 12, s)


@compiled
def _ends(x, y, at):
    """The values of x[:16] at 1 and -1."""
    zero = splat(number(y, 0.0))
    store(y, at, plus(plus(load(x, 0), load(x, 4)), plus(load(x, 8), load(x, 12))))
    even, odd = get(y, at) + get(y, at + 2), get(y, at + 1) + get(y, at + 3)
    store(y, at, zero)
    store(y, at + 4, zero)
    put(y, at, even + odd)
    put(y, at + 1, even - odd)


@compiled
def _weighed(values, weights):
    """The products of four complex numbers and four others."""
    (ar, br, cr, dr), (ai, bi, ci, di) = values
    (er, fr, gr, hr), (ei, fi, gi, hi) = weights
    return (
        (_real(ar, ai, er, ei), _real(br, bi, fr, fi), _real(cr, ci, gr, gi), _real(dr, di, hr, hi)),
        (_imag(ar, ai, er, ei), _imag(br, bi, fr, fi), _imag(cr, ci, gr, gi), _imag(dr, di, hr, hi)),
    )


@compiled
def _middle(x, y, n, turns, base):
    """All stages between the first and the last, which x has in the end, and the stride of the last."""
    s = 4
    while 4 * s < n:
        stage(x, y, n, s, turns, base)
        x, y = y, x
        s *= 4
    return x, y, s


@compiled
def _odd(x, spare, other, h, out, at, constants):
    """Values of x[:h] at the roots of X^h + 1."""
    if h == 16:
        _small(x, 0, 16, constants[3], out, at)
        return
    twists, turns, n = constants[0], constants[1], h // 2
    q, twist, base = n // 4, 2 * (n - 16), 6 * (n - 16) // 4
    for p in range(0, q, LANES):
        values = _weighed(gather(x, p, q, n), gather(twists, twist + p, q, n))
        store_first(butterfly(*values), spare, p, n, turns, base)
    x, _, s = _middle(spare, other, n, turns, base)
    if 4 * s == n:
        for j in range(0, s, LANES):
            real, imag = butterfly(*gather(x, j, 2 * s, s))
            to = at + 2 * j
            put8(out, to, (real[0], imag[0]))
            put8(out, to + 2 * s, (real[1], imag[1]))
            put8(out, to + 4 * s, (real[2], imag[2]))
            put8(out, to + 6 * s, (real[3], imag[3]))
    else:
        for j in range(0, s, LANES):
            ar, ai, br, bi = load(x, j), load(x, j + s), load(x, j + 2 * s), load(x, j + 3 * s)
            put8(out, at + 2 * j, (plus(ar, br), plus(ai, bi)))
            put8(out, at + 2 * j + 2 * s, (minus(ar, br), minus(ai, bi)))


@compiled
def _fold_in(a, j, n, re, im, twists, twist):
    """Join what is modulo X^h - 1, h = 2n, with what is modulo X^h + 1: coefficients j and n + j of both.

    The latter come as an FFT that was turned round, h/2 times too large, and the former h/16 times.
    """
    scale, h = splat(number(a, 0.125)), 2 * n
    c, s = times(load(twists, twist + j), scale), times(load(twists, twist + n + j), scale)
    first, second = plus(times(im, c), times(re, s)), minus(times(re, c), times(im, s))
    low = load(a, j)
    store(a, j, plus(low, first))
    store(a, h + j, minus(low, first))
    low = load(a, n + j)
    store(a, n + j, plus(low, second))
    store(a, h + n + j, minus(low, second))


@compiled
def _back(row, at, spare, other, h, a, constants):
    """Take a[:h] to a[:2h], given the values at the roots of X^h + 1 in row[at:]."""
    if h == 16:
        _small(row, at, 16, constants[5], spare, 0)
        for j in range(0, h, LANES):
            low, high = load(a, j), load(spare, j)
            store(a, j, plus(low, high))
            store(a, h + j, minus(low, high))
        return
    twists, turns, n = constants[0], constants[1], h // 2
    q, twist, base = n // 4, 2 * (n - 16), 6 * (n - 16) // 4
    for p in range(0, q, LANES):  # real and imaginary parts change places, which turns the FFT round
        imag, real = gather(row, at + 2 * p, 2 * q, LANES)
        store_first(butterfly(real, imag), spare, p, n, turns, base)
    x, _, s = _middle(spare, other, n, turns, base)
    if 4 * s == n:
        for j in range(0, s, LANES):
            real, imag = butterfly(*gather(x, j, 2 * s, s))
            _fold_in(a, j, n, real[0], imag[0], twists, twist)
            _fold_in(a, j + s, n, real[1], imag[1], twists, twist)
            _fold_in(a, j + 2 * s, n, real[2], imag[2], twists, twist)
            _fold_in(a, j + 3 * s, n, real[3], imag[3], twists, twist)
    else:
        for j in range(0, s, LANES):
            ar, ai, br, bi = load(x, j), load(x, j + s), load(x, j + 2 * s), load(x, j + 3 * s)
            _fold_in(a, j, n, plus(ar, br), plus(ai, bi), twists, twist)
            _fold_in(a, j + s, n, minus(ar, br), minus(ai, bi), twists, twist)


@compiled
def spread(a, b, c, d, M, out, at, constants):
    """The row of a[:M], in out[at:]; all four arrays are overwritten."""
    h = M
    while h > 16:
        h //= 2
        for j in range(0, h, LANES):
            low, high = load(a, j), load(a, h + j)
            store(a, j, plus(low, high))
            store(b, j, minus(low, high))
        _odd(b, c, d, h, out, at + EXTRA + h, constants)
    _ends(a, out, at)
    _small(a, 0, 16, constants[2], out, at + EXTRA)


@compiled
def spread_padded(x, start, a, b, c, d, N, out, at, constants):
    """The row, modulo X^{2N} - 1, of x[start : start + N] followed by N zeros."""
    for j in range(0, N, LANES):
        store(a, j, load(x, start + j))
    _odd(a, c, d, N, out, at + EXTRA + N, constants)
    spread(a, b, c, d, N, out, at, constants)


@compiled
def collect(row, at, a, b, c, M, constants):
    """The coefficients of row[at:], in a[:M]; b and c are overwritten."""
    _small(row, at, 24, constants[4], a, 0)
    h = 16
    while h < M:
        _back(row, at + EXTRA + h, b, c, h, a, constants)
        h *= 2
    scale = splat(number(a, 16.0 / M))
    for j in range(0, M, LANES):
        store(a, j, times(load(a, j), scale))


def _laned(values: np.ndarray) -> np.ndarray:
    """Complex numbers (.., n) as numbers (.., 2n), four real parts before their imaginary parts."""
    parts = np.stack((values.real, values.imag), -2).reshape(*values.shape[:-1], 2, -1, LANES)
    return np.moveaxis(parts, -3, -2).reshape(*values.shape[:-1], -1)


def _root_values(h: int) -> np.ndarray:
    """The roots of X^h + 1 whose h/2-th power is i, as `analyse` orders them."""
    n = h // 2
    return np.exp(0.5j * np.pi / n - 2j * np.pi / n * np.arange(n))


@lru_cache(maxsize=64)
def roots(M: int, dtype: str) -> np.ndarray:
    """The row of z itself: all roots, modulo X^M - 1."""
    first = np.exp(-2j * np.pi / 16 * np.arange(8))
    first[0] = 0
    parts = [np.array([1, -1, 0, 0]), first]
    h = 16
    while h < M:
        parts.append(_root_values(h))
        h *= 2
    return np.concatenate([_laned(part.astype(complex)) for part in parts]).astype(dtype)


@lru_cache(maxsize=64)
def constants(M: int, dtype: str) -> tuple[np.ndarray, ...]:
    """What `spread` and `collect` take for rows up to X^M - 1: tables of FFTs and four small matrices.

    The matrices take 16 coefficients to the values at the roots of X^16 - 1 but 1 and -1, and at those of
    X^16 + 1, and all of them back.
    """
    twists, turns, n = [], [], 16
    while 4 * n <= max(M, 64):
        twist, turn = tables(n, dtype)
        twists.append(twist.ravel())
        turns.append(turn.ravel())
        n *= 2
    steps = np.arange(16)[:, None]
    first = np.exp(-2j * np.pi / 16 * np.arange(8))
    minus_one = np.concatenate(
        (
            _laned(np.hstack((np.ones((16, 1)), (-1.0) ** steps, np.zeros((16, 2)))) + 0j),
            _laned(first**steps),
        ),
        1,
    )
    minus_one[:, [8, 12]] = 0  # the root 1 is among the first eight numbers
    plus_one = _laned(_root_values(16) ** steps)
    back_minus, back_plus = np.linalg.pinv(minus_one), np.linalg.inv(plus_one)
    matrices = (minus_one[:, EXTRA:], plus_one, back_minus, back_plus)
    flat = (np.ascontiguousarray(x, dtype).ravel() for x in matrices)
    return np.concatenate(twists), np.concatenate(turns), *flat
