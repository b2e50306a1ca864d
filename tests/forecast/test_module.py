"""The module of a forecaster: trains on, exports, quantises."""

from __future__ import annotations

import pytest
import torch

from torchldr import quantize_
from torchldr.export import to_onnx
from torchldr.forecast import LinearForecaster

from .dense import series

Z = series(1, 500)[0].numpy()


def fitted(center="last", rank=3) -> LinearForecaster:
    return LinearForecaster(24, 8, ridge=0.1, holdout=0, center=center, rank=rank).fit(Z)


def test_as_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    to_onnx(fitted("mean").module(), torch.zeros(1, 24), tmp_path / "f.onnx")  # it compares with the module


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
    """Entries off by up to half a step each, at random, change forecasts by so much."""
    module, x = fitted().module(), torch.from_numpy(Z).float().unfold(0, 24, 1)
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    slopes = torch.func.jacfwd(lambda p: torch.func.functional_call(module, p, (x,)))(parameters)
    expected = 0.0
    for name, p in parameters.items():
        step = p.abs().amax(-1, keepdim=True) / 127
        expected += float((slopes[name].square().sum((0, 1)) * step.square() / 12).sum())
    change = quantize_(fitted().module())(x).detach() - module(x).detach()
    assert 0 < change.norm() < 3 * expected**0.5


@pytest.mark.parametrize(("past", "horizon"), [(24, 8), (12, 20), (15, 9)])
def test_rounded_together_forecasts_suffer_least(past, horizon):
    f = LinearForecaster(past, horizon, ridge=1e-4, holdout=0, rank=2).fit(Z)
    w = torch.from_numpy(Z).float().unfold(0, past + horizon, 1)

    def error(module: torch.nn.Module) -> float:
        return (module(w[:, :past]) - w[:, past:]).square().mean().item()

    exact, plain = error(f.module()), error(quantize_(f.module()))
    module = f.module(int8=True)
    together = error(module)
    assert together - exact < 0.5 * (plain - exact)
    assert error(quantize_(module)) == pytest.approx(together, rel=1e-5)
    assert f.error(Z) == pytest.approx(exact, rel=1e-4)


def test_rounding_together_has_its_limits():
    two = LinearForecaster(24, 8, ridge=0.1, holdout=0, per_channel=True).fit(series(2, 300).numpy().T)
    long = LinearForecaster(300, 8, ridge=0.1, holdout=0).fit(Z)
    for f, message in ((two, "one forecaster"), (long, "up to 1,500, got 1,800")):
        with pytest.raises(ValueError, match=message):
            f.module(int8=True)


def test_no_random_numbers_are_drawn():
    f = fitted()
    state = torch.get_rng_state()
    f.module()
    assert torch.equal(torch.get_rng_state(), state)
