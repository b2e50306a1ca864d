"""The displacement of the ridge forecaster by every solver, and its rank, against dense algebra."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchldr.algebra import displacement_rank
from torchldr.forecast import solvers
from torchldr.forecast.fitting import matrix_of, measured_error, rank_bound
from torchldr.forecast.generators import dense_displacement, displacement
from torchldr.forecast.moments import CENTERS, moments
from torchldr.matrices.toeplitz_like import corner_sign
from torchldr.operators import Shift

from .dense import ridge_reference, series

SOLVERS = {
    "cholesky": solvers.by_cholesky,
    "conjugate gradients": lambda of, ridge: solvers.by_conjugate_gradients(of, ridge)[0],
    "elimination": solvers.by_elimination,
}


def fitted(z, past, horizon, center, ridge, solver):
    of, shift = moments(z[None], past, horizon, center), torch.tensor([ridge], dtype=torch.float64)
    if solver == "none":
        return dense_displacement(of, shift, rank_bound(of))
    return displacement(of, shift, SOLVERS[solver](of, shift))


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("solver", [*SOLVERS, "none"])
@pytest.mark.parametrize(("past", "horizon"), [(36, 12), (24, 48), (31, 31), (32, 24)])
def test_the_generators_give_the_dense_ridge(past, horizon, solver, center):
    z = series(2, 500)
    W = ridge_reference(z, past, horizon, center, 0.05)
    found = fitted(z, past, horizon, center, 0.05, solver)
    assert (matrix_of(found.left, found.right).to_dense()[0] - W).norm() < 1e-9 * W.norm()
    assert torch.allclose(found.rows[0], W[[0, -1]], rtol=0, atol=1e-9 * float(W.norm()))
    assert measured_error(found) < 1e-9


@settings(max_examples=25, deadline=None)
@given(
    past=st.integers(1, 24),
    horizon=st.integers(1, 24),
    channels=st.integers(1, 3),
    center=st.sampled_from(CENTERS),
    solver=st.sampled_from(["cholesky", "none"]),
)
def test_all_sizes(past, horizon, channels, center, solver):
    z = series(channels, 200)
    W = ridge_reference(z, past, horizon, center, 0.1)
    found = fitted(z, past, horizon, center, 0.1, solver)
    assert (matrix_of(found.left, found.right).to_dense()[0] - W).norm() < 1e-9 * max(1.0, float(W.norm()))


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize(("past", "horizon"), [(40, 29), (24, 32)])
def test_the_displacement_rank_of_the_dense_ridge(past, horizon, channels, center):
    """3 + 2 c; one more for windows minus their last value, and minus their mean with Z_1 on the left."""
    z = series(channels, 600)
    W = ridge_reference(z, past, horizon, center, 0.1)
    s = corner_sign(horizon, past)
    shifts = [Shift(n, f, dtype=torch.float64) for n, f in ((horizon, s), (past, -s))]
    found = displacement_rank(W, *shifts, tol=1e-11, form="sylvester")
    assert found == 3 + 2 * channels + (center == "last" or (center == "mean" and s == 1))
    assert found <= rank_bound(moments(z[None], past, horizon, center))
    assert torch.linalg.matrix_rank(W) > 20


def test_an_error_in_the_solution_is_measured():
    z, ridge = series(1, 400), torch.tensor([0.1], dtype=torch.float64)
    of = moments(z[None], 32, 8, "last")
    exact = solvers.by_cholesky(of, ridge)
    noise = 1e-4 * torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = displacement(of, ridge, lambda b: exact(b) * (1 + noise))
    W = ridge_reference(z, 32, 8, "last", 0.1)
    true = float((matrix_of(found.left, found.right).to_dense()[0] - W).norm() / W.norm())
    assert true / 20 < measured_error(found) < 20 * true


def test_a_singular_matrix_is_an_error():
    of = moments(series(1, 60)[None], 50, 2, None)
    with pytest.raises(ValueError, match=r"ridge=0; take a larger ridge"):
        solvers.by_cholesky(of, torch.zeros(1, dtype=torch.float64))
