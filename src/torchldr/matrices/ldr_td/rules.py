"""Rules of LDR-TD: closure, exact conversion, solving, its products in ONNX and in C."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...algebra.convert import convert
from ...algebra.members import linear_in_generators, scales_operators, sides_exchanged, telescoped
from ...algebra.structure import DisplacementStructure
from ...core.matrix import StructuredMatrix
from ...core.rules import rule
from ...functional.exported.grown import GrownMatrix
from ...functional.exported.scale import common_scale
from ...functional.tridiagonal import row_sum_scale
from ...linalg.candidates import candidates
from ...linalg.solvers import Candidate
from ...operators import Tridiagonal
from ..classical.convolution import Convolution2d
from ..classical.families import Hankel, Toeplitz
from ..ldr_sd import LDRSubdiagonal
from ..ldr_sd.integer import recurrence_product
from ..toeplitz_like import ToeplitzLike, corner_sign
from ..toeplitz_like.rules import check_real, cross, reversed_hankel
from . import LDRTridiagonal

# Closure.

linear_in_generators(LDRTridiagonal)
rule("transpose", LDRTridiagonal)(sides_exchanged)
scales_operators(
    LDRTridiagonal,
    Tridiagonal,
    {"subdiagonal": "sub", "diagonal": "diag", "superdiagonal": "super", "corners": "corners"},
)


@rule("displacement_structure", LDRTridiagonal)
def _(M: LDRTridiagonal) -> DisplacementStructure:
    """By A and C^T, of rank 2r."""
    A, C, k = Tridiagonal.from_ring(*M._ring("A")), Tridiagonal.from_ring(*M._ring("C")), min(M.shape)
    return DisplacementStructure(A, C.T, "stein", 2 * M.G.shape[0], lambda: telescoped(A, C, M.G, M.H, k))


# Matrices as members of LDR-TD, exactly.
#
# A low displacement rank does not by itself give a short Krylov form sum_i K_k(A, g_i) K_k(C, h_i)^T;
# these do:
#
#     matrix                   A             C           rank
#     low-rank r               0             0           r
#     Toeplitz                 Z_0           Z_0         2
#     Hankel                   Z_0^T         Z_0         2
#     circulant                Z_1           Z_0         1
#     Vandermonde, m x n       diag(nodes)   Z_0         ceil(n / m)
#     Toeplitz-like r          Z_a           Z_{-a}      r
#     Hankel-like r            reversed Z_a  Z_{-a}      r
#     LDR-SD r                 its own       its own     r
#     k x l circulant blocks   Z_a           Z_{-a}      k + l, at most

Parts = dict[str, Tensor]


@rule("to_ldr_td", Toeplitz)
def _(M: Toeplitz, tol: float | None) -> LDRTridiagonal:
    check_real(M)
    # M - Z_0 M Z_0^T is the first column and row: what stands further in stands before, one up and left.
    G, H = cross(M.column, M.row)
    return tridiagonal(G, H, shift_parts(G), shift_parts(H))


@rule("to_ldr_td", Hankel)
def _(M: Hankel, tol: float | None) -> LDRTridiagonal:
    check_real(M)
    upside_down = convert(reversed_hankel(M), LDRTridiagonal)  # Z_0^T is Z_0 with rows and columns reversed
    up = shift_parts(upside_down.G)
    up["superdiagonal"], up["subdiagonal"] = up["subdiagonal"], up["superdiagonal"]
    return tridiagonal(upside_down.G.flip(-1), upside_down.H, up, shift_parts(upside_down.H))


@rule("to_ldr_td", Convolution2d)
def _(M: Convolution2d, tol: float | None) -> StructuredMatrix:
    return convert(convert(M, ToeplitzLike, tol=tol), LDRTridiagonal)


@rule("to_ldr_td", ToeplitzLike)
def _(M: ToeplitzLike, tol: float | None) -> LDRTridiagonal:
    a = float(corner_sign(*M.shape))
    return tridiagonal(M.G, M.H, shift_parts(M.G, a), shift_parts(M.H, -a))


@rule("to_ldr_td", LDRSubdiagonal)
def _(M: LDRSubdiagonal, tol: float | None) -> LDRTridiagonal:
    def side(name: str) -> Parts:
        s, corner = M.tensors[f"subdiagonal_{name}"], M.tensors[f"corner_{name}"]
        parts = diagonal_parts(s.new_zeros(s.shape[0] + 1))
        parts["subdiagonal"] = s
        parts["corners"] = torch.stack((corner.reshape(()), s.new_zeros(())))
        return parts

    return tridiagonal(M.G, M.H, side("A"), side("C"))


def tridiagonal(G: Tensor, H: Tensor, A: Parts, C: Parts) -> LDRTridiagonal:
    sides = {f"{part}_{side}": t for side, parts in (("A", A), ("C", C)) for part, t in parts.items()}
    return LDRTridiagonal(G.shape[-1], H.shape[-1], G=G, H=H, **sides)


def with_zero_operators(W: Tensor) -> LDRTridiagonal:
    """Any matrix: operators 0, and the smaller side's unit vectors."""
    m, n = W.shape
    one = torch.eye(min(m, n), dtype=W.dtype, device=W.device)
    G, H = (one, W) if m <= n else (W.mT, one)
    return tridiagonal(G, H, diagonal_parts(W.new_zeros(m)), diagonal_parts(W.new_zeros(n)))


def diagonal_parts(d: Tensor) -> Parts:
    zero = d.new_zeros(d.shape[-1] - 1)
    return {"subdiagonal": zero, "diagonal": d, "superdiagonal": zero.clone(), "corners": d.new_zeros(2)}


def shift_parts(like: Tensor, f: float = 0.0) -> Parts:
    """Z_f of the size of the last axis."""
    parts = diagonal_parts(like.new_zeros(like.shape[-1]))
    parts["subdiagonal"] = torch.ones_like(parts["subdiagonal"])
    parts["corners"] = like.new_tensor([f, 0.0])
    return parts


# Solving: as with LDR-SD where its operators are subdiagonal, else the general way.


@rule("solvers", LDRTridiagonal)
def _(M: LDRTridiagonal) -> list[Candidate] | None:
    """Where training starts the operators are subdiagonal, and so this is an LDR-SD matrix."""
    tensors = {"G": M.G, "H": M.H}
    for side in "AC":
        lower, diagonal, upper = M._ring(side)
        if bool(diagonal.any()) or bool(upper.any()) or M.in_features == 1:
            return None
        tensors |= {f"subdiagonal_{side}": lower[1:], f"corner_{side}": lower[:1]}
    options = LDRSubdiagonal.check_options({})
    return candidates(LDRSubdiagonal.unchecked(M.out_features, M.in_features, tensors, options))


# In an ONNX graph.


@rule("onnx", LDRTridiagonal)
def product(mode: str, M: LDRTridiagonal) -> nn.Module:
    with torch.no_grad():
        return GrownMatrix(torch.stack(M._ring("A"), -1), torch.stack(M._ring("C"), -1), M.G, M.H)


# In C: the Krylov columns one after the other, by the stencil of the operators.


@rule("c", LDRTridiagonal)
def _(M: LDRTridiagonal, c: Any) -> str:
    (m, n), r = M.shape, M.G.shape[0]
    plain = type(M).unchecked(m, n, M.tensors, {**M.options, "normalize": False})
    t = common_scale(*(torch.stack(M._ring(side), -1) for side in "AC"))
    c.use("krylov")
    for side, generator, by in (("A", "G", 1 / t), ("C", "H", t)):
        vectors, scale = c.weights(generator)
        parts = [c.coefficients(f"{part}_{side}") for part in ("subdiagonal", "diagonal", "superdiagonal")]
        corners = [c.literal(corner) for corner in M.tensors[f"corners_{side}"]]
        gain = c.literal(by / row_sum_scale(*plain._ring(side)) if M.options["normalize"] else by)
        rest = ", ".join((*parts, *corners, gain))
        c.object("ring", side, f"{{{M.tensors[generator].shape[-1]}, 1, {vectors}, {scale}, {rest}}}")
    c.call(f"krylov(&{c.name}_A, &{c.name}_C, {r}, x, y, work);")
    c.scratch, c.multiplications = 4 * (m + n), r * min(m, n) * 4 * (m + n)
    return "stencil"


@rule("c_integer", LDRTridiagonal)
def _(M: LDRTridiagonal, c: Any) -> str:
    rings = [torch.stack(M._ring(side), -1).detach().cpu().double() for side in "AC"]
    t = common_scale(*rings)
    A, C = ([*ring.unbind(-1)] for ring in (rings[0] / t, rings[1] * t))
    return recurrence_product(M, c, A, C)
