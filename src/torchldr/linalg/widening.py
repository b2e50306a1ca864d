"""Linear maps in float64, and whether they carry gradients: what `solve` has to know of every map.

Both are rules, "widened" and "may_require_grad". Those of a map without any: itself, and yes.
"""

from __future__ import annotations

from ..algebra.blocks import Block
from ..algebra.lazy import Inverse, Pair, Scaled, Transposed
from ..core import rules
from ..core.linear_map import LinearMap
from ..core.matrix import StructuredMatrix
from ..core.rules import rule


def widened(M: LinearMap) -> LinearMap:
    """The same map in float64 or complex128, as far as its class is known."""
    return rules.apply("widened", M)


def may_require_grad(M: LinearMap) -> bool:
    """Whether M may be made of something that requires a gradient: True for a class that is not known."""
    return rules.apply("may_require_grad", M)


@rule("widened", LinearMap)
def _(M: LinearMap) -> LinearMap:
    match M:
        case StructuredMatrix():
            return M.double()
        case Pair():
            return type(M)(widened(M.left), widened(M.right))
        case Transposed() | Inverse():
            return type(M)(widened(M.of))
        case Scaled():
            return Scaled(widened(M.of), M.scalar)
        case Block():
            return Block(tuple(tuple(map(widened, row)) for row in M.grid))
    return M


@rule("may_require_grad", LinearMap)
def _(M: LinearMap) -> bool:
    if isinstance(M, Pair):
        return may_require_grad(M.left) or may_require_grad(M.right)
    return may_require_grad(M.of) if isinstance(M, Transposed | Inverse) else True


@rule("may_require_grad", StructuredMatrix)
def _(M: StructuredMatrix) -> bool:
    return any(t.requires_grad for t in M.tensors.values())
