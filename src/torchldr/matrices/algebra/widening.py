"""Linear maps in float64, and whether they carry gradients: what `solve` has to know of every class."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ...core.linear_map import LinearMap
from ...core.matrix import StructuredMatrix
from .blocks import Block
from .constructors_base import ClassicalMatrix
from .lazy import Inverse, Pair, Scaled, Transposed


def widened(M: LinearMap) -> LinearMap:
    """The same map in float64 or complex128, as far as its class is known."""
    if isinstance(M, StructuredMatrix):
        return M.double()
    if isinstance(M, ClassicalMatrix):
        other = copy.copy(M)
        for name, value in vars(M).items():
            if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
                setattr(other, name, value.to(torch.complex128 if value.is_complex() else torch.float64))
        return other
    if isinstance(M, Transposed):
        return Transposed(widened(M.of))
    if isinstance(M, Scaled):
        return Scaled(widened(M.of), M.scalar)
    if isinstance(M, Inverse):
        return Inverse(widened(M.of))
    if isinstance(M, Block):
        return Block(tuple(tuple(widened(part) for part in row) for row in M.grid))
    if isinstance(M, Pair):
        return type(M)(widened(M.left), widened(M.right))
    return M


def may_require_grad(M: LinearMap) -> bool:
    """Whether M may be made of something that requires a gradient: True for a class that is not known."""
    if isinstance(M, StructuredMatrix):
        return any(t.requires_grad for t in M.tensors.values())
    if isinstance(M, ClassicalMatrix):
        return any(isinstance(t, Tensor) and t.requires_grad for t in vars(M).values())
    if isinstance(M, Pair):
        return may_require_grad(M.left) or may_require_grad(M.right)
    if isinstance(M, Transposed | Inverse):
        return may_require_grad(M.of)
    return True
