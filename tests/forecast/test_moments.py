"""Moments: columns of the Gram matrix and its steps, against windows."""

from __future__ import annotations

import pytest
import torch

from torchldr.forecast.moments import CENTERS, moments

from .dense import gram_reference, series

SIZES = [(12, 5), (5, 12), (7, 7), (1, 3), (4, 1), (70, 3)]


@pytest.mark.parametrize("center", CENTERS)
@pytest.mark.parametrize(("past", "horizon"), SIZES)
def test_columns_and_steps_are_those_of_the_windows(past, horizon, center):
    z = series(2, 150)
    of, B = moments(z[None], past, horizon, center), gram_reference(z, past, horizon, center)
    scale = B.abs().max() + z.square().mean()
    for p in of.columns:
        assert (of.column(p)[0] - B[p]).abs().max() < 1e-12 * scale
    Q, J = (part[0] for part in of.steps())
    steps = B[1:, 1:] - B[:-1, :-1]
    assert (Q.mT @ J @ Q - steps).abs().max() < 1e-12 * scale
    assert float(of.scale()) == pytest.approx(float(B[:past, :past].diagonal().mean()), rel=1e-9)


@pytest.mark.parametrize("center", CENTERS)
def test_moments_add_and_continue(center):
    one, other = series(2, 90), series(2, 70, seed=1)
    both = moments(one[None], 9, 4, center) + moments(other[None], 9, 4, center)
    B = torch.stack([gram_reference(z, 9, 4, center) for z in (one, other)])
    weights = torch.tensor([78.0, 58.0], dtype=torch.float64)[:, None, None]
    assert torch.allclose(both.column(8)[0], ((B * weights).sum(0) / weights.sum())[8])
    whole, parts = moments(one[None], 9, 4, center), moments(one[None, :, :40], 9, 4, center)
    parts = parts.continued(one[None, :, 40:43]).continued(one[None, :, 43:])
    for name in ("count", "centre", "square", "first", "last"):
        assert torch.allclose(getattr(parts, name), getattr(whole, name)), name
    assert all(torch.allclose(parts.columns[p], whole.columns[p]) for p in whole.columns)
