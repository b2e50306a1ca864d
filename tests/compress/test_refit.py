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
from torchldr.compress.calibration import Calibration, calibrate
from torchldr.compress.metric import Metric
from torchldr.compress.pieces import Pieces
from torchldr.compress.progress import Clock
from torchldr.compress.refit import SHARE, Cost, Moments, Refit
from torchldr.compress.structure import Structure
from torchldr.compress.targets import find_units
from torchldr.compress.watch import moments_of
from torchldr.compress.workers import Workers


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
    workers = Workers(1)
    data = calibrate(model, units, loader, None, None, workers)
    return Refit(model, units, [structure] * len(units), data, workers)


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
    made = refit.fitted(plain, 0.0)
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


def test_a_run_that_goes_on_has_the_batches_of_the_first(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the loader gives others then."""
    right, _ = _found(batches())

    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

    loader, given = _loaders()["turning"], {"checkpoint": tmp_path / "work"}
    with monkeypatch.context() as patch:
        patch.setattr(Refit, "fitted", stop)
        with pytest.raises(KeyboardInterrupt):
            _found(loader, **given)
    found, report = _found(loader, **given)
    assert any("in the order" in note for note in report.notes)
    assert all(map(torch.equal, found, right))


def test_a_model_may_work_in_the_memory_of_its_batches(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run has the batch as the loader gave it; those of a checkpoint cannot be written at all."""

    class Centred(nn.Module):
        def __init__(self, *, in_place: bool) -> None:
            super().__init__()
            self.net, self.in_place = deep(3), in_place

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.sub_(0.3) if self.in_place else x - 0.3)

    def found(*, in_place: bool, **given: Any) -> list[Tensor]:
        model = Centred(in_place=in_place)
        loader = (x for x in batches())
        torchldr.compress_(model, Structure("low_rank", rank=6), loader=loader, batches=8, **given)
        return [p.detach() for p in model.parameters()]

    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

    right = found(in_place=False)
    assert all(map(torch.equal, found(in_place=True), right))
    with monkeypatch.context() as patch:
        patch.setattr(Refit, "fitted", stop)
        with pytest.raises(KeyboardInterrupt):
            found(in_place=True, checkpoint=tmp_path / "work")
    assert all(map(torch.equal, found(in_place=True, checkpoint=tmp_path / "work"), right))


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


def test_batches_may_hold_what_files_cannot(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then calibration is done once more where a run goes on."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = deep(3)

        def forward(self, x: Tensor, **others: Any) -> Tensor:
            return self.net(x)

    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

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
        given: dict[str, Any] = {"structures": ["low_rank"], "checkpoint": tmp_path / name}
        with monkeypatch.context() as patch:
            patch.setattr(Refit, "fitted", stop)
            with pytest.raises(KeyboardInterrupt):
                torchldr.compress_(Model(), 0.5, loader=loader, **given)
        model = Model()
        torchldr.compress_(model, 0.5, loader=loader, **given)
        assert all(map(torch.equal, [p.detach() for p in model.parameters()], right)), name


def test_a_checkpoint_gives_batches_back(tmp_path) -> None:
    """As they were, and where the model lies then."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = deep(2)

        def forward(self, x: Tensor, **others: Any) -> Tensor:
            return self.net(x)

    def found(model: nn.Module) -> Calibration:
        pieces = Pieces(tmp_path / "work")
        pieces.begin({})
        with Workers(1, None, pieces) as workers:
            data = calibrate(model, find_units(model, None, 8)[0], loader, None, None, workers)
        pieces.close()
        return data

    others = {
        "ids": torch.arange(5), "of rows": torch.ones(2, 3).mT > 0, "none at all": torch.zeros(0, 2),
        "one": torch.tensor(3, dtype=torch.int8), "flag": True, "f": 0.1, "n": None, "text": "a b",
    }  # fmt: skip
    loader: Any = [{"x": x, **others} for x in batches(5)]
    first = found(Model())
    loader = None  # not asked again
    again, elsewhere = found(Model()), found(Model().to("meta"))
    assert [one.place for one in again.seen] == [0, 1, 2, 4]
    assert [one.place for one in again.held] == [3]
    for one, other in zip([*first.seen, *first.held], [*again.seen, *again.held], strict=True):
        assert one.batch.keys() == other.batch.keys()
        for key, x in one.batch.items():
            y = other.batch[key]
            assert x.dtype == y.dtype and torch.equal(x, y) if isinstance(x, Tensor) else x == y, key
    for one, other in zip(first.seen, again.seen, strict=True):
        torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=0)
    assert {one.batch["x"].device.type for one in elsewhere.seen} == {"meta"}


def test_batches_that_take_too_much_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchldr.compress.calibration, "_BYTES", 3 * 300 * 32 * 8)
    refit = fit(deep(3), Structure("low_rank", rank=4), batches())
    assert [seen.place for seen in refit.data.seen] == [0, 1]  # and their rows' weights
    monkeypatch.setattr(torchldr.compress.calibration, "_BYTES", 0)
    refit = fit(deep(3), Structure("low_rank", rank=4), batches())
    assert [seen.place for seen in refit.data.seen] == [0]


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
    loader = [(torch.randn(64, 6) @ span).to(dtype) for _ in range(8)]
    found = []
    for net, given in ((model, loader), (copy.deepcopy(model).double(), [x.double() for x in loader])):
        refit = fit(net, Structure("low_rank", rank=4), given)
        made = refit.fitted([[_alone(refit, i)] for i in range(2)], 0.0)
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


def test_time_decides_how_many_stages() -> None:
    refit = fit(deep(3), Structure("low_rank", rank=4), batches(40))
    _, cost = refit._order({0, 1, 2})
    assert cost.rows == 300 / 32
    assert cost.run > 0
    assert cost.sums > 0
    cost = Cost(run=1.0, sums=0.5, rows=0.5)  # 16 batches for 8 rows an entry
    assert refit._affordable(20, cost, 0.0) == (32, 20)  # no limit
    refit.clock = Clock(1.0)
    batches_, stages = refit._affordable(20, cost, 5.0)
    assert stages == 4  # and as many batches as that leaves time for
    assert batches_ * (4 * 0.5 + 0.5) <= 0.95 * 60 - 7.5 < (batches_ + 1) * (4 * 0.5 + 0.5)
    assert refit._affordable(20, Cost(2.0, 0.5, 0.5), 5.0) == (16, 2)  # no fewer than are needed
    assert refit._affordable(2, Cost(1e-3, 1e-3, 100.0), 0.0) == (32, 2)
    assert refit._affordable(20, cost, 60.0)[1] == 0
    assert refit.fitted([[_alone(refit, i)] for i in range(3)], 60.0) is None


def test_where_time_is_up_what_was_fitted_is_kept(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a second call with the same pieces goes no further."""
    refit = fit(deep(4), Structure("low_rank", rank=4), batches())
    refit.pieces = Pieces(tmp_path / "work")
    refit.pieces.begin({})
    made = [[_alone(refit, i)] for i in range(4)]
    monkeypatch.setattr(Clock, "lacks", lambda self, seconds: True)
    found = refit.fitted(made, 0.0)
    monkeypatch.undo()
    again = refit.fitted(made, 0.0)
    assert found is not None
    assert again is not None
    for i in range(4):
        assert (found[i][0] is made[i][0]) == (i > 0)
        assert torch.equal(found[i][0].matrix.to_dense(), again[i][0].matrix.to_dense())


def test_a_stage_that_would_end_too_late_is_not_begun() -> None:
    clock = Clock(1.0)
    clock.start -= 40
    assert not clock.lacks(19)
    assert clock.lacks(21)
    assert not Clock(None).lacks(1e9)


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
    found = refit.fitted(made, 0.0)
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
    assert report.parameters_after < report.parameters_before
    assert not any("in the order" in note for note in report.notes)
