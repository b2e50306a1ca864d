"""Solving with BLAST matrices: singular, where the bases are too small."""

from __future__ import annotations

import torch

from ...core.rules import rule
from ...linalg.solvers import Candidate, formula
from . import Blast


@rule("solvers", Blast)
def _(M: Blast) -> list[Candidate] | None:
    (u, _), (v, _) = M.grid
    if M.G.shape[0] * min(u, v) >= M.in_features:
        return None
    nothing = lambda b: torch.full_like(b, torch.nan)  # of rank r min(u, v), whatever the tensors are
    return [formula("none: singular", nothing, nothing)]
