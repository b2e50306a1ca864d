"""Monarch matrices: two block-diagonal factors with a permutation between them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...core.checks import check_cut
from ...core.matrix import StructuredMatrix
from ...functional.grid import cut, joined, near_root, one_by_one, split, two_stages


def grid(m: int, n: int, blocks: int | None) -> tuple[tuple[int, int], tuple[int, int]]:
    """How rows and columns are cut: (u, p) and (v, q), counts and widths of blocks."""
    blocks = blocks or near_root(m, n)
    return split(m, blocks), split(n, blocks)


class Monarch(StructuredMatrix, name="monarch"):
    """Monarch: M = L P R, block-diagonal L and R with a permutation P between them.

    The matrix is a grid of u x v blocks, the last ones cropped, each of rank r: for row o in block j and
    column q in block i,

        M[o, q] = sum_s G[s, i, o] H[s, j, q].

    Parameters: `G` (r, v m), for each term a v x m matrix, and `H` (r, u n), an u x n matrix. Cost:
    r (u n + v m) multiply-adds a vector.

    Options:
        blocks: of the rows and of the columns, u = v; from 1 (low rank) to max(m, n) (a side is cut into
            single entries at most). By default near (m n)^(1/4), the square root of a side. It need not
            divide m or n: with blocks of ceil(m / u) rows the last one is smaller.

    Reference: Dao et al., "Monarch: expressive structured matrices for efficient and accurate training",
    2022.
    """

    look = "#7A3E9D", "h"
    at_once = "_matmul", "_rmatmul", "_materialize"

    own_dtype = True
    cpu_frozen = 11.0
    cpu_training = 11.0, 256.0, 5e5
    gpu_frozen = 7.0, 2.5e9
    gpu_training = 15.0, 0.0
    projection_work = 4

    @classmethod
    def parameter_shapes(
        cls, out_features: int, in_features: int, rank: int, *, blocks: int | None = None
    ) -> dict[str, tuple[int, ...]]:
        check_cut(cls.__name__, "blocks", blocks, out_features, in_features)
        (u, _), (v, _) = grid(out_features, in_features, blocks)
        return {"G": (rank, v * out_features), "H": (rank, u * in_features)}

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        (u, _), (v, _) = grid(out_features, in_features, options.get("blocks"))
        return rank * (u * in_features + v * out_features)

    @classmethod
    def variants(cls, out_features: int, in_features: int) -> list[dict[str, Any]]:
        largest = min(out_features, in_features)
        return [{"blocks": 2**i} for i in range(1, 6) if 4**i <= largest]

    @property
    def grid(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """How rows and columns are cut: (u, p) and (v, q), counts and widths of blocks."""
        return grid(self.out_features, self.in_features, self.options["blocks"])

    def parts(self) -> tuple[Tensor, Tensor]:
        """G as (..., r, v, u, p) and H as (..., r, u, v, q), with zeros in cropped blocks."""
        (u, p), (v, q) = self.grid
        G, H = self.G.unflatten(-1, (v, -1)), self.H.unflatten(-1, (u, -1))
        return cut(G, u, p), cut(H, v, q)

    def factors(self) -> list[tuple[Tensor, ...]]:
        (u, p), (v, q) = self.grid
        terms: list[tuple[Tensor, ...]] = []
        for g, h in zip(self.G.unflatten(-1, (v, -1)), self.H.unflatten(-1, (u, -1)), strict=True):
            # R gives (i, j); the permutation makes that (j, i), which L takes.
            L, R = one_by_one(g, u, p), one_by_one(h, v, q).transpose(0, 1)
            terms.append((L.flatten(0, 1).mT, R.flatten(0, 1)))
        return terms

    def _materialize(self) -> Tensor:
        G, H = self.parts()
        blocks = G.movedim(-4, -1).transpose(-4, -3) @ H.movedim(-4, -2)  # (..., u, v, p, q)
        rows = joined(blocks.transpose(-3, -2), self.in_features)  # (..., u, p, n)
        return rows.flatten(-3, -2)[..., : self.out_features, :]

    def _matmul(self, x: Tensor) -> Tensor:
        return two_stages(x, *self.stages(), self.out_features)

    def stages(self) -> tuple[Tensor, Tensor]:
        """The weights of the two stages, as `two_stages` takes them."""
        G, H = self.parts()
        return _first(H), _second(G)

    def _rmatmul(self, y: Tensor) -> Tensor:
        G, H = self.parts()
        return two_stages(y, _first(G), _second(H), self.in_features)


def _first(H: Tensor) -> Tensor:
    """(..., r, u, v, q) to (..., v, q, r u), the weights of the first stage."""
    return H.flatten(-4, -3).movedim(-3, -1)


def _second(G: Tensor) -> Tensor:
    """(..., r, v, u, p) to (..., u, v r, p), the weights of the second stage."""
    return G.movedim(-2, -4).transpose(-3, -2).flatten(-3, -2)
