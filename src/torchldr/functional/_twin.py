"""Fast kernels with a plain twin.

A hand-written forward and backward is fast for the case that matters, training with x.backward().
Everything else that autograd can ask (a derivative of the derivative, forward mode) is answered by
differentiating the twin: the same function in plain torch operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from ..kernels.cpu import library
from ..tracers import are_recorded

Plain = Callable[..., Tensor]


def applied(function: Any, *inputs: Any) -> Any:
    """`function.apply` in less time, for one with `setup_context`.

    torch's own binds the inputs to a signature, for transformations of torch.func, and makes a context where
    no gradient is wanted: each takes as long as to launch a few kernels.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return function.apply(*inputs)
    if not torch.is_grad_enabled() and forward_ad._current_level < 0:
        return function.forward(*inputs)
    return super(Function, function).apply(*inputs)


def converted(t: Tensor, dtype: torch.dtype) -> Tensor:
    """`t.to(dtype)`, without asking torch where it has that dtype."""
    return t if t.dtype is dtype else t.to(dtype)


def serves(*tensors: Tensor) -> bool:
    """Whether kernels in C can have these tensors, of one dtype: what leaves torch would not be recorded."""
    return library.serves(*tensors) and not (torch.compiler.is_compiling() or are_recorded())


def in_memory(t: Tensor) -> Tensor:
    """A tensor whose memory is its numbers, for kernels: torch may only note that they are negated."""
    return t.resolve_neg().contiguous()


def plain_backward(plain: Plain, inputs: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """The gradients by way of the twin, themselves differentiable."""
    return torch.func.vjp(plain, *inputs)[1](grad)


def plain_jvp(plain: Plain, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Tensor:
    """The tangent by way of the twin: the transpose of its transposed derivative.

    Reverse mode twice, because forward mode cannot be entered again inside a forward-mode rule.
    """
    filled = tuple(torch.zeros_like(x) if t is None else t for x, t in zip(inputs, tangents, strict=True))
    with forward_ad._set_fwd_grad_enabled(True):  # a rule would forget the tangents of levels around it
        primals = [forward_ad.unpack_dual(x).primal for x in inputs]
        output, pullback = torch.func.vjp(plain, *primals)[:2]
        pushforward = torch.func.vjp(pullback, torch.zeros_like(output))[1]
        return pushforward(filled)[0]


def product_vmap(
    plain: Plain, product: Plain, in_dims: Sequence[int | None], inputs: Sequence[Tensor]
) -> Tensor:
    """vmap of a product, whose vectors (b, n) are the last input: these, mapped alone, join the batch.

    Stacked operators take the plain twin.
    """
    *fixed, dim = in_dims
    if dim is None or any(d is not None for d in fixed):
        return torch.vmap(plain, in_dims=tuple(in_dims))(*inputs)
    x = inputs[-1].movedim(dim, 0)
    return product(*inputs[:-1], x.flatten(0, 1)).unflatten(0, x.shape[:2])
