"""BLAST: blocks of low rank that share their bases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.checks import check_cut
from ...core.contract import Random, Weights
from ...core.matrix import StructuredMatrix, normal_
from ...core.owned import owned
from ...functional.grid import cut, joined, one_by_one, split


def grid(m: int, n: int, blocks: int | None) -> tuple[tuple[int, int], tuple[int, int]]:
    """How rows and columns are cut: (u, p) and (v, q), counts and widths of blocks."""
    if blocks is None:  # couplings are then at most a quarter of what the bases are
        blocks = 1
        while 4 * (2 * blocks) ** 2 <= m + n:
            blocks *= 2
    return split(m, blocks), split(n, blocks)


class Blast(StructuredMatrix, name="blast"):
    """BLAST: a grid of u x v blocks, the last ones cropped, with bases that rows and columns of blocks share.

    Block (j, i) is U_j diag(s_ji) V_i^T: with row o in block j and column q in block i,

        M[o, q] = sum_s G[s, o] S[s, j, i] H[s, q].

    Parameters: `G` (r, m), `S` (r, u, v), `H` (r, n). Cost: r (m + n + u v) multiply-adds a vector.

    Options:
        blocks: of the rows and of the columns, u = v; from 1 (low rank) to max(m, n) (a side is cut into
            single entries at most). By default the largest power of two b with 4 b^2 <= m + n. It need not
            divide m or n: with blocks of ceil(m / u) rows the last one is smaller.

    Reference: Lee et al., "BLAST: block-level adaptive structured matrices for efficient deep neural network
    inference", 2024.
    """

    look = "#117A65", "d"
    at_once = "_matmul", "_rmatmul", "_materialize"

    own_dtype = True
    scaled = ("G", "S", "H")
    cpu_frozen = 32.0
    cpu_training = 10.0, 128.0, 5e5
    gpu_frozen = 15.0, 2.5e9
    gpu_training = 20.0, 0.0
    projection_work = 6

    @classmethod
    def parameter_shapes(
        cls, out_features: int, in_features: int, rank: int, *, blocks: int | None = None
    ) -> dict[str, tuple[int, ...]]:
        check_cut(cls.__name__, "blocks", blocks, out_features, in_features)
        (u, _), (v, _) = grid(out_features, in_features, blocks)
        return {"G": (rank, out_features), "S": (rank, u, v), "H": (rank, in_features)}

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        std = (3 * in_features * tensors["G"].shape[-2]) ** -0.25
        normal_(tensors["G"], std, generator)
        normal_(tensors["S"], 1.0, generator)
        normal_(tensors["H"], std, generator)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        (u, _), (v, _) = grid(out_features, in_features, options.get("blocks"))
        return rank * (out_features + in_features + u * v)

    @property
    def grid(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """How rows and columns are cut: (u, p) and (v, q), counts and widths of blocks."""
        return grid(self.out_features, self.in_features, self.options["blocks"])

    def bases(self) -> tuple[Tensor, Tensor]:
        """G as (..., u, r, p) and H as (..., v, r, q), with zeros in cropped blocks."""
        rows, columns = self.grid
        return cut(owned(self.G), *rows).transpose(-3, -2), cut(owned(self.H), *columns).transpose(-3, -2)

    def factors(self) -> list[tuple[Tensor, ...]]:
        ((u, p), (v, q)), r = self.grid, self.G.shape[0]
        L, R = one_by_one(self.G, u, p), one_by_one(self.H, v, q)
        couplings = torch.diag_embed(self.S.permute(1, 2, 0)).transpose(1, 2).reshape(u * r, v * r)
        return [(L.flatten(0, 1).mT, couplings, R.flatten(0, 1))]

    def _materialize(self) -> Tensor:
        G, H = self.bases()
        coupled = G.mT.unsqueeze(-3) * owned(self.S).movedim(-3, -1).unsqueeze(-2)  # (..., u, v, p, r)
        rows = joined((coupled @ H.unsqueeze(-4)).transpose(-3, -2), self.in_features)  # (..., u, p, n)
        return rows.flatten(-3, -2)[..., : self.out_features, :]

    def _matmul(self, x: Tensor) -> Tensor:
        G, H = self.bases()
        return _product(x, G, owned(self.S), H, self.out_features)

    def _rmatmul(self, y: Tensor) -> Tensor:
        G, H = self.bases()
        return _product(y, H, self.S.mT, G, self.in_features)


def _product(x: Tensor, G: Tensor, S: Tensor, H: Tensor, size: int) -> Tensor:
    """(..., b, n) to (..., b, m): the inner products of every block, coupled, then the other bases."""
    z = cut(x, H.shape[-3], H.shape[-1]).transpose(-3, -2) @ H.mT  # (..., v, b, r)
    z = (S @ z.movedim(-1, -3)).movedim(-3, -1)  # (..., u, b, r)
    return joined((z @ G).transpose(-3, -2), size)
