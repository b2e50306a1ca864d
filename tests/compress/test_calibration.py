"""What a loader brings: metrics, bounds, measured plans, and a model that an interrupt leaves alone."""

from __future__ import annotations

import copy
import itertools
import time
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torchldr
from torchldr.compress.calibration import calibrate
from torchldr.compress.errors import DEADLINE, bound
from torchldr.compress.metric import Metric
from torchldr.compress.outputs import main_output
from torchldr.compress.session import Session
from torchldr.compress.targets import find_units
from torchldr.matrices.low_rank import LowRankFit

LOW = torchldr.Structure("low_rank", rank=3)


def spread(rows: int, n: int = 40) -> Tensor:
    return torch.randn(rows, n) * torch.logspace(0, -2, n)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(40, 48), nn.Tanh(), nn.Linear(48, 40), nn.Tanh(), nn.Linear(40, 36))


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items()}


def same(model: nn.Module, before: nn.Module, numbers: dict[str, Tensor]) -> bool:
    """The very modules, hooks, modes, gradients wanted and numbers."""
    now = model.state_dict()
    return (
        [type(module) for module in model.modules()] == [type(module) for module in before.modules()]
        and all(torch.equal(now[name], t) for name, t in numbers.items())
        and all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
        and [m.training for m in model.modules()] == [m.training for m in before.modules()]
        and [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in before.parameters()]
    )


@given(m=st.integers(2, 12), n=st.integers(2, 12), seed=st.integers(0, 1000), both=st.booleans())
@settings(max_examples=20, deadline=None)
def test_low_rank_in_a_metric_is_the_svd_of_the_weighted_matrix(m, n, seed, both):
    generator = torch.Generator().manual_seed(seed)

    def moments(size: int) -> Tensor:
        X = torch.randn(3 * size, size, dtype=torch.float64, generator=generator)
        return X.mT @ X

    W = torch.randn(m, n, dtype=torch.float64, generator=generator)
    metric = Metric(moments(n), moments(m) if both else None, 2.5)
    left = torch.eye(m, dtype=torch.float64) if metric.left is None else metric.left
    values = torch.linalg.svdvals(left @ W @ metric.root.mT)
    fit = LowRankFit(W, metric.left, metric.root)
    for rank in range(1, min(m, n) + 1):
        expected = 2.5 * float(values[rank:].square().sum())
        scale = 1e-9 * metric.error(W)
        tensors = fit.tensors(rank)
        assert 2.5 * fit.error(rank) == pytest.approx(expected, rel=1e-6, abs=scale)
        assert metric.error(W - tensors["G"].mT @ tensors["H"]) == pytest.approx(
            expected, rel=1e-6, abs=scale
        )


@pytest.mark.parametrize("name", ["toeplitz_like", "hankel_like", "cauchy_like", "vandermonde_like"])
def test_bounds_are_below_the_errors(name):
    W = torch.randn(12, 10, dtype=torch.float64)
    near = torchldr.get_structure(name).random(12, 10, rank=1, dtype=torch.float64).to_dense()
    for matrix in (W, near, near + 0.1 * near.std() * W):
        least = bound(matrix, name, [1, 2])
        for rank, low in zip((1, 2), least, strict=True):
            found = torchldr.from_dense(matrix, name, rank).residual * matrix.norm().item()
            assert low**0.5 <= found + 1e-6
    assert bound(W, "toeplitz_like", [1])[0] > 0.2 * W.square().sum().item()


def test_sensitivities_are_those_of_the_jacobian():
    """With one row a batch, C and S are x x^T and the mean of J^T J, up to their scale."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(9, 10), nn.Tanh(), nn.Linear(10, 8)).double()
    x = torch.randn(1, 9, dtype=torch.float64)
    units, _ = find_units(model, None, 8)
    found = calibrate(model, units, [x] * 1500, None, None, Session())
    J = model[2].weight.detach() @ torch.diag(1 - model[1](model[0](x)).square().detach().flatten())
    S = found.metrics["0"].outputs
    S, expected = S / S.trace(), J.mT @ J / (J.mT @ J).trace()
    assert (S - expected).norm() < 0.1 * expected.norm()
    D = 1e-4 * torch.randn(10, 9, dtype=torch.float64)
    rows = sum(1 for i in range(1500) if not (i % 4 == 3 and i < 16))
    exact = rows * (J @ D @ x.flatten()).square().sum().item()
    assert found.metrics["0"].error(D) == pytest.approx(exact, rel=0.3)


def test_a_loader_is_worth_more_than_a_uniform_share_and_than_none():
    torch.manual_seed(5)
    dense, loader, X = network(), [spread(200) for _ in range(8)], spread(500)
    found = []
    for options in ({"loader": loader}, {}):
        model = copy.deepcopy(dense)
        report = torchldr.compress_(model, 0.4, structures=["low_rank"], **options)
        found.append(((model(X) - dense(X)).norm() / dense(X).norm()).item())
        assert report.parameters_after <= 0.4 * report.parameters_before
        if options:
            assert report.distance == pytest.approx(found[0], rel=0.3)
            assert "the outputs differ by" in str(report)
    uniform = copy.deepcopy(dense)
    for i in (0, 2, 4):
        m, n = uniform[i].weight.shape
        rank = int(0.4 * m * n / (m + n))
        seen = torch.cat([dense[:i](batch) for batch in loader]).detach()
        low = torchldr.from_dense(uniform[i].weight.detach(), "low_rank", rank, activations=seen)
        uniform[i].weight.data = low.matrix.to_dense()
    found.append(((uniform(X) - dense(X)).norm() / dense(X).norm()).item())
    assert found[0] < 0.9 * found[1]
    assert found[0] < 1.02 * found[2]


class WithARareBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.usual, self.rare = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.usual(x)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("grad", [True, False])
def test_weights_that_no_batch_reaches_are_named_and_stay(grad):
    """Once, in the report; the others have the budget for themselves."""
    batches = [torch.randn(8, 64) for _ in range(4)]
    model = WithARareBranch()
    if not grad:
        model.usual.register_forward_hook(lambda module, args, y: y.detach())
    report = torchldr.compress_(model, budget=0.5, loader=batches, structures=["low_rank"])
    assert list(report.left) == ["rare"]
    assert str(report).count("rare") == 1
    assert isinstance(model.rare, nn.Linear)
    assert [layer.name for layer in report.layers] == ["usual"]
    assert report.parameters_after <= 0.5 * 64 * 64
    torchldr.compress_(model, {"rare": torchldr.Structure("low_rank", rank=2)}, loader=batches)
    assert model.rare.structure.name == "low_rank"  # a plan is obeyed


def test_the_clock_decides_nothing(monkeypatch):
    """On a machine that is busy, or does not know the time, the result is the same."""
    found, loader = [], [spread(60) for _ in range(8)]
    for slow in (False, True):
        if slow:
            ticks = itertools.count(0.0, 1e6).__next__
            monkeypatch.setattr(time, "monotonic", ticks)
            monkeypatch.setattr(time, "perf_counter", ticks)
        torch.manual_seed(5)
        model = network()
        report = torchldr.compress_(model, 0.4, loader=loader, structures=["low_rank", "ldr_sd"])
        found.append((state(model), report.distance, report.notes))
    assert found[0][1:] == found[1][1:]
    assert all(torch.equal(found[0][0][name], found[1][0][name]) for name in found[0][0])


def test_enough_data_is_enough(monkeypatch):
    """Batches after that are not even asked for, so that more data do not give another result."""
    monkeypatch.setattr(torchldr.compress.moments, "ENOUGH", 16)
    models, taken = [network()] * 2, []
    models[1] = copy.deepcopy(models[0])
    for model, count in zip(models, (40, 80), strict=True):
        torch.manual_seed(4)
        loader = iter([spread(50) for _ in range(count)])
        torchldr.compress_(model, 0.4, loader=loader, structures=["low_rank"])
        taken.append(count - len(list(loader)))
    assert taken[0] == taken[1] < 40
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


def test_every_class_that_is_found_at_once_is_compared_as_a_whole(monkeypatch):
    """A search that is misled (large errors for block circulant) where the weights are block circulant."""
    torch.manual_seed(2)
    dense, loader = network(), [spread(100) for _ in range(6)]
    with torch.no_grad():
        for layer in dense[::2]:
            m, n = layer.weight.shape
            M = torchldr.BlockCirculant.random(m, n, block_size=4)
            layer.weight.copy_(M.to_dense() + 1e-3 * torch.randn(m, n))
    real = torchldr.compress.selection.priced

    def misled(weight, errors):
        wrong = {s: 1e6 if s.name == "block_circulant" else 1.0 for s in errors}
        return real(weight, {s: wrong[s] * (error + 1) for s, error in errors.items()})

    monkeypatch.setattr("torchldr.compress.selection.priced", misled)
    names = ["low_rank", "block_circulant"]
    report = torchldr.compress_(dense, 0.3, structures=names, loader=loader)
    assert {layer.structure for layer in report.layers} == {"block_circulant"}
    assert report.distance < 0.05
    assert any("same share" in note for note in report.notes)


def test_without_time_each_weight_has_a_candidate_still():
    report = torchldr.compress_(
        network(), 0.3, structures=["block_circulant"], loader=[spread(50)] * 4, time_limit=1e-9
    )
    assert {layer.structure for layer in report.layers} == {"block_circulant"}
    assert report.parameters_after <= 0.3 * report.parameters_before


def test_the_uniform_share_is_taken_where_it_is_measured_to_be_better(monkeypatch):
    """A search that is misled (all errors in one layer) must not do worse than the same share for all."""
    torch.manual_seed(1)
    dense, loader = network(), [spread(100) for _ in range(6)]
    real = torchldr.compress.moments.MomentHooks.metric

    def misled(self, unit):
        metric = real(self, unit)
        return Metric(metric.inputs, metric.outputs, metric.scale * (1e6 if unit.name == "0" else 1.0))

    honest = torchldr.compress_(copy.deepcopy(dense), 0.4, structures=["low_rank"], loader=loader)
    monkeypatch.setattr("torchldr.compress.moments.MomentHooks.metric", misled)
    report = torchldr.compress_(copy.deepcopy(dense), 0.4, structures=["low_rank"], loader=loader)
    assert any("same share" in note for note in report.notes)
    assert report.distance < 3 * honest.distance
    shares = [layer.parameters_after / layer.parameters_before for layer in report.layers]
    assert max(shares) <= 0.4


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_tied_weights_are_calibrated_together(kind):
    layers = {"linear": lambda: nn.Linear(32, 32), "convolution": lambda: nn.Conv2d(32, 32, 1)}
    model = nn.Sequential(layers[kind](), nn.Tanh(), layers[kind]()).eval()
    model[2].weight = model[0].weight
    shape = (16, 32) if kind == "linear" else (4, 32, 3, 3)
    report = torchldr.compress_(model, 0.5, structures=["low_rank"], loader=[torch.randn(shape)] * 4)
    assert report.distance is not None
    assert [layer.tied for layer in report.layers] == [("2",)]


@pytest.mark.parametrize("stage", ["calibrating", "looking at", "projecting", "checking", "fitting"])
@pytest.mark.parametrize("frozen", [False, True])
def test_an_interrupt_leaves_the_model_as_it_was(stage, frozen):
    model = nn.ModuleDict({"net": network(), "attention": nn.MultiheadAttention(32, 4)}).train()
    model["net"][1].eval()
    model["net"].requires_grad_(not frozen)
    model.forward = lambda x: model["net"](x)
    before, numbers = copy.deepcopy(model), state(model)
    modules = list(model.modules())

    def interrupt(at: str, done: int, total: int) -> None:
        if at.startswith(stage) and (done or stage != "calibrating"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        torchldr.compress_(model, 0.5, loader=[spread(120)] * 5, progress=interrupt, structures=["low_rank"])
    assert same(model, before, numbers)
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))


def test_time_is_kept_by_looking_at_less(monkeypatch):
    """Past its time a compression fits to one batch, tries no other class, and is a whole result."""
    monkeypatch.setattr(Session, "time_limit", 60.0, raising=False)
    monkeypatch.setattr(Session, "past", lambda self, share: True)
    monkeypatch.setattr(Session, "deadline", lambda self, share: 0.0)
    model, batches = network(), iter([spread(50) for _ in range(9)])
    report = torchldr.compress_(model, 0.4, loader=batches)
    assert len(list(batches)) == 7  # another was held out
    assert report.parameters_after <= 0.4 * report.parameters_before
    assert {layer.structure for layer in report.layers} <= {"low_rank", "dense"}
    assert any("candidates were skipped" in note for note in report.notes)
    model = nn.Sequential(nn.Linear(32, 32))
    quick = torchldr.from_dense(model[0].weight.detach(), "toeplitz_like", 2, effort=0.1).residual
    plan = torchldr.compress_(model, torchldr.Structure("toeplitz_like", rank=2), time_limit=1e-6)
    assert plan.layers[0].residual == pytest.approx(quick)


def test_outputs_are_compared_on_a_batch_that_was_not_fitted(monkeypatch):
    """Where time ends before one would be held out; and where the loader has none to spare, that is said."""
    loader = [spread(60) for _ in range(6)]
    whole = torchldr.compress_(network(), LOW, loader=loader)
    few = torchldr.compress_(network(), LOW, loader=loader[:3])
    assert "fewer than 4 batches" in few.notes[0]
    assert "On held-out batches" in str(whole)
    assert "On your batches" in str(few)
    monkeypatch.setattr(Session, "past", lambda self, share: True)
    model = network()
    original = copy.deepcopy(model)
    report = torchldr.compress_(model, LOW, loader=loader)
    assert report.notes[0] == "time limit: only 1 of 6 batches were used"
    y, theirs = model(loader[1]), original(loader[1])
    assert report.distance == pytest.approx(float((y - theirs).norm() / theirs.norm()), rel=1e-4)


def test_a_report_says_what_was_not_compared_for_want_of_time(monkeypatch):
    monkeypatch.setattr(Session, "past", lambda self, share: share == DEADLINE)
    model = nn.Sequential(nn.Linear(48, 48), nn.Linear(48, 48))
    model[0].weight.data = torchldr.BlockCirculant.random(48, 48, block_size=4).to_dense()
    model[1].weight.data = torchldr.LowRank.random(48, 48, rank=6).to_dense() + 0.01 * torch.randn(48, 48)
    classes = ["low_rank", "block_circulant"]
    report = torchldr.compress_(model, 0.4, loader=[torch.randn(60, 48)] * 9, structures=classes)
    assert "time limit: plans with one class were skipped: low_rank" in report.notes


@pytest.mark.parametrize("limit", [0, -1.0, float("inf"), float("nan"), True, "2"])
def test_limits_that_are_no_time(limit):
    with pytest.raises(ValueError, match=r"compress_: time_limit is in seconds, a positive number"):
        torchldr.compress_(network(), 0.5, time_limit=limit)


@pytest.mark.parametrize("budget", [50, torchldr.compress.Bytes(50)])
def test_a_budget_that_is_too_small_fails_before_anything_slow(budget):
    def never():
        raise AssertionError("a batch was asked for")
        yield

    with pytest.raises(ValueError, match=r"budget of 50 .* is too small: the smallest candidates") as said:
        torchldr.compress_(network(), budget=budget, loader=never())
    assert ("for 50 % write 0.5" in str(said.value)) == (budget == 50)


@dataclass
class Output:
    hidden: Tensor
    pooled: Tensor


class Encoder(nn.Module):
    """Outputs of every kind; only `pooled` is used, and depends on the first layer alone."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.second = kind, nn.Linear(40, 40), nn.Linear(40, 40)

    def forward(self, x: Tensor) -> object:
        pooled = self.first(x)
        hidden = self.second(x)
        made = {"mapping": {"hidden": hidden, "pooled": pooled}, "tuple": (hidden, pooled)}
        return made.get(self.kind, Output(hidden, pooled))


@pytest.mark.parametrize(("kind", "name"), [("mapping", "pooled"), ("dataclass", "pooled"), ("tuple", "1")])
def test_the_output_that_counts_may_be_named(kind, name):
    model = Encoder(kind)
    report = torchldr.compress_(
        model, 0.6, loader=[{"x": spread(60)} for _ in range(5)], output=name, structures=["low_rank"]
    )
    assert [layer.name for layer in report.layers] == ["first"]
    assert list(report.left) == ["second"]
    with pytest.raises(ValueError, match=r"has no entry 'logits': it has '(hidden|0)', "):
        torchldr.compress_(Encoder(kind), 0.6, loader=[{"x": spread(60)}], output="logits")


def test_an_output_without_a_tensor_is_named():
    with pytest.raises(ValueError, match=r"the output, a tuple, has no tensor of floating point"):
        main_output(({"nested": torch.ones(3)}, 1))


def test_under_inference_mode():
    """As outside: derivatives of the outputs are needed, and new parameters can be trained."""
    reports = []
    for enabled in (False, True):
        torch.manual_seed(0)
        model = network()
        with torch.inference_mode(enabled):
            batches = [spread(20) for _ in range(4)]
            reports.append(torchldr.compress_(model, 0.4, loader=batches, structures=["low_rank"]))
        assert not any(p.is_inference() for p in model.parameters())
        model(spread(2)).sum().backward()
    assert reports[0].distance == reports[1].distance


def test_of_logits_the_softmax_counts():
    """A row that no label is likely by may change, whatever it does to the logits."""

    class Labelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(40, 40)
            with torch.no_grad():
                self.layer.bias[:20] -= 50.0

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.layer(x)}

    model, batches = Labelled(), [torch.randn(60, 40) for _ in range(8)]
    dense = copy.deepcopy(model)
    report = torchldr.compress_(model, torchldr.Structure("low_rank", rank=20), loader=batches)
    error = (model.layer.weight - dense.layer.weight).detach()
    assert error[20:].norm() < 0.25 * error[:20].norm()
    x = torch.cat(batches[3:4])
    p, q = (m(x)["logits"].log_softmax(-1).detach() for m in (dense, model))
    assert report.distance < 1e-4
    assert (p.exp() * (p - q)).sum(-1).mean() < 1e-4


def test_logits_and_masks_decide_what_counts():
    hidden, logits = torch.randn(2, 3, 4), torch.randn(2, 3, 5)
    assert main_output({"last_hidden_state": hidden, "logits": logits})[0] == "logits"
    assert main_output((torch.tensor(1.0), hidden))[1] is hidden

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(40, 40)

        def forward(self, x: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
            return {"last_hidden_state": self.layer(x)}

    model, x = Padded(), torch.randn(6, 9, 40)
    mask = torch.ones(6, 9, dtype=torch.long)
    mask[:, 5:] = 0
    x[:, 5:, 20:] = 1e3  # what stands at padded places must not matter
    x[:, :5, 20:] = 0
    batches = [{"x": x, "attention_mask": mask} for _ in range(4)]
    dense = copy.deepcopy(model)
    torchldr.compress_(model, torchldr.Structure("low_rank", rank=20), loader=batches)
    error = (model.layer(x[:, :5]) - dense.layer(x[:, :5])).norm() / dense.layer(x[:, :5]).norm()
    assert error < 0.05


def test_models_without_derivatives_are_seen_by_their_inputs():
    class Closed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(40, 40)

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).round(decimals=3)

    model = Closed()
    dense, X = copy.deepcopy(model), spread(500)
    report = torchldr.compress_(model, torchldr.Structure("low_rank", rank=8), loader=[spread(100)] * 4)
    plain = torchldr.from_dense(dense.layer.weight.detach(), "low_rank", 8).matrix
    wanted = X @ dense.layer.weight.T
    assert (X @ model.layer.weight.T - wanted).norm() < 0.8 * (X @ plain.to_dense().T - wanted).norm()
    assert report.distance is not None


def test_without_a_loader_a_large_residual_is_said():
    with pytest.warns(UserWarning, match=r"off by \d\d% of the old ones.* give loader="):
        torchldr.compress_(network(), 0.3, structures=["low_rank"])
    with pytest.warns(UserWarning, match="the model has no layer that can be replaced"):
        torchldr.compress_(nn.Sequential(nn.ReLU()), 0.3)
