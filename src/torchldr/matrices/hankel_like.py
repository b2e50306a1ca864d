"""Hankel-like matrices: Toeplitz-like ones with their rows in reverse order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..algebra.convert import convert
from ..algebra.members import linear_in_generators
from ..algebra.structure import DisplacementStructure
from ..core.linear_map import LinearMap
from ..core.matrix import StructuredMatrix
from ..core.rules import rule
from ..functional.exported.dense import FormulaProduct
from ..functional.prepared import Prepared
from ..functional.subdiagonal.frozen import frozen
from ..linalg.candidates import by_generators, rows_reversed, toeplitz_candidates
from ..linalg.solvers import Candidate
from ..operators import Operator
from ..project.methods import solve, start_for
from ..project.problem import Problem, Tensors
from .classical.families import Hankel
from .ldr_sd.integer import pair_product
from .ldr_td import LDRTridiagonal
from .ldr_td.project import from_rings, ring
from .ldr_td.rules import shift_parts, tridiagonal
from .toeplitz_like import ToeplitzLike, corner_sign
from .toeplitz_like import rules as toeplitz
from .toeplitz_like.project import project_matrix


class HankelLike(ToeplitzLike, name="hankel_like"):
    """Hankel-like: the rows of a Toeplitz-like matrix in reverse order.

    Parameters and cost as `ToeplitzLike`. Constant along antidiagonals where the other is constant
    along diagonals.
    """

    look = "#CC79A7", "v"
    at_once = ("_materialize",)

    cpu_frozen = 5.7
    cpu_training = 16.0, 128.0, 1e7
    gpu_frozen = 4.5, 4.5e9
    gpu_training = 12.0, 1.25e11
    compresses = False

    def factors(self) -> list[tuple[Tensor, ...]]:
        return [(left.flip(0), right) for left, right in super().factors()]

    def operators(self) -> tuple[Tensor, Tensor]:
        A, C = super().operators()
        return A.flip(0, 1), C

    def _materialize(self) -> Tensor:
        return self.dense_in(self.dtype)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        return ToeplitzLike.dense_in(self, dtype).flip(-2)

    def _matmul(self, x: Tensor) -> Tensor:
        return super()._matmul(x).flip(-1)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return super()._rmatmul(y.flip(-1))


# Frozen.


@rule("frozen", HankelLike)
def _(M: HankelLike, bias: Tensor | None) -> Prepared | None:
    return frozen(*M._sides(), reversed=True)


# Closure.

linear_in_generators(HankelLike)


@rule("displacement_structure", HankelLike)
def _(M: HankelLike) -> DisplacementStructure:
    """By Z_a^T and Z_{-a}^T, of rank r."""
    return _upside_down(toeplitz.structure_of(M))


def _upside_down(known: DisplacementStructure) -> DisplacementStructure:
    """Of the matrix with its rows reversed, which reverses the rows and columns of a shift."""
    return known.changed(lambda G, H: (G.flip(-1), H), A=known.A.T)


@rule("fixed_operators", HankelLike)
def _(M: LinearMap) -> tuple[Operator, Operator]:
    A, B = toeplitz.operators(M)
    return A.T, B


@rule("member", HankelLike)
def _(M: LinearMap, known: DisplacementStructure) -> HankelLike | None:
    found = toeplitz.member_of(M, _upside_down(known))
    return None if found is None else _reversed(found)


# Matrices as Hankel-like ones, and Hankel-like matrices as members of LDR-TD.

rule("to_hankel_like", Hankel)(lambda M, tol: _reversed(convert(toeplitz.reversed_hankel(M), ToeplitzLike)))


@rule("to_hankel_like", Tensor)
def _of_dense(W: Tensor, tol: float | None) -> HankelLike:
    return _reversed(convert(W.flip(0), ToeplitzLike, tol=tol))


rule("to_hankel_like", LinearMap)(lambda M, tol: _of_dense(M.to_dense(), tol))


def _reversed(T: StructuredMatrix) -> HankelLike:
    return HankelLike(*T.shape, G=T.G, H=T.H)


@rule("to_ldr_td", HankelLike)
def _(M: HankelLike, tol: float | None) -> LDRTridiagonal:
    a = float(corner_sign(*M.shape))
    up = shift_parts(M.G, a)
    up["superdiagonal"], up["subdiagonal"] = up["subdiagonal"], up["superdiagonal"]
    up["corners"] = up["corners"].flip(0)
    return tridiagonal(M.G.flip(-1), M.H, up, shift_parts(M.H, -a))


# Solving: as Toeplitz-like ones, with their rows reversed.


@rule("solvers", HankelLike)
def _(M: HankelLike) -> list[Candidate]:
    return by_generators(M, 2 * M.G.shape[0], rows_reversed(toeplitz_candidates(lambda: (2 * M.G, M.H))))


# Projection: as Toeplitz-like ones, with the rows reversed.


@rule("project", HankelLike)
def project(problem: Problem, rank: int) -> Tensors:
    return project_matrix(problem, problem.W.flip(0), rank)


@start_for(LDRTridiagonal, HankelLike, place=2)
def in_ldr_td(problem: Problem, rank: int) -> Tensors:
    """Reversing the rows turns Z_a upside down: J K(Z_a, g) = K(J Z_a J, J g)."""
    (m, n), a = problem.shape, corner_sign(*problem.shape)
    found = solve(problem.for_class(HankelLike), rank)
    up, down = torch.ones(m, dtype=torch.float64), torch.ones(n, dtype=torch.float64)
    up[-1], down[0] = a, -a
    return from_rings(ring(upper=up), ring(lower=down), found["G"].flip(1), found["H"])


# In an ONNX graph: Toeplitz-like, then reversed.


@rule("onnx", HankelLike)
def product(mode: str, M: HankelLike) -> nn.Module:
    inner = toeplitz.product(mode, M)
    return FormulaProduct(str(inner.form), _flipped, inner=inner)


def _flipped(x: Tensor, inner: nn.Module) -> Tensor:
    return inner(x).flip(-1)


# In C: the Toeplitz-like product, reversed.

_TEXT = r"""
static void reverse(float *y, int n)
{
    for (int i = 0, j = n - 1; i < j; i++, j--) {
        float kept = y[i];
        y[i] = y[j];
        y[j] = kept;
    }
}
"""


@rule("c", HankelLike)
def _(M: HankelLike, c: Any) -> str:
    form = toeplitz.product_in_c(M, c)
    c.define("reverse", _TEXT)
    c.call(f"reverse(y, {M.out_features});")
    return form


@rule("c_integer", HankelLike)
def _(M: HankelLike, c: Any) -> str:
    return pair_product(M, c, *M._sides(), reverse=True)
