"""The two ends of the port product's tree in torch operations: leaves, and the closing of the ring.

The package says what is computed and why, `levels` has what is between. Autograd and its transformations can
differentiate all of it any number of times.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LEAF = 128  # indices that a leaf has at most


def dealt(n: int, leaf: int) -> list[int]:
    """Where leaves of at most `leaf` indices start: a power of two of them, of sizes that differ by one."""
    depth = max(0, math.ceil(math.log2(n / leaf)))
    return [i * n >> depth for i in range(1 << depth)]


class Layout(NamedTuple):
    """Where leaves and cuts are."""

    first: Tensor  # (J,), where leaves start
    ends: Tensor  # (J,)
    places: Tensor  # (n,), of the indices among leaves of equal size
    cuts: list[Tensor]  # of each level, the first index to the right of each cut


def laid_out(n: int, leaf: int, device: torch.device) -> Layout:
    """The layout of leaves of at most `leaf` indices."""
    starts = dealt(n, leaf)
    first = torch.tensor(starts, device=device)
    ends = torch.tensor([*starts[1:], n], device=device)
    size = -(-n // len(starts))
    places = torch.arange(n, device=device)
    leaf_of = torch.searchsorted(ends, places, right=True)
    places = places - first[leaf_of] + leaf_of * size
    depth = len(starts).bit_length() - 1
    cuts = [torch.tensor(starts[1 << level :: 2 << level], device=device) for level in range(depth)]
    return Layout(first, ends, places, cuts)


class Leaves(NamedTuple):
    """The operator cut into J dense blocks of `size`; a shorter one has an index coupled to nothing."""

    source: Tensor  # (J, size), where an entry comes from
    real: Tensor  # (J, size), whether it is one
    A: Tensor  # (J, size, size)
    E: Tensor  # e_L, e_R, (J, 2, size)

    def cut(self, x: Tensor) -> Tensor:
        """(b, n) to (J, b, size)."""
        return (x[:, self.source] * self.real).movedim(0, 1)


def leaf_blocks(lower: Tensor, diagonal: Tensor, upper: Tensor, layout: Layout) -> Leaves:
    """The blocks of a ring."""
    n, first, ends = diagonal.shape[0], layout.first, layout.ends
    size = -(-n // len(first))
    place = torch.arange(size, device=diagonal.device)
    index = first.unsqueeze(1) + place
    real = index < ends.unsqueeze(1)
    index = index.clamp(max=n - 1)
    inner = real[:, 1:]  # couplings of neighbours that are both in the leaf
    A = torch.diag_embed(diagonal[index] * real)
    if size > 1:
        A = A + torch.diag_embed(lower[index][:, 1:] * inner, -1)
        A = A + torch.diag_embed(upper[index][:, :-1] * inner, 1)
    ports_at = torch.stack((torch.zeros_like(first), ends - first - 1), 1).unsqueeze(-1)
    return Leaves(index, real, A, (place == ports_at).to(diagonal))


def leaf_columns(blocks: Leaves, V: Tensor, N: int) -> tuple[Tensor, Tensor]:
    """Columns A^t [e_L, e_R, V], t < N, of all leaves: (J, size, 2 + r, N), N a power of two; and A^N."""
    columns, power, size = (
        torch.cat((blocks.E, blocks.cut(V)), 1).mT.unsqueeze(-1),
        blocks.A,
        blocks.A.shape[-1],
    )
    # A step's two products are one, of twice the size: small products cost by their number.
    while columns.shape[-1] < N:
        further, power = (power @ torch.cat((columns.flatten(2), power), 2)).tensor_split([-size], 2)
        columns = torch.cat((columns, further.reshape(columns.shape)), 3)
    return columns, power


def leaves(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, U: Tensor, layout: Layout, N: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The first N coefficients of all leaves: columns and rows as in `levels`, and the sum of u^T R v.

    With N = g q, rows [e_L, e_R, U]^T A^{qi} for i < g and columns A^j [e_L, e_R, V] for j < q, which dense
    powers of A, each the square of the last, double until there are enough. Their products are the series.
    They are products of matrices in float64, which neither autocast nor TF32 rounds.
    """
    dtype = V.dtype
    lower, diagonal, upper, V, U = (x.double() for x in (lower, diagonal, upper, V, U))
    blocks = leaf_blocks(lower, diagonal, upper, layout)
    size, q, g = blocks.A.shape[-1], 1 << N.bit_length() // 2, 1
    columns, power = leaf_columns(blocks, V, q)  # (J, size, 2 + r, q)
    rows = torch.cat((blocks.E, blocks.cut(U)), 1).unsqueeze(2)  # (J, 2 + b, g, size)
    while g * q < N:
        further, power = (torch.cat((rows.flatten(1, 2), power), 1) @ power).tensor_split([-size], 1)
        rows, g = torch.cat((rows, further.reshape(rows.shape)), 2), 2 * g
    Z = _products(rows[:, :2], columns)
    u = _products(rows[:, 2:], columns[:, :, :2]).transpose(0, 1)
    heard = torch.einsum("jbgi,jirq->brgq", rows[:, 2:], columns[:, :, 2:]).flatten(2)
    return Z.to(dtype), u.to(dtype), heard.to(dtype)


def _products(rows: Tensor, columns: Tensor) -> Tensor:
    """All products of rows (J, o, g, size) and columns (J, size, i, q), (o, i, J, g q)."""
    (J, o, g, _), (i, q) = rows.shape, columns.shape[2:]
    products = (rows.flatten(1, 2) @ columns.flatten(2)).view(J, o, g, i, q)
    return products.permute(1, 3, 0, 2, 4).flatten(-2)


def close(Z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Close one block to a ring by the corners a (last index into the first) and b (back), z times each.

    With q = (q_R, q_L) what arrives at the two ports,

        q = (vR, vL) + z [[a RL, b RR], [a LL, b LR]] q,

    and u hears z a uL q_R + z b uR q_L more. The system is solved by elimination, one loop after the other.

    Args:
        Z: values of the columns, (2, 2 + r, roots).

    Returns:
        z a q_R and z b q_L, (2, r, roots).
    """
    (LL, LR), (RL, RR), (vL, vR) = Z[0, :2], Z[1, :2], Z[:, 2:]
    D_R, D_L = 1 / (1 - a * RL), 1 / (1 - b * LR)
    forth, back = b * RR * D_L, a * LL * D_R
    D = 1 / (1 - forth * back)
    return torch.stack((a * D_R * D * (vR + forth * vL), b * D_L * D * (vL + back * vR)))


def closing_roots(k: int, dtype: torch.dtype) -> tuple[int, float]:
    """At how many roots of which radius rho < 1 a ring is closed.

    Series are cut to k coefficients, which changes none of the first k of the result. At N roots of radius
    rho coefficient t comes out as the sum over j of rho^{jN} times coefficient t + jN; rounding grows by
    rho^-t. The two balance at rho^N = eps^(N / (N + k)). Roots are twice k where 11 digits are plenty.
    """
    N = (4 if dtype == torch.float64 else 2) * max(k, 2)
    return N, math.exp(math.log(torch.finfo(torch.float64).eps) / (N + k))


def roots(N: int, like: Tensor) -> Tensor:
    """The roots of unity at which rfft of length N evaluates a series, in the dtype of its result."""
    angles = torch.arange(N // 2 + 1, dtype=torch.float64, device=like.device) * (-2 * math.pi / N)
    dtype = torch.complex128 if like.dtype == torch.float64 else torch.complex64
    return torch.polar(torch.ones_like(angles), angles).to(dtype)


def lengthened(x: Tensor, k: int) -> Tensor:
    """The first k coefficients, zeros where there are fewer."""
    return torch.nn.functional.pad(x[..., :k], (0, max(0, k - x.shape[-1])))


def check(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, U: Tensor, k: int, oversampling: int
) -> None:
    """Raise ValueError where the arguments of a port product do not fit together; U may be V."""
    n = V.shape[-1] if V.dim() else 0
    shapes = [tuple(x.shape) for x in (lower, diagonal, upper)]
    if shapes != [(n,)] * 3 or V.dim() != 2 or U.dim() != 2 or U.shape[-1] != n or n < 1:
        raise ValueError(
            "port product: the ring must be three vectors (n,), V (r, n) and U (b, n) with n >= 1, "
            f"got {shapes}, {tuple(V.shape)} and {tuple(U.shape)}."
        )
    if {x.dtype for x in (lower, diagonal, upper, V, U)} not in ({torch.float32}, {torch.float64}):
        dtypes = sorted({str(x.dtype) for x in (lower, diagonal, upper, V, U)})
        raise ValueError(f"port product: tensors must share float32 or float64, got {', '.join(dtypes)}.")
    if k < 1:
        raise ValueError(f"port product: k must be at least 1, got {k}.")
    if oversampling < 2 or oversampling & (oversampling - 1):
        raise ValueError(f"port product: oversampling must be a power of two from 2, got {oversampling}.")
