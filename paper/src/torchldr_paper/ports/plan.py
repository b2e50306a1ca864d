"""The port product for a fixed operator: everything that does not depend on the input is kept.

A plan holds, of each level, what arrives on either side of each cut from the ports of the joined blocks and
from the start vectors (B of `levels`), and the leaves' Krylov matrices. A product is then the leaves, and two
transforms forward and two back for each pair of blocks, level by level.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .series import check
from .sweep import Closing, Sweep


class PortPlan:
    """K_k(A, v_i)^T u and K_k(A, v_i) w for one ring operator and its start vectors, kept ready.

    Args:
        lower, diagonal, upper, V, k, oversampling: as for `port_rmatmul`.

    Attributes:
        n, rank, k, oversampling: sizes.

    Memory for (4 + 2r) c n numbers a level and (2 + r) c n `series.LEAF` in the leaves. Making a plan costs
    about as much as `port_rmatmul`. Products have no gradients and wait for no device: they can be captured
    in a CUDA graph. On a GPU torch's setting for TF32 holds for the leaves' matrix products.

    Example:

        >>> ring, V = torch.rand(3, 100) / 3, torch.randn(1, 100)
        >>> plan = PortPlan(*ring, V, 100)
        >>> plan.matmul(plan.rmatmul(torch.randn(2, 100))).shape
        torch.Size([2, 100])
    """

    @torch.no_grad()
    def __init__(
        self, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int, *, oversampling: int = 4
    ) -> None:
        check(lower, diagonal, upper, V, V, k, oversampling)
        self.rank, self.n = V.shape
        self.k, self.oversampling = k, oversampling
        self._like = V.new_empty(0)
        self._sweep = Sweep(lower, diagonal, upper, V, oversampling)
        a, b = lower.detach()[0], upper.detach()[-1]
        corners = bool((a != 0) | (b != 0))
        self._closing = Closing(self._sweep.top, a, b, k) if corners else None

    @torch.no_grad()
    def rmatmul(self, U: Tensor) -> Tensor:
        """K_k(A, v_i)^T u_b for every i and b: (b, n) to (b, r, k)."""
        self._check("rmatmul", "U", U, (self.n,))
        result, top = self._sweep.rows_up(U, self.k, top=self._closing is not None)
        if self._closing is None or top is None:
            return result
        return result + self._closing.add(top)

    @torch.no_grad()
    def matmul(self, w: Tensor) -> Tensor:
        """sum_i K_k(A, v_i) w_i: (b, r, k) to (b, n)."""
        self._check("matmul", "w", w, (self.rank, self.k))
        return self._sweep.rows_down(w, None if self._closing is None else self._closing.transpose(w))

    def _check(self, name: str, argument: str, x: Tensor, shape: tuple[int, ...]) -> None:
        if x.dim() != 1 + len(shape) or x.shape[1:] != shape or x.dtype != self._like.dtype:
            raise ValueError(
                f"PortPlan.{name}: {argument} must be (b, {', '.join(map(str, shape))}) in "
                f"{self._like.dtype}, got {tuple(x.shape)} in {x.dtype}."
            )
