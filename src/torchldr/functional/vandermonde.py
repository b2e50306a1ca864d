"""Products with a Vandermonde matrix: values of polynomials at arbitrary real nodes.

    matrix        V[i, j] = node_i^j,  shape (m, n)
    polynomial    (V z)_i = z(node_i), and V^T weighs the power sums of the nodes

By Horner's rule in blocks of TILE coefficients: within a block one product with the (m, TILE) matrix
of small powers, between blocks one multiplication by node^TILE. O(m n) work a vector, O(m) extra
memory. The tests hold both to `vandermonde_reference`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

TILE = 64


def vandermonde_reference(nodes: Tensor, n: int) -> Tensor:
    """The matrix of powers node_i^j, shape (m, n)."""
    return torch.stack([nodes**j for j in range(n)], -1)


def _powers(nodes: Tensor, width: int) -> Tensor:
    """node^0 .. node^{width-1}, shape (m, width), by doubling; without subnormal ones, which take long.

    Only the values become 0: the derivative of a power that vanishes need not vanish.
    """
    powers, step = torch.ones_like(nodes).unsqueeze(-1), nodes.unsqueeze(-1)
    while powers.shape[-1] < width:
        powers, step = torch.cat((powers, step * powers), -1), step * step
    powers = powers[:, :width]
    values = powers.detach()
    return powers - values.masked_fill(values.abs() >= torch.finfo(powers.dtype).tiny, 0)


def vandermonde_matmul(nodes: Tensor, z: Tensor) -> Tensor:
    """Evaluate polynomials at the nodes.

    Args:
        nodes: shape (m,).
        z: coefficients, lowest first, shape (..., n).

    Returns:
        Values, shape (..., m).

    The same, slowly: `z @ vandermonde_reference(nodes, n).T`.
    """
    n = z.shape[-1]
    width = min(TILE, n)
    small = _powers(nodes, width)
    stride = small[:, -1] * nodes
    blocks = pad(z, (0, -n % width)).unflatten(-1, (-1, width))
    y = blocks[..., -1, :] @ small.mT
    for t in range(blocks.shape[-2] - 2, -1, -1):
        y = blocks[..., t, :] @ small.mT + stride * y
    return y


def vandermonde_rmatmul(nodes: Tensor, y: Tensor, n: int) -> Tensor:
    """Multiply by the transposed Vandermonde matrix: z_j = sum_i node_i^j y_i.

    Args:
        nodes: shape (m,).
        y: shape (..., m).
        n: how many powers.

    Returns:
        Shape (..., n).
    """
    width = min(TILE, n)
    small = _powers(nodes, width)
    stride = small[:, -1] * nodes
    parts = []
    for _ in range(0, n, width):
        parts.append(y @ small)
        y = stride * y
    return torch.cat(parts, -1)[..., :n]


def chebyshev_points(m: int, dtype: torch.dtype, device: torch.device | str | None = None) -> Tensor:
    """cos(pi (2i + 1) / 2m), shape (m,): the points of (-1, 1) that polynomials like best."""
    i = torch.arange(m, dtype=torch.float64, device="cpu")  # whatever the default device is
    return torch.cos((2 * i + 1) * (math.pi / (2 * m))).to(dtype=dtype, device=device)
