"""From moments to the factors of the forecaster: which solver, whether it may be trusted, which rank."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.structures import get_structure
from ..linalg import IllConditionedWarning
from ..linalg.solve import LinAlgError
from ..matrices.toeplitz_like import corner_sign
from ..matrices.toeplitz_like.rules import down, krylov_form
from .generators import Displacement, dense_displacement, displacement, singular_values
from .moments import Moments
from .solvers import DENSE_UP_TO, by_conjugate_gradients, by_elimination
from .weighted import best_of_rank

TOLERANCE = 1e-11  # of singular values that count for the exact rank
NUMBERS = 1 << 23  # of a dense Gram matrix: 64 MB
TRUSTED, DOUBTFUL = 1e-8, 1e-6  # of the error that is measured: try again, warn
# What conjugate gradients leave uncertain, a dense matrix settles in seconds up to QUICK_UP_TO past values.
# Beyond, elimination takes up to a minute, so that it is only for what is doubtful.
QUICK_UP_TO, ELIMINATION_UP_TO = 1 << 12, 1 << 15


class Fitted(NamedTuple):
    """Z_s W - W Z_-s = left^T right for each group; left (b, r, H), right (b, r, L).

    values: singular values of the exact displacement, relative to the first, (b, r').
    error: relative difference between two rows of W by the generators and the same rows solved for directly.
    """

    left: Tensor
    right: Tensor
    values: Tensor
    error: float


def fit(of: Moments, ridge: Tensor, rank: int | None, sweeps: int, *, search: bool = False) -> Fitted:
    """The forecaster of each group with these ridges (b,). `search`: without a second try or a warning."""
    if of.past <= DENSE_UP_TO and of.past * of.window <= NUMBERS:
        found = dense_displacement(of, ridge, rank_bound(of))
        error = measured_error(found)
    else:
        solve, converged = by_conjugate_gradients(of, ridge)
        found = displacement(of, ridge, solve)
        error = measured_error(found)
        good = all(converged) and error <= (TRUSTED if of.past <= QUICK_UP_TO else DOUBTFUL)
        if not (search or good) and of.past <= ELIMINATION_UP_TO:
            with contextlib.suppress(LinAlgError):  # singular: what was found stays, with a warning
                other = [_second(of[z], ridge[z : z + 1]) for z in range(len(ridge))]
                second = Displacement(*(torch.cat(parts) for parts in zip(*other, strict=True)))
                if (second_error := measured_error(second)) < error or not all(converged):
                    found, error = second, second_error
    if error > DOUBTFUL and not search:
        warnings.warn(
            f"LinearForecaster: ill-conditioned: about {error:.0e} of the weights is rounding error. Take a "
            f"larger ridge than {float(ridge.min()):.1e}.",
            IllConditionedWarning,
            stacklevel=4,
        )
    values = singular_values(found.left)
    exact = max(1, min(int((values > TOLERANCE).sum(-1).max()), rank_bound(of)))
    left, right = found.left[:, :exact], found.right[:, :exact]
    if rank is not None and rank < exact:
        left, right = best_of_rank(of, ridge, left, right, rank, sweeps)
    return Fitted(left, right, values[:, :exact], error)


def _second(of: Moments, ridge: Tensor) -> Displacement:
    """Of one group, for an ill-conditioned matrix."""
    if of.past <= QUICK_UP_TO and of.past * of.window <= 4 * NUMBERS:
        return dense_displacement(of, ridge, rank_bound(of))
    return displacement(of, ridge, by_elimination(of, ridge))


def rank_bound(of: Moments) -> int:
    """What the displacement rank of a forecaster is at most."""
    c = int((of.first != 0).any(-1).sum(-1).max())
    return min(2 * c + (3 if of.center is None else 4), of.past, of.horizon)


def measured_error(found: Displacement) -> float:
    """How far the first and the last row of W are from those that were solved for, relative."""
    matrix = matrix_of(found.left, found.right)
    b, H = found.left.shape[0], found.left.shape[-1]
    ends = torch.zeros(b, 2, H, dtype=found.left.dtype)
    ends[:, 0, 0] = ends[:, 1, -1] = 1
    lost = matrix.rmatmul(ends) - found.rows
    sizes = found.rows.norm(dim=(-2, -1)).clamp(min=torch.finfo(lost.dtype).tiny)
    error = float((lost.norm(dim=(-2, -1)) / sizes).max())
    return error if error == error else float("inf")


def matrix_of(left: Tensor, right: Tensor, structure: str = "toeplitz_like") -> Any:
    """W as a stack of structured matrices (b, H, L)."""
    H, L = left.shape[-1], right.shape[-1]
    most = min(H, L)
    left, right = left[:, :most], right[:, :most]
    # W - Z_s W Z_-s^T = -left^T (Z_-s right)
    G, K = krylov_form(-left, down(right, -corner_sign(H, L)))
    return get_structure(structure)(H, L, G=G, H=K)
