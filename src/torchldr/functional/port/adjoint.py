"""The port products as differentiable functions, with hand-written adjoints.

Both products are one bilinear form, phi(u, w) = <w, K_k(A, v_i)^T u>: port_rmatmul is its gradient in w and
port_matmul its gradient in u. So the gradients of either in the operator and in V are those of phi, for the
vectors that came and the cotangents that come back: rows up for u, then cotangents of rows and columns down
(`levels.columns_down`). Spectra of each level are kept from the forward, 10 + 4r + 2b rows of c n
numbers a level, and 2b more where K w was found on the way; where the operator needs no gradient nothing is.

Derivatives of derivatives, forward mode and stacked operators take the plain form of `series`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import stencil
from .._twin import plain_backward, plain_jvp, product_vmap
from . import series
from .sweep import Sweep, closing, closing_gradients, sweep


def plain_rmatmul(*operands: Tensor, k: int, oversampling: int) -> Tensor:
    """`port_rmatmul` in operations that autograd and its transformations know."""
    lower, diagonal, upper, V, U = operands
    return series.plain_rmatmul(lower, diagonal, upper, V, U, k, oversampling)


def plain_matmul(*operands: Tensor, oversampling: int) -> Tensor:
    """`port_matmul` as the vector-Jacobian product of the other."""
    *ring, V, w = operands
    rmatmul = lambda U: plain_rmatmul(*ring, V, U, k=w.shape[-1], oversampling=oversampling)
    return torch.func.vjp(rmatmul, V.new_zeros(w.shape[0], V.shape[-1]))[1](w)[0]


class Kept:
    """What a forward leaves for its backward."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.sweep: Sweep | None = None
        self.top: Tensor | None = None  # rows of the whole


def _wanted(*operands: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in operands)


def rmatmul(*operands: Tensor, k: int, oversampling: int) -> Tensor:
    """`port_rmatmul` without checks."""
    return PortRMatmul.apply(*operands, k, oversampling, Kept(_wanted(*operands[:4])))


def matmul(*operands: Tensor, oversampling: int) -> Tensor:
    """`port_matmul` without checks."""
    return PortMatmul.apply(*operands, oversampling, Kept(_wanted(*operands[:4])))


def _up(operands: tuple[Tensor, ...], k: int, oversampling: int, kept: Kept) -> Tensor:
    """K_k(A, v_i)^T u; the sweep is made unless there is one, and left if it is wanted."""
    lower, diagonal, upper, V, U = (x.detach() for x in operands)
    made = kept.sweep or sweep(lower, diagonal, upper, V, oversampling, keep=kept.wanted)
    corners = closing(made.top, lower[0], upper[-1], k)
    result, top = made.rows_up(U, k, top=kept.wanted or corners is not None)
    if corners is not None and top is not None:
        result = result + corners.add(top)
    if kept.wanted:
        kept.sweep, kept.top = made, top
    return result


def _down(operands: tuple[Tensor, ...], oversampling: int, kept: Kept) -> Tensor:
    """K_k(A, v_i) w, likewise."""
    lower, diagonal, upper, V, w = (x.detach() for x in operands)
    made = kept.sweep or sweep(lower, diagonal, upper, V, oversampling, keep=kept.wanted)
    corners = closing(made.top, lower[0], upper[-1], w.shape[-1])
    if kept.wanted:
        kept.sweep = made
    return made.rows_down(w, None if corners is None else corners.transpose(w))


def _gradients(lower: Tensor, upper: Tensor, U: Tensor, w: Tensor, kept: Kept) -> tuple[Tensor, ...]:
    """Of phi in lower, diagonal, upper, V and U, after `_up` of this U."""
    made, top = kept.sweep, kept.top
    assert made is not None
    assert top is not None
    dZ, du, da, db = closing_gradients(made.top, top, lower[0], upper[-1], w)
    d_ring, dV, dU = made.gradients(U, w, dZ, du)
    d_ring[0, 0] += da
    d_ring[2, -1] += db
    return *d_ring, dV, dU


class PortRMatmul(torch.autograd.Function):
    """lower, diagonal, upper, V, U, k, oversampling, Kept to (b, r, k)."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        *operands, k, oversampling, kept = inputs
        return _up(tuple(operands), k, oversampling, kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *operands, ctx.k, ctx.oversampling, ctx.kept = inputs
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)

    @staticmethod
    def backward(ctx: Any, w: Tensor) -> tuple[Tensor | None, ...]:
        operands, rest = ctx.saved_tensors, (None,) * 3
        if torch.is_grad_enabled() or not stencil.is_plain(w):
            plain = partial(plain_rmatmul, k=ctx.k, oversampling=ctx.oversampling)
            return *plain_backward(plain, operands, w), *rest
        lower, _, upper, _, U = operands
        if not any(ctx.needs_input_grad[:4]):
            return None, None, None, None, _down((*operands[:4], w), ctx.oversampling, Kept(False)), *rest
        if ctx.kept.sweep is None:
            ctx.kept.wanted = True
            _up(operands, ctx.k, ctx.oversampling, ctx.kept)
        return *_gradients(lower, upper, U, w.contiguous(), ctx.kept), *rest

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        plain = partial(plain_rmatmul, k=ctx.k, oversampling=ctx.oversampling)
        return plain_jvp(plain, ctx.saved_tensors, tangents[:5])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        *operands, k, oversampling, _ = inputs
        plain, fast = (partial(of, k=k, oversampling=oversampling) for of in (plain_rmatmul, rmatmul))
        return product_vmap(plain, fast, in_dims[:5], operands), 0


class PortMatmul(torch.autograd.Function):
    """lower, diagonal, upper, V, w, oversampling, Kept to (b, n)."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        *operands, oversampling, kept = inputs
        return _down(tuple(operands), oversampling, kept)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *operands, ctx.oversampling, ctx.kept = inputs
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)

    @staticmethod
    def backward(ctx: Any, U: Tensor) -> tuple[Tensor | None, ...]:
        operands, rest = ctx.saved_tensors, (None,) * 2
        if torch.is_grad_enabled() or not stencil.is_plain(U):
            plain = partial(plain_matmul, oversampling=ctx.oversampling)
            return *plain_backward(plain, operands, U), *rest
        *ring, V, w = operands
        U = U.contiguous()
        kept = Kept(any(ctx.needs_input_grad[:4]))
        kept.sweep = ctx.kept.sweep
        dw = _up((*ring, V, U), w.shape[-1], ctx.oversampling, kept)
        if not kept.wanted:
            return None, None, None, None, dw, *rest
        *found, _ = _gradients(ring[0], ring[2], U, w.contiguous(), kept)
        return *found, dw, *rest

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        plain = partial(plain_matmul, oversampling=ctx.oversampling)
        return plain_jvp(plain, ctx.saved_tensors, tangents[:5])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        *operands, oversampling, _ = inputs
        plain, fast = (partial(of, oversampling=oversampling) for of in (plain_matmul, matmul))
        return product_vmap(plain, fast, in_dims[:5], operands), 0
