"""The compiled stencil: Krylov columns of a ring operator and their adjoint, on a CPU.

Numba compiles two loops, lazily and once (the machine code is cached on disk). Without Numba, or
where a tensor is not a plain one in CPU memory, `serves` says no and the plain form of `tridiagonal`
is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


@cache
def unavailable() -> str | None:
    """Why the compiled stencil cannot be used on this machine, or None where it can."""
    return None if find_spec("numba") else "numba is not installed"


def serves(*tensors: Tensor) -> bool:
    """Whether these tensors can go through the compiled loops."""
    if torch.compiler.is_compiling() or unavailable():
        return False
    return all(t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64) for t in tensors)


@cache
def _kernels() -> tuple[Any, Any]:
    import numba

    # fastmath would reassociate sums; contraction to fused multiply-adds is all that is wanted.
    compiled = numba.njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
    return compiled(_columns), compiled(_adjoint)


def _columns(lower: Any, diagonal: Any, upper: Any, K: Any, ready: int) -> None:
    """Fill columns `ready` .. of K (r, columns, m) from the one before."""
    r, columns, m = K.shape
    for i in range(r):
        for j in range(ready, columns):
            x, y = K[i, j - 1], K[i, j]
            y[0] = lower[0] * x[m - 1] + diagonal[0] * x[0] + upper[0] * x[1 % m]
            for p in range(1, m - 1):
                y[p] = lower[p] * x[p - 1] + diagonal[p] * x[p] + upper[p] * x[p + 1]
            if m > 1:
                y[m - 1] = lower[m - 1] * x[m - 2] + diagonal[m - 1] * x[m - 1] + upper[m - 1] * x[0]


def _adjoint(
    lower: Any, diagonal: Any, upper: Any, K: Any, dK: Any, carry: Any, dl: Any, dd: Any, du: Any
) -> None:
    """Run the adjoint stencil back over the columns of K, lambda_j = dK_j + A^T lambda_{j+1}.

    `carry` (r, m) is lambda of the column that follows, and in the end of the first one; the
    gradients of the coefficients, lambda_{j+1} K_j^T on the three diagonals, are added to dl, dd, du.
    """
    r, columns, m = K.shape
    for i in range(r):
        after = carry[i]
        for j in range(columns - 1, -1, -1):
            x, now = K[i, j], dK[i, j]
            for p in range(1, m):
                dl[p] += after[p] * x[p - 1]
            for p in range(m):
                dd[p] += after[p] * x[p]
            for p in range(m - 1):
                du[p] += after[p] * x[p + 1]
            dl[0] += after[0] * x[m - 1]
            du[m - 1] += after[m - 1] * x[0]
            for p in range(m):
                now[p] += diagonal[p] * after[p]
            for p in range(m - 1):
                now[p] += lower[p + 1] * after[p + 1]
            for p in range(1, m):
                now[p] += upper[p - 1] * after[p - 1]
            now[m - 1] += lower[0] * after[0]
            now[0] += upper[m - 1] * after[m - 1]
            after = now
        carry[i] = after


def tiles(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int, width: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Run the stencil from V, `width` columns at a time.

    Yields:
        (j, column j of every Krylov matrix (r, m), columns j .. (r, width or fewer, m)). The last is
        scratch that the next step overwrites.
    """
    step = _kernels()[0]
    ring = [t.detach().contiguous().numpy() for t in (lower, diagonal, upper)]
    state = V.detach().clone(memory_format=torch.contiguous_format)
    r, m = V.shape
    scratch = V.new_empty(r, min(width, k) + 1, m)
    for j in range(0, k, width):
        columns = min(width, k - j)
        scratch[:, 0] = state
        step(*ring, scratch[:, : columns + 1].numpy(), 1)
        yield j, state, scratch[:, :columns]
        state = scratch[:, columns].clone()


def adjoint(
    lower: Tensor,
    diagonal: Tensor,
    upper: Tensor,
    K: Tensor,
    dK: Tensor,
    carry: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Run the adjoint stencil back over a tile: `carry` and `gradients` are updated in place."""
    ring = [t.detach().contiguous().numpy() for t in (lower, diagonal, upper)]
    collected = [g.numpy() for g in gradients]
    _kernels()[1](*ring, K.numpy(), dK.numpy(), carry.numpy(), *collected)
