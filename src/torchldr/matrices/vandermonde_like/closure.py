"""Closure rules of Vandermonde-like matrices."""

from __future__ import annotations

from ...algebra.members import linear_in_generators, member, scales_rows, shift
from ...algebra.structure import DisplacementStructure
from ...core.linear_map import LinearMap
from ...core.rules import rule
from ...operators import Diagonal, Shift, same
from . import VandermondeLike

linear_in_generators(VandermondeLike)
scales_rows(VandermondeLike, "G")


@rule("displacement_structure", VandermondeLike)
def _(M: VandermondeLike) -> DisplacementStructure:
    """M - diag(nodes) M Z_0^T, of rank r."""
    C = shift(M.in_features, 0.0, M)
    return DisplacementStructure(Diagonal(M.nodes), C.T, "stein", M.G.shape[0], lambda: (M.G, M.H))


@rule("member", VandermondeLike)
def _(M: LinearMap, known: DisplacementStructure) -> VandermondeLike | None:
    nilpotent = Shift(M.in_features, 0.0).T
    if not (isinstance(known.A, Diagonal) and known.form == "stein" and same(known.B, nilpotent)):
        return None
    nodes = known.A.d.to(M.dtype)
    return member(VandermondeLike, M, known.generators(), nodes=nodes, learn_nodes=True)
