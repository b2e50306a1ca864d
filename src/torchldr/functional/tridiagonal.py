"""Krylov matrices of a tridiagonal operator with two corners, in plain torch.

The operator is kept as a ring, three vectors of length m with indices modulo m:

    (A x)_i = lower_i x_{i-1} + diagonal_i x_i + upper_i x_{i+1},

so lower_0 is the top right corner and upper_{m-1} the bottom left one. Views of K(A, v) w:

    matrix      sum_j w_j A^j v
    stencil     a three-point stencil with fixed coefficients, run for k steps in time

The stencil's kernels are those of `krylov` and `stream`. Here A^p has 2p + 1 diagonals, so blocks of p
columns follow each other by one batched product of small dense matrices. The tests hold both to
`krylov_reference(tridiagonal_reference(..), v, k)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..torch_private import has_memory, is_captured

Ring = tuple[Tensor, Tensor, Tensor]  # lower, diagonal, upper, (..., m)
Operator = tuple[Tensor, Tensor, Tensor, Tensor]  # and start vectors (..., r, m)

BLOCK = 32  # columns at a time in the plain form

# Rounding errors grow as powers do, and outlive powers that first grow and then fall. So operators
# with more than UNSEEN columns, some of which (every LOOK-th is looked at) have grown by more than 1 / eps of
# float32, are run in float64; those whose values cannot be looked at, too.
GROWTH, LOOK = 1e7, 32
UNSEEN = 512
SMALL = 40  # binary digits of a power that float32 has room for, and those of the other operator too
TINY = torch.finfo(torch.float32).tiny


def largest_row_sum(lower: Tensor, diagonal: Tensor, upper: Tensor) -> Tensor:
    """The largest absolute row sum of A. On a ring of 1 or 2, neighbours are one entry."""
    if lower.shape[-1] == 1:
        return (lower + diagonal + upper).abs().squeeze(-1)
    beside = (lower + upper).abs() if lower.shape[-1] == 2 else lower.abs() + upper.abs()
    return (beside + diagonal.abs()).amax(-1)


def row_sum_scale(lower: Tensor, diagonal: Tensor, upper: Tensor) -> Tensor:
    """The largest absolute row sum of A where that exceeds 1, else 1: A over it never grows."""
    return largest_row_sum(lower, diagonal, upper).clamp(min=1)


def has_values(t: Tensor) -> bool:
    """Whether a tensor's values can be looked at: not under vmap, or while a CUDA graph is captured."""
    return has_memory(t) and not is_captured(t.device.type)


def lost(like: Tensor, k: int, found: Sequence[Tensor] = ()) -> bool:
    """Whether rounding may have grown beyond use in k columns like this, by the `sizes` found of them."""
    if k <= UNSEEN or like.dtype == torch.float64 or like.device.type == "mps":  # which has no float64
        return False
    if not found or not all(map(has_values, found)):
        return True
    seen = [size.cpu() for size in found]  # few numbers, and fewer calls of a GPU
    return not all(bool((size <= GROWTH * size[..., :1].clamp_min(TINY)).all()) for size in seen)  # nor NaN


def sizes(K: Tensor) -> Tensor:
    """The largest entries of some columns of Krylov matrices (.., k, m), the first among them."""
    return K.detach()[..., ::LOOK, :].abs().amax(-1)  # on a CPU much faster than a norm


def balanced(A: Ring, C: Ring) -> tuple[Ring, Ring]:
    """Both operators without a scale in A that C cancels: A / f and f C for some f > 0.

    Training drifts along such scales, and powers of A would overflow where products with those of C do not.
    The gradient in f is zero.
    """
    steps = min(A[0].shape[-1], C[0].shape[-1])
    of_A, of_C = (log_size(torch.stack(ring, -2)) for ring in (A, C))
    f = common_scale(of_A, of_C, steps).exp2().unsqueeze(-1)
    return (A[0] / f, A[1] / f, A[2] / f), (C[0] * f, C[1] * f, C[2] * f)


def common_scale(of_A: Tensor, of_C: Tensor, steps: int) -> Tensor:
    """log2 of the f of `balanced`, by the `log_size` of both.

    Exactly 0 where the powers of f stay small, as multiplying by it rounds every entry.
    """
    f = (of_A - of_C) / 2
    return torch.where(f.abs() * steps < SMALL, 0, f)


def log_size(ring: Tensor) -> Tensor:
    """The mean of log2 of the sums of absolute values of rows, without rows of zeros: (.., 3, m) to (..).

    The first row is left out: it has the corner, which is passed but rarely.
    """
    sums = ring.detach()[..., 1:].abs().sum(-2)
    there = sums > 0
    return torch.where(there, sums, 1).log2().sum(-1) / there.sum(-1).clamp(min=1)


# The plain form.


def _windows(m: int, size: int, halo: int, device: torch.device) -> Tensor:
    """Indices modulo m of ceil(m / size) blocks of `size` rows with a halo on either side.

    Unrolling the ring to a line makes every window right, even one that is longer than the ring.
    """
    blocks = -(-m // size)
    first = torch.arange(blocks, device=device).unsqueeze(1) * size - halo
    return (first + torch.arange(size + 2 * halo, device=device)) % m


def _slanted(rows: Tensor) -> Tensor:
    """(.., a, w) to (.., a, a + w - 1), row i moved right by i places: diagonals to a banded matrix."""
    a, w = rows.shape[-2:]
    flat = pad(rows, (0, a)).flatten(-2)
    return flat[..., : a * (a + w - 1)].unflatten(-1, (a, a + w - 1))


def _powers(lower: Tensor, diagonal: Tensor, upper: Tensor, p: int) -> Iterator[tuple[int, Tensor]]:
    """(q, the 2q + 1 diagonals of A^q) for q = 1, 2, 4, .. p: entry [i, q + o] couples i to i + o."""
    D, q, m = torch.stack((lower, diagonal, upper), -1), 1, lower.shape[-1]
    yield q, D
    while q < p:
        neighbours = D[_windows(m, 1, q, D.device)]  # (m, 2q + 1, 2q + 1)
        D = (D.unsqueeze(-2) @ _slanted(neighbours)).squeeze(-2)
        q *= 2
        yield q, D


def _apply_power(D: Tensor, X: Tensor, q: int) -> Tensor:
    """A^q X for the diagonals D of A^q and columns X, (m, c), by blocks of BLOCK rows."""
    m = X.shape[0]
    windows = _windows(m, BLOCK, q, X.device)
    D = pad(D, (0, 0, 0, windows.shape[0] * BLOCK - m)).view(-1, BLOCK, 2 * q + 1)
    return (_slanted(D) @ X[windows]).flatten(0, 1)[:m]


def column_blocks(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int
) -> Iterator[tuple[int, Tensor]]:
    """(j, columns j, j + 1, .. of all Krylov matrices, (m, p, r)), k columns in all."""
    m = V.shape[-1]
    p = min(BLOCK, 1 << (k - 1).bit_length())
    X = V.mT.unsqueeze(1)
    D = X
    for q, D in _powers(lower, diagonal, upper, p):
        if q < p:
            X = torch.cat((X, _apply_power(D, X.flatten(1), q).view(m, q, -1)), 1)
    for j in range(0, k, p):
        if j:
            X = _apply_power(D, X.flatten(1), p).view(X.shape)
        yield j, X[:, : k - j]


def krylov_of_ring(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    """The Krylov matrices K_k(A, v_i), transposed: (..., m) thrice and (..., r, m) to (..., r, k, m)."""
    if V.ndim > 2:
        return torch.vmap(partial(krylov_of_ring, k=k))(lower, diagonal, upper, V)
    blocks = [X for _, X in column_blocks(lower, diagonal, upper, V, k)]
    return torch.cat(blocks, 1).permute(2, 1, 0)


def plain_product(A: Operator, C: Operator, x: Tensor) -> Tensor:
    """sum_i K_k(A, g_i) K_k(C, h_i)^T x for rows of x."""
    k = min(A[3].shape[-1], C[3].shape[-1])
    w = torch.cat([(x @ X.flatten(1)).unflatten(1, X.shape[1:]) for _, X in column_blocks(*C, k)], 1)
    parts = [w[:, j : j + X.shape[1]].flatten(1) @ X.flatten(1).mT for j, X in column_blocks(*A, k)]
    return sum(parts[1:], parts[0])
