"""Estimates of condition numbers, by products and solutions alone."""

from __future__ import annotations

import torch

from ..core.linear_map import LinearMap, show
from .certificate import condition_by, random_rows
from .solve import certified_by, products
from .widening import widened


@torch.no_grad()
def condition_estimate(M: LinearMap, *, steps: int = 8) -> float:
    """The condition number |M| |M^-1| in the 2-norm, estimated from below.

    Args:
        M: a square linear map.
        steps: of the power iterations for |M| and |M^-1|. The estimate grows with them towards the
            condition number; 8 steps are nearly always within a factor of 2.

    Returns:
        The estimate; inf where M is singular to working precision.

    Cost: 2 steps products, and as many solutions by one elimination. The same, slowly:
    `torch.linalg.cond(M.to_dense())`.

    >>> import torch, torchldr
    >>> M = torchldr.Dense(3, 3, weight=torch.diag(torch.tensor([4.0, 2.0, 1.0])))
    >>> round(torchldr.linalg.condition_estimate(M), 2)
    4.0
    """
    if M.out_features != M.in_features:
        raise ValueError(f"condition_estimate: M must be square, got {type(M).__name__} of {show(M)}.")
    system, n = widened(M), M.in_features
    like = torch.empty(0, dtype=torch.complex128 if M.dtype.is_complex else torch.float64, device=M.device)
    solver, found = certified_by(system, random_rows(1, n, like), steady=True)
    if not found.backward_error <= 1e-6:
        return torch.inf
    return condition_by(*products(system), solver, n, like, steps=steps)
