"""The form of a structured matrix in a graph, by mode: by a rule of its class, or else dense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..core import rules
from ..core.matrix import StructuredMatrix
from ..functional.exported.convolution import numbers
from ..functional.exported.dense import DenseWeight, made_at_load

MODES = ("fft", "matmul", "dense")
"""The modes of an exported layer: by FFTs, by their matrices, or by the dense matrix."""
PLANS = ("auto", "fast", "load")
GRAPH_NUMBERS = 1024  # the size of a fast product's nodes in the file, in numbers of 4 bytes

Maker = Callable[[str, Any], nn.Module]


def register_form(cls: type[StructuredMatrix]) -> Callable[[Maker], Maker]:
    """Register the form of a class in the modes "fft" and "matmul"; without one it is exported as dense.

    The decorated function takes the mode and a matrix (on the CPU, in float32 or float64) and returns a
    module with the product (b, in_features) to (b, out_features) and an attribute `form` that says in a few
    words how. Everything but the input should be a buffer, and operations those of `graph.Symbol`.
    """
    return rules.rule("onnx", cls)


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
    make = rules.of_product("onnx", type(matrix))
    if mode == "dense" or make is None:
        return DenseWeight(_dense(matrix))
    m, n = matrix.shape
    made = make(mode, matrix)
    if isinstance(made, DenseWeight):
        return made
    if plan != "fast" and numbers(made) + GRAPH_NUMBERS >= m * n:
        return DenseWeight(_dense(matrix), "dense, which is smaller")
    if plan == "load" and not str(made.form).startswith("made"):
        at_load = rules.of_product("onnx_at_load", type(matrix))
        made = at_load(mode, matrix) if at_load else made_at_load(made, matrix.in_features, matrix.dtype)
    if not grow and str(made.form).startswith("made"):
        return DenseWeight(_dense(matrix))
    return made


def _dense(matrix: StructuredMatrix) -> Tensor:
    return matrix.promoted().materialize().to(matrix.dtype)
