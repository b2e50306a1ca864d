"""analyze against projections made one by one, on modules, mappings and files."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import torchldr
from torchldr.compress import compress_weights, load_weights, save_weights

FAST = ("low_rank", "block_circulant", "toeplitz_like")


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        "enc.0.weight": torchldr.ToeplitzLike.random(48, 48, rank=2).to_dense().contiguous(),
        "enc.0.bias": torch.randn(48),
        "enc.1.weight": torchldr.LowRank.random(40, 48, rank=3).to_dense().contiguous(),
        "table": torch.randn(32, 40),
        "steps": torch.arange(4),
    }


@pytest.fixture(scope="module")
def found(weights: dict[str, Tensor]) -> torchldr.compress.Analysis:
    return torchldr.analyze(weights, structures=FAST)


def test_each_weight_gets_what_it_is(found):
    by_name = {weight.name: weight for weight in found.weights}
    assert list(by_name) == ["enc.0.weight", "enc.1.weight", "table"]
    for best in by_name["enc.0.weight"].best[:3]:
        assert best.structure == torchldr.Structure("toeplitz_like", rank=2)
        assert best.residual == 0
    for best in by_name["enc.1.weight"].best[:2]:
        assert best.structure == torchldr.Structure("low_rank", rank=3)


def test_residuals_are_those_of_projections_and_the_best_fit_their_budget(found, weights):
    for weight in found.weights:
        W = weights[weight.name]
        for budget, best in zip(found.budgets, weight.best, strict=True):
            if best is None:
                continue
            assert best.parameters <= budget * W.numel()
            assert best.refined
            s = best.structure
            exact = torchldr.from_dense(W, s.name, s.rank, **s.options).residual
            assert best.residual == pytest.approx(exact, abs=1e-6)
            rivals = [t for t in weight.trials if t.refined and t.parameters <= budget * W.numel()]
            assert best.residual <= min(t.residual for t in rivals)


def test_three_classes_are_refined_for_each_budget(monkeypatch):
    seen = []

    looks = {"toeplitz_like": 0.5, "hankel_like": 0.6, "cauchy_like": 0.7, "vandermonde_like": 0.8}
    really = {"toeplitz_like": 0.95, "hankel_like": 0.9, "cauchy_like": 0.99}

    def made_up(matrices, metric, structures, seed, effort, deadline):
        seen.append((effort, [s.name for s in structures]))
        return [(really if effort == 1 else looks)[s.name] ** 2 for s in structures]

    monkeypatch.setattr("torchldr.compress.errors.projection_errors", made_up)
    names = ["vandermonde_like", "toeplitz_like", "cauchy_like", "hankel_like"]
    found = torchldr.analyze({"W": torch.randn(64, 64)}, budget=0.05, structures=names, ranks=[1])
    assert sorted(name for effort, (name,) in seen if effort == 1) == sorted(really)
    # The leader was worse than it looked, and what was not looked at well is no choice.
    best = found.weights[0].best[0]
    assert (best.structure.name, best.residual, best.refined) == ("hankel_like", pytest.approx(0.9), True)
    assert {t.structure.name: t.refined for t in found.weights[0].trials}["vandermonde_like"] is False


def test_plans_share_out_and_serve_compress(found, weights):
    whole = sum(W.numel() for W in weights.values() if W.ndim == 2)
    for budget in (0.3, 1500):  # the first was not analysed
        plan = found.plan(budget)
        made, report = compress_weights(weights, plan)
        assert report.parameters_after <= (budget * whole if budget < 1 else budget)
        assert isinstance(made["enc.0.weight"], torchldr.ToeplitzLike)
    for shared, budget in zip(found.plans, found.budgets, strict=True):
        if shared.error is None:
            assert shared.parameters <= budget * whole
            assert found.plan(budget) == shared.structures
        else:
            with pytest.raises(ValueError, match="too small"):
                found.plan(budget)
    with pytest.raises(ValueError, match=r"which budget\? This analysis has 1/2, 1/5"):
        found.plan()
    with pytest.raises(ValueError, match="was not analysed"):
        found.plan(torchldr.compress.Bytes(1000))


def test_absolute_budgets_are_shared_out(weights):
    budgets = [torchldr.compress.Bytes(6000), 1500, torchldr.compress.Latency(60_000.0)]
    found = torchldr.analyze(weights, budget=budgets, structures=("low_rank",))
    size = {b: sum(w.best[i].parameters for w in found.weights) for i, b in enumerate(budgets)}
    assert size[budgets[0]] <= 1500
    assert size[1500] <= 1500
    assert all(w.best[2].residual == 0 for w in found.weights)  # time enough for dense weights
    assert [p.unit for p in found.plans] == ["bytes", "parameters", "ms"]
    assert {w.name: w.best[1].structure for w in found.weights} == found.plan(1500)
    assert "6000 B" in str(found)
    assert "60000 ms" in str(found)


def test_files_give_the_same(weights, tmp_path):
    file, seen = tmp_path / "m.safetensors", []
    save_file(weights, file)
    options = {"structures": ("low_rank", "block_circulant", "circulant")}
    here = torchldr.analyze(weights, **options)
    again = torchldr.analyze(file, **options)
    assert again.weights == here.weights
    assert (here.source, again.source) == (None, str(file))
    torchldr.analyze(weights, progress=lambda *step: seen.append(step), **options)
    assert seen[-1][1:] == (8, 9)


def test_modules_are_analysed_as_compress_sees_them():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(32, 32)
            self.attention = nn.MultiheadAttention(32, 4)
            self.head = nn.Linear(32, 40)
            self.tail = nn.Linear(32, 40)
            self.tail.weight = self.head.weight
            self.small = nn.Linear(32, 4)

    model = Model()
    found = torchldr.analyze(model, structures=("low_rank",), budget=0.5, skip=["*.k_proj"])
    names = ["rnn.weight_ih_l0", "attention.q_proj", "attention.v_proj", "attention.out_proj", "head"]
    assert [w.name for w in found.weights] == names
    assert found.weights[0].matrices == 3
    assert "3 of 32 x 32" in str(found)
    assert found.left["attention.k_proj"] == "skipped"
    assert "fewer than min_features" in found.left["small"]
    plan = found.plan(0.5)
    report = torchldr.compress_(model, plan)
    assert {row.name: (row.structure, row.rank) for row in report.layers if row.name in plan} == {
        name: (s.name, s.rank) for name, s in plan.items()
    }
    alone = torchldr.analyze(nn.Linear(32, 40), structures=("low_rank",), budget=0.5)
    assert [w.name for w in alone.weights] == ["weight"]


def test_activations_weigh_the_residuals():
    model = nn.Sequential(nn.Linear(40, 40))
    X = torch.randn(200, 40) * torch.logspace(0, -3, 40)
    options = {"structures": ("low_rank",), "budget": 0.2}
    plain = torchldr.analyze(model, **options).weights[0].best[0]
    weighted = torchldr.analyze(model, loader=[X], **options).weights[0].best[0]
    assert weighted.structure == plain.structure
    W, M = (
        model[0].weight,
        torchldr.from_dense(model[0].weight.detach(), "low_rank", weighted.structure.rank, activations=X),
    )
    assert weighted.residual == pytest.approx(M.weighted_residual, rel=0.02)  # moments are lifted a little
    assert weighted.residual < 0.6 * plain.residual
    assert torch.equal(W, model[0].weight)


def test_the_table_the_json_and_the_picture(found, tmp_path):
    text = str(found)
    assert "toeplitz_like rank=2: 0.000" in text
    assert "each by itself" in text
    found.save(tmp_path / "a.json")
    saved = json.loads((tmp_path / "a.json").read_text())
    assert saved == json.loads(found.to_json())
    assert saved["budgets"] == ["1/2", "1/5", "1/10", "1/20"]
    row = saved["weights"][0]
    assert row["best"][2] == {
        "structure": "toeplitz_like", "rank": 2, "options": {},
        "parameters": 192, "residual": 0.0, "refined": True,
    }  # fmt: skip
    assert len(row["trials"]) == len(found.weights[0].trials)
    for name in ("a.png", "a.svg"):
        found.plot(tmp_path / "new" / name)
        assert (tmp_path / "new" / name).stat().st_size > 5000
    with pytest.raises(ValueError, match=r"must end in \.png"):
        found.plot(tmp_path / "a.txt")


def nothing(**given):
    return torchldr.analyze({"W": torch.randn(64, 64)}, **given)


WRONG = [
    (lambda: torchldr.analyze({"W": [1.0]}), TypeError, "must give tensors by name, got list for 'W'"),
    (lambda: torchldr.analyze(3), TypeError, "wanted a path or a mapping"),
    (
        lambda: torchldr.analyze("nowhere.safetensors"),
        FileNotFoundError,
        "nowhere.safetensors does not exist",
    ),
    (lambda: torchldr.analyze({"b": torch.zeros(9)}), ValueError, "no weight with two axes of 32 or more"),
    (
        lambda: torchldr.analyze({"W": torch.full((64, 64), torch.nan)}),
        ValueError,
        "W has entries that are not fin",
    ),
    (lambda: nothing(structures=["toeplitz"]), ValueError, "Did you mean 'toeplitz_like'"),
    (lambda: nothing(structures="low_rank"), TypeError, "structures must be a sequence of names"),
    (lambda: nothing(ranks=[0]), ValueError, "ranks must be an int of at least 1, got 0"),
    (lambda: nothing(ranks=[1000]), ValueError, "ranks must be at most 64 for these weights"),
    (lambda: nothing(budget=[]), ValueError, "at least one budget"),
    (lambda: nothing(budget=2.0), ValueError, "between 0 and 1"),
    (lambda: nothing(skip=["V*"]), ValueError, r"no tensor matches skip='V\*'"),
    (lambda: torchldr.analyze(nn.Linear(64, 64), skip=["V*"]), ValueError, r"no weight matches skip='V\*'"),
    (lambda: nothing(loader=[]), TypeError, "need a module"),
]


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_wrong_arguments_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("dense", [True, False])
def test_weights_come_back_from_a_folder(weights, tmp_path, dense):
    plan = {
        "enc.0": torchldr.Structure("fastfood"),  # has a drawn constant
        "enc.1.weight": torchldr.Structure("cauchy_like", rank=2),  # has one that is not stored
        "table": torchldr.Structure("low_rank", rank=2),
    }
    made, report = compress_weights(weights, plan, time_limit=1e-6)
    save_weights(made, tmp_path / "out", report)
    again = load_weights(tmp_path / "out", dense=dense)
    assert set(again) == set(weights)
    for name, W in again.items():
        M = made[name]
        if isinstance(M, torchldr.StructuredMatrix):
            assert isinstance(W, Tensor) == dense
            assert torch.equal(W if dense else W.to_dense(), M.to_dense())
        else:
            assert torch.equal(W, M)
    assert not any(getattr(W, "requires_grad", False) for W in again.values())


def test_such_a_folder_loads_into_its_model(tmp_path):
    model = nn.Sequential(nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, 48, False))
    made, _ = compress_weights(model.state_dict(), torchldr.Structure("low_rank", rank=4))
    save_weights(made, tmp_path / "out")
    x = torch.randn(3, 48)
    dense = nn.Sequential(nn.Linear(48, 40), nn.ReLU(), nn.Linear(40, 48, False))
    dense.load_state_dict(load_weights(tmp_path / "out"))
    torchldr.load_compressed(model, tmp_path / "out")
    assert isinstance(model[0], torchldr.StructuredLinear)
    assert torch.allclose(model(x), dense(x), atol=1e-5)
    torchldr.load_compressed(model, tmp_path / "out")  # again, now that it has the layers
    # And the other way: what save_compressed wrote.
    torchldr.save_compressed(model, tmp_path / "model")
    again = load_weights(tmp_path / "model")
    assert torch.equal(again["0.weight"], model[0].matrix().to_dense())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_kept(tmp_path, dtype):
    W = torchldr.LowRank.random(40, 48, rank=2, dtype=torch.float64).to_dense().to(dtype)
    made, report = compress_weights({"a.weight": W}, torchldr.Structure("low_rank", rank=2))
    save_weights(made, tmp_path / "out")
    again = load_weights(tmp_path / "out")["a.weight"]
    assert again.dtype == dtype
    assert report.layers[0].bytes_after == 2 * 88 * W.element_size()
    assert (again.double() - W.double()).norm() <= 4 * torch.finfo(dtype).eps * W.double().norm()


def test_a_weight_of_zeros_costs_next_to_nothing():
    found = torchldr.analyze({"W": torch.zeros(40, 40)}, structures=("low_rank", "toeplitz_like"), budget=0.1)
    assert found.weights[0].best[0].residual == 0
    assert found.plans[0].residual == 0


def test_odd_names_come_back_too(tmp_path):
    weights = {
        "W": torch.randn(40, 40), "W.bias": torch.randn(3), "a.weight": torch.randn(40, 40),
        "a.bias": torch.arange(40), "a.scale": torch.randn(()), "forward.training": torch.randn(2, 2),
    }  # fmt: skip
    made, _ = compress_weights(weights, torchldr.Structure("low_rank", rank=40))
    save_weights(made, tmp_path / "out")
    again = load_weights(tmp_path / "out")
    assert set(again) == set(weights)
    for name, W in again.items():
        assert torch.allclose(W, weights[name], atol=1e-4)
    clash = {"a.weight": made["a.weight"], "a.G": torch.zeros(2)}
    with pytest.raises(ValueError, match=r"a\.G is also the name"):
        save_weights(clash, tmp_path / "clash")
    assert not (tmp_path / "clash").exists()


def test_folders_that_need_their_model_or_are_damaged_are_refused(tmp_path):
    model = nn.Sequential(nn.LSTM(32, 32))
    torchldr.compress_(model, torchldr.Structure("low_rank", rank=2))
    torchldr.save_compressed(model, tmp_path / "lstm")
    with pytest.raises(ValueError, match="load_weights: 0 is of kind lstm, which needs its model"):
        load_weights(tmp_path / "lstm")
    made, _ = compress_weights({"a.weight": torch.randn(40, 40)}, torchldr.Structure("low_rank", rank=2))
    save_weights(made, tmp_path / "out")
    manifest = tmp_path / "out" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["layers"]["a"]["rank"] = 3
    del content["sha256"]  # as in version 0.1: what does not fit shows by itself
    manifest.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"load_weights: a: G has shape \(2, 40\), rank=3 needs \(3, 40\)"):
        load_weights(tmp_path / "out")
    manifest.write_text("{")
    with pytest.raises(ValueError, match=r"load_weights: .*manifest.json is not JSON"):
        load_weights(tmp_path / "out")


# In the processes of the pool, which import this to find the function.
