"""Vandermonde matrices as Vandermonde-like ones, and these as members of LDR-TD."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from ...algebra.convert import convert
from ...core.matrix import StructuredMatrix
from ...core.rules import rule
from ..classical.families import Vandermonde
from ..ldr_td import LDRTridiagonal
from ..ldr_td.exact import check_real, diagonal, shift, tridiagonal, with_zero_operators
from . import VandermondeLike


@rule("to_vandermonde_like", Vandermonde)
def _of_powers(M: Vandermonde, tol: float | None) -> VandermondeLike:
    """Of rank 1: K_n(diag(nodes), 1) K_n(Z_0, e_0)^T."""
    check_real(M)
    one = M.nodes.new_zeros(1, M.in_features)
    one[0, 0] = 1
    return VandermondeLike(
        M.out_features, M.in_features, G=torch.ones_like(M.nodes).unsqueeze(0), H=one, nodes=M.nodes
    )


@rule("to_ldr_td", Vandermonde)
def _(M: Vandermonde, tol: float | None) -> StructuredMatrix:
    return convert(_of_powers(M, tol), LDRTridiagonal)


@rule("to_ldr_td", VandermondeLike)
def _(M: VandermondeLike, tol: float | None) -> LDRTridiagonal:
    m, n = M.shape
    turns = -(-n // m) if m < n else 1  # its Krylov factors have n columns, those of LDR-TD min(m, n)
    if turns * M.G.shape[0] > min(m, n):
        return with_zero_operators(M.to_dense())
    G = torch.cat([M.G * M.nodes.to(M.dtype) ** (t * m) for t in range(turns)])
    H = torch.cat([pad(M.H, (t * m, 0))[:, :n] for t in range(turns)])  # Z_0^{t m} h
    return tridiagonal(G, H, diagonal(M.nodes.to(M.dtype)), shift(H))
