"""Gram matrices: products by FFTs, the dense matrix, the diagonal in a shift's eigenbasis, the Stein form."""

from __future__ import annotations

import pytest
import torch

from torchldr.forecast.gram import Gram, dense_gram, null_vector, stein
from torchldr.forecast.moments import CENTERS, moments
from torchldr.forecast.roots import Roots

from .dense import gram_reference, series


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize(("past", "horizon"), [(12, 5), (7, 9), (2, 3), (1, 1)])
def test_all_forms_are_the_matrix_of_the_windows(past, horizon, center):
    z, size = series(3, 160), past + horizon
    of, B = moments(z[None], past, horizon, center), gram_reference(z, past, horizon, center)
    scale = B.abs().max() + z.square().mean()
    assert (dense_gram(of, size)[0] - B).abs().max() < 1e-12 * scale
    x = torch.randn(2, size, dtype=torch.float64)
    assert (Gram(of, size)(x[None])[0] - x @ B).abs().max() < 1e-12 * scale * size
    K = B[:past, :past]
    for corner in (1.0, -1.0):
        basis = Roots(past, corner)
        V = basis.analyse(torch.eye(past, dtype=torch.float64))
        right = (V.mH @ K.to(V.dtype) @ V).diagonal()
        assert (Gram(of, past).diagonal(basis)[0] - right.real).abs().max() < 1e-12 * scale * past
    null = null_vector(center, past)
    assert null is None or (K @ null).abs().max() < 1e-12 * scale


@pytest.mark.parametrize("corners", [(1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)])
@pytest.mark.parametrize("center", CENTERS)
def test_the_stein_form(center, corners):
    z, ridge = series(1, 120), torch.tensor([0.3], dtype=torch.float64)
    of = moments(z[None], 8, 3, center)
    K = dense_gram(of, 8)[0] + 0.3 * torch.eye(8, dtype=torch.float64)
    Z, Y = (torch.diag(torch.ones(7, dtype=torch.float64), -1) for _ in corners)
    Z[0, -1], Y[0, -1] = corners
    left, right = stein(of, ridge, *corners)
    assert torch.allclose(left[0].mT @ right[0], K - Z @ K @ Y.mT)


@pytest.mark.parametrize(("n", "corner"), [(6, 1.0), (7, 1.0), (6, -1.0), (7, -1.0), (1, 1.0), (1, -1.0)])
def test_roots(n, corner):
    basis, eye = Roots(n, corner), torch.eye(n, dtype=torch.float64)
    Z = torch.diag(torch.ones(n - 1, dtype=torch.float64), -1)
    Z[0, -1] += corner
    V = basis.analyse(eye)
    assert torch.allclose(Z.to(V.dtype) @ V, V * basis.values)
    assert torch.allclose(V.mH @ V, eye.to(V.dtype))
    x = torch.randn(2, n, dtype=torch.float64)
    assert torch.allclose(basis.combine(x.to(V.dtype)), x.to(V.dtype) @ V.mT)
    assert torch.allclose(basis.real_rows(basis.analyse(x).conj()[:, : basis.half]), x)
    assert basis.weight.sum() == n
