"""Conjugate residuals on a Toeplitz matrix, one row after the other, over the compiled FFT; imports numba.

The same steps as `gcr` of `torchldr.functional.toeplitz_residuals`. Products with T and with its
preconditioner are products modulo X^{2N} + 1, of which the first n numbers are kept: four complex FFTs of
length N a step.
"""

# mypy: ignore-errors
from __future__ import annotations

import math

import numpy as np

from .fft import (  # fmt: skip
    LANES,
    analyse,
    clear,
    compiled,
    copy,
    load,
    minus,
    multiply,
    plus,
    splat,
    store,
    synthesise,
    times,
)

STRIDE = 2 * LANES


@compiled
def _dot(a, b, four):
    first, second = splat(0.0), splat(0.0)
    for j in range(0, a.shape[0], STRIDE):
        first = plus(first, times(load(a, j), load(b, j)))
        second = plus(second, times(load(a, j + LANES), load(b, j + LANES)))
    store(four, 0, plus(first, second))
    return four[0] + four[1] + four[2] + four[3]


@compiled
def _subtract(y, scalar, x):
    """y -= scalar x."""
    s = splat(scalar)
    for j in range(0, y.shape[0], LANES):
        store(y, j, minus(load(y, j), times(s, load(x, j))))


@compiled
def _times(v, n, spectrum, rows, twist, turns):
    """The first n numbers of v become those of its product with what has this spectrum, conjugated."""
    a, b, c = rows[0], rows[1], rows[2]
    for j in range(n):
        a[j] = v[j]
    clear(a, n)
    a, b = analyse(a, b, twist, turns)
    multiply(a, spectrum, c)
    c, b = synthesise(c, b, twist, turns)
    for j in range(n):
        v[j] = c[j]


@compiled
def _will_do(left, start, target, step, most):
    """Whether a row that goes on as it has until this step comes to its target."""
    return math.log(start / left) * most >= math.log(start / target) * step


@compiled
def conjugate_residuals(b, target, x, spectrum, inverse, twist, turns, most):
    """Solve for rows of b (p, n) into x; False as soon as a row will not come to its target.

    spectrum, inverse (2N): of T and of the preconditioner's inverse, conjugated, over N. Vectors have zeros
    behind them, up to a whole number of lanes.
    """
    p, n = b.shape
    size = (n + STRIDE - 1) // STRIDE * STRIDE
    R, V, H = np.zeros((most, size)), np.zeros((most, size)), np.empty((most, most))
    along, share, four = np.empty(most), np.empty(most), np.empty(4)
    rows, r, y = np.empty((3, spectrum.shape[0])), np.zeros(size), np.zeros(size)
    for row in range(p):
        copy(b[row], r)
        start = math.sqrt(_dot(r, r, four))
        left, step = start, 0
        while not left <= target[row]:
            if step == most or left != left:
                return False
            if step > 0 and step % 8 == 0 and not _will_do(left, start, target[row], step, most):
                return False
            v = V[step]
            copy(r, R[step])
            copy(r, v)
            _times(v, n, inverse, rows, twist, turns)
            _times(v, n, spectrum, rows, twist, turns)
            for i in range(step):
                H[i, step] = _dot(V[i], v, four)
            for i in range(step):
                _subtract(v, H[i, step], V[i])
            length = math.sqrt(_dot(v, v, four))
            H[step, step] = length
            for j in range(n):
                v[j] /= length
            along[step] = _dot(v, r, four)
            _subtract(r, along[step], v)
            left = math.sqrt(_dot(r, r, four))
            step += 1
        clear(y, 0)
        for i in range(step - 1, -1, -1):
            total = along[i]
            for k in range(i + 1, step):
                total -= H[i, k] * share[k]
            share[i] = total / H[i, i]
            _subtract(y, -share[i], R[i])
        _times(y, n, inverse, rows, twist, turns)
        for j in range(n):
            x[row, j] = y[j]
    return True
