"""The loops of `functional.row_scan`, row by row over many diagonals at once; imports numba.

Names are those of `functional.scan`, but for P_i = W_i k and Q_i = k B_i. A vector has one number for each
diagonal s of a band of them, whose entry in row i lies in column s + i modulo n: a row of a band is one piece
of memory, or two. Bands of a square matrix have nothing to do with each other: threads may share them. In any
other matrix a diagonal needs those m before and after it, so that there is one band. Bands are as wide as the
vectors that the functions get to work with, and counted through all matrices.
"""

# mypy: ignore-errors
from __future__ import annotations

from .jit import jit

# Contraction to fused multiply-adds is all that is wanted, but for sums over a row, in any order.
compiled = jit(fastmath={"contract"}, error_model="numpy")
summing = jit(fastmath={"contract", "reassoc"}, error_model="numpy")

BLOCK = 16  # rows of which `gradients` keeps the vectors that came from above
VECTORS = 11 + 4 * BLOCK  # for `gradients` beside the checkpoints, four for each block


@compiled
def _move(x, by, y):
    """y_{s + by} = x_s, indices modulo their length."""
    n = len(x)
    y[by:] = x[: n - by]
    y[:by] = x[n - by :]


@compiled
def _put(x, first, row):
    """Write a vector to a row from this column on, and on from column 0."""
    before = min(len(x), len(row) - first)
    row[first : first + before] = x[:before]
    row[: len(x) - before] = x[before:]


@compiled
def _piece(s, first, width, n):
    """The columns j .. on - 1 of a row in which entries s .. t - 1 of a vector lie; entry 0 is in `first`."""
    j = first + s
    j -= n if j >= n else 0
    t = min(width, s + n - j)
    return j, j + t - s, t


@compiled
def _up(a, c, e, S, V):
    """From S_i and V_i to those of row i - 1."""
    for s in range(len(S)):
        S[s] += V[s] * e[s]
        V[s] *= a * c[s]


@compiled
def _down(a, c, e, x, P, M):
    """From x and P of row i - 1 to those of row i; M has S of diagonal s - m, and gets the entries."""
    for s in range(len(x)):
        w = a * c[s]
        x[s] = w * x[s] + e[s]
        P[s] *= w
        M[s] = x[s] + P[s] * M[s]


@compiled
def fill(weights, E, start, stop, state, M):
    """Bands start .. stop - 1 of M (R, m, n), m <= n, by weights (R, m + n): a, then c, corners first."""
    m, n = E.shape[1:]
    x, y, width = state[0], state[1], state.shape[1]
    for band in range(start, stop):
        k, first = divmod(band * width, n)
        a, c = weights[k, :m], weights[k, m:]
        x[:], y[:] = 0, 1
        for i in range(m - 1, -1, -1):
            _put(x, (first + i + m) % n, M[k, i])
            s = 0
            while s < width:
                j, on, t = _piece(s, first + i, width, n)
                _up(a[i], c[j:on], E[k, i, j:on], x[s:t], y[s:t])
                s = t
        x[:], y[:] = 0, 1
        for i in range(m):
            s = 0
            while s < width:
                j, on, t = _piece(s, first + i, width, n)
                _down(a[i], c[j:on], E[k, i, j:on], x[s:t], y[s:t], M[k, i, j:on])
                s = t


@compiled
def _from_above(a, c, e, D, x, P, r, Q, Q_next):
    """From x, P, r of row i - 1 and Q_i to those of the next row; Q_next is Q of diagonal s + m."""
    for s in range(len(x)):
        w = a * c[s]
        x[s] = w * x[s] + e[s]
        r[s] = w * r[s] + e[s] * Q_next[s]
        P[s] *= w
        Q[s] += D[s] * P[s]


@compiled
def _from_below(a, c, e, D, x, P, r, Q_next, S, V, wl, wt, S_last, dE, dw):
    """dE and dw of row i; S, V, w l and w t go on to row i - 1."""
    for s in range(len(S)):
        w, v = a * c[s], V[s]
        here, through = wl[s] + D[s], wt[s] + D[s] * S_last[s]  # l and t
        dE[s] = here + v * Q_next[s]
        dw[s] = here * x[s] + P[s] * through + v * r[s]
        S[s] += v * e[s]
        V[s] = v * w
        wl[s] = w * here
        wt[s] = w * through


@summing
def _collect(a, c, dw, dc):
    """Add a dw to dc, and give the sum of c dw."""
    total = a * 0
    for s in range(len(dw)):
        dc[s] += a * dw[s]
        total += c[s] * dw[s]
    return total


@compiled
def _block(a, c, E, D, diagonal, first, last, state, moved, kept):
    """Rows first .. last - 1 from above; `kept` gets x, P, r and Q_next as they come to each."""
    m, n = E.shape
    x, P, r, Q = state[0], state[1], state[2], state[3]
    for i in range(first, last):
        _move(Q, (n - m) % n, moved)
        if len(kept):
            at = 4 * (i - first)
            kept[at : at + 3] = state[:3]
            kept[at + 3] = moved
        s = 0
        while s < len(x):
            j, on, t = _piece(s, diagonal + i, len(x), n)
            _from_above(a[i], c[j:on], E[i, j:on], D[i, j:on], x[s:t], P[s:t], r[s:t], Q[s:t], moved[s:t])
            s = t


@compiled
def gradients(weights, E, D, start, stop, state, checkpoints, dE, dweights):
    """Of sum(D M) by the bands start .. stop - 1: in E (R, m, n), and in weights by each band, 0 before.

    Down once, with a checkpoint at every block of rows; then up, block by block, each again down first.
    """
    m, n = E.shape[1:]
    width, blocks = state.shape[1], (m + BLOCK - 1) // BLOCK
    down, up, kept = state[:4], state[4:8], state[11:]
    S, V, wl, wt = up[0], up[1], up[2], up[3]
    moved, S_last, dw = state[8], state[9], state[10]
    for band in range(start, stop):
        k, diagonal = divmod(band * width, n)
        a, c, da, dc = weights[k, :m], weights[k, m:], dweights[band, :m], dweights[band, m:]
        down[:], up[:] = 0, 0
        down[1], up[1] = 1, 1
        for block in range(blocks):
            checkpoints[block] = down
            first, last = block * BLOCK, min(m, (block + 1) * BLOCK)
            _block(a, c, E[k], D[k], diagonal, first, last, down, moved, kept[:0])
        for block in range(blocks - 1, -1, -1):
            first, last = block * BLOCK, min(m, (block + 1) * BLOCK)
            _block(a, c, E[k], D[k], diagonal, first, last, checkpoints[block], moved, kept)
            for i in range(last - 1, first - 1, -1):
                at = 4 * (i - first)
                x, P, r, Q_next = kept[at], kept[at + 1], kept[at + 2], kept[at + 3]
                _move(S, m % n, S_last)
                s = 0
                while s < width:
                    j, on, t = _piece(s, diagonal + i, width, n)
                    _from_below(a[i], c[j:on], E[k, i, j:on], D[k, i, j:on], x[s:t], P[s:t], r[s:t],
                                Q_next[s:t], S[s:t], V[s:t], wl[s:t], wt[s:t], S_last[s:t], dE[k, i, j:on],
                                dw[s:t])  # fmt: skip
                    da[i] += _collect(a[i], c[j:on], dw[s:t], dc[j:on])
                    s = t
