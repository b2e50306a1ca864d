"""The table of accuracy by flash: what fits, what counts, how it is shown."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from torchldr import quantize_
from torchldr_paper.figures import NothingToDrawError, draw
from torchldr_paper.ledger.ledger import Ledger
from torchldr_paper.ledger.records import Record
from torchldr_paper.models.images import build_model
from torchldr_paper.protocol import Protocol, Run
from torchldr_paper.tables.flash import (
    BUDGETS,
    METHODS,
    OUTPUTS,
    SHAPES,
    candidates,
    flash_rows,
    select_rounded,
    size_of,
)  # fmt: skip
from torchldr_paper.tables.paper import get_table
from torchldr_paper.trainer.batches import Images
from torchldr_paper.trainer.fleet import Fleet
from torchldr_paper.trainer.rounding import rounding, score_rounded, sparse_bytes
from torchldr_paper.trainer.training import train_run

TABLE = get_table("flash")
SMALL = Protocol(epochs=2, batch=20, lrs=(0.001, 0.01), trials=2)


@pytest.fixture(scope="module")
def images() -> Images:
    torch.manual_seed(0)
    x, y = torch.randn(120, 64), torch.arange(120) % 3
    x[torch.arange(120), y] += 3
    return Images("rectangles", "user", "0" * 64, (1, 8, 8), x, y, x[:60], y[:60], 3)


def small(structure: str, **fields: object) -> Run:
    return Run("rectangles", "shl", structure, weights="int8", protocol=SMALL, **fields)


def test_every_size_fits_its_budget_and_the_next_larger_does_not():
    for run in TABLE.runs():
        assert size_of(run) <= BUDGETS[-1]
    for budget in BUDGETS:
        for run in candidates("mnist", "shl", "ldr_sd", budget):
            assert size_of(run) <= budget < size_of(dataclasses.replace(run, rank=run.rank + 1))
    assert {run.method for run in TABLE.runs()} == set(METHODS)
    assert len({run.hash for run in TABLE.runs()}) == len(TABLE.cells)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["shl", "cnn"])
def test_the_size_is_what_a_rounded_model_holds(method: str, model: str):
    run = next(candidates("mnist", model, method, BUDGETS[1]))
    made = quantize_(build_model(run, SHAPES["mnist"], OUTPUTS))
    buffers = {name for name, _ in made.named_buffers()}
    held = sum(t.nbytes for name, t in made.state_dict().items() if name not in buffers)
    if run.keep is not None:  # a pruned layer is held dense
        m, n = made.hidden.weight.shape
        held += sparse_bytes(run.keep, m, n) - m * n - 4 * m
    assert held == size_of(run)


def test_the_published_ledger_has_every_run(tmp_path):
    """Sizes are probed in the order in which they were when these were run: others give other runs."""
    ledger = Ledger(tmp_path, curves=False)
    assert [run.label for run in TABLE.runs() if ledger.find(run) is None] == []


def test_pruned_layers_take_the_smallest_form():
    assert sparse_bytes(100, 784, 784) == 4 + 300 + 2 * 785
    assert sparse_bytes(50_000, 784, 784) == 4 + 2 * (50_000 + 784 * 784 // 256)
    assert sparse_bytes(300_000, 784, 784) == 4 + 784 * 784 // 8 + 300_000


@pytest.mark.parametrize("structure", ["ldr_sd", "dense"])
def test_a_run_is_scored_with_rounded_weights(structure: str, images: Images):
    run = small(structure, keep=500 if structure == "dense" else None)
    outcome = train_run(run, images, curves=False)
    notes = outcome.notes["int8"]
    assert len(notes["validation"]) == len(notes["test"]) == 4
    assert notes["flash"] > 0
    record = Record.from_line(Record.of(run, images, outcome).to_line())
    mean = select_rounded(record)
    assert mean.trials == 2
    assert mean.lr in SMALL.lrs
    own = [t for t, replica in zip(notes["test"], SMALL.replicas, strict=True) if replica.lr == mean.lr]
    assert mean.test == pytest.approx(sum(own) / 2)


def test_replicas_are_rounded_as_quantize_rounds(images: Images):
    run = small("ldr_td")
    fleet = Fleet(run, images)
    rows = rounding(run, fleet)(fleet.flat).detach()
    model = build_model(run, images.image_shape, images.outputs)
    model.load_state_dict(fleet.replica_state(fleet.flat.detach()[1], 1))
    quantize_(model)
    parts = fleet.network.layout.parts(rows[1])
    for name, part in parts.items():
        layer, _, own = name.rpartition(".")
        assert torch.equal(getattr(model.get_submodule(layer), own), part), name


def test_training_with_rounded_weights_helps_where_they_lose(images: Images, monkeypatch):
    run = small("low_rank")
    fleet = Fleet(run, images)
    for epoch in range(2):
        fleet.train_epoch(epoch)
    best = fleet.flat.detach().clone()
    before = fleet.validation(rounding(run, fleet)(best).detach())
    scores = score_rounded(run, fleet, best, [100.0] * 4)  # as if rounding had lost much
    assert scores["trained"]
    assert all(new >= old - 1e-3 for new, old in zip(scores["validation"], before, strict=True))


def ledger_with(tmp_path, tests: dict[str, float]) -> Ledger:
    """A ledger with made-up results of some hashes."""
    ledger = Ledger(tmp_path)
    ledger.prepare()
    for run in TABLE.runs():
        if run.hash in tests:
            count, test = len(run.protocol.replicas), tests[run.hash]
            rows = [[test] * count]
            best = {"replica": 0, "lr": run.protocol.lrs[0], "trial": 0, "epoch": 0}
            best |= {"validation": test, "test": test, "train": test}
            mean = {
                "lr": run.protocol.lrs[0],
                "trials": 3,
                "validation": test,
                "test": test,
                "deviation": 0.0,
            }
            int8 = {"validation": [test] * count, "test": [test] * count, "trained": False, "lost": 0.0}
            names = ("loss", "train", "validation", "test", "validation_loss")
            result = {
                "parameters": 1, "seconds": 1.0, "best": best, "mean": mean, "diverged": [None] * count,
                "notes": {"int8": {**int8, "flash": size_of(run)}}, "metrics": dict.fromkeys(names, rows),
            }  # fmt: skip
            data = {"source": "official", "fingerprint": "0" * 64, "train": 1, "validation": 1, "test": 1}
            ledger.append(
                Record(run, data, result, {"device": "", "versions": {}}, "2026-01-01T00:00:00+00:00")
            )
    return Ledger(tmp_path)


def test_the_best_that_fits_counts(tmp_path):
    runs = [r for r in TABLE.runs() if (r.data, r.model, r.method) == ("mnist", "shl", "ldr_sd")]
    tests = {run.hash: 90.0 - i for i, run in enumerate(sorted(runs, key=size_of))}  # the smallest is best
    ledger = ledger_with(tmp_path, tests)
    rows = [r for r in flash_rows(TABLE, ledger) if r["structure"] == "ldr_sd" and r["dataset"] == "mnist"]
    rows = [row for row in rows if row["model"] == "shl"]
    assert [row["test"] for row in rows] == [90.0] * 5
    assert {row["state"] for row in rows} == {"done"}
    assert draw("accuracy_flash", ledger).name == "accuracy_flash"


def test_nothing_to_draw(tmp_path):
    empty = Ledger(tmp_path)
    rows = flash_rows(TABLE, empty)
    if all(row["test"] is None for row in rows):
        with pytest.raises(NothingToDrawError):
            draw("accuracy_flash", empty)
    states = {row["state"] for row in rows if row["structure"] == "ldr_td" and row["kilobytes"] == 16}
    assert states == {"too large"}


def test_weights_of_a_run_are_int8_or_nothing():
    with pytest.raises(ValueError, match="weights is 'int8' or None"):
        Run("mnist", weights="int4")
    assert Run("mnist").hash == Run("mnist", weights=None).hash != Run("mnist", weights="int8").hash
