"""Loop nests over the compiled FFT, a few rows of a batch each; imports numba.

All arrays are contiguous and of one dtype; spectra are those of `fft`, in rows of 2N numbers.
"""

# mypy: ignore-errors
from __future__ import annotations

import numpy as np

from .fft import add_correlation, add_product, analyse, clear, compiled, copy, multiply, synthesise


@compiled
def _rows(size, like):
    rows = np.empty((5, size), like.dtype)
    return rows[0], rows[1], rows[2], rows[3], rows[4]


@compiled
def circulant_pair(x, y, scalings, right, left, twist, turns):
    """M x for rows of x (b, n), n = 2N: `functional.subdiagonal.compiled_pair` has the formula."""
    n, r = x.shape[1], right.shape[0] - 1
    enter, beside, between = scalings[0], scalings[1], scalings[2]
    leave, aside = scalings[3], scalings[4]
    a, b, c, d, total = _rows(n, x)
    for row in range(x.shape[0]):
        source, target = x[row], y[row]
        for j in range(n):
            a[j] = source[j] * beside[j]
            total[j] = 0
        a, b = analyse(a, b, twist, turns)
        add_product(a, left[r], total)
        for j in range(n):
            a[j] = source[j] * enter[j]
        a, b = analyse(a, b, twist, turns)
        multiply(a, right[r], c)
        c, d = synthesise(c, d, twist, turns)
        for j in range(n):
            target[j] = c[j] * aside[j]
        for i in range(r):
            multiply(a, right[i], c)
            c, d = synthesise(c, d, twist, turns)
            for j in range(n):
                c[j] *= between[j]
            c, d = analyse(c, d, twist, turns)
            add_product(c, left[i], total)
        total, c = synthesise(total, c, twist, turns)
        for j in range(n):
            target[j] += total[j] * leave[j]


@compiled
def _scales(s, corner):
    """P_0 = 1, P_i = s_1 .. s_i in float64, and max|P| / min|P| max(1, |f|), f = corner P_{m-1}."""
    P = np.empty(s.shape[0] + 1)
    value = low = high = P[0] = 1.0
    for i in range(s.shape[0]):
        value *= s[i]
        P[i + 1] = value
        low, high = min(low, abs(value)), max(high, abs(value))
        if value != value:
            low = value
    return P, high / low * max(1.0, abs(corner * value))


@compiled
def scales(s_A, corner_A, s_C, corner_C):
    """P of both operators in float64, then in the dtype of s; the product of their ranges, or NaN."""
    P_A, reach_A = _scales(s_A, corner_A)
    P_C, reach_C = _scales(s_C, corner_C)
    return P_A, P_C, P_A.astype(s_A.dtype), P_C.astype(s_C.dtype), reach_A * reach_C


@compiled
def _generator_spectra(V, P, out, twist, turns):
    """The spectra of v_i / P."""
    m = P.shape[0]
    a, b = np.empty(out.shape[1], V.dtype), np.empty(out.shape[1], V.dtype)
    for i in range(V.shape[0]):
        for j in range(m):
            a[j] = V[i, j] / P[j]
        clear(a, m)
        a, b = analyse(a, b, twist, turns)
        copy(a, out[i])


@compiled
def generator_spectra(G, P_A, left, H, P_C, right, twist, turns):
    """The spectra of g_i / P_A and of h_i / P_C."""
    _generator_spectra(G, P_A, left, twist, turns)
    _generator_spectra(H, P_C, right, twist, turns)


@compiled
def _unfold(u, P, f, k, out):
    """out = (P u, f P u, 0): what the transposed product analyses."""
    m = u.shape[0]
    for j in range(m):
        out[j] = P[j] * u[j]
    for j in range(k - 1):
        out[m + j] = f * out[j]
    clear(out, m + k - 1)


@compiled
def _fold(t, P, f, k, y, high):
    """y_i = P_i t_i / N + f high_i, where high_i = P_i t_{m+i} / N for i < k - 1."""
    m, scale = P.shape[0], t.dtype.type(2 / t.shape[0])
    for j in range(m):
        y[j] = P[j] * scale * t[j]
    for j in range(k - 1):
        high[j] = P[j] * scale * t[m + j]
        y[j] += f * high[j]


@compiled
def _between(first, hats, i, k, a, b, twist, turns):
    """The spectrum of K^T u, given that of u (`first`) and of v_i / P: in a, with b the other array."""
    multiply(first, hats[i], a)
    a, b = synthesise(a, b, twist, turns)
    scale = a.dtype.type(2 / a.shape[0])
    for j in range(k):
        a[j] *= scale
    clear(a, k)
    return analyse(a, b, twist, turns)


@compiled
def layer_forward(x, y, k, A, C, saved, twist, turns):
    """y = sum_i K_k(A, g_i) K_k(C, h_i)^T x for rows of x; A and C are (P, f, spectra of v_i / P).

    The spectra of x (b, 2N) and of K(C, h_i)^T x (b, r, 2N), and what the corner of A brings back (b, k), are
    left in `saved`, unless that is empty.
    """
    (P_A, f_A, left), (P_C, f_C, right) = A, C
    x_hat, z_hat, high = saved
    a, b, c, d, total = _rows(left.shape[1], x)
    unsaved = np.empty(k, x.dtype)
    for row in range(x.shape[0]):
        _unfold(x[row], P_C, f_C, k, a)
        a, b = analyse(a, b, twist, turns)
        if x_hat.size:
            copy(a, x_hat[row])
        clear(total, 0)
        for i in range(left.shape[0]):
            c, d = _between(a, right, i, k, c, d, twist, turns)
            add_product(c, left[i], total)
            if x_hat.size:
                copy(c, z_hat[row, i])
        total, c = synthesise(total, c, twist, turns)
        _fold(total, P_A, f_A, k, y[row], high[row] if x_hat.size else unsaved)


@compiled
def layer_backward(u, x, y, dx, k, A, C, saved, sums, twist, turns):
    """dx = M^T u for rows of u, and the sums over these rows that the gradients of A and C are made of.

    Those are added to `sums`: for A the spectra of the correlations of u with z_i (r, 2N), imaginary parts
    first, u_j y_j (m,) and what the corner brings back, u_j high_j (k,); for C likewise with x, dz_i and dx.
    """
    (P_A, f_A, left), (P_C, f_C, right) = A, C
    x_hat, z_hat, high = saved
    (with_z, ends_A, corner_A), (with_dz, ends_C, corner_C) = sums
    a, b, c, d, total = _rows(left.shape[1], x)
    high_C = np.empty(k, x.dtype)
    for row in range(x.shape[0]):
        _unfold(u[row], P_A, f_A, k, a)
        a, b = analyse(a, b, twist, turns)
        clear(total, 0)
        for i in range(left.shape[0]):
            add_correlation(a, z_hat[row, i], with_z[i])
            c, d = _between(a, left, i, k, c, d, twist, turns)
            add_correlation(x_hat[row], c, with_dz[i])
            add_product(c, right[i], total)
        total, c = synthesise(total, c, twist, turns)
        _fold(total, P_C, f_C, k, dx[row], high_C)
        for j in range(u.shape[1]):
            ends_A[j] += u[row, j] * y[row, j]
        for j in range(x.shape[1]):
            ends_C[j] += x[row, j] * dx[row, j]
        for j in range(k - 1):
            corner_A[j] += u[row, j] * high[row, j]
            corner_C[j] += x[row, j] * high_C[j]


@compiled
def side_gradients(A, C, k, sums, dA, dC, twist, turns):
    """The gradients of both operators, (s, v_i) in dA and dC, those of the corners returned.

    A and C are (s, corner, v_i, P), the sums those of `layer_backward`.
    """
    return (
        _side_gradients(A, k, sums[0], dA, twist, turns),
        _side_gradients(C, k, sums[1], dC, twist, turns),
    )


@compiled
def _side_gradients(side, k, sums, found, twist, turns):
    """Those of one.

    That of v_i is the correlation over P. That of s_l is the flow over edge l, the sum over all paths that
    cross it, divided by s_l; from one edge to the next the flow changes by what starts there less what ends
    there, v_l dv_l - u_l y_l.
    """
    (s, corner, V, P), (ds, dV) = side, found
    correlation, ends, around = sums
    spare, scale = np.empty(correlation.shape[1], V.dtype), 2 / correlation.shape[1]
    for i in range(V.shape[0]):
        q, spare = synthesise(correlation[i], spare, twist, turns)
        for j in range(V.shape[1]):
            dV[i, j] = q[j] / P[j] * scale
    dc = 0.0
    for j in range(k - 1):
        dc += around[j]
    dc *= P[-1]
    flow = corner * dc
    for j in range(s.shape[0]):
        for i in range(V.shape[0]):
            flow += V[i, j] * dV[i, j]
        flow -= ends[j]
        ds[j] = flow / s[j] if k > 1 else 0.0  # nothing moves by a single column
    return dc
