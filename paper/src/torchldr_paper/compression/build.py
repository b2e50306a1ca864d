"""Dense matrices from stacked parameters of a class, differentiably: name -> (S, ...) to (S, m, n).

A model's layers of one shape, or one layer of many models, are made by the same few operations. At the
widths of these models the dense matrix of every class is cheap to make on a GPU, and nothing reads a value
on the way, so that a step can be captured as a graph. `pruned` is a weight with a mask.

    ldr_sd, toeplitz_like, hankel_like     recurrences along diagonals, `functional.scan`
    vandermonde_like                       the same down the columns
    ldr_td                                 Krylov columns, or for many of them dense powers; then products
    the others                             products of matrices and gathers
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torchldr.functional.cauchy import cauchy_reference
from torchldr.functional.doubling import operator_weights, shift_weights
from torchldr.functional.orthogonal import cosine_reference, hadamard_reference
from torchldr.functional.stein_scan import column_scan, stein_matrix
from torchldr.kernels import cuda
from torchldr.matrices.toeplitz_like import corner_sign

from ..models.stacked.tridiagonal import _Kernel, krylov_tiles

Tensors = Mapping[str, Tensor]
Shape = tuple[int, int]


def build(name: str, shape: Shape, tensors: Tensors) -> Tensor:
    """The dense matrices of a class.

    Args:
        name: of the class, or "pruned".
        shape: (m, n).
        tensors: its parameters and constants with an axis S in front; computed constants without.

    Returns:
        Shape (S, m, n). The same, slowly: `to_dense` of every matrix.
    """
    m, n = shape
    match name:
        case "dense":
            return tensors["weight"]
        case "pruned":
            return tensors["weight"] * tensors["mask"]
        case "low_rank":
            return tensors["G"].mT @ tensors["H"]
        case "cauchy_like":
            return (tensors["G"].mT @ tensors["H"]) * cauchy_reference(tensors["s"], tensors["t"])
        case "ldr_sd":
            a, c = (operator_weights(tensors, side) for side in "AC")
            return stein_matrix(a, c, tensors["G"].mT @ tensors["H"])
        case "toeplitz_like" | "hankel_like":
            E, sign = tensors["G"].mT @ tensors["H"], float(corner_sign(m, n))
            a, c = (shift_weights(E, *which).expand(len(E), -1) for which in ((m, sign), (n, -sign)))
            M = stein_matrix(a, c, E)
            return M.flip(-2) if name == "hankel_like" else M
        case "vandermonde_like":
            return _vandermonde(tensors["nodes"], tensors["G"], tensors["H"])
        case "ldr_td":
            if _doubling_is_cheaper(tensors, shape):
                A, C = _tridiagonal(tensors, "A"), _tridiagonal(tensors, "C")
                return _doubled(A, C, tensors["G"].mT @ tensors["H"])
            KA, KC = _krylov(tensors, min(m, n))
            return KA.mT @ KC
        case "circulant":
            return _Circulants.apply(tensors["column"])[..., :m, :n]
        case "block_circulant":
            grid = _Circulants.apply(tensors["column"])  # (S, rows, columns, b, b)
            return grid.transpose(2, 3).flatten(3).flatten(1, 2)[:, :m, :n]
        case "fastfood":
            N = tensors["D"].shape[-1]
            H = _hadamard(1 << (N - 1).bit_length(), tensors["D"].dtype, tensors["D"].device)
            inner = H[:N, :n][tensors["permutation"]] * tensors["D"].unsqueeze(-1)
            return tensors["S"].unsqueeze(-1) * (H[:m, :N] @ inner) * tensors["B"].unsqueeze(-2)
        case "acdc":
            C = _cosine(max(m, n), tensors["D"].dtype, tensors["D"].device)
            return tensors["A"].unsqueeze(-1) * (C[:m] @ (tensors["D"].unsqueeze(-1) * C.mT[:, :n]))
    raise ValueError(f"build: no way to build {name!r}.")


def product(name: str, shape: Shape, tensors: Tensors, x: Tensor) -> Tensor:
    """x M^T for every matrix: (b, n) or (S, b, n) to (S, b, m), not through M where that is cheaper."""
    if name == "low_rank":
        return (x @ tensors["H"].mT) @ tensors["G"]
    if name == "ldr_td" and not _doubling_is_cheaper(tensors, shape):
        KA, KC = _krylov(tensors, min(shape))
        return (x @ KC.mT) @ KA
    return x @ build(name, shape, tensors).mT


# Recurrences along diagonals.


def _vandermonde(nodes: Tensor, G: Tensor, H: Tensor) -> Tensor:
    """M_ij = node_i M_{i, j-1} + (G^T H)_ij, transposed."""
    E = H.mT @ G
    return column_scan(nodes.to(E.dtype).expand(len(E), -1), E).mT


# Tridiagonal operators with corners.


def _ring(tensors: Tensors, side: str) -> tuple[Tensor, Tensor, Tensor]:
    """What a place takes from the one before it, from itself and from the one after it, (S, size) each."""
    corners = tensors[f"corners_{side}"]
    lower = torch.cat((corners[:, :1], tensors[f"subdiagonal_{side}"]), 1)
    upper = torch.cat((tensors[f"superdiagonal_{side}"], corners[:, 1:]), 1)
    return lower, tensors[f"diagonal_{side}"], upper


def _tridiagonal(tensors: Tensors, side: str) -> Tensor:
    """The dense operators, (S, size, size)."""
    lower, diagonal, upper = _ring(tensors, side)
    identity = torch.eye(diagonal.shape[1], dtype=diagonal.dtype, device=diagonal.device)
    parts = zip((lower, diagonal, upper), (-1, 0, 1), strict=True)
    return sum((d.unsqueeze(-1) * identity.roll(by, 1) for d, by in parts), torch.zeros_like(identity))


def _doubling_is_cheaper(tensors: Tensors, shape: Shape) -> bool:
    """Whether some eight products of size^3 a doubling cost less than one of rank times that and columns."""
    return tensors["G"].shape[-2] > 4 * math.log2(max(shape))


def _doubled(A: Tensor, C: Tensor, E: Tensor) -> Tensor:
    """sum_{t < k} A^t E (C^t)^T, k = min(m, n), by S_2k = S_k + A^k S_k (C^k)^T: the rank does not matter."""
    S, left, right = E, A, C
    for bit in f"{min(E.shape[-2:]):b}"[1:]:
        S = S + left @ S @ right.mT
        left, right = left @ left, right @ right
        if bit == "1":
            S = E + A @ S @ C.mT
            left, right = A @ left, C @ right
    return S


def _krylov(tensors: Tensors, k: int) -> tuple[Tensor, Tensor]:
    """Both operators' Krylov matrices as rows: (S, q, m) and (S, q, n)."""

    def side(which: str, V: Tensor) -> Tensor:
        lower, diagonal, upper = _ring(tensors, which)
        if cuda.serves(V.shape[-1], lower, diagonal, upper, V):
            return _Kernel.apply(lower, diagonal, upper, V.contiguous(), k).flatten(1, 2)
        return krylov_tiles(torch.stack((lower, diagonal, upper), -1), V, k).transpose(2, 3).flatten(1, 2)

    return side("A", tensors["G"]), side("C", tensors["H"])


# Gathers and fixed transforms.


class _Circulants(torch.autograd.Function):
    """(..., b) to (..., b, b), M[i, j] = column[(i - j) mod b]; the backward gathers too and then sums."""

    @staticmethod
    def forward(ctx: Any, column: Tensor) -> Tensor:
        return column[..., _differences(column.shape[-1], column.device)]

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> Tensor:
        index = _differences(D.shape[-1], D.device)
        return D.gather(-1, index.expand_as(D)).sum(-2)


@lru_cache(maxsize=16)
def _differences(b: int, device: torch.device) -> Tensor:
    i = torch.arange(b, device=device)
    return (i.unsqueeze(1) - i) % b


@lru_cache(maxsize=4)
def _hadamard(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return hadamard_reference(size, dtype).to(device)


@lru_cache(maxsize=4)
def _cosine(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return cosine_reference(size, dtype).to(device)
