"""Closure rules of classical matrices: results that stay in the family.

Toeplitz, Hankel        multiples and sums keep their class
Vandermonde, DFT, ..    multiples are lazy, as for every map
Cauchy                  C(s, t)^T = C(-t, -s)
"""

from __future__ import annotations

from ...core.linear_map import LinearMap, Number
from ...core.rules import rule
from .families import Cauchy, Diagonals, Hankel, Toeplitz


def _scaled(M: Diagonals, scalar: Number) -> LinearMap:
    return M.with_entries(scalar * M.entries)


def _sum(M: Diagonals, N: Diagonals) -> LinearMap | None:
    return M.with_entries(M.entries + N.entries) if M.dtype == N.dtype else None


for _class in (Toeplitz, Hankel):
    rule("scale", _class)(_scaled)
    rule("add", _class, _class)(_sum)


@rule("transpose", Toeplitz)
def _(M: Toeplitz) -> Toeplitz:
    return Toeplitz(M.row, M.column)


@rule("transpose", Hankel)
def _(M: Hankel) -> Hankel:
    m, n = M.shape
    return Hankel(M.entries[:n], M.entries[max(n - 1, 0) :][:m])


@rule("transpose", Cauchy)
def _(M: Cauchy) -> Cauchy:
    return Cauchy(-M.t, -M.s)
