"""The split product: Krylov products of a subdiagonal operator, stable for every operator.

With S(k, i) = s_{k+1} .. s_i, the product of the subdiagonal entries between k and i,

    (K(A, v) w)_i = sum_{k <= i} S(k, i) v_k w_{i-k} + c sum_{k > i} S(0, i) S(k, m-1) v_k w_{m+i-k}.

Dividing prefix products would make one convolution of it and lose digits (see `subdiagonal`). Here
nothing is divided. Cut the indices into a binary tree of blocks: where k lies in the left half of a
node and i in the right half, which begins at `mid`,

    S(k, i) = S(k, mid) S(mid, i),

a suffix product of one half and a prefix product of the other, so the node is one short convolution
between two scalings. All nodes of a level go in one batch, and blocks at the bottom are small dense
matrices.

K has k <= m columns, so nothing moves by k places or more. The indices are therefore first cut into
spans of k: within a span the paths form a lower triangle, from one span into the next an upper
triangle, and the corner joins the last k indices to the first span in the same way. With both index
ranges reversed an upper triangle is a lower one, so two batches of trees do it all.

Work O(m log^2 k); row by row the error is relative to |K| |w|. Every step is plain differentiable
torch, so this is also the form that is traced, vmapped and differentiated twice.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .fft import conjugate, fast_length

LEAF = 32
TRACED_LEAF = 256  # exporters take long over many small steps: fewer and larger ones for them


class Level(NamedTuple):
    """The nodes of one level, all trees together: convolutions of length 2 * half."""

    spectra: Tensor  # (r, nodes, half + 1): transforms of the scaled v of the left halves
    rows: Tensor  # (nodes, half): what scales the result in the right halves


class Trees(NamedTuple):
    """Lower triangular matrices sum_{p <= q} a_q b_p w_{q-p}, their scalings given node by node."""

    leaves: Tensor  # (r, block, rows): [i, d, q] weighs w_d in row q, within its own block
    levels: list[Level]


class SplitKrylov(NamedTuple):
    """K_k(A, v_i) for all i, prepared: whatever does not depend on the input."""

    m: int
    k: int
    within: Trees
    across: Trees | None


def prefix_products(s: Tensor) -> Tensor:
    """Cumulative products along the last axis, in log2 steps and without division.

    `torch.cumprod` gives the same, but its backward looks for zeros, which synchronises a GPU.
    """
    step = 1
    while step < s.shape[-1]:
        s = torch.cat((s[..., :step], s[..., step:] * s[..., :-step]), -1)
        step *= 2
    return s


def split_prepare(
    s: Tensor, corner: Tensor, V: Tensor, k: int, *, leaf: int | None = None, closed: bool = True
) -> SplitKrylov:
    """Prepare the Krylov matrices K_k(A, v_i) of a subdiagonal operator for products.

    Args:
        s: subdiagonal, shape (m - 1,).
        corner: top right entry, shape ().
        V: start vectors, shape (r, m).
        k: how many columns, at most m.
        leaf: blocks of half as many to `leaf` indices are dense.
        closed: False leaves the corner out where that saves work: for a corner of exactly 0.

    Returns:
        The prepared product for `split_matmul` and `split_rmatmul`.
    """
    r, m = V.shape
    leaf = leaf or (TRACED_LEAF if torch.compiler.is_compiling() else LEAF)
    spans = -(-m // k)
    # `edges` leave each index. Past the last one there are only zeros of V to move and rows to drop.
    edges = pad(s, (0, spans * k - m + 1), value=1.0).view(spans, k)
    v = pad(V, (0, spans * k - m)).view(r, spans, k)
    within = _within(edges, v, leaf)
    if k == 1 or (spans == 1 and not closed):
        return SplitKrylov(m, k, within, None)
    # Span q is reached from span q - 1; the first from the last k indices, through the corner.
    before = torch.cat((V[:, None, m - k :], v[:, :-1]), 1)
    leaving = torch.cat((s[None, m - k :], edges[:-1, :-1]), 0)
    link = torch.cat((corner.reshape(1), edges[:-1, -1]))
    return SplitKrylov(m, k, within, _across(leaving, link, edges[:, :-1], before, leaf))


def _blocks(k: int, leaf: int) -> tuple[int, int]:
    """How many blocks (a power of two) of what length hold k indices."""
    depth = max(0, (-(-k // leaf) - 1).bit_length())
    return 1 << depth, fast_length(-(-k // (1 << depth)))


def _products(edges: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Prefix and suffix products within blocks of edges, and of blocks twice, 4 times .. as long.

    `edges` is (spans, blocks, length); edge p leaves index p. A prefix product covers the edges
    before p in its block, a suffix product those from p on, the one that leaves the block included.
    """
    prefix = prefix_products(torch.cat((torch.ones_like(edges[..., :1]), edges[..., :-1]), -1))
    suffix = prefix_products(edges.flip(-1)).flip(-1)
    products = [(prefix, suffix)]
    while prefix.shape[1] > 1:
        prefix = torch.cat((prefix[:, 0::2], suffix[:, 0::2, :1] * prefix[:, 1::2]), -1)
        suffix = torch.cat((suffix[:, 0::2] * suffix[:, 1::2, :1], suffix[:, 1::2]), -1)
        products.append((prefix, suffix))
    return products


def _level(sources: Tensor, v: Tensor, rows: Tensor) -> Level:
    """The nodes whose left halves are scaled by `sources` and right halves by `rows`."""
    half = sources.shape[-1]
    left = v.view(v.shape[0], v.shape[1], -1, 2, half)[:, :, :, 0]
    return Level(torch.fft.rfft(sources * left, 2 * half).flatten(1, 2), rows.flatten(0, 1))


def _within(edges: Tensor, v: Tensor, leaf: int) -> Trees:
    """Paths that stay in their span: sources S(k, mid) v_k, rows S(mid, i)."""
    r, spans, k = v.shape
    blocks, block = _blocks(k, leaf)
    fill = blocks * block - k
    edges = pad(edges, (0, fill), value=1.0).view(spans, blocks, block)
    v = pad(v, (0, fill))
    levels = [_level(suf[:, 0::2], v, pre[:, 1::2]) for pre, suf in _products(edges)[:-1]]
    leaves = _shifts(v.view(r, spans, blocks, block), pad(edges[..., :-1], (1, 0)))
    return Trees(leaves.flatten(2), levels)


def _shifts(v: Tensor, passed: Tensor | None = None) -> Tensor:
    """(r, .., block) to (r, block, .., block): v moved by 0, 1, .. places within its block.

    With `passed`, the edge into each place, every move multiplies by the edges it passes: then these
    are Krylov matrices. By doubling, K_{2j} = [K_j, A^j K_j].
    """
    block = v.shape[-1]
    K, j = v.unsqueeze(1), 1
    while j < block:
        moved = pad(K[..., : block - j], (j, 0))
        if passed is not None:
            moved = moved * passed
            passed = pad(passed[..., : block - j], (j, 0)) * passed
        K = torch.cat((K, moved), 1)
        j *= 2
    return K[:, :block]


def _across(leaving: Tensor, link: Tensor, entering: Tensor, v: Tensor, leaf: int) -> Trees:
    """Paths from one span into the next, with sources and rows both numbered from the end.

    Source p is p edges before the end of its span, and a path from it, then over the link, reaches
    row q > p through the first k - 1 - q edges of the next span. So sources are scaled by prefix
    products of the reversed leaving edges, rows by suffix products of the reversed entering ones.
    """
    r, spans, k = v.shape
    blocks, block = _blocks(k, leaf)
    fill = blocks * block - k
    leaving, entering = (
        pad(e.flip(-1), (0, fill + 1), value=1.0).view(spans, blocks, block) for e in (leaving, entering)
    )
    v = pad(v.flip(-1), (0, fill))
    sources, rows = _products(leaving), _products(entering)
    around = link.view(spans, 1, 1)  # what the scalings of a node leave out, from the root down
    levels = []
    for (prefix, whole), (_, suffix) in list(zip(sources, rows, strict=True))[-2::-1]:
        levels.append(_level(prefix[:, 0::2], v, around * suffix[:, 1::2]))
        around = torch.cat((around * suffix[:, 1::2, :1], around * whole[:, 0::2, :1]), -1)
        around = around.view(spans, -1, 1)
    scaled = sources[0][0] * v.view(r, spans, blocks, block)
    leaves = _shifts(scaled) * (around * rows[0][1])
    return Trees(leaves.flatten(2), levels)


def split_matmul(K: SplitKrylov, w: Tensor) -> Tensor:
    """sum_i K_k(A, v_i) w_i.

    Args:
        K: from `split_prepare`.
        w: coefficients, shape (b, r, k).

    Returns:
        Shape (b, m).
    """
    y = _trees_matmul(K.within, w)
    if K.across is not None:
        y = y + _trees_matmul(K.across, pad(w[..., 1:].flip(-1), (1, 0))).flip(-1)
    return y.flatten(1)[:, : K.m]


def split_rmatmul(K: SplitKrylov, u: Tensor) -> Tensor:
    """K_k(A, v_i)^T u for every i.

    Args:
        K: from `split_prepare`.
        u: vectors, shape (b, m).

    Returns:
        Shape (b, r, k). Spectra are summed over the nodes of a level before they are transformed
        back, as in the paper's algorithm.
    """
    u = pad(u, (0, -K.m % K.k)).unflatten(1, (-1, K.k))
    z = _trees_rmatmul(K.within, u)
    if K.across is not None:
        z = z + pad(_trees_rmatmul(K.across, u.flip(-1))[..., 1:].flip(-1), (1, 0))
    return z


def _trees_matmul(trees: Trees, w: Tensor) -> Tensor:
    """(b, r, k) to (b, spans, k)."""
    _, r, k = w.shape
    columns = min(k, trees.leaves.shape[1])
    y = w[..., :columns].flatten(1) @ trees.leaves[:, :columns].flatten(0, 1)
    for spectra, rows in trees.levels:
        half = rows.shape[-1]
        spectrum = torch.fft.rfft(w[..., : 2 * half], 2 * half).unsqueeze(2)  # (b, r, 1, f)
        total = spectrum[:, 0] * spectra[0]
        for i in range(1, r):
            total = torch.addcmul(total, spectrum[:, i], spectra[i])
        part = torch.fft.irfft(total, 2 * half)[..., half:] * rows  # (b, nodes, half)
        y = y + pad(part, (half, 0)).flatten(1)
    size = trees.leaves.shape[1] << len(trees.levels)
    return y.unflatten(1, (-1, size))[..., :k]


def _trees_rmatmul(trees: Trees, u: Tensor) -> Tensor:
    """(b, spans, k) to (b, r, k)."""
    k = u.shape[-1]
    r, block, _ = trees.leaves.shape
    u = pad(u, (0, (block << len(trees.levels)) - k)).flatten(1)
    columns = min(k, block)
    z = (u @ trees.leaves[:, :columns].flatten(0, 1).mT).unflatten(1, (r, columns))
    z = pad(z, (0, k - columns))
    for spectra, rows in trees.levels:
        half = rows.shape[-1]
        right = u.unflatten(1, (-1, 2, half))[:, :, 1] * rows
        spectrum = torch.fft.rfft(pad(right, (half, 0)), 2 * half)  # (b, nodes, f)
        spectrum = (spectrum.unsqueeze(1) * conjugate(spectra)).sum(2)
        part = torch.fft.irfft(spectrum, 2 * half)[..., :k]
        z = z + pad(part, (0, k - part.shape[-1]))
    return z
