"""Loops compiled by Numba, lazily and once, beside the same in plain torch for where they cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .compiled import Loops, numbers, wide


class Loop:
    """A loop over the memory of some tensors, of which it changes the last ones.

    Args:
        kernel: what Numba compiles.
        plain: the same in operations of torch.
        shapes: of the small tensors that both are compared on.
    """

    def __init__(
        self, kernel: Callable[..., None], plain: Callable[..., None], *shapes: tuple[int, ...]
    ) -> None:
        self._kernel, self._plain, self._shapes = kernel, plain, shapes
        self._loops = Loops(f"projection, {kernel.__module__}.{kernel.__name__}", self._check)

    def __call__(self, *tensors: Tensor) -> None:
        """Run the compiled kernel where it serves, else its plain twin. Outputs must be contiguous."""
        if self._loops.serves(*tensors):
            self._compiled(*(t.detach().contiguous().numpy() for t in tensors))
        else:
            self._plain(*tensors)

    @cached_property
    def _compiled(self) -> Any:
        from .jit import jit  # imports numba

        # fastmath would reassociate sums; contraction to fused multiply-adds is all that is wanted.
        return jit(fastmath={"contract"})(self._kernel)

    def _check(self, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
        got = [numbers(*shape, dtype=dtype) for shape in self._shapes]
        right = [wide(t) for t in got]
        self._compiled(*(t.numpy() for t in got))
        self._plain(*right)
        yield from zip(got, right, strict=True)
