"""Fastfood in C: two Hadamard transforms in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.rules import rule
from . import Fastfood, _power_of_two

# work: 2 p
_TEXT = r"""
static void hadamard(float *z, int p)
{
    for (int h = 1; h < p; h *= 2)
        for (int i = 0; i < p; i += 2 * h)
            for (int j = i; j < i + h; j++) {
                float difference = z[j] - z[j + h];
                z[j] += z[j + h];
                z[j + h] = difference;
            }
}

static void fastfood(const weight *S, const weight *D, const weight *B, float scale, const PLACE *order,
                     int m, int n, int size, int p, const float *x, float *y, float *work)
{
    float *a = work, *b = work + p;
    zero(work, 2 * p);
    for (int i = 0; i < n; i++)
        a[i] = (float)B[i] * x[i];
    hadamard(a, p);
    for (int i = 0; i < size; i++)
        b[i] = (float)D[i] * a[order[i]];
    hadamard(b, p);
    for (int i = 0; i < m; i++)
        y[i] = scale * (float)S[i] * b[i];
}
"""


@rule("c", Fastfood)
def _(M: Fastfood, c: Any) -> str:
    m, n = M.shape
    size = max(m, n)
    p = _power_of_two(size)
    names = [c.vector(name) for name in "SDB"]
    scale = np.prod([scale for _, scale in names]) / p
    kind, ctype = ("uint16", "uint16_t") if size <= 1 << 16 else ("uint32", "uint32_t")
    order = c.constant("order", M.permutation.cpu().numpy(), kind)
    c.define("fastfood", _TEXT.replace("PLACE", ctype), "zero")
    S, D, B = (name for name, _ in names)
    c.call(f"fastfood({S}, {D}, {B}, {c.literal(scale)}, {order}, {m}, {n}, {size}, {p}, x, y, work);")
    c.scratch, c.multiplications = 2 * p, 3 * size + p * p.bit_length()
    return "Hadamard transforms"
