"""Nodes that see rows along the last axis: their mean, and one number for each row, added or subtracted."""

from __future__ import annotations

from typing import Any

from .nodes import refused, shape_of
from .steps import Value
from .writer import literal

PAIRS = (
    "has C for a tensor and a number, and for two tensors that are added or subtracted: of one shape, or "
    "the second with one number for each row along the last axis"
)


def row_pair(node: Any, a: Any, b: Any, alpha: float = 1) -> tuple[Value, Value, int]:
    """The larger one, the other one with a number for each row, and the length of a row."""
    if alpha != 1 or not isinstance(a, Value) or not isinstance(b, Value):
        raise refused(node, f"{PAIRS}.")
    if str(node.target) == "aten.add.Tensor" and b.size > a.size:
        a, b = b, a
    shapes = [[1] * (len(shape_of(node)) - len(v.shape)) + list(v.shape) for v in (a, b)]
    if shapes[1] not in (shapes[0], [*shapes[0][:-1], 1]):
        raise refused(node, f"{PAIRS}.")
    return a, b, a.size // b.size


def add_rows(t: Any, node: Any, a: Any, b: Any, *, alpha: float = 1, sign: int = 1) -> Value:
    x, rows, n = row_pair(node, a, b, alpha)
    t.source.use("add_rows")
    text = f"add_rows({{0}}, {{1}}, {literal(sign)}, {{y}}, {rows.size}, {n});"
    made: Value = t.step(text, [x, rows], shape_of(node), elementwise=True)
    return made


def subtract(t: Any, node: Any, a: Any, b: Any, *, alpha: float = 1) -> Value:
    """Two tensors; a number and a tensor are an affine map."""
    if isinstance(a, Value) and isinstance(b, Value):
        return add_rows(t, node, a, b, alpha=alpha, sign=-1)
    if not (isinstance(a, int | float) or isinstance(b, int | float)):
        raise refused(node, f"{PAIRS}.")
    x, factor, shift = (a, 1.0, -alpha * b) if isinstance(a, Value) else (b, -alpha, a)
    t.source.use("affine")
    text = f"affine({{0}}, {{y}}, {x.size}, {literal(factor)}, {literal(shift)});"
    made: Value = t.step(text, [x], shape_of(node), elementwise=True)
    return made


def check_last(node: Any, x: Value, dims: Any) -> int:
    """The length of a row, where the node is over the last axis."""
    if dims is None or [d % len(x.shape) for d in dims] != [len(x.shape) - 1]:
        raise refused(node, "must be over the last axis.")
    return x.shape[-1]


def mean(t: Any, node: Any, x: Value, dims: Any, *rest: Any, **options: Any) -> Value:
    n = check_last(node, x, dims)
    t.source.use("mean")
    made: Value = t.step(f"mean({{0}}, {{y}}, {x.size // n}, {n});", [x], shape_of(node))
    return made
