"""Budgets: what they mean, how they are shared out, and what is said of wrong ones."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import torchldr
from torchldr.compress import Bytes, Latency, parse_budget
from torchldr.compress.budget import Stopwatch, budget_text
from torchldr.compress.candidates import Candidate, Search, charged
from torchldr.compress.checkpoint.weights import TensorWeight
from torchldr.compress.errors import projection_errors
from torchldr.compress.metric import Metric
from torchldr.compress.sharing import share_out

QUICK = ("low_rank", "block_circulant")


def stored(model: nn.Module) -> int:
    """The bytes of a model's state, biases left out."""
    return sum(t.numel() * t.element_size() for name, t in model.state_dict().items() if "bias" not in name)


@pytest.mark.parametrize("amount", [3000, 9000, 20_000])
def test_bytes_are_kept_and_used(amount):
    model = nn.Sequential(nn.Linear(48, 64), nn.Linear(64, 40, dtype=torch.bfloat16), nn.Linear(40, 40))
    report = torchldr.compress_(model, budget=Bytes(amount), min_features=8, structures=QUICK)
    assert 0.7 * amount < report.bytes_after <= amount
    assert stored(model) == report.bytes_after
    assert report.bytes_before == 4 * 48 * 64 + 2 * 64 * 40 + 4 * 40 * 40


def test_bytes_count_drawn_constants():
    model = nn.Sequential(nn.Linear(64, 64))
    report = torchldr.compress_(model, Bytes(1500), structures=["fastfood"], time_limit=1e-6)
    assert report.layers[0].structure == "fastfood"
    assert (
        stored(model)
        == report.bytes_after
        == torchldr.Structure("fastfood").stored_bytes([torch.zeros(64, 64)])
    )
    model = nn.Sequential(nn.Linear(64, 64))
    with pytest.raises(
        ValueError, match="a budget of 1000 bytes is too small: the smallest candidates have 1280"
    ):
        torchldr.compress_(model, Bytes(1000), structures=["fastfood"])


def test_halves_of_a_dtype_cost_half():
    """Two weights alike but for their dtype: with bytes as the budget the narrow one gets the higher rank."""
    W = torch.randn(64, 64)
    model = nn.ModuleDict({"wide": nn.Linear(64, 64), "narrow": nn.Linear(64, 64, dtype=torch.bfloat16)})
    for layer in model.values():
        layer.weight.data = W.to(layer.weight.dtype)
    wide, narrow = torchldr.compress_(model, Bytes(8000), structures=["low_rank"]).layers
    assert narrow.rank > wide.rank


@pytest.fixture
def clock(monkeypatch):
    """A made-up clock: a product takes as many microseconds as its layer has parameters, dense the most."""

    def seconds(calls, repeats, wanted):
        found = {}
        for name, call in calls.items():
            call()
            structure = eval(name, {"Structure": torchldr.Structure})
            found[name] = 1e-6 * structure.parameters(64, 64)
        return found

    monkeypatch.setattr("torchldr.compress.budget.minimum_seconds", seconds)


def test_latency_is_shared_out(clock):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    model[1].weight.data = torchldr.LowRank.random(64, 64, rank=2).to_dense()
    report = torchldr.compress_(model, Latency(4.0), structures=["low_rank"])
    assert report.layers[1].rank == 2
    assert report.latency_before == pytest.approx(3 * 4.096)
    assert 3.5 < report.latency_after <= 4.0
    assert report.latency_after == pytest.approx(1e-3 * report.parameters_after)
    assert "latency: 12.3 -> " in str(report)
    assert '"latency_after": ' in report.to_json()


def test_a_latency_that_cannot_be_reached_changes_nothing(clock):
    model = nn.Sequential(nn.Linear(64, 64))
    with pytest.raises(
        ValueError, match=r"a budget of 0\.1 ms is too small: the smallest candidates have 0\.128"
    ):
        torchldr.compress_(model, Latency(0.1), structures=["low_rank"])
    assert type(model[0]) is nn.Linear


def test_a_shared_module_counts_as_often_as_it_is_used(clock):
    layer = nn.Linear(64, 64)
    model = nn.ModuleDict({"a": layer, "b": layer})
    report = torchldr.compress_(model, Latency(3.0), structures=["low_rank"])
    assert report.latency_after == pytest.approx(2e-3 * report.parameters_after)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_have_a_latency_too(kind):
    model = nn.ModuleDict({"rnn": kind(32, 32, 2, batch_first=True)})
    state = torch.get_rng_state()
    report = torchldr.compress_(model, Latency(1e9, batch=2), structures=["low_rank"])
    assert torch.equal(state, torch.get_rng_state())
    assert report.layers[0].structure == "dense"
    assert report.latency_before == report.latency_after > 0


def test_the_stopwatch_times_inference_by_each_layer(monkeypatch):
    ran = []

    def seconds(calls, repeats, wanted):
        for call in calls.values():
            call()
        return dict(zip(calls, (5.0, 2.0), strict=True))

    def look(module, inputs, output):
        ran.append((type(module), inputs[0].shape, module.training, output.is_inference()))

    monkeypatch.setattr("torchldr.compress.budget.minimum_seconds", seconds)
    weight = TensorWeight({"W": torch.randn(64, 32)}, "W")
    low = torchldr.Structure("low_rank", rank=1)
    with torch.nn.modules.module.register_module_forward_hook(look):
        assert Stopwatch(8)(weight, [torchldr.Structure("dense"), low]) == [5e3, 2e3]
    assert ran == [(kind, (8, 32), False, True) for kind in (nn.Linear, torchldr.StructuredLinear)]


@given(
    sizes=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=4),
    limit=st.integers(1, 150),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_sharing_out_keeps_the_limit_and_leaves_no_step_that_fits(sizes, limit, seed):
    generator = torch.Generator().manual_seed(seed)
    structure = torchldr.Structure("dense")
    rows = []
    for row in sizes:
        some = [Candidate(structure, cost, torch.rand((), generator=generator).item()) for cost in row]
        rows.append(charged(some, row))
    least = sum(min(row) for row in sizes)
    if least > limit:
        with pytest.raises(ValueError, match=f"smallest candidates have {least}"):
            share_out(rows, limit)
        return
    taken = share_out(rows, limit)
    spent = sum(c.cost for c in taken)
    assert spent <= limit
    for row, now in zip(rows, taken, strict=True):
        assert not any(c.error < now.error and 0 <= c.cost - now.cost <= limit - spent for c in row)
    best = min(
        sum(c.error for c in some) for some in itertools.product(*rows) if sum(c.cost for c in some) <= limit
    )
    assert sum(c.error for c in taken) >= best - 1e-12


def test_the_grid_has_the_largest_rank_that_fits_and_nothing_as_large_as_the_weight():
    weight = TensorWeight({"W": torch.randn(96, 160)}, "W")
    search = Search(("low_rank",), shares=(0.1,), usual=(1,))
    ranks = {s.rank for s in search.structures("low_rank", weight)}
    fits = int(0.1 * 96 * 160 / (96 + 160))
    assert fits in ranks
    assert max(ranks) * 256 < 96 * 160
    assert [s.rank for s in Search((), ranks=(3, 5, 200)).structures("toeplitz_like", weight)] == [3, 5]
    assert Search((), work=None).structures("dense", weight) == []


def test_slow_projections_are_left_out_unless_asked_for():
    weight = TensorWeight({"W": torch.empty(512, 512)}, "W")
    assert Search(()).structures("ldr_td", weight) == []
    assert [s.rank for s in Search(()).structures("toeplitz_like", weight)] == [1, 2, 4]
    assert [s.rank for s in Search((), ranks=(9,), work=None).structures("ldr_td", weight)] == [9]


def test_errors_are_those_of_the_projections():
    W = torch.randn(40, 36, dtype=torch.float64)
    some = [
        torchldr.Structure("low_rank", 5),
        torchldr.Structure("toeplitz_like", 2),
        torchldr.Structure("dense"),
    ]
    found = projection_errors([W], Metric().relative(1, [W]), some, 0, 0.1)
    for structure, error in zip(some[:2], found, strict=False):
        expected = torchldr.from_dense(W, structure.name, structure.rank, effort=0.1).residual
        assert error**0.5 == pytest.approx(expected, rel=1e-9)
    assert found[2] == 0
    low = torchldr.LowRank.random(40, 36, rank=3).to_dense()
    ranks = [torchldr.Structure("low_rank", r) for r in (3, 4)]
    assert projection_errors([low], Metric(), ranks, 0, 0.1) == [0, 0]  # not rounding errors


GOOD = [
    ("0.1", 0.1), ("1/5", 0.2), ("20 %", 0.2), ("12_000", 12_000), ("200kB", Bytes(200_000)),
    ("2 MiB", Bytes(2 << 20)), ("100 B", Bytes(100)), ("3 ms", Latency(3.0, 4)),
    ("250us", Latency(0.25, 4)), (".5", 0.5),
]  # fmt: skip


@pytest.mark.parametrize(("text", "budget"), GOOD)
def test_budgets_in_words(text, budget):
    assert parse_budget(text, batch=4) == budget
    assert parse_budget(budget_text(budget), batch=4) == budget


@pytest.mark.parametrize(
    "text", ["", "many", "1.5", "0", "-1", "1/0", "5 km", "0 kB", "0 ms", "1/2 ms", "120%", "nan"]
)
def test_budgets_that_are_none(text):
    with pytest.raises(ValueError, match=r"budget|Bytes|Latency"):
        parse_budget(text)


WRONG = [
    (lambda: Bytes(0), ValueError, "Bytes: amount must be at least 1, got 0"),
    (lambda: Bytes(1.5), TypeError, "Bytes: amount must be an int, got 1.5"),
    (lambda: Latency(0), ValueError, "Latency: ms must be positive"),
    (lambda: Latency(float("nan")), ValueError, "Latency: ms must be positive"),
    (lambda: Latency("1"), TypeError, "Latency: ms must be a number"),
    (lambda: Latency(1, batch=0), ValueError, "Latency: batch must be an int of at least 1"),
    (lambda: torchldr.compress_(nn.Sequential(), budget="0.1"), TypeError, "spec must be a fraction"),
    (lambda: torchldr.analyze({}, budget="0.1"), TypeError, r"parse_budget\('0.1'\) reads text"),
]


@pytest.mark.parametrize(("make", "kind", "message"), WRONG)
def test_wrong_budgets_are_explained(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize("near", [True, False])
def test_of_large_weights_two_of_a_shape_decide_for_the_others(monkeypatch, near):
    monkeypatch.setattr("torchldr.compress.selection._MANY", 0)
    monkeypatch.setattr("torchldr.compress.selection._CHEAP", 1 << 8)
    model = nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(4)))
    for layer in model:
        cls = torchldr.ToeplitzLike if near else torchldr.LowRank
        layer.weight.data = cls.random(32, 32, rank=1 if near else 4).to_dense()
    tried: list[str] = []
    real = torchldr.compress.errors.projection_errors

    def counted(matrices, metric, structures, *more):
        tried.extend(structure.name for structure in structures if structure.name != "low_rank")
        return real(matrices, metric, structures, *more)

    monkeypatch.setattr("torchldr.compress.errors.projection_errors", counted)
    report = torchldr.compress_(model, 0.15, structures=("low_rank", "toeplitz_like"))
    if near:
        assert {row.structure for row in report.layers} == {"toeplitz_like"}
        assert report.residual < 1e-5
    else:
        assert {row.structure for row in report.layers} == {"low_rank"}
        assert len(tried) <= 2


def test_a_class_whose_projections_take_long_still_serves_where_it_is_the_only_one(monkeypatch):
    monkeypatch.setattr(torchldr.LDRSubdiagonal, "projection_work", 1e9)
    model = nn.Sequential(nn.Linear(32, 32))
    report = torchldr.compress_(model, 0.5, structures=["ldr_sd"])
    assert [(row.structure, row.rank) for row in report.layers] == [("ldr_sd", 1)]
