"""Solving with LDR-SD: its two Krylov factors where r = 1, else elimination while its scales allow it."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.rules import rule
from ...functional.subdiagonal.guard import scales
from ...functional.triangular import ring_solve
from ...linalg.candidates import GKO_FROM, around, toeplitz_candidates
from ...linalg.solvers import Candidate, formula, general
from . import LDRSubdiagonal

# How far apart the scales of a matrix may be: GKO mixes rows, so their ratio costs digits.
SCALES = 1e6


@rule("solvers", LDRSubdiagonal)
def _(M: LDRSubdiagonal) -> list[Candidate]:
    P, Q = scales(M.subdiagonal_A), scales(M.subdiagonal_C)
    if not bool(torch.isfinite(torch.cat((P, Q, 1 / P, 1 / Q))).all()):
        return general(M)
    f, e = (M.corner_A * P[-1]).item(), (M.corner_C * Q[-1]).item()
    G, H = M.G / P, M.H / Q
    found = []
    if G.shape[0] == 1:  # M = diag(P) F_f(g) F_e(h)^T diag(Q)
        found.append(
            formula(
                "krylov factors",
                lambda b: ring_solve(H[0], e, ring_solve(G[0], f, b / P), transposed=True) / Q,
                lambda b: ring_solve(G[0], f, ring_solve(H[0], e, b / Q), transposed=True) / P,
            )
        )
    if M.in_features >= max(GKO_FROM, 16 * (G.shape[0] + 2)) and all(
        bool(v.abs().max() <= SCALES * v.abs().min()) for v in (P, Q)
    ):
        divide = (lambda b: b / P, lambda b: b / P), (lambda b: b / Q, lambda b: b / Q)
        forms = toeplitz_candidates(lambda: _closed_displacement(M, G, H, P, Q, f, e))
        found += [around(form, *divide) for form in forms]
    return [*found, *general(M)]


def _closed_displacement(
    M: LDRSubdiagonal, G: Tensor, H: Tensor, P: Tensor, Q: Tensor, f: float, e: float
) -> tuple[Tensor, Tensor]:
    """Generators of T - Z_1 T Z_{-1}^T for M = diag(P) T diag(Q), T = sum_i K(Z_f, g_i) K(Z_e, h_i)^T.

    T - Z_f T Z_e^T = (1 - f e) G^T H, and Z_1 and Z_{-1} differ from Z_f and Z_e in a corner each, which
    brings in the last row and the last column of T.
    """
    first, last = torch.zeros_like(P), torch.zeros_like(P)
    first[0], last[-1] = 1, 1
    column, row = M.matmul(last) / P / Q[-1], M.rmatmul(last) / Q / P[-1]
    down = (1 + e) * column.roll(1)
    across = -(1 - f) * torch.cat((e * row[-1:], row[:-1]))
    left = torch.cat(((1 - f * e) * G, first.unsqueeze(0), down.unsqueeze(0)))
    right = torch.cat((H, across.unsqueeze(0), first.unsqueeze(0)))
    return left, right
