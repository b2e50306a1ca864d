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
    R, b, c, h, w = x.shape
    patches = _Patches.apply(x.flatten(0, 1), weight.shape[-1]).view(R, b * h * w, -1)
    flat = pad(weight.flatten(2), (0, 1))  # for the patches' last entry, which is no pixel
    return torch.baddbmm(bias.unsqueeze(1), patches, flat.mT).view(R, b, h, w, -1)


class _Patches(torch.autograd.Function):
    """(N, c, h, w) to (N, h w, c q q + 1); the last entry of a patch stands for what lies outside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, q: int) -> Tensor:
        ctx.shape, ctx.q = x.shape, q
        c, h, w = x.shape[1:]
        patches, _ = _tables(c, h, w, q, x.device)
        flat = pad(x, (q // 2,) * 4).flatten(1)
        return flat.index_select(1, patches).view(len(x), h * w, -1)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor, None]:
        c, h, w = ctx.shape[1:]
        _, back = _tables(c, h, w, ctx.q, u.device)
        # Its last entry has the weight 0, so its gradient is 0: what a tap outside the image gives.
        return u.flatten(1).index_select(1, back).view(*ctx.shape, -1).sum(-1), None


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
