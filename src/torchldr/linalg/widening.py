"""Linear maps in float64, and whether they may carry gradients, for `solve`.

Both are rules, "widened" and "may_require_grad". The defaults widen all tensors and answer yes.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor

from ..algebra.lazy import Inverse, Pair, Transposed
from ..algebra.recompress import Recompressed
from ..core import rules
from ..core.linear_map import LinearMap
from ..core.matrix import StructuredMatrix
from ..core.rules import rule


def widened(M: LinearMap) -> LinearMap:
    """The same map in float64 or complex128."""
    return rules.apply("widened", M)


def may_require_grad(M: LinearMap) -> bool:
    """Whether any part of M may require a gradient; True for an unknown class."""
    return rules.apply("may_require_grad", M)


@rule("widened", LinearMap)
def _(M: LinearMap) -> LinearMap:
    """A copy with its tensors and parts widened."""
    other = copy(M)
    for name, value in vars(M).items():
        setattr(other, name, _wide(value))
    other._transpose = None
    return other


def _wide(value: Any) -> Any:
    match value:
        case LinearMap():
            return widened(value)
        case tuple():
            return tuple(map(_wide, value))
        case torch.dtype():
            return torch.complex128 if value.is_complex else torch.float64
        case Tensor() if value.is_floating_point() or value.is_complex():
            return value.to(_wide(value.dtype))
    return value


rule("widened", StructuredMatrix)(lambda M: M.double())


@rule("widened", Recompressed)
def _(M: Recompressed) -> LinearMap:
    return widened(M.of)  # its cached generators have the old dtype


@rule("may_require_grad", LinearMap)
def _(M: LinearMap) -> bool:
    if isinstance(M, Pair):
        return may_require_grad(M.left) or may_require_grad(M.right)
    return may_require_grad(M.of) if isinstance(M, Transposed | Inverse) else True


rule("may_require_grad", StructuredMatrix)(lambda M: any(t.requires_grad for t in M.tensors.values()))
