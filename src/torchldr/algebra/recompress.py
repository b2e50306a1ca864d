"""Recompression: fewer generators, and the member of a structured class with them.

The closure rules bound ranks from above. `recompress` computes the generators and drops those that are not
needed (two QR factorisations and a small SVD). If the operators are those of a class, the result is a member
of it, with one fast product instead of a chain.

A class takes part by its rules:

    "member"             from (M, structure) to the member with this displacement; None if operators differ
    "fixed_operators"    from M to A and B of M - A M B, for classes with operators independent of M's values
"""

from __future__ import annotations

from torch import Tensor

from ..core import rules
from ..core.linear_map import LinearMap
from ..core.matrix import StructuredMatrix
from ..core.rules import rule
from ..core.structures import get_structure
from .closure import displaced
from .structure import DisplacementStructure


class Recompressed(LinearMap):
    """A linear map with fewer generators: the same products, a smaller rank."""

    made_of = ("of",)

    def __init__(self, of: LinearMap, known: DisplacementStructure) -> None:
        self.of, self.known = of, known
        self.out_features, self.in_features = of.out_features, of.in_features

    def matmul(self, x: Tensor) -> Tensor:
        return self.of.matmul(x)

    def rmatmul(self, y: Tensor) -> Tensor:
        return self.of.rmatmul(y)

    def to_dense(self) -> Tensor:
        return self.of.to_dense()

    def __repr__(self) -> str:
        return f"{self.of!r}.recompress()"


rule("displacement_structure", Recompressed)(lambda M: M.known)


@rule("recompress", LinearMap)
def _(M: LinearMap, tol: float | None, structure: str | None) -> LinearMap:
    fixed = rules.by_class("fixed_operators")
    if structure is not None:
        cls: type = get_structure(structure)
        if cls not in fixed:
            names = " or ".join(repr(known.name) for known in fixed if issubclass(known, StructuredMatrix))
            raise ValueError(
                f"recompress: structure must be {names}, whose operators are fixed, got {structure!r}; "
                "torchldr.from_dense projects onto the others."
            )
        A, B = fixed[cls](M)
        near = displaced(M, A, B, "stein")
        if near is None:
            raise TypeError(f"{type(M).__name__} has no displacement operators near those of {structure!r}.")
        return _member(cls, M, near.reduced(tol))
    own = M._structure()
    known = own.reduced(tol)
    if M.dtype.is_complex:  # the classes are real
        return Recompressed(M, known)
    for way in (known, known.in_form("stein"), known.in_form("sylvester"), known.inverted()):
        if way is not None and (found := _smallest_member(M, way)) is not None:
            return found
    for cls, operators in fixed.items():
        A, B = operators(M)
        near = displaced(M, A, B, "stein")
        if near is not None and near.rank <= own.rank + 2:  # a corner of each operator differs
            return _member(cls, M, near.reduced(tol))
    return Recompressed(M, known)


def _smallest_member(M: LinearMap, known: DisplacementStructure) -> LinearMap | None:
    """The member with the fewest parameters among the classes with these operators."""
    found = [make(M, known) for make in rules.by_class("member").values()]
    members = [N for N in found if N is not None]
    return min(members, key=lambda N: sum(t.numel() for t in N.tensors.values()), default=None)


def _member(cls: type, M: LinearMap, known: DisplacementStructure) -> LinearMap:
    make = rules.of_class("member", cls)
    found = None if make is None else make(M, known)
    assert found is not None
    return found
