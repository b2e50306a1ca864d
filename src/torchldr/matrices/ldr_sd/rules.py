"""Rules of LDR-SD: closure, solving, its products in ONNX and in C."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...algebra.members import (
    as_subdiagonal,
    krylov_displacement,
    krylov_generators,
    linear_in_generators,
    member,
    scales_operators,
    sides_exchanged,
)
from ...algebra.structure import DisplacementStructure
from ...core.linear_map import LinearMap
from ...core.rules import rule
from ...functional.exported.grown import of_sides
from ...functional.exported.krylov import convolved
from ...functional.prepared import Prepared
from ...functional.ring import shift_krylov_matmul
from ...functional.subdiagonal.frozen import frozen
from ...functional.subdiagonal.guard import RANGE, Side, reach, scales
from ...functional.triangular import ring_solve
from ...linalg.candidates import GKO_FROM, around, toeplitz_candidates
from ...linalg.solvers import Candidate, formula, general
from ...operators import Subdiagonal
from . import LDRSubdiagonal

# Closure.

linear_in_generators(LDRSubdiagonal)
rule("transpose", LDRSubdiagonal)(sides_exchanged)
scales_operators(LDRSubdiagonal, Subdiagonal, {"subdiagonal": "s", "corner": "corner"})


@rule("displacement_structure", LDRSubdiagonal)
def _(M: LDRSubdiagonal) -> DisplacementStructure:
    """By A and C^T, of rank r: the power of the shorter operator is a multiple of the identity."""
    A, C = Subdiagonal(M.subdiagonal_A, M.corner_A), Subdiagonal(M.subdiagonal_C, M.corner_C)
    return DisplacementStructure(A, C.T, "stein", M.G.shape[0], lambda: krylov_displacement(M.G, M.H, A, C))


@rule("member", LDRSubdiagonal)
def _(M: LinearMap, known: DisplacementStructure) -> LDRSubdiagonal | None:
    A, C = as_subdiagonal(known.A), as_subdiagonal(known.B.T)
    if known.form != "stein" or A is None or C is None or A.dtype.is_complex or C.dtype.is_complex:
        return None
    found = krylov_generators(*known.generators(), A, C)
    if found is None:
        return None
    sides = {
        f"{part}_{side}": t.to(M.dtype)
        for side, X in (("A", A), ("C", C))
        for part, t in (("subdiagonal", X.s), ("corner", X.corner.reshape(1)))
    }
    return member(LDRSubdiagonal, M, found, **sides)


# Solving: its two Krylov factors where r = 1, else elimination while its scales allow it.

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
        forms = toeplitz_candidates(lambda: _closed_displacement(G, H, f, e))
        found += [around(form, *divide) for form in forms]
    return [*found, *general(M)]


def _closed_displacement(G: Tensor, H: Tensor, f: float, e: float) -> tuple[Tensor, Tensor]:
    """Generators of T - Z_1 T Z_{-1}^T for T = sum_i K(Z_f, g_i) K(Z_e, h_i)^T, a square matrix.

    T - Z_f T Z_e^T = (1 - f e) G^T H, and Z_1 and Z_{-1} differ from Z_f and Z_e in a corner each, which
    brings in the last row and the last column of T. The last row of K(Z_e, h) is h from its end.
    """
    first = torch.zeros_like(G[0])
    first[0] = 1
    column, row = shift_krylov_matmul(G, H.flip(-1), f), shift_krylov_matmul(H, G.flip(-1), e)
    down = (1 + e) * column.roll(1)
    across = -(1 - f) * torch.cat((e * row[-1:], row[:-1]))
    left = torch.cat(((1 - f * e) * G, first.unsqueeze(0), down.unsqueeze(0)))
    right = torch.cat((H, across.unsqueeze(0), first.unsqueeze(0)))
    return left, right


# In an ONNX graph.


@rule("onnx", LDRSubdiagonal)
def product(mode: str, M: LDRSubdiagonal) -> nn.Module:
    return convolved(mode, *M._sides(), M.dtype) or of_sides(*M._sides())


rule("onnx_at_load", LDRSubdiagonal)(lambda mode, M: of_sides(*M._sides()))


# In C: Fourier transforms where the range of the operators allows it, else the recurrence.
#
# Both take memory in proportion to m + n. The transforms are in float32, so the range that `guard` allows for
# these decides; what Python computes by transforms in float64 is computed by the recurrence here.


@rule("c", LDRSubdiagonal)
def _(M: LDRSubdiagonal, c: Any) -> str:
    below = {side: c.coefficients(f"subdiagonal_{side}") for side in "AC"}
    return subdiagonal_product(M, c, M._sides(), below)


def subdiagonal_product(M: Any, c: Any, both: tuple[Side, Side], below: dict[str, str]) -> str:
    """Write the product for subdiagonal operators, by the cheaper of both ways that is right."""
    (m, n), r = M.shape, M.G.shape[0]
    k, length = min(m, n), (max(m, n) + min(m, n)) // 2
    by_fft, by_steps = (4 * r + 2) * c.fft_cost(length), r * k * 2 * (m + n)
    right = reach(*both) <= RANGE
    parts = {}
    for side, generator, (_, corner, V) in zip("AC", "GH", both, strict=True):
        vectors, scale = c.weights(generator)
        parts[side] = V.shape[-1], vectors, scale, below[side], c.literal(corner)
    if right and by_fft < by_steps:
        c.use("pair")
        f, found = c.transform(length)
        for side, (size, vectors, scale, entries, corner) in parts.items():
            c.object("side", side, f"{{{size}, {vectors}, {scale}, {entries}, {corner}}}")
        c.call(f"pair(&{c.name}_A, &{c.name}_C, {r}, {f}, x, y, work);")
        c.scratch, c.multiplications = 8 * found, by_fft
        return f"transforms of length {2 * found}"
    none = "{0, 0.0f, 0.0f}"
    c.use("krylov")
    for side, (size, vectors, scale, entries, corner) in parts.items():
        rest = f"{entries}, {none}, {none}, {corner}, 0.0f, 1.0f"
        c.object("ring", side, f"{{{size}, 0, {vectors}, {scale}, {rest}}}")
    c.call(f"krylov(&{c.name}_A, &{c.name}_C, {r}, x, y, work);")
    c.scratch, c.multiplications = 2 * (m + n), by_steps
    return "recurrence" if right else "recurrence, for the operators' range"


# What to ask for where nobody can look at the subdiagonals, as in a captured graph: the caller vouches.

rule("capture_options", LDRSubdiagonal)(lambda: {"product": "convolution"})


# Frozen.


@rule("frozen", LDRSubdiagonal)
def _(M: LDRSubdiagonal, bias: Tensor | None) -> Prepared | None:
    return frozen(*M._sides())
