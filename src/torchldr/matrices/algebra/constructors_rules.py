"""Rules for classical matrices: results that stay in the family, and transforms that are their own solvers.

Toeplitz, Hankel        multiples and sums keep their class
Vandermonde, DFT, ..    multiples are lazy, as for every map
Cauchy                  C(s, t)^T = C(-t, -s)
DFT                     F^-1 = conj(F) / n
DCT-II, Chebyshev       at the zeros of T_n the rows are orthogonal
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.linear_map import LinearMap, Number
from ...core.rules import rule
from .constructors import Cauchy, Diagonals, Hankel, Toeplitz
from .solvers import Candidate, formula
from .transforms import DCT2, DFT, Chebyshev


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


@rule("solvers", DFT)
def _(M: DFT) -> list[Candidate]:
    def inverse(b: Tensor) -> Tensor:
        return torch.fft.ifft(b, norm=M.norm)

    return [formula("fft", inverse, inverse)]  # symmetric


def _by_cosines(M: Chebyshev) -> list[Candidate] | None:
    """M M^T is diagonal at the zeros of T_n: M^-1 = M^T (M M^T)^-1."""
    if not M.at_zeros:
        return None
    n = M.in_features
    lengths = (n / 2 * (1 + (torch.arange(n, device=M.device) == 0))) * M.scale.square()
    return [formula("cosine transform", lambda b: M.rmatmul(b / lengths), lambda b: M.matmul(b) / lengths)]


rule("solvers", Chebyshev)(_by_cosines)
rule("solvers", DCT2)(_by_cosines)
