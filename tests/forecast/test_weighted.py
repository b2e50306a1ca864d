"""Forecasters of a lower rank: the weights of rows, and that steps lower the error that counts."""

from __future__ import annotations

import pytest
import torch

from torchldr.forecast.bilinear import Bilinear, solved
from torchldr.forecast.fitting import matrix_of
from torchldr.forecast.forecaster import SWEEPS
from torchldr.forecast.generators import displacement
from torchldr.forecast.gram import dense_gram
from torchldr.forecast.moments import CENTERS, moments
from torchldr.forecast.roots import Roots
from torchldr.forecast.solvers import by_cholesky
from torchldr.forecast.weighted import best_of_rank, row_weights
from torchldr.matrices.toeplitz_like import corner_sign

from .dense import series

RIDGE = torch.tensor([0.05], dtype=torch.float64)


def exact(past, horizon, center):
    of = moments(series(2, 600)[None], past, horizon, center)
    found = displacement(of, RIDGE, by_cholesky(of, RIDGE))
    K = dense_gram(of, past)[0] + RIDGE * torch.eye(past, dtype=torch.float64)
    return of, found.left[:, :8], found.right[:, :8], K


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize(("past", "horizon"), [(24, 12), (15, 20), (21, 7)])
def test_weights_of_rows_are_their_quadratic_forms(past, horizon, center):
    of, _, right, K = exact(past, horizon, center)
    s = float(corner_sign(horizon, past))
    rows, columns = Roots(horizon, s), Roots(past, -s)
    N = row_weights(of, RIDGE, columns.analyse(right), rows, columns)[0]
    eye = torch.eye(past, dtype=torch.complex128)
    Z = torch.diag(torch.ones(past - 1, dtype=torch.complex128), -1)
    Z[0, -1] = -s
    for i, a in enumerate(rows.values[: rows.half]):
        R = torch.linalg.solve(a * eye - Z, right[0].to(Z.dtype), left=False)
        assert (N[i] - R @ K.to(Z.dtype) @ R.mH).norm() < 1e-10 * N[i].norm()


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_steps_and_sweeps_lower_the_weighted_error(rank, center):
    of, left, right, K = exact(36, 18, center)
    W = matrix_of(left, right).to_dense()[0]

    def error(factors):
        E = matrix_of(*factors).to_dense()[0] - W
        return float(((E @ K) * E).sum())

    problem = Bilinear(of, RIDGE, (left[0], right[0]))
    assert problem.error(left[0, :rank], right[0, :rank]) == pytest.approx(
        error((left[:, :rank], right[:, :rank]))
    )
    cut = error((left[:, :rank], right[:, :rank]))
    steps = error(best_of_rank(of, RIDGE, left, right, rank, 0))
    sweeps = [error(best_of_rank(of, RIDGE, left, right, rank, count)) for count in (1, 4)]
    assert steps < 0.9 * cut
    assert sweeps[1] <= sweeps[0] * (1 + 1e-9)
    assert sweeps[0] <= steps * (1 + 1e-9)


@pytest.mark.parametrize(("past", "horizon"), [(48, 24), (21, 28)])
def test_few_steps_go_further_than_many_alternating_ones(past, horizon):
    of, left, right, _ = exact(past, horizon, "last")
    problem = Bilinear(of, RIDGE, (left[0], right[0]))
    _, start = best_of_rank(of, RIDGE, left, right, 2, 0)
    alternating = start[0]
    for _ in range(40):
        normal, target = problem.right_system(problem.best_left(alternating))
        alternating = solved(normal, target[:, None]).view(alternating.shape)
    slow = problem.error(problem.rows.real_rows(problem.best_left(alternating).mT), alternating)
    assert problem.error(*problem.swept(start[0], SWEEPS)) < slow


def test_no_better_neighbour():
    """After many sweeps the error grows in every direction that was tried, to first order by nothing."""
    of, left, right, K = exact(20, 10, "last")
    W = matrix_of(left, right).to_dense()[0]
    G, H = (part.clone().requires_grad_() for part in best_of_rank(of, RIDGE, left, right, 2, 40))
    E = matrix_of(G, H).to_dense()[0] - W
    loss = ((E @ K) * E).sum() / ((W @ K) * W).sum()
    gradients = torch.autograd.grad(loss, (G, H))
    slope = sum((g * p).abs().sum().item() for g, p in zip(gradients, (G, H), strict=True))
    assert slope < 1e-3 * loss.item()


def test_all_of_the_rank_is_exact():
    of, left, right, _ = exact(20, 10, "last")
    found = best_of_rank(of, RIDGE, left, right, 8, 0)
    assert torch.allclose(matrix_of(*found).to_dense(), matrix_of(left, right).to_dense(), atol=1e-7)
