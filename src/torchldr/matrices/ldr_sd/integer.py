"""Krylov products in integers: shifts exactly, other operators by a recurrence in 16 bits.

A subdiagonal operator A = D Z_f D^-1 is a shift between scalings D = diag(P), P_i = s_1 .. s_i, with the
corner f = c P_{m-1}. Where P stays within a small range, g / P is rounded to int8 and the products are sums
of products of int8, exact in integers; D takes part where sums are rescaled.

Elsewhere powers are made by a recurrence, a <- (A' a + half) >> shift with A' = 2^shift A in 16 bits. Let a
be off by e from the true column, entry by entry. Each entry of A' is off by at most 1/2, and the shift rounds
by at most 1/2, so that the next column is off by at most

    |A'| / 2^shift e + (entries of a row) 2^(-shift - 1) |column| + 1/2.

`Columns.bound` is that, step after step.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...functional.subdiagonal.guard import Side, scales

MOST = 2.0**17  # of sums of entries of A's columns: what they multiply then keeps 13 bits


class Shifted(NamedTuple):
    """Start vectors under a shift with a corner, in int8: what stands and what comes around."""

    vectors: str
    around: str
    sign: int
    columns: Tensor  # (r, m, k), integers
    scale: Tensor

    def fields(self, size: int) -> str:
        return f"{{{size}, {self.sign}, {self.vectors}, {self.around}}}"


def shifted(c: Any, name: str, V: Tensor, corner: float, k: int, reverse: bool) -> Shifted:
    """K_k(Z_f, v_i) in integers; the constants may have their vectors from the end."""
    store = lambda name, t: c.constant(name, t.flip(-1) if reverse else t)
    size = V.shape[-1]
    if corner in (-1.0, 0.0, 1.0):
        integers, scale = c.rounded(V)
        around = vectors = store(name, integers)
        behind, sign = integers, int(corner)
    else:
        both = torch.cat((V, corner * V), -1)
        integers, scale = c.rounded(both)
        integers, behind = integers.tensor_split(2, -1)
        vectors, sign = store(name, integers), int(bool(behind.any()))
        around = store(f"{name}_around", behind) if sign else vectors
    places = torch.arange(size)[:, None] - torch.arange(k)
    below, above = integers[:, places % size], sign * behind[:, places % size]
    return Shifted(vectors, around, sign, torch.where(places >= 0, below, above), scale)


def pair_product(M: Any, c: Any, A: Side, C: Side, *, reverse: bool = False, multiplied: bool = False) -> str:
    """Write the product by shifts: where `multiplied`, of operators with other subdiagonals than 1."""
    (m, n), k = M.shape, min(M.shape)
    sides, P = {}, []
    for name, (s, corner, V), size in (("G", A, m), ("H", C, n)):
        P.append(scales(s.detach().double()))
        f = (corner.detach().double() * P[-1][-1]).item()
        sides[name] = shifted(c, name, V.detach().double() / P[-1], f, k, name == "G")
        c.object("side", f"side_{name}", sides[name].fields(size))
    g, h = sides["G"], sides["H"]
    r = len(g.scale)
    inner, outer = h.columns.mT.reshape(r * k, n), g.columns.transpose(0, 1).reshape(m, r * k)
    before = c.stage(None, P[1], sums=inner.abs().sum(1)) if multiplied else "0"
    between = c.stage(inner, h.scale, 1 / g.scale, sums=outer.abs().sum(1), repeat=k)
    after = c.finish(outer.flip(0) if reverse else outer, P[0] if multiplied else 1.0)
    given = f"{before}, {c.zero}, {between}, {after}, {int(reverse)}"
    c.call(f"{c.kernel('pair')}(&{c.name}_side_G, &{c.name}_side_H, {r}, {given}, x, y, work);")
    c.scratch16 = n + r * k
    wraps = [2 if side.sign else 1 for side in (g, h)]
    c.multiplications = r * k * (m * wraps[0] + n * wraps[1]) / 2
    return "shifts, exact"


class Columns(NamedTuple):
    """Columns of a Krylov matrix by the recurrence."""

    columns: Tensor  # (r, m, k), integers: 2^start times the true ones, nearly
    bound: Tensor  # the same shape: how far they may be off
    parts: list[Tensor]  # the operator in integers
    shift: int
    start: int


def fixed_columns(parts: list[Tensor], V: Tensor, k: int, most: float) -> Columns:
    """K_k(A, v_i) as the C makes it.

    Args:
        parts: lower entries with the corner in front, and for a tridiagonal operator its diagonal and upper
            entries with the other corner at the end, (m,) in float64.
        V: start vectors, (r, m), integers.
        k: the number of columns.
        most: what the sum of absolute values of a column may be.

    Raises:
        OverflowError: columns, or the operator, do not fit into 16 bits.
    """
    row_sum = torch.stack(parts).abs().sum(0).max().item()
    shift = min(14, 15 - math.frexp(max(row_sum, 2.0**-20) * (1 + 2.0**-12))[1])
    if shift < 4:
        raise OverflowError(f"rows of an operator sum to {row_sum:.3g}")
    true = torch.stack(list(_columns(parts, V.double(), k)), -1)
    room = min(32000 / max(1.0, true.abs().max().item()), most / max(1.0, true.abs().sum(1).max().item()))
    start = min(8, math.frexp(room)[1] - 1)
    if start < 0:
        raise OverflowError(f"powers of an operator grow by {true.abs().max().item() / 127:.3g}")
    whole = [(part * 2**shift).round() for part in parts]
    a, columns = V.double() * 2**start, []
    e, bounds = torch.zeros_like(a), []
    for l in range(k):  # noqa: E741
        columns.append(a)
        bounds.append(e)
        a = ((_apply(whole, a) + 2 ** (shift - 1)) / 2**shift).floor()
        column = 2**start * true[..., l].abs()
        near = _apply([torch.ones_like(part) for part in parts], column) * 2.0 ** (-shift - 1)
        e = _apply([part.abs() / 2**shift for part in whole], e) + near + 0.5
        if a.abs().max() > 32767:
            raise OverflowError("powers of an operator leave 16 bits")
    return Columns(torch.stack(columns, -1), torch.stack(bounds, -1), whole, shift, start)


def _columns(parts: list[Tensor], a: Tensor, k: int) -> Any:
    for _ in range(k):
        yield a
        a = _apply(parts, a)


def _apply(parts: list[Tensor], a: Tensor) -> Tensor:
    """A a, along the last axis."""
    y = parts[0] * a.roll(1, -1)
    if len(parts) > 1:
        y = y + parts[1] * a + parts[2] * a.roll(-1, -1)
    return y


def recurrence_product(M: Any, c: Any, A: list[Tensor], C: list[Tensor]) -> str:
    """Write the product column by column."""
    (m, n), k = M.shape, min(M.shape)
    (G, g, g_scale), (H, h, h_scale) = c.vectors("G"), c.vectors("H")
    left, right = fixed_columns(A, g, k, math.inf), fixed_columns(C, h, k, 2.0**30 / c.largest)
    for name, vectors, size, made in (("A", G, m, left), ("C", H, n, right)):
        parts = [c.constant(f"{name}_{i}", part, "int16") for i, part in enumerate(made.parts)]
        parts += ["0", "0"][: 3 - len(parts)]
        c.object(
            "ring", f"ring_{name}", f"{{{size}, {made.shift}, {made.start}, {vectors}, {', '.join(parts)}}}"
        )
    r, narrow = len(g), 0
    outer = left.columns.transpose(0, 1).reshape(m, r * k)
    while outer.abs().sum(1).max() / 2**narrow > MOST:
        narrow += 1
    outer = ((outer + 2**narrow // 2) / 2**narrow).floor()
    inner = right.columns.mT.reshape(r * k, n)
    z = c.stage(inner, h_scale / 2**right.start, 1 / g_scale, sums=outer.abs().sum(1), repeat=k)
    y = c.finish(outer, 2.0 ** (narrow - left.start))
    given = f"{c.zero}, {z}, {narrow}, {y}"
    c.call(f"{c.kernel('krylov')}(&{c.name}_ring_A, &{c.name}_ring_C, {r}, {given}, x, y, work, sums);")
    c.scratch16, c.scratch32 = m + 2 * n, m
    c.multiplications = r * k * (m + n) * (1 + len(A))
    return "recurrence in 16 bits"
