"""Loop nests for grids of circulant blocks over the compiled FFT; imports numba.

A vector v of s = 2N real numbers is taken as a complex one, v_{2j} + i v_{2j+1}, with spectrum V of length N.
Where R V = conj(V_{N-k}), the spectrum of the cyclic convolution of u and v is

    U V - Q (V - R V),     Q = g (U - R U),     g_k = (1 + exp(-2 pi i k / N)) / 4,

so that no spectrum of a real vector is ever unpacked. As a map of real vectors R is its own adjoint, and
Q_{N-k} = -conj(Q_k): the transposed map takes W to conj(U) W - conj(Q) (W + R W).

All arrays are contiguous and of one dtype; spectra are those of `fft`, in rows of 2N numbers.
"""

# mypy: ignore-errors
from __future__ import annotations

from functools import lru_cache

import numpy as np

from .fft import (
    LANES,
    _high,
    _imag,
    _low,
    _real,
    _shuffle,
    clear,
    compiled,
    copy,
    load,
    minus,
    plus,
    store,
    times,
    transform,
)
from .fft import tables as fft_tables

_even, _odd = _shuffle([0, 2, 4, 6]), _shuffle([1, 3, 5, 7])
_reversed, _around = _shuffle([3, 2, 1, 0]), _shuffle([4, 3, 2, 1])


@lru_cache(maxsize=64)
def tables(n: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The turns of the FFT and g (2, n), real parts first."""
    g = (1 + np.exp(-2j * np.pi / n * np.arange(n))) / 4
    return fft_tables(n, dtype)[1], np.stack((g.real, g.imag)).astype(dtype)


@compiled
def _enter(row, v):
    """v = row, its even places first, and zero behind its end."""
    n, half = row.shape[0], v.shape[0] // 2
    whole = n // (2 * LANES) * LANES
    for j in range(0, whole, LANES):
        a, b = load(row, 2 * j), load(row, 2 * j + LANES)
        store(v, j, _even(a, b))
        store(v, half + j, _odd(a, b))
    for j in range(whole, half):
        v[j] = row[2 * j] if 2 * j < n else 0
        v[half + j] = row[2 * j + 1] if 2 * j + 1 < n else 0


@compiled
def _leave(v, row):
    """The inverse of `_enter`, for v of the inverse transform: its odd places come first."""
    n, half = row.shape[0], v.shape[0] // 2
    whole = n // (2 * LANES) * LANES
    for j in range(0, whole, LANES):
        a, b = load(v, half + j), load(v, j)
        store(row, 2 * j, _low(a, b))
        store(row, 2 * j + LANES, _high(a, b))
    for j in range(2 * whole, n):
        row[j] = v[j // 2] if j % 2 else v[half + j // 2]


@compiled
def _mirrored(v, start, k, n):
    """The numbers N - k, N - k - 1, .. (0 for N) of those from `start` on."""
    if k == 0:
        return _around(load(v, start + n - LANES), load(v, start))
    at = start + n - k - LANES + 1
    return _reversed(load(v, at), load(v, at))


@compiled
def _add_product(V, U, Q, out):
    """out += U V + Q (V - R V), its imaginary parts first."""
    n = V.shape[0] // 2
    for k in range(0, n, LANES):
        vr, vi, ur, ui = load(V, k), load(V, n + k), load(U, k), load(U, n + k)
        qr, qi = load(Q, k), load(Q, n + k)
        dr, di = minus(vr, _mirrored(V, 0, k, n)), plus(vi, _mirrored(V, n, k, n))
        store(out, k, plus(load(out, k), plus(_imag(ur, ui, vr, vi), _imag(qr, qi, dr, di))))
        store(out, n + k, plus(load(out, n + k), plus(_real(ur, ui, vr, vi), _real(qr, qi, dr, di))))


@compiled
def _add_transposed(W, U, Q, out):
    """out += conj(U) W + conj(Q) (W + R W), its imaginary parts first."""
    n = W.shape[0] // 2
    for k in range(0, n, LANES):
        wr, wi, ur, ui = load(W, k), load(W, n + k), load(U, k), load(U, n + k)
        qr, qi = load(Q, k), load(Q, n + k)
        er, ei = plus(wr, _mirrored(W, 0, k, n)), minus(wi, _mirrored(W, n, k, n))
        real = plus(plus(times(ur, wr), times(ui, wi)), plus(times(qr, er), times(qi, ei)))
        imag = plus(minus(times(ur, wi), times(ui, wr)), minus(times(qr, ei), times(qi, er)))
        store(out, k, plus(load(out, k), imag))
        store(out, n + k, plus(load(out, n + k), real))


@compiled
def _add_gradient(W, V, plain, mixed):
    """plain += conj(V) W and mixed += conj(V - R V) (W + R W): what gradients of U and Q are made of."""
    n = W.shape[0] // 2
    for k in range(0, n, LANES):
        wr, wi, vr, vi = load(W, k), load(W, n + k), load(V, k), load(V, n + k)
        er, ei = plus(wr, _mirrored(W, 0, k, n)), minus(wi, _mirrored(W, n, k, n))
        dr, di = minus(vr, _mirrored(V, 0, k, n)), plus(vi, _mirrored(V, n, k, n))
        store(plain, k, plus(load(plain, k), plus(times(vr, wr), times(vi, wi))))
        store(plain, n + k, plus(load(plain, n + k), minus(times(vr, wi), times(vi, wr))))
        store(mixed, k, plus(load(mixed, k), plus(times(dr, er), times(di, ei))))
        store(mixed, n + k, plus(load(mixed, n + k), minus(times(dr, ei), times(di, er))))


@compiled
def block_spectra(columns, start, spectra, turns, g):
    """U / N and -Q / N (p, q, 2, s) for every column (p q, at most s), moved up by `start` places."""
    q, size = spectra.shape[1], spectra.shape[3]
    n, count = size // 2, columns.shape[1]
    a, b = np.empty(size, columns.dtype), np.empty(size, columns.dtype)
    scale = columns.dtype.type(1 / n)
    for i in range(columns.shape[0]):
        clear(b, 0)
        copy(columns[i, start:], b[: count - start])
        copy(columns[i, :start], b[size - start :])
        _enter(b, a)
        a, b = transform(a, b, turns)
        U, Q = spectra[i // q, i % q, 0], spectra[i // q, i % q, 1]
        for k in range(n):
            at = n - k if k else 0
            dr, di = scale * (a[k] - a[at]), scale * (a[n + k] + a[n + at])
            U[k], U[n + k] = scale * a[k], scale * a[n + k]
            Q[k], Q[n + k] = g[1, k] * di - g[0, k] * dr, -g[0, k] * di - g[1, k] * dr


@compiled
def _blocks(row, found, a, b, turns):
    """The spectra of the blocks of a row."""
    size = found.shape[1]
    for i in range(found.shape[0]):
        _enter(row[i * size : min((i + 1) * size, row.shape[0])], a)
        a, b = transform(a, b, turns)
        for k in range(size):
            found[i, k] = a[k]


@compiled
def product(x, y, spectra, transposed, turns):
    """y = M x, or M^T x, for rows of x; spectra (p, q, 2, s) are those of `block_spectra`."""
    p, q, _, size = spectra.shape
    a, b = np.empty(size, x.dtype), np.empty(size, x.dtype)
    found = np.empty((p if transposed else q, size), x.dtype)
    for row in range(x.shape[0]):
        _blocks(x[row], found, a, b, turns)
        for i in range(q if transposed else p):
            clear(a, 0)
            for j in range(found.shape[0]):
                if transposed:
                    _add_transposed(found[j], spectra[j, i, 0], spectra[j, i, 1], a)
                else:
                    _add_product(found[j], spectra[i, j, 0], spectra[i, j, 1], a)
            a, b = transform(a, b, turns)
            _leave(a, y[row, i * size : min((i + 1) * size, y.shape[1])])


@compiled
def _column_gradients(sums, start, gradients, turns, g):
    """The gradients of the columns of `block_spectra` from sums (p, q, 2, s): of plain - conj(g) mixed."""
    q, size = sums.shape[1], sums.shape[3]
    n, count = size // 2, gradients.shape[1]
    a, b = np.empty(size, sums.dtype), np.empty(size, sums.dtype)
    scale = sums.dtype.type(1 / n)
    for i in range(gradients.shape[0]):
        plain, mixed = sums[i // q, i % q, 0], sums[i // q, i % q, 1]
        for k in range(n):
            mr, mi = mixed[k], mixed[n + k]
            a[n + k] = scale * (plain[k] - g[0, k] * mr - g[1, k] * mi)
            a[k] = scale * (plain[n + k] - g[0, k] * mi + g[1, k] * mr)
        a, b = transform(a, b, turns)
        _leave(a, b)
        copy(b[: count - start], gradients[i, start:])
        copy(b[size - start :], gradients[i, :start])


@compiled
def backward(u, x, dx, dcolumns, start, spectra, turns, g):
    """dx = M^T u, and the gradients of the columns for these rows; an array without numbers is left alone."""
    p, q, _, size = spectra.shape
    a, b = np.empty(size, u.dtype), np.empty(size, u.dtype)
    left, right = np.empty((p, size), u.dtype), np.empty((q, size), u.dtype)
    sums = np.zeros(spectra.shape if dcolumns.size else (0, 0, 0, 0), u.dtype)
    for row in range(u.shape[0]):
        _blocks(u[row], left, a, b, turns)
        if dcolumns.size:
            _blocks(x[row], right, a, b, turns)
            for i in range(p):
                for j in range(q):
                    _add_gradient(left[i], right[j], sums[i, j, 0], sums[i, j, 1])
        if dx.size:
            for j in range(q):
                clear(a, 0)
                for i in range(p):
                    _add_transposed(left[i], spectra[i, j, 0], spectra[i, j, 1], a)
                a, b = transform(a, b, turns)
                _leave(a, dx[row, j * size : min((j + 1) * size, dx.shape[1])])
    if dcolumns.size:
        _column_gradients(sums, start, dcolumns, turns, g)
