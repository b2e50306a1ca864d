"""The loops of `functional.row_scan`, row by row over all diagonals at once; imports numba.

Names are those of `functional.scan`, but for P_i = W_i k and Q_i = k B_i. A vector has one number for each
diagonal s, whose entry in row i lies in column s + i modulo n: a row is two pieces of memory.
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
def fill(a, c, E, state, M):
    """M (R, m, n), m <= n, for operators a (R, m) and c (R, n), corners first, and E (R, m, n)."""
    R, m, n = E.shape
    x, y = state[0], state[1]
    for k in range(R):
        x[:], y[:] = 0, 1
        for i in range(m - 1, -1, -1):
            _move(x, (i + m) % n, M[k, i])
            _up(a[k, i], c[k, i:], E[k, i, i:], x[: n - i], y[: n - i])
            _up(a[k, i], c[k, :i], E[k, i, :i], x[n - i :], y[n - i :])
        x[:], y[:] = 0, 1
        for i in range(m):
            _down(a[k, i], c[k, i:], E[k, i, i:], x[: n - i], y[: n - i], M[k, i, i:])
            _down(a[k, i], c[k, :i], E[k, i, :i], x[n - i :], y[n - i :], M[k, i, :i])


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
def _block(a, c, E, D, first, last, state, moved, kept):
    """Rows first .. last - 1 from above; `kept` gets x, P, r and Q_next as they come to each."""
    m, n = E.shape
    x, P, r, Q = state[0], state[1], state[2], state[3]
    for i in range(first, last):
        _move(Q, (n - m) % n, moved)
        if len(kept):
            at = 4 * (i - first)
            kept[at : at + 3] = state[:3]
            kept[at + 3] = moved
        for piece in range(2):
            on, of = (slice(0, n - i), slice(i, n)) if piece == 0 else (slice(n - i, n), slice(0, i))
            _from_above(a[i], c[of], E[i, of], D[i, of], x[on], P[on], r[on], Q[on], moved[on])


@compiled
def gradients(a, c, E, D, state, checkpoints, dE, da, dc):
    """Of sum(D M) in E (R, m, n), a (R, m) and c (R, n), which are 0 before.

    Down once, with a checkpoint at every block of rows; then up, block by block, each again down first.
    """
    R, m, n = E.shape
    blocks = (m + BLOCK - 1) // BLOCK
    down, up = state[:4], state[4:8]
    S, V, wl, wt = up[0], up[1], up[2], up[3]
    moved, S_last, dw, kept = state[8], state[9], state[10], state[11:]
    for k in range(R):
        down[:], up[:] = 0, 0
        down[1], up[1] = 1, 1
        for block in range(blocks):
            checkpoints[block] = down
            first, last = block * BLOCK, min(m, (block + 1) * BLOCK)
            _block(a[k], c[k], E[k], D[k], first, last, down, moved, kept[:0])
        for block in range(blocks - 1, -1, -1):
            first, last = block * BLOCK, min(m, (block + 1) * BLOCK)
            _block(a[k], c[k], E[k], D[k], first, last, checkpoints[block], moved, kept)
            for i in range(last - 1, first - 1, -1):
                x, P, r, Q_next = kept[4 * (i - first) : 4 * (i - first) + 4]
                _move(S, m % n, S_last)
                for piece in range(2):
                    on, of = (slice(0, n - i), slice(i, n)) if piece == 0 else (slice(n - i, n), slice(0, i))
                    _from_below(a[k, i], c[k, of], E[k, i, of], D[k, i, of], x[on], P[on], r[on], Q_next[on],
                                S[on], V[on], wl[on], wt[on], S_last[on], dE[k, i, of], dw[on])  # fmt: skip
                    da[k, i] += _collect(a[k, i], c[k, of], dw[on], dc[k, of])
