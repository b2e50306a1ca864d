"""The convolution of every replica with its own filters, as one batched matrix product.

Libraries do a convolution with a group a replica one group after the other, at a fraction of the speed.
Here the patches under the filter are copied out (im2col), one product for all replicas makes the
outputs, and the gradient of the input is gathered back from the patches: no sums by atomic additions,
so results do not depend on the order of threads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def replica_convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A convolution of odd kernel size that keeps the image's size, for R replicas.

    Args:
        x: shape (R, b, c, h, w).
        weight: shape (R, o, c, q, q).
        bias: shape (R, o).

    Returns:
        Shape (R, b, h, w, o): channels last.

    The same, slowly: `conv2d(x[i], weight[i], bias[i], padding=q // 2)` for each replica i.
    """
    b, (h, w) = x.shape[1], x.shape[-2:]
    y: Tensor = _Convolution.apply(x, pad(weight.flatten(2), (0, 1)), weight.shape[-1])
    return (y + bias.unsqueeze(1)).view(len(x), b, h, w, -1)


class _Convolution(torch.autograd.Function):
    """(R, b, c, h, w) and filters (R, o, c q q + 1) to (R, b h w, o).

    A patch has one entry more than the filter, its last, which stands for what lies outside the image
    and has the weight 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, filters: Tensor, q: int) -> Tensor:
        R, b, c, h, w = x.shape
        index, _ = _tables(c, h, w, q, x.device)
        patches = pad(x, (q // 2,) * 4).view(R * b, -1).index_select(1, index).view(R, b * h * w, -1)
        ctx.save_for_backward(patches, filters)
        ctx.shape, ctx.q = x.shape, q
        return patches @ filters.mT

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        patches, filters = ctx.saved_tensors
        R, b, c, h, w = ctx.shape
        dx = None
        if ctx.needs_input_grad[0]:
            _, back = _tables(c, h, w, ctx.q, u.device)
            taps = (u @ filters).view(R * b, -1).index_select(1, back)
            dx = taps.view(*ctx.shape, -1).sum(-1)
        # An image at a time, then their sum: one long product a replica would keep few processors busy.
        each = u.reshape(R * b, h * w, -1).mT @ patches.view(R * b, h * w, -1)
        return dx, each.view(R, b, *each.shape[1:]).sum(1), None


@lru_cache(maxsize=16)
def _tables(c: int, h: int, w: int, q: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Which entry of the padded image each entry of the patches is; and where each pixel went, q q places."""
    half = q // 2
    numbers = torch.arange(c * (h + 2 * half) * (w + 2 * half)).view(c, h + 2 * half, w + 2 * half)
    windows = numbers.unfold(1, q, 1).unfold(2, q, 1)  # (c, h, w, q, q)
    patches = pad(windows.permute(1, 2, 0, 3, 4).reshape(h * w, -1), (0, 1))
    length = patches.shape[1]
    y, x = torch.arange(h).view(h, 1, 1, 1), torch.arange(w).view(1, w, 1, 1)
    i, j = torch.arange(q).view(1, 1, q, 1), torch.arange(q).view(1, 1, 1, q)
    row, column = y - i + half, x - j + half
    inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
    channel = torch.arange(c).view(c, 1, 1, 1, 1)
    place = (row * w + column) * length + channel * q * q + i * q + j
    back = torch.where(inside, place, length - 1)
    return patches.flatten().to(device), back.flatten().to(device)
