"""The unstructured matrix in C: a product of each row."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from . import Dense


@rule("c", Dense)
def _(M: Dense, c: Any) -> str:
    m, n = M.shape
    weight, scale = c.weights("weight")
    c.use("dense")
    c.call(f"dense({weight}, {scale}, {m}, {n}, x, y);")
    c.multiplications = m * n
    return "rows"
