"""A matrix that the runtime makes from its operators and generators: LDR-TD, and LDR-SD of any range.

The graph holds the parameters alone and computes M = sum_i K(A, g_i) K(C, h_i)^T from them, by nodes that do
not depend on the input. onnxruntime runs such nodes once, when it loads the file, and keeps the result: the
file is small, and a product is one dense matrix product.

    columns     K = [X, A^p X, A^{2p} X, ..],  X the first p columns, p near sqrt(n)
    powers      A couples neighbours on a ring, so A^q couples a block of p <= q indices to itself and to
                the blocks beside it: rows of the q-th power of windows of 3p indices, by squaring

Rows are picked by `embedding`, which exporters write as one Gather.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from ..subdiagonal.guard import Side
from ..tridiagonal import UNSEEN
from .scale import balanced_rings

_TOGETHER = 1 << 25  # numbers of the columns that are multiplied at a time


class GrownMatrix(nn.Module):
    """x M^T for a matrix made in the graph: (b, n) to (b, m).

    Args:
        A, C: the diagonals of the operators as rings, see `torchldr.functional.tridiagonal`: (m, 3) for
            lower, diagonal and upper, or (m, 1) for lower alone.
        G, H: the start vectors (r, m) and (r, n).
    """

    form = "made from its parameters when loaded"

    def __init__(self, A: Tensor, C: Tensor, G: Tensor, H: Tensor) -> None:
        super().__init__()
        r, m, n = *G.shape, H.shape[-1]
        k, p = min(m, n), block_size(min(m, n))
        # No entry of a shift's power is a sum, so nothing is lost there.
        self.wide = A.shape[-1] > 1 and k > UNSEEN and G.dtype == torch.float32
        A, C = (ring if self.wide else ring.to(G.dtype) for ring in balanced_rings(A, C, k))
        self.left, self.right = (KrylovColumns(*side, k, p, self.wide) for side in ((A, G), (C, H)))
        self.together = max(1, _TOGETHER // (p * r * max(m, n)))

    def forward(self, x: Tensor) -> Tensor:
        blocks = list(zip(self.right(), self.left(), strict=True))
        total: Tensor | None = None
        for i in range(0, len(blocks), self.together):
            right, left = zip(*blocks[i : i + self.together], strict=True)
            part = _joined(right) @ _joined(left).mT
            total = part if total is None else total + part
        assert total is not None
        return x @ (total.float() if self.wide else total)


def of_sides(A: Side, C: Side) -> GrownMatrix:
    """The same for subdiagonal operators with corners, given with their start vectors."""
    (_, _, G), (_, _, H) = A, C
    left, right = (torch.cat((corner.reshape(1), s)).unsqueeze(-1) for s, corner, _ in (A, C))
    return GrownMatrix(left, right, G, H)


class KrylovColumns(nn.Module):
    """K_k(A, v_i) for all i, p columns of each at a time: (m, p r), column t of v_i at t r + i.

    `wide` makes them in float64, as `torchldr.functional.tridiagonal` does where it sees no values.
    """

    ring: Tensor
    start: Tensor
    offsets: Tensor
    firsts: Tensor

    def __init__(self, ring: Tensor, V: Tensor, k: int, p: int, wide: bool) -> None:
        super().__init__()
        self.r, self.m = V.shape
        self.k, self.p, self.blocks, self.wide = k, p, -(-self.m // p), wide
        # Rows are unrolled to a whole number of blocks, those past the end being rows of the ring once more.
        self.register_buffer("offsets", torch.arange(self.m - p, self.m + 2 * p))
        self.register_buffer("firsts", torch.arange(0, self.blocks * p, p).unsqueeze(1))
        self.register_buffer("ring", ring.detach().clone())
        self.register_buffer("start", V.detach().mT.contiguous())

    def forward(self) -> Iterator[Tensor]:
        m, p, blocks = self.m, self.p, self.blocks
        windows = (self.offsets + self.firsts).remainder(m)  # (blocks, 3p)
        power = self._operator(windows)
        X = embedding(windows[:, p : 2 * p].reshape(blocks * p), self._taken(self.start))  # (rows, r)

        def applied(middle: Tensor, X: Tensor) -> Tensor:
            return (middle @ embedding(windows, X)).reshape(X.shape)

        width = 1
        while width < p:
            X = torch.cat((X, applied(power[:, p : 2 * p], X)), 1)
            power, width = power @ power, 2 * width
        middle = power[:, p : 2 * p]
        for done in range(0, self.k, p):
            X = applied(middle, X) if done else X
            yield X[:m, : min(p, self.k - done) * self.r]

    def _taken(self, stored: Tensor) -> Tensor:
        return stored.double() if self.wide else stored

    def _operator(self, windows: Tensor) -> Tensor:
        """The operator within each window, (blocks, 3p, 3p): row i of the diagonals moved right by i."""
        size, diagonals = 3 * self.p, self.ring.shape[-1]
        rows = pad(embedding(windows, self._taken(self.ring)), (0, size + 3 - diagonals))
        rows = rows.reshape(self.blocks, size * (size + 3))[:, : size * (size + 2)]
        return rows.reshape(self.blocks, size, size + 2)[..., 1 : size + 1]


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def block_size(m: int) -> int:
    """A power of two near sqrt(m), at most m.

    >>> [block_size(m) for m in (1, 3, 100, 1024, 4096)]
    [1, 2, 8, 32, 64]
    """
    p = 1
    while 4 * p * p <= 2 * m and 2 * p <= m:
        p *= 2
    return p
