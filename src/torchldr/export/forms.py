"""How each structured class is written into a graph, by mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..functional.subdiagonal.guard import Side
from ..matrices import (
    ACDC,
    BlockCirculant,
    CauchyLike,
    Circulant,
    Dense,
    Fastfood,
    HankelLike,
    LDRSubdiagonal,
    LDRTridiagonal,
    LowRank,
    StructuredMatrix,
    ToeplitzLike,
    VandermondeLike,
)
from ..matrices.ldr_sd.routes import sides
from ..matrices.toeplitz_like import corner_sign
from .classes import (
    CauchyProduct,
    CosineProduct,
    DenseProduct,
    FastfoodProduct,
    LowRankProduct,
    MadeAtLoad,
    VandermondeProduct,
    circulant_product,
)
from .convolution import numbers
from .grown import GrownMatrix
from .krylov import convolved

MODES = ("fft", "matmul", "dense")
PLANS = ("auto", "fast", "load")
GRAPH_NUMBERS = 1024  # what the nodes of a fast product take in the file, in numbers of 4 bytes

Maker = Callable[[str, StructuredMatrix], nn.Module]
FORMS: dict[type[StructuredMatrix], Maker] = {}


def register_form(cls: type[StructuredMatrix]) -> Callable[[Maker], Maker]:
    """Say how a class is exported in the modes "fft" and "matmul".

    The decorated function takes the mode and a matrix (on the CPU, in float32 or float64) and returns a
    module with the product (b, in_features) to (b, out_features) and an attribute `form` that says in a few
    words how. Everything but the input should be a buffer, and operations those of `graph.Symbol`.
    """

    def add(make: Maker) -> Maker:
        FORMS[cls] = make
        return make

    return add


def product_module(
    matrix: StructuredMatrix, mode: str, plan: str = "auto", *, grow: bool = True
) -> nn.Module:
    """The module that multiplies by this matrix in a mode.

    Args:
        matrix: on the CPU, in float32 or float64.
        mode: "fft", "matmul" or "dense".
        plan: "auto" takes a dense matrix where the constants and nodes of the fast product would be no
            smaller, "fast" never; "load" lets the graph make the dense matrix from the constants of the fast
            product, which onnxruntime does once, when it loads.
        grow: whether the graph may compute a dense matrix from parameters; else it is a constant.
    """
    if mode == "dense" or isinstance(matrix, Dense):
        return DenseProduct(_dense(matrix))
    make = _maker(type(matrix))
    if make is None:
        raise NotImplementedError(
            f"torchldr.export: the structure {matrix.name!r} has no form for mode {mode!r}; take "
            "mode='dense', or give it one with torchldr.export.register_form."
        )
    m, n = matrix.shape
    made = make(mode, matrix)
    if plan != "fast" and numbers(made) + GRAPH_NUMBERS >= m * n:
        return DenseProduct(_dense(matrix), "dense, which is smaller")
    if plan == "load" and not isinstance(matrix, LowRank):
        made = _at_load(matrix, made)
    if not grow and str(made.form).startswith("made"):
        return DenseProduct(_dense(matrix))
    return made


def _maker(structure: type[StructuredMatrix]) -> Maker | None:
    """The form of a class, its own or inherited together with the product."""
    for cls in structure.__mro__:
        if cls in FORMS and structure._matmul is cls._matmul:
            return FORMS[cls]
    return None


def _at_load(matrix: StructuredMatrix, made: nn.Module) -> nn.Module:
    if str(made.form).startswith("made"):
        return made
    if type(matrix) in (LDRSubdiagonal, ToeplitzLike):
        return _grown(_sides(matrix), matrix)
    return MadeAtLoad(made, matrix.in_features, matrix.dtype)


def _dense(matrix: StructuredMatrix) -> Tensor:
    if isinstance(matrix, Dense):
        return matrix.weight.detach()
    return matrix.promoted().dense_weight().to(matrix.dtype)


@register_form(LowRank)
def _low_rank(mode: str, M: StructuredMatrix) -> nn.Module:
    return LowRankProduct(M.G, M.H)


@register_form(LDRSubdiagonal)
def _ldr_sd(mode: str, M: StructuredMatrix) -> nn.Module:
    sides = _sides(M)
    return convolved(mode, *sides, M.dtype) or _grown(sides, M)


def _sides(M: StructuredMatrix) -> tuple[Side, Side]:
    """Subdiagonal, corner and start vectors of A and of C."""
    if isinstance(M, ToeplitzLike):
        a = torch.tensor(float(corner_sign(M.out_features, M.in_features)), dtype=M.dtype)
        return (torch.ones_like(M.G[0, 1:]), a, M.G), (torch.ones_like(M.H[0, 1:]), -a, M.H)
    return sides(M)


def _grown(sides: tuple[Side, Side], M: StructuredMatrix) -> nn.Module:
    A, C = (torch.cat((corner.reshape(1), s)).unsqueeze(-1) for s, corner, _ in sides)
    return GrownMatrix(A, C, M.G, M.H)


@register_form(LDRTridiagonal)
def _ldr_td(mode: str, M: StructuredMatrix) -> nn.Module:
    assert isinstance(M, LDRTridiagonal)
    with torch.no_grad():
        return GrownMatrix(torch.stack(M._ring("A"), -1), torch.stack(M._ring("C"), -1), M.G, M.H)


@register_form(ToeplitzLike)
def _toeplitz_like(mode: str, M: StructuredMatrix) -> nn.Module:
    made = convolved(mode, *_sides(M), M.dtype)
    assert made is not None  # products of ones have a range of 1
    return made


class _Reversed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.form = inner, inner.form

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).flip(-1)


@register_form(HankelLike)
def _hankel_like(mode: str, M: StructuredMatrix) -> nn.Module:
    return _Reversed(_toeplitz_like(mode, M))


@register_form(VandermondeLike)
def _vandermonde_like(mode: str, M: StructuredMatrix) -> nn.Module:
    return VandermondeProduct(mode, M.G, M.H, M.nodes, M.dtype)


@register_form(CauchyLike)
def _cauchy_like(mode: str, M: StructuredMatrix) -> nn.Module:
    return CauchyProduct(M.G, M.H, M.s.to(M.dtype), M.t.to(M.dtype))


@register_form(Circulant)
def _circulant(mode: str, M: StructuredMatrix) -> nn.Module:
    return circulant_product(mode, M.column[None, None], M.out_features, M.in_features, M.dtype)


@register_form(BlockCirculant)
def _block_circulant(mode: str, M: StructuredMatrix) -> nn.Module:
    return circulant_product(mode, M.column, M.out_features, M.in_features, M.dtype)


@register_form(Fastfood)
def _fastfood(mode: str, M: StructuredMatrix) -> nn.Module:
    return FastfoodProduct(M.S, M.D, M.B, M.permutation)


@register_form(ACDC)
def _acdc(mode: str, M: StructuredMatrix) -> nn.Module:
    return CosineProduct(mode, M.A, M.D, M.in_features, M.dtype)
