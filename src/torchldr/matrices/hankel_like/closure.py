"""Closure rules of Hankel-like matrices."""

from __future__ import annotations

from ...algebra.members import krylov_generators, linear_in_generators, member, shift
from ...algebra.structure import DisplacementStructure, Generators
from ...core.linear_map import LinearMap
from ...core.rules import rule
from ...operators import Operator, same
from ..toeplitz_like import corner_sign
from ..toeplitz_like.closure import displacement_generators
from . import HankelLike

linear_in_generators(HankelLike)


@rule("displacement_structure", HankelLike)
def _(M: HankelLike) -> DisplacementStructure:
    """By Z_a^T and Z_{-a}^T, of rank r."""

    def make() -> Generators:
        G, H = displacement_generators(M)
        return G.flip(-1), H

    return DisplacementStructure(*_operators(M), "stein", M.G.shape[0], make)


@rule("fixed_operators", HankelLike)
def _operators(M: LinearMap) -> tuple[Operator, Operator]:
    m, n = M.shape
    a = corner_sign(m, n)
    return shift(m, a, M).T, shift(n, -a, M).T


@rule("member", HankelLike)
def _(M: LinearMap, known: DisplacementStructure) -> HankelLike | None:
    A, B = _operators(M)
    if known.form != "stein" or not (same(known.A, A) and same(known.B, B)):
        return None
    G, H = known.generators()
    found = krylov_generators(G.flip(-1), H, A.T, B.T)
    return None if found is None else member(HankelLike, M, found)
