"""Hankel-like matrices in C: the Toeplitz-like product, reversed."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from ..ldr_sd.c import subdiagonal_product
from . import HankelLike

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
    c.use("coefficients")
    form = subdiagonal_product(M, c, M._sides(), dict.fromkeys("AC", "{0, 0.0f, 1.0f}"))
    c.define("reverse", _TEXT)
    c.call(f"reverse(y, {M.out_features});")
    return form
