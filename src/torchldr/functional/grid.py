"""Vectors and matrices in blocks: how a side is cut, and products block by block.

A side of `size` entries is cut into `count` blocks of one `width`, the last one cropped: entry i is entry
i % width of block i // width. Products see the last block padded with zeros.

Under a compiler, whole blocks and the last one are cut and joined separately. Otherwise inductor (torch
2.13, on CPUs) may fuse this with the operations before it, process only whole blocks and drop the last one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.functional import pad

from .fft import leading


def split(size: int, blocks: int) -> tuple[int, int]:
    """At most so many blocks of one width, none of them empty: their count and width.

    >>> split(12, 4), split(10, 4), split(5, 4), split(3, 8)
    ((4, 3), (4, 3), (3, 2), (3, 1))
    """
    width = -(-size // min(blocks, size))
    return -(-size // width), width


def near_root(m: int, n: int) -> int:
    """A number of blocks near (m n)^(1/4), the square root of a side: one that divides both sides, if any.

    The smallest common divisor that is at least the root and at most twice that, or the root rounded up.

    >>> near_root(784, 784), near_root(512, 512), near_root(784, 512), near_root(7, 7)
    (28, 32, 26, 3)
    """
    root = (m * n) ** 0.25
    first = int(root) if int(root) ** 4 == m * n else int(root) + 1
    common = [b for b in range(first, int(2 * root) + 1) if m % b == n % b == 0]
    return common[0] if common else first


def cut(x: Tensor, count: int, width: int) -> Tensor:
    """The last axis in blocks: (..., size) to (..., count, width), with zeros behind it."""
    size = x.shape[-1]
    missing = count * width - size
    if not missing or not is_compiling():
        return (pad(x, (0, missing)) if missing else x).unflatten(-1, (count, width))
    whole = size // width
    blocks, rest = x.split((whole * width, size - whole * width), -1)
    rest = pad(rest, (0, missing)).unflatten(-1, (count - whole, width))
    return torch.cat((blocks.unflatten(-1, (whole, width)), rest), -2)


def joined(blocks: Tensor, size: int) -> Tensor:
    """What `cut` cut: (..., count, width) to (..., size), contiguous and not a part of a larger one."""
    count, width = blocks.shape[-2:]
    if size == count * width or not is_compiling():
        return leading(blocks.flatten(-2), size)
    whole = size // width
    blocks, rest = blocks.split((whole, count - whole), -2)
    return torch.cat((blocks.flatten(-2), rest.flatten(-2)[..., : size - whole * width]), -1)


def one_by_one(x: Tensor, count: int, width: int) -> Tensor:
    """Each block of the last axis with zeros in place of the others: (r, size) to (count, r, size)."""
    block = torch.arange(x.shape[-1], device=x.device) // width
    alone = torch.arange(count, device=x.device)[:, None, None] == block
    return torch.where(alone, x, 0.0)


def two_stages(x: Tensor, first: Tensor, second: Tensor, size: int) -> Tensor:
    """Block-diagonal, permutation, block-diagonal: the product of a Monarch matrix.

    z[i, s, j] = sum_q first[i, q, (s, j)] x[i, q], then y[j, p] = sum_(i, s) second[j, (i, s), p] z[i, s, j].

    Args:
        x: vectors, shape (..., b, n).
        first: shape (..., v, q, r u) for v blocks of q columns and u of rows, rank r.
        second: shape (..., u, v r, p).
        size: of the result, m.

    Returns:
        The products, shape (..., b, m).
    """
    v, q, u = first.shape[-3], first.shape[-2], second.shape[-3]
    z = cut(x, v, q).transpose(-3, -2) @ first
    z = z.unflatten(-1, (-1, u)).movedim(-1, -4).transpose(-3, -2).flatten(-2)  # (..., u, b, v r)
    return joined((z @ second).transpose(-3, -2), size)
