"""The stencil's columns and their adjoint (C is on its way)."""

from __future__ import annotations

from torch import Tensor


def serves(*tensors: Tensor) -> bool:
    return False


def columns(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    raise NotImplementedError


def adjoint(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, K: Tensor, dK: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    raise NotImplementedError
