"""LDR-SD in C: Fourier transforms where the range of the operators allows it, else the recurrence.

Both take memory in proportion to m + n. The transforms are in float32, so the range that `guard` allows for
these decides; what Python computes by transforms in float64 is computed by the recurrence here.
"""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from ...functional.subdiagonal.guard import RANGE, Side, reach
from . import LDRSubdiagonal
from .routes import sides


@rule("c", LDRSubdiagonal)
def _(M: LDRSubdiagonal, c: Any) -> str:
    below = {side: c.coefficients(f"subdiagonal_{side}") for side in "AC"}
    return subdiagonal_product(M, c, sides(M), below)


def subdiagonal_product(M: Any, c: Any, both: tuple[Side, Side], below: dict[str, str]) -> str:
    """Write the product for subdiagonal operators, by the cheaper of both ways that is right."""
    (m, n), r = M.shape, M.G.shape[0]
    k, length = min(m, n), (max(m, n) + min(m, n)) // 2
    by_fft, by_steps = (4 * r + 2) * c.fft_cost(length), r * k * 2 * (m + n)
    right = reach(*both) <= RANGE
    parts = {}
    for side, generator, (_, corner, V) in zip("AC", "GH", both, strict=True):
        vectors, scale = c.weights(generator)
        parts[side] = V.shape[-1], vectors, scale, below[side], c.literal(corner)
    if right and by_fft < by_steps:
        c.use("pair")
        f, found = c.transform(length)
        for side, (size, vectors, scale, entries, corner) in parts.items():
            c.object("side", side, f"{{{size}, {vectors}, {scale}, {entries}, {corner}}}")
        c.call(f"pair(&{c.name}_A, &{c.name}_C, {r}, {f}, x, y, work);")
        c.scratch, c.multiplications = 8 * found, by_fft
        return f"transforms of length {2 * found}"
    none = "{0, 0.0f, 0.0f}"
    c.use("krylov")
    for side, (size, vectors, scale, entries, corner) in parts.items():
        rest = f"{entries}, {none}, {none}, {corner}, 0.0f, 1.0f"
        c.object("ring", side, f"{{{size}, 0, {vectors}, {scale}, {rest}}}")
    c.call(f"krylov(&{c.name}_A, &{c.name}_C, {r}, x, y, work);")
    c.scratch, c.multiplications = 2 * (m + n), by_steps
    return "recurrence" if right else "recurrence, for the operators' range"
