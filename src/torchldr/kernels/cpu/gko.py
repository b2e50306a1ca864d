"""The loops of `gko` and `triangular`, compiled by Numba when they are first used.

The machine code is cached on disk. All of them run over tiles of one row of G, H or B at a time, so that
the row of the factor in the making stays in the nearest cache. They are written once and compiled for
float64 and complex128. The torch forms in `functional.gko.plain` do the same, one step a column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numba.extending
import numpy as np

from .jit import jit

TILE = 512

# Sums may be reassociated (a dot product in several lanes); nan and inf keep their meaning.
_compiled: Callable[[Any], Any] = jit(fastmath={"contract", "reassoc", "nsz"}, error_model="numpy")


def quotient(a: Any, b: Any) -> Any:
    """a / b, and inf or nan where b is 0, of complex numbers too: Numba's own raises an error there."""
    raise NotImplementedError


def _quotient(a: Any, b: Any) -> Any:
    if isinstance(b, numba.types.Complex):
        return lambda a, b: a * (b.conjugate() * (1 / (b.real * b.real + b.imag * b.imag)))
    return lambda a, b: a / b


numba.extending.overload(quotient, strict=False)(_quotient)  # strict: with annotations alike


@_compiled
def divided(out: Any, V: Any, weights: Any, nodes: Any, node: Any, a: int, e: int) -> None:
    """out[i] = weights . V[:, i] / (nodes[i] - node) for a <= i < e.

    Four rows of V at a time; the last ones together with the division, which takes longest and runs beside
    the sums.
    """
    o, s, length, r = out[a:e], nodes[a:e], e - a, V.shape[0]
    last = r - 4 if r % 4 == 0 else r - r % 4
    for i in range(length):
        o[i] = 0
    for q in range(0, last - 3, 4):
        w, x, y, z = V[q, a:e], V[q + 1, a:e], V[q + 2, a:e], V[q + 3, a:e]
        f, g, h, k = weights[q], weights[q + 1], weights[q + 2], weights[q + 3]
        for i in range(length):
            o[i] += f * w[i] + g * x[i] + h * y[i] + k * z[i]
    if r - last == 4:
        w, x, y, z = V[last, a:e], V[last + 1, a:e], V[last + 2, a:e], V[last + 3, a:e]
        f, g, h, k = weights[last], weights[last + 1], weights[last + 2], weights[last + 3]
        for i in range(length):
            o[i] = quotient(o[i] + f * w[i] + g * x[i] + h * y[i] + k * z[i], s[i] - node)
    elif r - last == 2:
        w, x, f, g = V[last, a:e], V[last + 1, a:e], weights[last], weights[last + 1]
        for i in range(length):
            o[i] = quotient(o[i] + f * w[i] + g * x[i], s[i] - node)
    else:
        for q in range(last, r - 1):
            w, f = V[q, a:e], weights[q]
            for i in range(length):
                o[i] += f * w[i]
        w, f = V[r - 1, a:e], weights[r - 1]
        for i in range(length):
            o[i] = quotient(o[i] + f * w[i], s[i] - node)


@_compiled
def add(V: Any, weights: Any, line: Any, a: int, e: int) -> None:
    """V[q, a:e] += weights[q] line[a:e]."""
    o = line[a:e]
    for q in range(V.shape[0]):
        x, w = V[q, a:e], weights[q]
        for i in range(e - a):
            x[i] += w * o[i]


@_compiled
def scaled(V: Any, k: int, factor: Any) -> Any:
    """factor V[:, k]; written out, as array expressions take long to compile."""
    out = np.empty(V.shape[0], V.dtype)
    for q in range(V.shape[0]):
        out[q] = V[q, k] * factor
    return out


@_compiled
def swap(V: Any, i: int, j: int) -> None:
    for q in range(V.shape[0]):
        V[q, i], V[q, j] = V[q, j], V[q, i]


@_compiled
def largest(line: Any, first: int) -> int:
    """The index from `first` on of the entry with the largest |re| + |im|."""
    best, where = -1.0, first
    for a in range(first, line.shape[0], TILE):
        o, top = line[a : a + TILE], 0.0
        for i in range(o.shape[0]):
            top = max(top, abs(o[i].real) + abs(o[i].imag))
        if top > best:
            best, where = top, a
            while abs(line[where].real) + abs(line[where].imag) != top and where < a + o.shape[0] - 1:
                where += 1
    return where


@_compiled
def eliminate(
    s: Any, t: Any, G: Any, H: Any, B: Any, order: Any, d: Any, ties: Any, kept: Any, places: Any
) -> bool:
    """Gaussian elimination on generators, everything in place; False where a pivot is zero.

    ties: two (n, q) tables of the rows, and of the columns, that share a node with each; kept: where
    their entries of L d and U go; places: where each row is now.
    """
    n = G.shape[1]
    line = np.empty(n, G.dtype)
    for k in range(n):
        h = scaled(H, k, 1.0)
        for a in range(k, n, TILE):
            divided(line, G, h, s, t[k], a, min(a + TILE, n))
        pivot = largest(line, k)
        if line[pivot] == 0:
            return False
        if pivot != k:
            swap(G, k, pivot)
            swap(B, k, pivot)
            line[k], line[pivot] = line[pivot], line[k]
            s[k], s[pivot] = s[pivot], s[k]
            order[k], order[pivot] = order[pivot], order[k]
            places[order[k]], places[order[pivot]] = k, pivot
        d[k] = line[k]
        for c in range(ties[0].shape[1]):
            i = ties[0][order[k], c]
            if i >= 0 and places[i] > k:
                kept[0][k, c] = line[places[i]]
        g, b = scaled(G, k, -1 / d[k]), scaled(B, k, -1 / d[k])
        for a in range(k + 1, n, TILE):
            e = min(a + TILE, n)
            add(G, g, line, a, e)
            add(B, b, line, a, e)
        g, h = scaled(G, k, -1.0), scaled(H, k, -1 / d[k])
        for a in range(k + 1, n, TILE):
            e = min(a + TILE, n)
            divided(line, H, g, t, s[k], a, e)  # -g . h / (t - s) = g . h / (s - t)
            add(H, h, line, a, e)
        for c in range(ties[1].shape[1]):
            if ties[1][k, c] > k:
                kept[1][k, c] = line[ties[1][k, c]]
    return True


@_compiled
def forward(s: Any, t: Any, G: Any, H: Any, d: Any, B: Any) -> None:
    """L y = b for every row of B, in place; G (destroyed) as it was at first, H as the pivots left it."""
    n = G.shape[1]
    line = np.empty(n, G.dtype)
    for k in range(n):
        g, b, h = scaled(G, k, -1 / d[k]), scaled(B, k, -1 / d[k]), scaled(H, k, 1.0)
        for a in range(k + 1, n, TILE):
            e = min(a + TILE, n)
            divided(line, G, h, s, t[k], a, e)
            add(G, g, line, a, e)
            add(B, b, line, a, e)


@_compiled
def backward(t: Any, G: Any, H: Any, d: Any, ties: Any, kept: Any, B: Any) -> None:
    """U x = y for every row of B, in place; G and H (destroyed) as the pivots left them.

    Undoing step k needs its row of U, u_j = g_k . h_j / (t_k - t_j) with h_j as it is after the step.
    """
    n = G.shape[1]
    line = np.empty(n, G.dtype)
    for k in range(n - 1, -1, -1):
        g, h = scaled(G, k, -1.0), scaled(H, k, 1 / d[k])
        for a in range(k + 1, n, TILE):
            e = min(a + TILE, n)
            divided(line, H, g, t, t[k], a, e)
            for c in range(ties.shape[1]):
                if a <= ties[k, c] < e and ties[k, c] > k:
                    line[ties[k, c]] = kept[k, c]
            add(H, h, line, a, e)
            u = line[a:e]
            for p in range(B.shape[0]):
                x = B[p, a:e]
                total = u[0] * x[0]
                for i in range(1, e - a):
                    total += u[i] * x[i]
                B[p, k] -= total
        for p in range(B.shape[0]):
            B[p, k] /= d[k]


@_compiled
def substitute(w: Any, B: Any) -> None:
    """Solve with the lower triangular Toeplitz matrix of first column w for every row of B, in place."""
    n = w.shape[0]
    for p in range(B.shape[0]):
        for i in range(n):
            B[p, i] /= w[0]
            x, v, y = B[p, i + 1 :], w[1 : n - i], B[p, i]
            for j in range(n - i - 1):
                x[j] -= y * v[j]
