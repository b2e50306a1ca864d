"""The loops of `functional.stencil`; imports numba."""

# mypy: ignore-errors
from __future__ import annotations

from .fft import LANES, compiled, copy, load, plus, store, times


@compiled
def _row(lower, diagonal, upper, x, y, p, left, right):
    y[p] = lower[p] * x[left] + diagonal[p] * x[p] + upper[p] * x[right]


@compiled
def columns(ring, K):
    """Fill columns 1, 2, .. of K (r, columns, m) from the one before; `ring` is lower, diagonal, upper."""
    lower, diagonal, upper = ring[0], ring[1], ring[2]
    r, width, m = K.shape
    for i in range(r):
        for j in range(1, width):
            x, y = K[i, j - 1], K[i, j]
            _row(lower, diagonal, upper, x, y, 0, m - 1, 1 % m)
            p = 1
            while p + LANES < m:
                sides = plus(times(load(lower, p), load(x, p - 1)), times(load(upper, p), load(x, p + 1)))
                store(y, p, plus(sides, times(load(diagonal, p), load(x, p))))
                p += LANES
            for q in range(p, m - 1):
                _row(lower, diagonal, upper, x, y, q, q - 1, q + 1)
            if m > 1:
                _row(lower, diagonal, upper, x, y, m - 1, m - 2, 0)


@compiled
def _adjoint_row(lower, diagonal, upper, x, after, now, dl, dd, du, p, left, right):
    a = after[p]
    dl[p] += a * x[left]
    dd[p] += a * x[p]
    du[p] += a * x[right]
    now[p] += lower[right] * after[right] + diagonal[p] * a + upper[left] * after[left]


@compiled
def adjoint(ring, K, dK, collected):
    """Run the adjoint stencil back over the columns of K, lambda_j = dK_j + A^T lambda_{j+1}.

    The gradients of the coefficients, lambda_{j+1} K_j^T on the three diagonals, are added to the first three
    rows of `collected`; the others are lambda of the column that follows, and in the end of the first one.
    """
    r, width, m = K.shape
    lower, diagonal, upper = ring[0], ring[1], ring[2]
    dl, dd, du = collected[0], collected[1], collected[2]
    for i in range(r):
        after = collected[3 + i]
        for j in range(width - 1, -1, -1):
            x, now = K[i, j], dK[i, j]
            _adjoint_row(lower, diagonal, upper, x, after, now, dl, dd, du, 0, m - 1, 1 % m)
            p = 1
            while p + LANES < m:
                a = load(after, p)
                store(dl, p, plus(load(dl, p), times(a, load(x, p - 1))))
                store(dd, p, plus(load(dd, p), times(a, load(x, p))))
                store(du, p, plus(load(du, p), times(a, load(x, p + 1))))
                own = plus(load(now, p), times(load(diagonal, p), a))
                own = plus(own, times(load(lower, p + 1), load(after, p + 1)))
                store(now, p, plus(own, times(load(upper, p - 1), load(after, p - 1))))
                p += LANES
            for q in range(p, m - 1):
                _adjoint_row(lower, diagonal, upper, x, after, now, dl, dd, du, q, q - 1, q + 1)
            if m > 1:
                _adjoint_row(lower, diagonal, upper, x, after, now, dl, dd, du, m - 1, m - 2, 0)
            after = now
        copy(after, collected[3 + i])
