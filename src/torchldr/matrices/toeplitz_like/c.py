"""Toeplitz-like matrices in C: LDR-SD's product with shifts."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from ..ldr_sd.rules import subdiagonal_product
from . import ToeplitzLike


@rule("c", ToeplitzLike)
def _(M: ToeplitzLike, c: Any) -> str:
    c.use("coefficients")
    return subdiagonal_product(M, c, M._sides(), dict.fromkeys("AC", "{0, 0.0f, 1.0f}"))
