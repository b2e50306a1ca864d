"""Square layers of many replicas on a GPU through their dense matrices, which `functional.scan` makes.

    ldr_sd              A and C subdiagonal with corners
    toeplitz_like       the same with A = Z_a and C = Z_{-a}; hankel_like: its outputs reversed
    vandermonde_like    transposed, A the shift and C the diagonal of nodes

At the sizes of these networks the matrices of all replicas are some 50 MB, which the GPU makes, uses and
differentiates in a quarter of a millisecond, whatever the rank, and no value is read on the way: no
range of the operators has to be watched.

The gradient of a subdiagonal comes from what flows over its edges: a path of the sum M_ij = sum of
weights of paths starts in row i' <= i and ends in row i, so the flow over the edge into row i + 1 is the
flow into row i plus what starts in row i less what ends there; divided by the entry it is the gradient.
An entry of exactly 0 would need its own sum: then the result is not finite, and the replica is
recorded as diverged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..functional import scan
from ..matrices.toeplitz_like import corner_sign

Tensors = Mapping[str, Tensor]

STRUCTURES = ("ldr_sd", "toeplitz_like", "hankel_like", "vandermonde_like")


def scan_product(name: str, tensors: Tensors, x: Tensor) -> Tensor:
    """The product of a square layer: (b, n) or (R, b, n) to (R, b, n)."""
    G, H = tensors["G"], tensors["H"]
    R, _, n = G.shape
    if name == "ldr_sd":
        a, c = (
            torch.cat((tensors[f"corner_{side}"].unsqueeze(-1), tensors[f"subdiagonal_{side}"]), -1)
            for side in "AC"
        )
        learned = a.requires_grad or c.requires_grad
        return (_Subdiagonal if learned else _Shifts).apply(a, c, G, H, x)
    one = G.new_ones(R, n)
    first = one.cumsum(1) == 1
    if name == "vandermonde_like":
        return _Vandermonde.apply(one.masked_fill(first, 0), tensors["nodes"].expand(R, n), G, H, x)
    sign = float(corner_sign(n, n))
    y: Tensor = _Shifts.apply(one.masked_fill(first, sign), one.masked_fill(first, -sign), G, H, x)
    return y.flip(-1) if name == "hankel_like" else y


class _Subdiagonal(torch.autograd.Function):
    """The product with learned operators."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, c: Tensor, G: Tensor, H: Tensor, x: Tensor) -> Tensor:
        e = G.mT @ H
        M = scan.stein_scan(a, c, e)
        y = x @ M.mT
        ctx.save_for_backward(a, c, G, H, x, e, M, y)
        return y

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        a, c, G, H, x, e, M, y = ctx.saved_tensors
        D = u.mT @ x
        E = scan.stein_scan_adjoint(a, c, D)
        dG, dH, dx = H @ E.mT, G @ E, u @ M
        da_0, dc_0 = scan.corner_gradients(a, c, e, D)
        da = flow_gradient(a, da_0, (G * dG).sum(1), (u * y).sum(1))
        dc = flow_gradient(c, dc_0, (H * dH).sum(1), (x * dx).sum(1))
        return da, dc, dG, dH, (dx if x.ndim == 3 else dx.sum(0)) if ctx.needs_input_grad[4] else None


def flow_gradient(a: Tensor, d_corner: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    """The gradient of an operator's corner and subdiagonal from its flow, shape (R, n)."""
    flow = (starts - ends)[:, :-1].double().cumsum(-1).to(a.dtype) + (a[:, 0] * d_corner).unsqueeze(-1)
    return torch.cat((d_corner.unsqueeze(-1), flow / a[:, 1:]), -1)


class _Shifts(torch.autograd.Function):
    """The product with operators A and C that are not learned."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, c: Tensor, G: Tensor, H: Tensor, x: Tensor) -> Tensor:
        M = scan.stein_scan(a, c, G.mT @ H)
        ctx.save_for_backward(a, c, G, H, x, M)
        return x @ M.mT

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        a, c, G, H, x, M = ctx.saved_tensors
        E = scan.stein_scan_adjoint(a, c, u.mT @ x)
        return None, None, H @ E.mT, G @ E, input_gradient(u, M, x) if ctx.needs_input_grad[4] else None


class _Vandermonde(torch.autograd.Function):
    """The product with the transposed matrix N_ji = node_i N_{j-1, i} + sum_l h_lj g_li."""

    @staticmethod
    def forward(ctx: Any, shift: Tensor, nodes: Tensor, G: Tensor, H: Tensor, x: Tensor) -> Tensor:
        N = scan.stein_scan(shift, nodes, H.mT @ G, straight=True)
        ctx.save_for_backward(shift, nodes, G, H, x, N)
        return x @ N

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        shift, nodes, G, H, x, N = ctx.saved_tensors
        E = scan.stein_scan_adjoint(shift, nodes, x.mT @ u, straight=True)
        d_nodes = (E[:, 1:] * N[:, :-1]).sum(1) if ctx.needs_input_grad[1] else None
        dx = input_gradient(u, N.mT, x) if ctx.needs_input_grad[4] else None
        return None, d_nodes, H @ E, G @ E.mT, dx


def input_gradient(u: Tensor, M: Tensor, x: Tensor) -> Tensor:
    dx = u @ M
    return dx if x.ndim == 3 else dx.sum(0)
