"""LDR-TD in C: the Krylov columns one after the other, by the stencil of the operators."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from ...functional.tridiagonal import row_sum_scale
from . import LDRTridiagonal


@rule("c", LDRTridiagonal)
def _(M: LDRTridiagonal, c: Any) -> str:
    (m, n), r = M.shape, M.G.shape[0]
    c.use("krylov")
    for side, generator in zip("AC", "GH", strict=True):
        vectors, scale = c.weights(generator)
        parts = [c.coefficients(f"{part}_{side}") for part in ("subdiagonal", "diagonal", "superdiagonal")]
        corners = [c.literal(corner) for corner in M.tensors[f"corners_{side}"]]
        gain = c.literal(1 / row_sum_scale(*_plain(M)._ring(side)) if M.options["normalize"] else 1.0)
        rest = ", ".join((*parts, *corners, gain))
        c.object("ring", side, f"{{{M.tensors[generator].shape[-1]}, 1, {vectors}, {scale}, {rest}}}")
    c.call(f"krylov(&{c.name}_A, &{c.name}_C, {r}, x, y, work);")
    c.scratch, c.multiplications = 4 * (m + n), r * min(m, n) * 4 * (m + n)
    return "stencil"


def _plain(M: LDRTridiagonal) -> LDRTridiagonal:
    m, n = M.out_features, M.in_features
    return type(M).unchecked(m, n, M.tensors, {**M.options, "normalize": False})
