"""The loops of the port product, level by level, see `functional.port.compiled`; imports numba.

Series are those of `functional.port.levels` with blocks first, all in flat arrays:

    Z   (J, 2, 2 + r, N)        columns of the blocks
    u   (J, 2, b, N)            rows
    X   (cuts, 2 (2 + r) + 2, R)    spectra of what meets at a cut: right, left, LR0, RL1
    Y   (cuts, 2, b, R)             uR0 and uL1
    B   (cuts, 2, 2 + r, R)         what arrives

R = 2N + 8 numbers are a row of `spectra`; `width` stands for 2 + r. Functions take a range of rows
or of places in all rows, as threads share them.
"""

# mypy: ignore-errors
from __future__ import annotations

from ..fft import LANES, compiled, get, load, minus, plus, splat, store, times
from ..pointers import add, get8, mul, mul_conj, number, over, pointer, put, put8, shifted
from .spectra import EXTRA, collect, spread, spread_padded

STEP = 2 * LANES  # numbers of a row that four roots take


@compiled
def parted(scratch):
    """Five arrays in one of 5 R numbers."""
    p, size = pointer(scratch), scratch.shape[0] // 5
    return p, shifted(p, size), shifted(p, 2 * size), shifted(p, 3 * size), shifted(p, 4 * size)


@compiled
def pointers(constants):
    p, q, r, s, t, u = constants
    return pointer(p), pointer(q), pointer(r), pointer(s), pointer(t), pointer(u)


# Between series and spectra.


@compiled
def columns_to_cuts(Z, X, width, N, start, stop, scratch, constants):
    """Rows start .. stop of X, all cuts."""
    a, b, c, d, _ = parted(scratch)
    tables = pointers(constants)
    series, spectra = pointer(Z), pointer(X)
    R, rows = 2 * N + EXTRA, 2 * width + 2
    for t in range(start, stop):
        cut, row = t // rows, t % rows
        if row < width:
            source = (4 * cut + 1) * width + row
        elif row < 2 * width:
            source = (4 * cut + 2) * width + row - width
        elif row == 2 * width:
            source = 4 * cut * width + 1
        else:
            source = (4 * cut + 3) * width
        spread_padded(series, source * N, a, b, c, d, N, spectra, t * R, tables)


@compiled
def rows_to_cuts(u, Y, batch, N, start, stop, scratch, constants):
    """Rows start .. stop of Y."""
    a, b, c, d, _ = parted(scratch)
    tables = pointers(constants)
    series, spectra = pointer(u), pointer(Y)
    R = 2 * N + EXTRA
    for t in range(start, stop):
        cut, side, row = t // (2 * batch), t // batch % 2, t % batch
        source = (4 * cut + 1 + side) * batch + row
        spread_padded(series, source * N, a, b, c, d, N, spectra, t * R, tables)


@compiled
def to_spectra(x, stride, length, out, M, start, stop, scratch, constants):
    """Spectra modulo X^M - 1 of the first `length` numbers of rows of x, `stride` numbers each."""
    a, b, c, d, _ = parted(scratch)
    tables = pointers(constants)
    R, series, spectra = M + EXTRA, pointer(x), pointer(out)
    for t in range(start, stop):
        whole = length - length % LANES
        for j in range(0, whole, LANES):
            store(a, j, load(series, t * stride + j))
        for j in range(whole, length):
            put(a, j, get(series, t * stride + j))
        for j in range(length, M):
            put(a, j, number(a, 0.0))
        spread(a, b, c, d, M, spectra, t * R, tables)


@compiled
def add_series(hats, M, result, k, start, stop, scratch, constants):
    """Add the series of spectra to rows of `result`, k numbers each."""
    a, b, c, _, _ = parted(scratch)
    tables = pointers(constants)
    R, spectra = M + EXTRA, pointer(hats)
    for t in range(start, stop):
        collect(spectra, t * R, a, b, c, M, tables)
        for j in range(min(M, k)):
            result[t * k + j] += scratch[j]


@compiled
def crossing(X, at, k, R, width, s, p, z):
    """T, row by row."""
    RR0, LL1 = get8(X, at + R + k), get8(X, at + width * R + k)
    zr, zi = get8(z, k)
    S, P = (times(s, zr), times(s, zi)), (times(p, zr), times(p, zi))
    back, forth = mul(S, LL1), mul(P, RR0)
    g = mul(back, forth)
    one = splat(number(X, 1.0))
    re, im = minus(one, g[0]), g[1]  # 1 / (re - i im)
    size = plus(times(re, re), times(im, im))
    D = over(re, size), over(im, size)
    PD, SD = mul(P, D), mul(S, D)
    return mul(PD, back), PD, SD, mul(SD, forth)


@compiled
def arrive(X, B, z, s, p, width, N, low, high):
    """B at places low .. high."""
    X, B, z = pointer(X), pointer(B), pointer(z)
    R, rows = 2 * N + EXTRA, 2 * width + 2
    for cut in range(s.shape[0]):
        at, to = cut * rows * R, cut * 2 * width * R
        sv, pv = splat(s[cut]), splat(p[cut])
        for k in range(low, high, STEP):
            T00, T01, T10, T11 = crossing(X, at, k, R, width, sv, pv, z)
            RL0, LR1 = get8(X, at + k), get8(X, at + (width + 1) * R + k)
            put8(B, to + k, mul(T00, RL0))
            put8(B, to + R + k, mul(T01, LR1))
            put8(B, to + width * R + k, mul(T10, RL0))
            put8(B, to + (width + 1) * R + k, mul(T11, LR1))
            for i in range(2, width):
                vR0, vL1 = get8(X, at + i * R + k), get8(X, at + (width + i) * R + k)
                put8(B, to + i * R + k, add(mul(T00, vR0), mul(T01, vL1)))
                put8(B, to + (width + i) * R + k, add(mul(T10, vR0), mul(T11, vL1)))


@compiled
def columns_up(Z, X, B, joined, width, N, start, stop, scratch, constants):
    """Rows start .. stop of the joined columns, (cuts, 2, 2 + r, 2N)."""
    a, b, c, _, row = parted(scratch)
    tables = pointers(constants)
    Z, X, B, joined = pointer(Z), pointer(X), pointer(B), pointer(joined)
    R = 2 * N + EXTRA
    for t in range(start, stop):
        cut, side, source = t // (2 * width), t // width % 2, t % width
        outer = (cut * (2 * width + 2) + 2 * width + side) * R
        for k in range(0, R, STEP):
            put8(row, k, mul(get8(X, outer + k), get8(B, t * R + k)))
        collect(row, 0, a, b, c, 2 * N, tables)
        if source != 1 - side:  # a port of the other block has no series of its own
            own = ((4 * cut + 3 * side) * width + source) * N
            for j in range(0, N, LANES):
                store(a, j, plus(load(a, j), load(Z, own + j)))
        for j in range(0, 2 * N, LANES):
            store(joined, t * 2 * N + j, load(a, j))


@compiled
def rows_up(u, Y, B, joined, batch, width, N, start, stop, scratch, constants):
    """Rows start .. stop of the joined rows, (cuts, 2, b, 2N)."""
    a, b, c, _, row = parted(scratch)
    tables = pointers(constants)
    u, Y, B, joined = pointer(u), pointer(Y), pointer(B), pointer(joined)
    R = 2 * N + EXTRA
    for t in range(start, stop):
        cut, side, which = t // (2 * batch), t // batch % 2, t % batch
        right, left = (2 * cut * batch + which) * R, ((2 * cut + 1) * batch + which) * R
        first, second = (2 * cut * width + side) * R, ((2 * cut + 1) * width + side) * R
        for k in range(0, R, STEP):
            value = mul(get8(Y, right + k), get8(B, first + k))
            put8(row, k, add(value, mul(get8(Y, left + k), get8(B, second + k))))
        collect(row, 0, a, b, c, 2 * N, tables)
        own = ((4 * cut + 3 * side) * batch + which) * N
        for j in range(0, N, LANES):
            store(a, j, plus(load(a, j), load(u, own + j)))
        for j in range(0, 2 * N, LANES):
            store(joined, t * 2 * N + j, load(a, j))


@compiled
def rows_down(du, W, hats, B, found, batch, width, N, start, stop, scratch, constants):
    """Cotangents of rows (J, 2, b, N) from those of the joined rows, du (cuts, 2, b, 2N) with spectra W.

    hats: spectra of the cotangents of what is heard, (b, r, R).
    """
    a, b, c, _, row = parted(scratch)
    tables = pointers(constants)
    du, W, hats, B, found = pointer(du), pointer(W), pointer(hats), pointer(B), pointer(found)
    R, r = 2 * N + EXTRA, width - 2
    for t in range(start, stop):
        cut, side, which = t // (2 * batch), t // batch % 2, t % batch
        first, second = (2 * cut * batch + which) * R, ((2 * cut + 1) * batch + which) * R
        arrived = (2 * cut + side) * width * R
        for k in range(0, R, STEP):
            value = mul_conj(get8(W, first + k), get8(B, arrived + k))
            value = add(value, mul_conj(get8(W, second + k), get8(B, arrived + R + k)))
            for i in range(r):
                w, v = get8(hats, (which * r + i) * R + k), get8(B, arrived + (2 + i) * R + k)
                value = add(value, mul_conj(w, v))
            put8(row, k, value)
        collect(row, 0, a, b, c, 2 * N, tables)
        inner, own = (4 * cut + 1 + side) * batch + which, (4 * cut + 3 * side) * batch + which
        for j in range(0, N, LANES):
            store(found, inner * N + j, load(a, j))
            store(found, own * N + j, load(du, t * 2 * N + j))


@compiled
def hear(Y, B, hats, batch, width, N, cuts, low, high):
    """Spectra of what rows hear of the start vectors across all cuts, (b, r, R), at places low .. high."""
    R, r = 2 * N + EXTRA, width - 2
    Y, B, hats = pointer(Y), pointer(B), pointer(hats)
    zero = splat(number(hats, 0.0))
    for which in range(batch):
        for i in range(r):
            to = (which * r + i) * R
            for k in range(low, high, LANES):
                store(hats, to + k, zero)
            for cut in range(cuts):
                right, left = (2 * cut * batch + which) * R, ((2 * cut + 1) * batch + which) * R
                first, second = (2 * cut * width + 2 + i) * R, ((2 * cut + 1) * width + 2 + i) * R
                for k in range(low, high, STEP):
                    value = mul(get8(Y, right + k), get8(B, first + k))
                    value = add(value, mul(get8(Y, left + k), get8(B, second + k)))
                    put8(hats, to + k, add(get8(hats, to + k), value))
