"""Solving with low-rank matrices: singular, but for r = n."""

from __future__ import annotations

import torch

from ...core.rules import rule
from ...linalg.solvers import Candidate, dense, formula
from . import LowRank


@rule("solvers", LowRank)
def _(M: LowRank) -> list[Candidate]:
    if M.G.shape[0] < M.in_features:  # of rank r, so singular whatever G and H are
        nothing = lambda b: torch.full_like(b, torch.nan)
        return [formula("none: singular", nothing, nothing)]
    return [dense(M)]
