"""Matrices made of blocks, and their displacement."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core import rules
from ..core.linear_map import LinearMap, show
from ..core.rules import rule
from ..operators import BlockDiagonal, Operator
from .closure import displaced, worthwhile
from .lazy import joint_dtype
from .multiply import real_dtype, through
from .structure import DisplacementStructure, Form, Generators

Grid = tuple[tuple[LinearMap, ...], ...]


class Block(LinearMap):
    """A grid of linear maps as one map: a product takes one product with each. Made by `block`."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.heights = [row[0].out_features for row in grid]
        self.widths = [M.in_features for M in grid[0]]
        self.out_features, self.in_features = sum(self.heights), sum(self.widths)
        self._dtype = joint_dtype([M for row in grid for M in row])

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self.grid[0][0].device

    @property
    def T(self) -> LinearMap:
        return Block(tuple(tuple(M.T for M in column) for column in zip(*self.grid, strict=True)))

    def matmul(self, x: Tensor) -> Tensor:
        parts = x.split(self.widths, -1)
        rows = [[through(M, M.matmul, part) for M, part in zip(row, parts, strict=True)] for row in self.grid]
        return torch.cat([reduce(torch.add, row) for row in rows], -1)

    def rmatmul(self, y: Tensor) -> Tensor:
        return self.T.matmul(y)

    def to_dense(self) -> Tensor:
        return torch.cat([torch.cat([M.to_dense() for M in row], -1) for row in self.grid], -2)

    def __repr__(self) -> str:
        rows = ", ".join(f"[{', '.join(repr(M) for M in row)}]" for row in self.grid)
        return f"block([{rows}])"


def block(grid: Sequence[Sequence[LinearMap | Tensor]]) -> Block:
    """The matrix made of these blocks, which are linear maps or matrices.

    If every block has low displacement rank, the blocks of a row share their left operator, and those of a
    column share their right one, then the displacement by the block-diagonal operators has the sum of their
    ranks: r k l for a k x l grid of rank r. Operators that differ add the rank of their difference.
    Toeplitz-like blocks make a Toeplitz-like matrix of rank at most r k l + 2k + 2l:
    `recompress(structure="toeplitz_like")`.

    >>> import torch
    >>> from torchldr import Circulant, ToeplitzLike
    >>> from torchldr.algebra import block
    >>> T, C = ToeplitzLike.random(32, 32, 2), Circulant.random(32, 32)
    >>> M = block([[T, C], [C, T]])
    >>> M.shape, M.rank_bound
    (torch.Size([64, 64]), 6)
    """
    maps = tuple(tuple(_map(M) for M in row) for row in grid)
    if not maps or not maps[0]:
        raise ValueError("block: at least one block is needed, got none.")
    for i, row in enumerate(maps):
        if len(row) != len(maps[0]):
            raise ValueError(f"block: row {i} has {len(row)} blocks, row 0 has {len(maps[0])}.")
        for j, M in enumerate(row):
            want = (row[0].out_features, maps[0][j].in_features)
            if tuple(M.shape) != want:
                raise ValueError(
                    f"block: block ({i}, {j}) must be {want[0]} x {want[1]} as its row and column are, "
                    f"got {show(M)}."
                )
    fixed = {real_dtype(M.dtype) for row in maps for M in row if not isinstance(M, Operator)}
    if len(fixed) > 1:
        raise TypeError(f"block: the blocks have dtypes {', '.join(sorted(map(str, fixed)))}; convert some.")
    return Block(maps)


def _map(M: LinearMap | Tensor) -> LinearMap:
    if isinstance(M, Tensor):
        if M.ndim != 2:
            raise ValueError(f"block: a block must have two axes, got shape {tuple(M.shape)}.")
        return rules.apply("linear_map", M)
    if not isinstance(M, LinearMap):
        raise TypeError(f"block: a block must be a linear map or a tensor, got {type(M).__name__}.")
    return M


@rule("displacement_structure", Block)
def _(M: Block) -> DisplacementStructure | None:
    """The displacement by the first operators of each row and column, as block diagonals."""
    known = [[(N, N.displacement_structure()) for N in row] for row in M.grid]
    form: Form = next((d.form for N, d in chain(*known) if d is not None and _leads(N)), "stein")
    left = [_leading(line, form) for line in known]
    right = [_leading(list(line), form) for line in zip(*known, strict=True)]
    if None in left or None in right:
        return None
    A, B = [d.A for d in left if d is not None], [d.B for d in right if d is not None]
    parts, matched = [], 0
    for i, row in enumerate(known):
        for j, (N, own) in enumerate(row):
            part = None if own is None else displaced(N, A[i], B[j], form, own)
            if part is None or own is None:
                return None
            matched += own.rank
            parts.append((i, j, part))
    rank = sum(part.rank for _, _, part in parts)
    if not worthwhile(rank, rank - matched, *M.shape):
        return None

    def make() -> Generators:
        G, H = zip(*(_placed(M, part, i, j) for i, j, part in parts), strict=True)
        return torch.cat(G), torch.cat(H)

    return DisplacementStructure(BlockDiagonal(A), BlockDiagonal(B), form, rank, make)


def _leads(M: LinearMap) -> bool:
    """Whether a block has operators of its own. A low-rank matrix has not: a rule gives it any others."""
    return rules.of_class("displaced", type(M)) is None


def _leading(
    line: list[tuple[LinearMap, DisplacementStructure | None]], form: Form
) -> DisplacementStructure | None:
    known = [(N, d) for N, d in line if d is not None]
    first = next((d for N, d in known if _leads(N)), known[0][1] if known else None)
    return None if first is None else first.in_form(form)


def _placed(M: Block, part: DisplacementStructure, i: int, j: int) -> Generators:
    """The generators of block (i, j) with zeros around them."""
    G, H = part.make()
    above, before = sum(M.heights[:i]), sum(M.widths[:j])
    G = pad(G, (above, M.out_features - above - G.shape[-1]))
    return G, pad(H, (before, M.in_features - before - H.shape[-1]))
