"""sum_i K(A, g_i) K(C, h_i)^T for subdiagonal A and C by convolutions: LDR-SD, Toeplitz- and Hankel-like.

With P_i = s_1 .. s_i the operator is a scaled shift, A = D Z_f D^{-1}, and its Krylov products are
convolutions between scalings (see `torchldr.functional.subdiagonal`). That loses digits in proportion to
max|P| / min|P|, so where the range is large the indices are cut into blocks of a small range each:

    (K(A, v) w)_i = sum_a P^a_i (v^a * w)_i,      P^a_i = s_{o+1} .. s_i from the block's first index o on,

v^a being v / P^a within block a and zero elsewhere: a block more costs what a rank more costs. An exact zero
only begins a block. Everything but the input is constant, computed in float64.

A square matrix whose ranges are small takes shorter transforms, those of `subdiagonal.generators`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..subdiagonal.generators import generators
from ..subdiagonal.guard import RANGE, Side
from . import transforms
from .convolution import Convolution, numbers, toeplitz, wrapped
from .dense import FormulaProduct
from .transforms import Array

MOST_BLOCKS = 8  # above, the matrix is made from its parameters by the runtime


def first_indices(s: Array) -> list[int]:
    """The first index of every block: within one, products of s stay within a factor of `RANGE`.

    >>> first_indices(np.array([1.0, 8.0, 8.0, 1.0, 0.0, 1.0]))
    [0, 3, 5]
    """
    starts, product, low, high = [0], 1.0, 1.0, 1.0
    for i, factor in enumerate(s.tolist(), start=1):
        product *= abs(factor)
        low, high = min(low, product), max(high, product)
        if not high <= RANGE * low:  # nan, and a zero
            starts.append(i)
            product = low = high = 1.0
    return starts


class Blocks(NamedTuple):
    """K_k(A, v_i) as scaled convolutions, one for each block."""

    scale: Array  # (blocks, m)
    corner: Array | None  # (blocks, k - 1): of what comes around, where there is a corner
    starts: Array  # (blocks, r, m): v^a


def cut(side: Side, k: int) -> Blocks:
    s, c, V = (t.detach().double().cpu().numpy() for t in side)
    m, starts = V.shape[-1], first_indices(s)
    scale, sources = np.zeros((len(starts), m)), np.zeros((len(starts), *V.shape))
    with np.errstate(over="ignore", under="ignore"):
        for a, (start, end) in enumerate(zip(starts, [*starts[1:], m], strict=True)):
            scale[a, start:] = np.cumprod(np.concatenate(([1.0], s[start:])))
            sources[a, :, start:end] = V[:, start:end] / scale[a, start:end]
        around = np.cumprod(np.concatenate(([1.0], s)))[: k - 1]
        corner = c * scale[:, -1:] * around if c != 0 and k > 1 else None
    return Blocks(scale, corner, sources)


def _by_convolutions(kind: str, A: Side, C: Side, dtype: torch.dtype) -> FormulaProduct:
    """The product by linear convolutions, for every shape: (b, n) to (b, m)."""
    m, n = A[2].shape[-1], C[2].shape[-1]
    k = min(m, n)
    left, right = cut(A, k), cut(C, k)
    after, before = (
        _plain(np.concatenate((s, c), -1) if c is not None else s, dtype) for s, c, _ in (left, right)
    )
    symbol = right.starts.transpose(1, 0, 2)[..., ::-1]  # (r, blocks, n): t_{-l} = v_l
    first = toeplitz(kind, symbol, 1 - n, before.shape[-1], k, dtype, least=n + k - 1)
    second = toeplitz(kind, left.starts, 0, k, after.shape[-1], dtype, least=m + k - 1)
    blocks = max(len(left.scale), len(right.scale))
    form = "convolutions" if blocks == 1 else f"convolutions in {blocks} blocks"
    parts = {"before": before, "first": first, "second": second, "after": after}
    return FormulaProduct(form, _two_convolutions, **parts, shape=(m, n))


def _two_convolutions(
    x: Tensor, before: Tensor, first: nn.Module, second: nn.Module, after: Tensor, shape: tuple[int, int]
) -> Tensor:
    m, n = shape
    u = torch.cat((x, x[:, : before.shape[-1] - n]), -1) if before.shape[-1] > n else x
    t = second(first(u.unsqueeze(1) * before)) * after
    t = t.sum(1) if after.shape[0] > 1 else t.squeeze(1)
    behind = after.shape[-1] - m  # what comes around
    return t[:, :m] + pad(t[:, m:], (0, m - behind)) if behind else t


def _in_a_ring(kind: str, A: Side, C: Side, dtype: torch.dtype) -> FormulaProduct:
    """The product of a square matrix in the ring of X^n + 1: (b, n) to (b, n).

    `generators` writes M between its scalings with the shifts Z_{-1} and Z_{-1/2}; the second
    is a scaled Z_{-1} too.
    """
    n = A[2].shape[-1]
    scales, made, _ = (t.detach().cpu().numpy() for t in generators(A, C, -1.0, -0.5))
    (P_A, P_C), (left, right) = scales, made
    D = 2.0 ** (np.arange(n) / n)
    transform = transforms.make_exact(kind, n, n, n, dtype)
    symbol = (right / D)[:, None, ::-1]  # (r + 1, 1, n)
    first = Convolution(transform, wrapped(symbol, 1 - n, n))
    left = np.concatenate((left[-1:], left[:-1]))  # that of the input itself first
    plain = {name: _plain(t, dtype) for name, t in (("before", P_C * D), ("unscale", 1 / D), ("after", P_A))}
    second, form = Convolution(transform, left[None]), "convolutions of length n"
    return FormulaProduct(form, _ring_product, first=first, second=second, **plain)


def _ring_product(
    x: Tensor, before: Tensor, first: nn.Module, unscale: Tensor, second: nn.Module, after: Tensor
) -> Tensor:
    u = (x * before).unsqueeze(1)
    z = torch.cat((u, first(u)), 1) * unscale
    return (second(z[:, :-1]) + z[:, -1:]).squeeze(1) * after


def convolved(kind: str, A: Side, C: Side, dtype: torch.dtype) -> FormulaProduct | None:
    """The product for (subdiagonal, corner, start vectors) of A and C; None where it takes many blocks."""
    m, n = A[2].shape[-1], C[2].shape[-1]
    blocks = [len(first_indices(side[0].detach().double().cpu().numpy())) for side in (A, C)]
    if max(blocks) > MOST_BLOCKS:
        return None
    made = _by_convolutions(kind, A, C, dtype)
    if m != n or max(blocks) > 1 or not transforms.is_exact(kind, n):
        return made
    pair = _in_a_ring(kind, A, C, dtype)
    return pair if numbers(pair) <= numbers(made) else made


def _plain(values: Array, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
