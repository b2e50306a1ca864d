"""Solving with LDR-TD: as with LDR-SD where its operators are subdiagonal, else the general way."""

from __future__ import annotations

from ...core.rules import rule
from ...linalg.candidates import candidates
from ...linalg.solvers import Candidate
from ..ldr_sd import LDRSubdiagonal
from . import LDRTridiagonal


@rule("solvers", LDRTridiagonal)
def _(M: LDRTridiagonal) -> list[Candidate] | None:
    """Where training starts the operators are subdiagonal, and so this is an LDR-SD matrix."""
    tensors = {"G": M.G, "H": M.H}
    for side in "AC":
        lower, diagonal, upper = M._ring(side)
        if bool(diagonal.any()) or bool(upper.any()) or M.in_features == 1:
            return None
        tensors |= {f"subdiagonal_{side}": lower[1:], f"corner_{side}": lower[:1]}
    options = LDRSubdiagonal.check_options({})
    return candidates(LDRSubdiagonal.unchecked(M.out_features, M.in_features, tensors, options))
