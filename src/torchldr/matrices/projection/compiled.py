"""Loops compiled by Numba, lazily and once, beside the same in plain torch for where it is missing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from torch import Tensor

from ...functional import stencil


def run(kernel: Callable[..., None], plain: Callable[..., None], *tensors: Tensor) -> None:
    """Call the compiled kernel on the tensors' memory, or its plain twin. Outputs must be contiguous."""
    if stencil.unavailable() is None:
        _compiled(kernel)(*(t.detach().contiguous().numpy() for t in tensors))
    else:
        plain(*tensors)


@cache
def _compiled(kernel: Callable[..., None]) -> Callable[..., None]:
    import numba

    # fastmath would reassociate sums; contraction to fused multiply-adds is all that is wanted.
    compiled: Callable[..., None] = numba.njit(cache=True, nogil=True, fastmath={"contract"})(kernel)
    return compiled
