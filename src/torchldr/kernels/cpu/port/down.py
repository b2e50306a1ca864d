"""The loops of the port product downwards, for cotangents, see `functional.port.compiled`; imports numba.

Arrays are those of `up`, and likewise for cotangents.
"""

# mypy: ignore-errors
from __future__ import annotations

import numpy as np

from ..fft import LANES, compiled, plus, splat
from ..pointers import add, get, get4, get8, mul, mul_conj, number, pointer, put, put4, put8, total
from .spectra import EXTRA, collect
from .up import STEP, crossing, parted, pointers

BLOCK = 512  # places that `meet` works on while they are in cache


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
            put4(found, inner * N + j, get4(a, j))
            put4(found, own * N + j, get4(du, t * 2 * N + j))


@compiled
def _touch(x, at, rows, R, count):
    """Read a number of every line of `count` places of some rows."""
    found = number(x, 0.0)
    for row in range(rows):
        for j in range(0, count, 16):
            found += get(x, at + row * R + j)
    return found


@compiled
def meet(X, Y, B, z, s, p, V, W, hats, dX, batch, width, N, low, high):
    """Cotangents dX of what meets at the cuts, at places low .. high, and of the couplings, (cuts, 2).

    V and W: spectra of the cotangents of the joined columns (cuts, 2, 2 + r, R) and rows (cuts, 2, b, R).
    The formulas are those of `levels.columns_down`.
    """
    R, rows, r = 2 * N + EXTRA, 2 * width + 2, width - 2
    couplings = np.zeros((s.shape[0], 2), X.dtype)
    X, Y, B, z, V = pointer(X), pointer(Y), pointer(B), pointer(z), pointer(V)
    W, hats, dX = pointer(W), pointer(hats), pointer(dX)
    zero, share = splat(number(X, 0.0)), number(X, 0.5 / N)
    for cut in range(s.shape[0]):
        at, arrived, heard = cut * rows * R, cut * 2 * width * R, cut * 2 * batch * R
        sv, pv = splat(s[cut]), splat(p[cut])
        s_sum, p_sum = zero, zero
        for k in range(low, high, STEP):
            if (k - low) % BLOCK == 0:  # so many rows at a time the processor does not foresee
                count = min(BLOCK, high - k)
                found = _touch(X, at + k, rows, R, count) + _touch(Y, heard + k, 2 * batch, R, count)
                found += _touch(B, arrived + k, 2 * width, R, count) + _touch(
                    V, arrived + k, 2 * width, R, count
                )
                put(dX, at + k, found + _touch(W, heard + k, 2 * batch, R, count))  # for a moment
            T00, T01, T10, T11, RR0, LL1 = crossing(X, at, k, R, width, sv, pv, z)
            LR0, RL1 = get8(X, at + 2 * width * R + k), get8(X, at + (2 * width + 1) * R + k)
            ar = ai = br = bi = cr = ci = dr = di = er = ei = fr = fi = zero  # pairs would go through memory
            for source in range(width):
                VL, VR = get8(V, arrived + source * R + k), get8(V, arrived + (width + source) * R + k)
                own, other = mul_conj(VL, LR0), mul_conj(VR, RL1)
                M0r, M0i, M1r, M1i = own[0], own[1], other[0], other[1]
                for which in range(batch):
                    if source < 2:
                        w = get8(W, heard + (source * batch + which) * R + k)
                    else:
                        w = get8(hats, (which * r + source - 2) * R + k)
                    own = mul_conj(w, get8(Y, heard + which * R + k))
                    other = mul_conj(w, get8(Y, heard + (batch + which) * R + k))
                    M0r, M0i, M1r, M1i = (
                        plus(M0r, own[0]),
                        plus(M0i, own[1]),
                        plus(M1r, other[0]),
                        plus(M1i, other[1]),
                    )
                M0, M1 = (M0r, M0i), (M1r, M1i)
                into_0 = add(mul_conj(M0, T00), mul_conj(M1, T10))
                into_1 = add(mul_conj(M0, T01), mul_conj(M1, T11))
                B0, B1 = get8(B, arrived + source * R + k), get8(B, arrived + (width + source) * R + k)
                out_0, out_1 = mul(RR0, B0), mul(LL1, B1)
                right, left = at + source * R + k, at + (width + source) * R + k
                if source != 1:
                    out_0 = add(out_0, get8(X, right))
                    put8(dX, right, into_0)
                if source != 0:
                    out_1 = add(out_1, get8(X, left))
                    put8(dX, left, into_1)
                g, h = mul_conj(into_0, B0), mul_conj(into_1, B1)
                ar, ai, br, bi = plus(ar, g[0]), plus(ai, g[1]), plus(br, h[0]), plus(bi, h[1])
                g, h = mul_conj(VL, B0), mul_conj(VR, B1)
                cr, ci, dr, di = plus(cr, g[0]), plus(ci, g[1]), plus(dr, h[0]), plus(di, h[1])
                g = mul_conj(add(M1, mul_conj(into_1, LL1)), out_0)
                h = mul_conj(add(M0, mul_conj(into_0, RR0)), out_1)
                er, ei, fr, fi = plus(er, g[0]), plus(ei, g[1]), plus(fr, h[0]), plus(fi, h[1])
            put8(dX, at + R + k, (ar, ai))
            put8(dX, at + width * R + k, (br, bi))
            put8(dX, at + 2 * width * R + k, (cr, ci))
            put8(dX, at + (2 * width + 1) * R + k, (dr, di))
            zk = get8(z, k)
            s_part, p_part = mul_conj((er, ei), zk)[0], mul_conj((fr, fi), zk)[0]
            s_sum, p_sum = plus(s_sum, s_part), plus(p_sum, p_part)
            if k > 0:  # every root but 1 and -1 stands for its conjugate too
                s_sum, p_sum = plus(s_sum, s_part), plus(p_sum, p_part)
        couplings[cut, 0] = total(s_sum) * share
        couplings[cut, 1] = total(p_sum) * share
    return couplings


@compiled
def columns_down(dZ, dX, found, width, N, start, stop, scratch, constants):
    """Cotangents of columns (J, 2, 2 + r, N) from dX and from those of the joined columns, dZ.

    Rows start .. stop of those: (J, 2, 2 + r).
    """
    a, b, c, _, _ = parted(scratch)
    tables = pointers(constants)
    dZ, dX, found = pointer(dZ), pointer(dX), pointer(found)
    R, rows = 2 * N + EXTRA, 2 * width + 2
    for t in range(start, stop):
        block, side, source = t // (2 * width), t // width % 2, t % width
        cut, second = block // 2, block % 2
        if side != second:  # what comes out at the cut
            row = second * width + source
        elif source == 1 - side:
            row = 2 * width + side
        else:
            own = ((2 * cut + side) * width + source) * 2 * N
            for j in range(0, N, LANES):
                put4(found, t * N + j, get4(dZ, own + j))
            continue
        collect(dX, (cut * rows + row) * R, a, b, c, 2 * N, tables)
        for j in range(0, N, LANES):
            put4(found, t * N + j, get4(a, j))
