"""Wide layers of many replicas on a GPU through their dense matrices, which `functional.rectangle` makes.

`stacked_scan` for matrices of fewer rows than columns. The gradient of a subdiagonal comes from what flows
over its edges, as there. M is affine in either corner, as no term crosses one twice: the gradient of A's
is the sum over the part that crosses it, that of C's the difference to the matrix with that corner raised
by 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..functional.rectangle import rectangle, rectangle_adjoint, rectangle_parts
from ..matrices.toeplitz_like import corner_sign
from .stacked_scan import flow_gradient, input_gradient

Tensors = Mapping[str, Tensor]

STRUCTURES = ("ldr_sd", "toeplitz_like")


def rectangle_product(name: str, tensors: Tensors, x: Tensor) -> Tensor:
    """The product of a wide layer, m <= n: (b, n) or (R, b, n) to (R, b, m)."""
    G, H = tensors["G"], tensors["H"]
    if name == "ldr_sd":
        a, c = (
            torch.cat((tensors[f"corner_{side}"].unsqueeze(-1), tensors[f"subdiagonal_{side}"]), -1)
            for side in "AC"
        )
        learned = a.requires_grad or c.requires_grad
        return (_Subdiagonal if learned else _Shifts).apply(a, c, G, H, x)
    sign = float(corner_sign(G.shape[-1], H.shape[-1]))
    a, c = (_shift(v, corner) for v, corner in ((G, sign), (H, -sign)))
    return _Shifts.apply(a, c, G, H, x)


def _shift(V: Tensor, corner: float) -> Tensor:
    """The weights of Z_f for every replica, (R, n)."""
    one = V.new_ones(V.shape[0], V.shape[-1])
    return one.masked_fill(one.cumsum(1) == 1, corner)


class _Subdiagonal(torch.autograd.Function):
    """The product with learned operators."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, c: Tensor, G: Tensor, H: Tensor, x: Tensor) -> Tensor:
        e = G.mT @ H
        parts = rectangle_parts(a, c, e)
        M = torch.addcmul(parts.straight, a[:, :1, None], parts.crossing)
        y = x @ M.mT
        ctx.save_for_backward(a, c, G, H, x, e, parts.crossing, M, y)
        return y

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        a, c, G, H, x, e, crossing, M, y = ctx.saved_tensors
        D = u.mT @ x
        E = rectangle_adjoint(a, c, D)
        dG, dH, dx = H @ E.mT, G @ E, u @ M
        da_0 = (D * crossing).sum((1, 2))
        raised = torch.cat((c[:, :1] + 1, c[:, 1:]), 1)
        dc_0 = (D * (rectangle(a, raised, e) - M)).sum((1, 2))
        da = flow_gradient(a, da_0, (G * dG).sum(1), (u * y).sum(1))
        dc = flow_gradient(c, dc_0, (H * dH).sum(1), (x * dx).sum(1))
        return da, dc, dG, dH, (dx if x.ndim == 3 else dx.sum(0)) if ctx.needs_input_grad[4] else None


class _Shifts(torch.autograd.Function):
    """The product with operators A and C that are not learned."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, c: Tensor, G: Tensor, H: Tensor, x: Tensor) -> Tensor:
        M = rectangle(a, c, G.mT @ H)
        ctx.save_for_backward(a, c, G, H, x, M)
        return x @ M.mT

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        a, c, G, H, x, M = ctx.saved_tensors
        E = rectangle_adjoint(a, c, u.mT @ x)
        return None, None, H @ E.mT, G @ E, input_gradient(u, M, x) if ctx.needs_input_grad[4] else None
