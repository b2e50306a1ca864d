"""Weights fitted again in the order in which they run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import torchldr
from torchldr.compress.calibration import calibrate
from torchldr.compress.metric import Metric
from torchldr.compress.moments import CALL, moments_of
from torchldr.compress.refit import SHARE, STAGES, WORK, Cost, Moments, Refit
from torchldr.compress.session import Session
from torchldr.compress.structure import Structure
from torchldr.compress.targets import find_units


def deep(depth: int = 5, size: int = 32) -> nn.Sequential:
    torch.manual_seed(4)
    layers = [part for _ in range(depth) for part in (nn.Linear(size, size), nn.Tanh())]
    with torch.no_grad():
        for layer in layers[::2]:
            layer.weight.mul_(1.5)
    return nn.Sequential(*layers[:-1]).double()


def batches(count: int = 8, rows: int = 300) -> list[Tensor]:
    torch.manual_seed(9)
    return [
        torch.randn(rows, 32, dtype=torch.float64) @ torch.logspace(0, -1, 32).diag().double()
        for _ in range(count)
    ]


def fit(model: nn.Module, structure: Structure, loader: Any) -> Refit:
    units, _ = find_units(model, None, 8)
    session = Session()
    data = calibrate(model, units, loader, None, None, session)
    return Refit(model, units, [structure] * len(units), data, session)


def off(model: nn.Module, dense: nn.Module) -> float:
    X = torch.cat(batches(12)[8:])
    with torch.no_grad():
        return float((model(X) - dense(X)).norm() / dense(X).norm())


@pytest.mark.parametrize("budget", [0.3, 0.5])
def test_outputs_come_nearer(budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = deep(6)
    found = {}
    for fitted in (True, False):
        if not fitted:
            monkeypatch.setattr(Refit, "fitted", lambda *given: None)
        model = copy.deepcopy(dense)
        report = torchldr.compress_(model, budget, structures=["low_rank"], loader=batches())
        found[fitted] = off(model, dense), report.distance
        assert any("in the order" in note for note in report.notes) == fitted
        assert report.parameters_after <= budget * report.parameters_before
    assert found[True][0] < 0.95 * found[False][0]
    assert found[True][1] < found[False][1]


def test_it_is_the_least_squares_of_the_formula() -> None:
    """Without a limit of the rank: no other matrix gives outputs nearer to those of the mixed inputs."""
    torch.manual_seed(1)
    X, Y = torch.randn(500, 32, dtype=torch.float64), torch.randn(500, 32, dtype=torch.float64)
    Y = X + 0.3 * Y
    refit = fit(deep(1), Structure("low_rank", rank=32), batches())
    (W,) = refit.units[0].matrices
    name = refit.units[0].name
    refit.data.metrics[name] = Metric(None, refit.data.metrics[name].outputs)
    made = refit._projected(0, Moments(Y.mT @ Y, X.mT @ Y, 10**12))
    assert made is not None
    wanted = ((1 - SHARE) * Y + SHARE * X) @ W.mT
    best = torch.linalg.lstsq(Y, wanted).solution.mT
    assert torch.dist(made.matrix.to_dense(), best) < 1e-3 * best.norm()
    assert made.residual == pytest.approx(float(torch.dist(best, W) / W.norm()), rel=1e-2)


def test_the_first_weight_stays_where_its_inputs_are_as_they_were() -> None:
    """x' = x for it: the projection of W itself, by these inputs."""
    refit = fit(deep(2), Structure("low_rank", rank=4), batches())
    plain = [[m] for m in [_alone(refit, i) for i in range(2)]]
    made = refit.fitted(plain)
    assert made is not None
    X = torch.cat([batch for i, batch in enumerate(batches()) if i % 4 != 3])
    (W,) = refit.units[0].matrices
    rows = torch.cat([seen.weights[300] for seen in refit.data.seen])
    C = (X * rows.unsqueeze(-1)).mT @ X
    old = refit.data.metrics[refit.units[0].name]
    expected = refit._projected(0, Moments(C, C.clone(), len(X)))
    assert expected is not None
    assert torch.dist(made[0][0].matrix.to_dense(), expected.matrix.to_dense()) < 1e-8 * W.norm()
    assert made[0][0].weighted_residual == pytest.approx(
        (Metric(old.inputs).error(W - made[0][0].matrix.to_dense()) / Metric(old.inputs).error(W)) ** 0.5
    )


def _alone(refit: Refit, i: int) -> torchldr.compress.metric.Projection:
    from torchldr.compress.metric import project

    unit = refit.units[i]
    return project(unit.matrices[0], refit.structures[i], refit.data.metrics[unit.name], 0)


def test_weights_of_the_same_inputs_are_one_group_and_run_in_order() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.b, self.a = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.a(x)) * self.b(x))

    model, loader = Model(), [torch.randn(20, 16) for _ in range(6)]
    refit = fit(model, Structure("low_rank", rank=2), loader)
    names = [unit.name for unit in refit.units]
    groups, _ = refit._order({0, 1, 2})
    assert [[names[i] for i in group] for group in groups] == [["a", "b"], ["last"]]


def _found(loader: Any, **given: Any) -> tuple[list[Tensor], torchldr.CompressionReport]:
    model = deep(3)
    report = torchldr.compress_(model, 0.5, structures=["low_rank"], loader=loader, **given)
    return [p.detach() for p in model.parameters()], report


def _loaders() -> dict[str, Any]:
    """The same batches, by loaders that give them once, in other orders the next time, or in one memory."""

    def once() -> Iterator[Tensor]:
        yield from batches()

    class Turning:
        calls = 0

        def __iter__(self) -> Iterator[Tensor]:
            self.calls += 1
            return iter(batches() if self.calls == 1 else batches()[::-1])

    class OneMemory:
        def __iter__(self) -> Iterator[Tensor]:
            memory = torch.empty(300, 32, dtype=torch.float64)
            return (memory.copy_(batch) for batch in batches())

    return {"once": once(), "turning": Turning(), "one memory": OneMemory()}


@pytest.mark.parametrize("name", ["once", "turning", "one memory"])
def test_batches_are_kept_whatever_the_loader_gives_next(name: str) -> None:
    right, report = _found(batches())
    assert any("in the order" in note for note in report.notes)
    found, other = _found(_loaders()[name])
    assert other.distance == report.distance
    assert all(map(torch.equal, found, right))


def test_a_model_may_work_in_the_memory_of_its_batches() -> None:
    """Each run has the batch as the loader gave it."""

    class Centred(nn.Module):
        def __init__(self, *, in_place: bool) -> None:
            super().__init__()
            self.net, self.in_place = deep(3), in_place

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.sub_(0.3) if self.in_place else x - 0.3)

    def found(*, in_place: bool) -> list[Tensor]:
        model = Centred(in_place=in_place)
        loader = (x for x in batches())
        torchldr.compress_(model, Structure("low_rank", rank=6), loader=loader, batches=8)
        return [p.detach() for p in model.parameters()]

    right = found(in_place=False)
    assert all(map(torch.equal, found(in_place=True), right))


def test_a_model_may_change_its_buffers():
    """They were left as calls with the loader's batches had made them, each batch saw those of another."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(40, 40)
            self.register_buffer("calls", torch.ones(()))

        def forward(self, x):
            self.calls += 1
            return self.layer(x) * self.calls

    torch.manual_seed(0)
    model = Counting()
    model.layer.weight.data = torchldr.LowRank.random(40, 40, rank=2).to_dense()
    report = torchldr.compress_(
        model, torchldr.Structure("low_rank", rank=2), loader=[torch.randn(9, 40) for _ in range(8)]
    )
    assert report.distance < 1e-5
    assert model.calls == 1


def test_modules_that_run_in_two_places_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """They kept the weights and buffers that they were lent to try a plan."""

    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

    part = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32))
    model = nn.Sequential(part, nn.Tanh(), part).double()
    before = [*model.parameters(), *model.buffers()]
    monkeypatch.setattr(Refit, "fitted", stop)
    with pytest.raises(KeyboardInterrupt):
        torchldr.compress_(model, Structure("low_rank", rank=2), loader=batches())
    after = [*model.parameters(), *model.buffers()]
    assert [t is old for t, old in zip(after, before, strict=True)] == [True] * len(before)


def test_batches_may_hold_anything() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = deep(3)

        def forward(self, x: Tensor, **others: Any) -> Tensor:
            return self.net(x)

    right, _ = _found(batches())
    others = {
        "complex": torch.ones(3, dtype=torch.complex64),
        "sparse": torch.eye(3).to_sparse(),
        "narrow": torch.ones(3).to(torch.float8_e4m3fn),
        "nested": {"a": [torch.ones(3)]},
        "plain": [torch.zeros(0, 2), True, 1.5, None, "text"],
    }
    for name, other in others.items():
        loader: Any = DataLoader([{"x": x, f"{name} one": other} for x in batches()], batch_size=None)
        model = Model()
        torchldr.compress_(model, 0.5, loader=loader, structures=["low_rank"])
        assert all(map(torch.equal, [p.detach() for p in model.parameters()], right)), name


def test_batches_that_take_too_much_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchldr.compress.calibration, "_BYTES", 3 * 300 * 32 * 8)
    refit = fit(deep(3), Structure("low_rank", rank=4), batches())
    first = batches()[:2]
    assert len(refit.data.seen) == 2  # with their rows' weights
    assert all(torch.equal(seen.batch[""], batch) for seen, batch in zip(refit.data.seen, first, strict=True))
    monkeypatch.setattr(torchldr.compress.calibration, "_BYTES", 0)
    refit = fit(deep(3), Structure("low_rank", rank=4), batches())
    assert len(refit.data.seen) == 1
    assert torch.equal(refit.data.seen[0].batch[""], first[0])


def test_moments_have_all_digits_under_autocast() -> None:
    """Those of bfloat16 may not be positive."""
    X = batches(1)[0].float()
    with torch.autocast("cpu", torch.bfloat16):
        found = moments_of(X, X)
    assert torch.equal(found, X.mT @ X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moments_of_narrow_numbers_are_summed_in_wide_ones(dtype: torch.dtype) -> None:
    """Else they are not positive: inputs that span six directions ended the fit with an error."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)).to(dtype)
    span = torch.randn(6, 64)
    loader = [(torch.randn(64, 6) @ span).to(dtype) for _ in range(24)]
    found = []
    for net, given in ((model, loader), (copy.deepcopy(model).double(), [x.double() for x in loader])):
        refit = fit(net, Structure("low_rank", rank=4), given)
        made = refit.fitted([[_alone(refit, i)] for i in range(2)])
        assert made is not None
        found.append([projection.weighted_residual for (projection,) in made])
    assert found[0] == pytest.approx(found[1], rel=0.02)


def test_padding_does_not_count() -> None:
    """Rows that the output does not depend on: the same weights whatever stands there."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = deep(3)

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return (self.net(ids) * mask.unsqueeze(-1)).sum(1)

    found = []
    for noise in (1.0, 50.0):
        torch.manual_seed(3)
        loader = []
        for batch in batches(8, 600):
            mask = (torch.arange(6) < torch.randint(2, 7, (100, 1))).double()
            ids = batch.reshape(100, 6, 32)
            pad = torch.randn(100, 6, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
            loader.append({"ids": torch.where(mask.bool().unsqueeze(-1), ids, noise * pad), "mask": mask})
        model = Masked()
        report = torchldr.compress_(model, 0.5, structures=["low_rank"], loader=loader)
        assert any("in the order" in note for note in report.notes)
        found.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_work_decides_how_many_stages() -> None:
    refit = fit(deep(3), Structure("low_rank", rank=4), batches(40))
    _, cost = refit._order({0, 1, 2})
    assert cost == Cost(run=3 * (CALL + 300 * 32 * 32), sums=2 * 3 * 300 * 32 * 32, rows=300 / 32)
    most, whole = len(refit.data.seen), WORK
    some = Cost(run=int(whole / 100), sums=0, rows=0.5)  # 16 batches for 8 rows an entry
    assert refit._affordable(20, some) == (25, 4)  # as many batches as leave work for so many stages
    assert refit._affordable(3, some) == (most, 3)
    dear = some._replace(run=int(whole / 10))
    assert refit._affordable(20, dear) == (0, 0)  # 16 batches and four stages would be too much work
    refit.session.time_limit = 600.0
    assert refit._affordable(20, dear) == (16, STAGES)
    refit.session.time_limit = None
    assert refit._affordable(20, some._replace(run=1)) == (most, 20)
    assert refit._affordable(20, some._replace(run=1, rows=0.2)) == (0, 0)  # 40 batches would be the least


def test_where_time_is_up_what_was_fitted_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    refit = fit(deep(4), Structure("low_rank", rank=4), batches())
    made = [[_alone(refit, i)] for i in range(4)]
    refit.session.time_limit = 60.0
    times = iter([1.0, 30.0, 50.0])
    monkeypatch.setattr(Session, "spent", property(lambda self: next(times)))
    found = refit.fitted(made)
    assert found is not None
    assert [found[i][0] is made[i][0] for i in range(4)] == [False, True, True, True]


def test_weights_whose_rows_depend_on_values_stay() -> None:
    """An expert gets the rows that a weight before it sends there: others once that is compressed."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.expert, self.last = (nn.Linear(32, 32).double() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            sent = h[:, 0] > 0.05
            return self.last(h.index_put((sent,), torch.tanh(self.expert(h[sent]))))

    torch.manual_seed(7)
    refit = fit(Experts(), Structure("low_rank", rank=2), batches())
    made = [[_alone(refit, i)] for i in range(3)]
    found = refit.fitted(made)
    assert found is not None
    names = [unit.name for unit in refit.units]
    assert [name for i, name in enumerate(names) if found[i][0] is not made[i][0]] == ["first", "last"]


def test_layers_that_are_not_called_as_such_stay() -> None:
    """A model may use their weights alone: no inputs are seen."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32).double()

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.layer.weight)

    model = Model()
    report = torchldr.compress_(model, 0.5, structures=["low_rank"], loader=batches())
    assert list(report.left) == ["layer"]
    assert isinstance(model.layer, nn.Linear)
