"""In integers: the mean of rows, and one number for each row, added or subtracted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..nodes import refused, shape_of
from ..rows import PAIRS, check_last, row_pair
from ..steps import Value
from .scaling import Rescaling, rescaling


def weighed(t: Any, node: Any, a: Value, b: Value, sign: int) -> tuple[Rescaling, list[int], str]:
    """a + sign b: their sum's rescaling, the factors of both, and the rescaling's name in C."""
    largest, out = max(a.format.scale, b.format.scale), t.format_of(node)
    by = [round(s * x.format.scale / largest * 2**14) for x, s in ((a, 1), (b, sign))]
    bias = -sum(x.format.zero * f for x, f in zip((a, b), by, strict=True))
    final, name = _scaled(t, node, largest / 2**14 / out.scale, bias, out, 512.0 * 2**14)
    return final, by, name


def add_rows(t: Any, node: Any, a: Any, b: Any, *, alpha: float = 1, sign: int = 1) -> Value:
    x, rows, n = row_pair(node, a, b, alpha)
    final, by, after = weighed(t, node, x, rows, sign)
    t.source.use("add_rows")
    text = f"add_rows({after}, {{0}}, {by[0]}, {{1}}, {by[1]}, {{y}}, {rows.size}, {n});"

    def compute(p: Tensor, q: Tensor) -> Tensor:
        return final(p * by[0] + q.repeat_interleave(n, 1) * by[1])

    made: Value = t.add(text, [x, rows], [(shape_of(node), final.format)], compute, elementwise=True)[0]
    return made


def subtract(t: Any, node: Any, a: Any, b: Any, *, alpha: float = 1) -> Value:
    """Two tensors, or a number from a tensor."""
    if isinstance(a, Value) and isinstance(b, int | float):
        return t.handlers["aten.add.Tensor"](t, node, a, -alpha * b)
    if not isinstance(a, Value):
        raise refused(node, f"{PAIRS}.")
    return add_rows(t, node, a, b, alpha=alpha, sign=-1)


def mean(t: Any, node: Any, x: Value, dims: Any, *rest: Any, **options: Any) -> Value:
    n, out = check_last(node, x, dims), t.format_of(node)
    final, after = _scaled(t, node, x.format.scale / n / out.scale, -n * x.format.zero, out, 256.0 * n)
    t.source.use("mean")
    text = f"mean({after}, {{0}}, {{y}}, {x.size // n}, {n});"
    compute = lambda q: final(q.reshape(len(q), -1, n).sum(-1))
    made: Value = t.add(text, [x], [(shape_of(node), out)], compute)[0]
    return made


def _scaled(t: Any, node: Any, q: float, bias: int, out: Any, bound: float) -> tuple[Rescaling, str]:
    """The rescaling of one sum by q, and its name in C."""
    added = torch.tensor([bias])
    try:
        final = rescaling(torch.tensor([q], dtype=torch.float64), added, out, bound)
    except OverflowError as error:
        raise refused(node, f"has no C in integers: {error}.") from error
    name, size = t.source.rescaling(t.source.new_name("sum"), final, added)
    t.source.shared += size
    return final, name
