"""The module of a forecaster: trains on, exports, quantises."""

from __future__ import annotations

import pytest
import torch

from torchldr import quantize_
from torchldr.export import to_c, to_onnx
from torchldr.forecast import LinearForecaster

from .dense import series

Z = series(1, 500)[0].numpy()


def fitted(center="last", rank=3) -> LinearForecaster:
    return LinearForecaster(24, 8, ridge=0.1, holdout=0, center=center, rank=rank).fit(Z)


def test_as_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    to_onnx(fitted("mean").module(), torch.zeros(1, 24), tmp_path / "f.onnx")  # it compares with the module


@pytest.mark.parametrize("weights", ["int8", "float32"])
def test_as_c(tmp_path, weights):
    """The product; the centre is a subtraction before it and an addition after it."""
    report = to_c(fitted().module().linear, torch.zeros(1, 24), tmp_path / "c", weights=weights)
    assert report.flash < 24 * 8 * (1 if weights == "int8" else 4)


def test_training_lowers_the_error():
    f = fitted(rank=1)
    module = f.module(torch.float64)
    w = torch.from_numpy(Z).unfold(0, 32, 1)
    optimizer = torch.optim.LBFGS(module.parameters(), max_iter=20)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found = (module(w[:, :24]) - w[:, 24:]).square().mean()
        found.backward()
        return found

    first = loss().item()
    optimizer.step(loss)
    assert loss().item() < first
    assert f.error(Z) == pytest.approx(first)  # the module is a copy


def test_eight_bits_change_little():
    f = fitted()
    x = torch.from_numpy(Z).float().unfold(0, 24, 1)
    module = f.module()
    exact, rounded = module(x).detach(), quantize_(f.module())(x).detach()
    assert (rounded - exact).norm() < 0.03 * (exact - x[:, -1:]).norm()
    assert not torch.equal(rounded, exact)


def test_no_random_numbers_are_drawn():
    f = fitted()
    state = torch.get_rng_state()
    f.module()
    assert torch.equal(torch.get_rng_state(), state)
