"""Sums of Kronecker products."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.checks import checked_int
from ...core.matrix import StructuredMatrix
from ...functional.grid import cut, joined, near_root, split


class Sizes(NamedTuple):
    """Of the factors: A is a x c, B is b x d, with a b >= m and c d >= n."""

    a: int
    b: int
    c: int
    d: int


def sizes(m: int, n: int, out_blocks: int | None, in_blocks: int | None) -> Sizes:
    """The factors' sizes for a matrix m x n."""
    return Sizes(*split(m, out_blocks or near_root(m, m)), *split(n, in_blocks or near_root(n, n)))


class Kronecker(StructuredMatrix, name="kronecker"):
    """A sum of Kronecker products, M = sum_k A_k (x) B_k, cropped to m x n.

    A_k is a x c and B_k is b x d: a grid of a x c blocks, each a multiple of B_k. The rank is the number of
    terms.

    Parameters: `G` (r, a c), the entries of each A_k row by row, and `H` (r, b d), those of each B_k. Cost:
    r b c (d + a) multiply-adds a vector.

    Options:
        out_blocks: a, the rows of A, from 1 to m; by default near sqrt(m). Where it does not divide m,
            b = ceil(m / a), and the product is cropped.
        in_blocks: c, the columns of A, likewise for n.

    Reference: Van Loan, Pitsianis, "Approximation with Kronecker products", 1993.
    """

    look = "#B5651D", "X"
    at_once = "_matmul", "_rmatmul", "_materialize"

    own_dtype = True
    cpu_frozen = 2.8
    cpu_training = 2.8, 60.0, 3e6
    gpu_frozen = 3.0, 2.5e9
    gpu_training = 6.0, 5e9
    projection_work = 2

    @classmethod
    def parameter_shapes(
        cls,
        out_features: int,
        in_features: int,
        rank: int,
        *,
        out_blocks: int | None = None,
        in_blocks: int | None = None,
    ) -> dict[str, tuple[int, ...]]:
        if out_blocks is not None:
            checked_int(cls.__name__, "out_blocks", out_blocks, most=out_features, why="out_features")
        if in_blocks is not None:
            checked_int(cls.__name__, "in_blocks", in_blocks, most=in_features, why="in_features")
        a, b, c, d = sizes(out_features, in_features, out_blocks, in_blocks)
        return {"G": (rank, a * c), "H": (rank, b * d)}

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        a, b, c, d = sizes(out_features, in_features, options.get("out_blocks"), options.get("in_blocks"))
        return rank * b * c * (d + a)

    @property
    def sizes(self) -> Sizes:
        """Of the factors."""
        return sizes(self.out_features, self.in_features, **self.options)

    @property
    def A(self) -> Tensor:
        """The first factors, shape (..., r, a, c)."""
        return self.G.unflatten(-1, (self.sizes.a, self.sizes.c))

    @property
    def B(self) -> Tensor:
        """The second factors, shape (..., r, b, d)."""
        return self.H.unflatten(-1, (self.sizes.b, self.sizes.d))

    def factors(self) -> list[tuple[Tensor, ...]]:
        m, n = self.out_features, self.in_features
        return [(torch.kron(A, B)[:m, :n],) for A, B in zip(self.A, self.B, strict=True)]

    def _materialize(self) -> Tensor:
        a, b, c, d = self.sizes
        blocks = (self.G.mT @ self.H).unflatten(-1, (b, d)).unflatten(-3, (a, c))  # (..., a, c, b, d)
        rows = joined(blocks.transpose(-3, -2), self.in_features)  # (..., a, b, n)
        return rows.flatten(-3, -2)[..., : self.out_features, :]

    def _matmul(self, x: Tensor) -> Tensor:
        return _product(x, self.A, self.B, self.out_features)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return _product(y, self.A.mT, self.B.mT, self.in_features)


def _product(x: Tensor, A: Tensor, B: Tensor, size: int) -> Tensor:
    """sum_k A_k X B_k^T for every row x of X's entries: (..., batch, n) to (..., batch, m)."""
    (r, b, d), (a, c) = B.shape[-3:], A.shape[-2:]
    rows = cut(x, c, d).flatten(-3, -2) @ B.flatten(-3, -2).mT  # (..., batch c, r b)
    z = rows.reshape(*rows.shape[:-2], x.shape[-2], c, r, b)
    z = z.transpose(-3, -2).flatten(-3, -2)  # (..., batch, r c, b)
    A = A.movedim(-3, -2).flatten(-2).unsqueeze(-3)
    if not z.is_cuda and a * r * c <= (a + r * c) * b:
        # A product for each row: for a single one torch would transpose z and y. A's gradient, before its sum
        # over rows, is no larger than z and y here.
        A = A.expand(*z.shape[:-2], -1, -1)
    return joined(A @ z, size)  # (..., batch, a, b) to (..., batch, m)
