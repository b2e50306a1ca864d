"""Rules of Toeplitz-like matrices: closure, exact conversion, solving, their products in ONNX and in C."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...algebra.members import (
    at_least_one,
    krylov_displacement,
    krylov_generators,
    linear_in_generators,
    member,
    shift,
)
from ...algebra.structure import DisplacementStructure, factored
from ...core.linear_map import LinearMap
from ...core.rules import rule
from ...functional.exported.grown import of_sides
from ...functional.exported.krylov import convolved
from ...functional.prepared import Prepared
from ...functional.subdiagonal.frozen import frozen
from ...linalg.candidates import by_generators, toeplitz_candidates
from ...linalg.solvers import Candidate
from ...operators import Diagonal, Operator, Shift, same
from ..classical.families import Hankel, Toeplitz
from ..ldr_sd import LDRSubdiagonal
from ..ldr_sd.rules import subdiagonal_product
from . import ToeplitzLike, corner_sign

# Closure.

linear_in_generators(ToeplitzLike)


@rule("transpose", ToeplitzLike)
def _(M: ToeplitzLike) -> ToeplitzLike | None:
    m, n = M.shape
    if corner_sign(m, n) == corner_sign(n, m):  # the class of n x m has these operators the other way round
        return None
    return ToeplitzLike.unchecked(n, m, {"G": M.H, "H": M.G}, M.options)


# D K(A, g) = K(D A D^-1, D g): diagonally scaled Toeplitz-like matrices are LDR-SD.

rule("matmul", Diagonal, ToeplitzLike)(lambda D, M: D @ _in_ldr_sd(M))
rule("matmul", ToeplitzLike, Diagonal)(lambda M, D: _in_ldr_sd(M) @ D)


def _in_ldr_sd(M: ToeplitzLike) -> LDRSubdiagonal:
    """The same Toeplitz-like matrix in the class that learns its operators."""
    tensors = {"G": M.G, "H": M.H}
    for side, (below, corner, _) in zip("AC", M._sides(), strict=True):
        tensors |= {f"subdiagonal_{side}": below, f"corner_{side}": corner.reshape(1)}
    options = LDRSubdiagonal.check_options({})
    return LDRSubdiagonal.unchecked(M.out_features, M.in_features, tensors, options)


@rule("displacement_structure", ToeplitzLike)
def structure_of(M: ToeplitzLike) -> DisplacementStructure:
    """By Z_a and Z_{-a}^T, of rank r."""
    A, B = operators(M)
    return DisplacementStructure(A, B, "stein", M.G.shape[0], lambda: krylov_displacement(M.G, M.H, A, B.T))


@rule("fixed_operators", ToeplitzLike)
def operators(M: LinearMap) -> tuple[Operator, Operator]:
    m, n = M.shape
    a = corner_sign(m, n)
    return shift(m, a, M), shift(n, -a, M).T


@rule("member", ToeplitzLike)
def member_of(M: LinearMap, known: DisplacementStructure) -> ToeplitzLike | None:
    A, B = operators(M)
    if known.form != "stein" or not (same(known.A, A) and same(known.B, B)):
        return None
    found = krylov_generators(*known.generators(), A, B.T)
    return None if found is None else member(ToeplitzLike, M, found)


# Matrices as Toeplitz-like ones, exactly.
#
# M - A M C^T = R - A^k R (C^k)^T can be solved for R = G^T H: one of Z_a^k, Z_{-a}^k is a multiple of the
# identity. So every matrix is Toeplitz-like of the rank of M - Z_a M Z_{-a}^T: 2 for Toeplitz matrices, 1 for
# circulant ones, 2 r for rank r.


@rule("to_toeplitz_like", Tensor)
def _of_dense(W: Tensor, tol: float | None) -> ToeplitzLike:
    """By the SVD of the displacement."""
    if W.ndim != 2 or not W.is_floating_point():
        raise TypeError(f"convert: the matrix must be real, (m, n), got {W.dtype}, {tuple(W.shape)}.")
    G, H = at_least_one(*factored(shift_displacement(W), tol))
    return of_displacement(G.to(W.dtype), H.to(W.dtype))


rule("to_toeplitz_like", LinearMap)(lambda M, tol: _of_dense(M.to_dense(), tol))


@rule("to_toeplitz_like", Toeplitz)
def _(M: Toeplitz, tol: float | None) -> ToeplitzLike:
    check_real(M)
    (m, n), t = M.shape, M.entries
    a = corner_sign(m, n)
    # The displacement is its first row and column; t[d] of diagonal d stands at d + n - 1.
    corner = t[n - 1 : n] + t[m - 1 : m]
    row = torch.cat((corner, (t[: n - 1] - a * t[m : m + n - 1]).flip(0)))
    column = torch.cat((corner, t[n:] + a * t[: m - 1]))
    return of_displacement(*cross(column, row))


def check_real(M: LinearMap) -> None:
    if M.dtype.is_complex:
        raise TypeError(f"{type(M).__name__}: the classes of layers are real, got {M.dtype}.")


def down(x: Tensor, f: float) -> Tensor:
    """Z_f x along the last axis."""
    return torch.cat((f * x[..., -1:], x[..., :-1]), -1)


def shift_displacement(W: Tensor) -> Tensor:
    """W - Z_a W Z_{-a}^T."""
    a = corner_sign(*W.shape)
    return W - down(down(W.mT, a).mT, -a)


def cross(column: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """G and H of the matrix that is zero but for this first column and row, which share their corner."""
    m, n = column.shape[0], row.shape[0]
    first, other = (torch.eye(1, size, dtype=row.dtype, device=row.device)[0] for size in (m, n))
    if m == 1 or n == 1:
        return (first.unsqueeze(0), row.unsqueeze(0)) if m == 1 else (column.unsqueeze(0), other.unsqueeze(0))
    return torch.stack((first, column * (1 - first))), torch.stack((row, other))


def of_displacement(G: Tensor, H: Tensor) -> ToeplitzLike:
    """The Toeplitz-like matrix whose displacement is G^T H."""
    G, H = krylov_form(G, H)
    return ToeplitzLike(G.shape[-1], H.shape[-1], G=G, H=H)


def krylov_form(G: Tensor, H: Tensor) -> tuple[Tensor, Tensor]:
    """The generators of the Toeplitz-like matrix whose displacement is G^T H."""
    m, n = G.shape[-1], H.shape[-1]
    a = corner_sign(m, n)
    Z = [Shift(size, f, dtype=torch.float64, device=G.device) for size, f in ((m, a), (n, -a))]
    found = krylov_generators(G.double(), H.double(), *Z)
    assert found is not None  # with this sign every matrix is determined by its displacement
    return found[0].to(G.dtype), found[1].to(H.dtype)


def reversed_hankel(M: Hankel) -> Toeplitz:
    """The Toeplitz matrix of a Hankel one's rows from the last to the first: its first row is the last."""
    return Toeplitz(M.column.flip(0), M.last_row)


# Solving: elimination on generators of a Cauchy form.


@rule("solvers", ToeplitzLike)
def _(M: ToeplitzLike) -> list[Candidate]:
    # Z_1^n = I and Z_{-1}^n = -I: the displacement is twice G^T H.
    return by_generators(M, 2 * M.G.shape[0], toeplitz_candidates(lambda: (2 * M.G, M.H)))


# In an ONNX graph.


@rule("onnx", ToeplitzLike)
def product(mode: str, M: ToeplitzLike) -> nn.Module:
    made = convolved(mode, *M._sides(), M.dtype)
    assert made is not None  # products of ones have a range of 1
    return made


rule("onnx_at_load", ToeplitzLike)(lambda mode, M: of_sides(*M._sides()))


# In C: LDR-SD's product with shifts.


@rule("c", ToeplitzLike)
def product_in_c(M: ToeplitzLike, c: Any) -> str:
    c.use("coefficients")
    return subdiagonal_product(M, c, M._sides(), dict.fromkeys("AC", "{0, 0.0f, 1.0f}"))


# Frozen.


@rule("frozen", ToeplitzLike)
def _(M: ToeplitzLike, bias: Tensor | None) -> Prepared | None:
    return frozen(*M._sides())
