"""Gradients like those of torch's own layers: in the tensor's memory format, in their own memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..torch_private import apply_alone, are_plain, has_memory, has_modes, has_transforms, in_forward_mode


def owned(t: Tensor) -> Tensor:
    """The same tensor, with a gradient that is not a view of a larger one, as from FFTs and torch.cat.

    Compilers and torch.func transformations skip this.
    """
    if torch.compiler.is_compiling() or not (t.requires_grad and torch.is_grad_enabled()):
        return t
    if has_transforms() or has_modes() or in_forward_mode() or not are_plain((t,)):
        return t
    same: Tensor = apply_alone(_Owned, t)
    return same


def format_of(t: Tensor) -> torch.memory_format:
    """Channels last, or contiguous."""
    for axes, last in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if t.ndim == axes and not t.is_contiguous() and t.is_contiguous(memory_format=last):
            return last
    return torch.contiguous_format


class _Owned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.format = format_of(t)
        return t.detach()  # the same memory and version: edits before the backward pass are seen

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        if not has_memory(g):  # of a batch of gradients
            return g
        own = g.contiguous(memory_format=ctx.format)
        whole = own.untyped_storage().nbytes() == own.numel() * own.element_size()
        return own if whole else own.clone(memory_format=torch.preserve_format)
