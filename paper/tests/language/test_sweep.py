"""Language models from the corpus to the ledger: annealing, resuming, records, tables, the command."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from torchldr.cli import command_line
from torchldr_paper import Ledger, Library, Run, get_table, sweep, table_rows
from torchldr_paper.language import LanguageProtocol, sweep_language, train_language
from torchldr_paper.language.weights import count_parameters
from torchldr_paper.tables import values
from torchldr_paper.trainer.checkpoint import Claim

SMALL = LanguageProtocol(
    epochs=4, batch=4, hidden=8, embedding=8, bptt=10, evaluation_batch=2, precision="full"
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus in which the next word nearly follows from the last one."""
    place = tmp_path_factory.mktemp("data") / "wikitext-2"
    place.mkdir()
    draw = np.random.default_rng(0)
    for part, size in (("train", 300), ("valid", 60), ("test", 60)):
        word, words = 0, []
        for _ in range(size):
            word = (word + int(draw.choice([1, 1, 1, 3]))) % 12
            words.append(f"w{word}")
        (place / f"{part}.txt").write_text(" ".join(words), encoding="utf-8")
    return place.parent


def runs(protocol: LanguageProtocol = SMALL) -> list[Run]:
    ranks = {"ldr_sd": (1, 2), "low_rank": (2,), "dense": (None,)}
    return [
        Run("wikitext2", "lstm", name, rank, protocol=protocol)
        for name, some in ranks.items()
        for rank in some
    ]


def results(ledger: Ledger) -> dict[str, dict[str, object]]:
    return {
        record.hash: {key: record.result[key] for key in ("metrics", "best", "parameters", "diverged")}
        for record in ledger
    }


def test_runs_learn_and_are_recorded(folder: Path, tmp_path: Path) -> None:
    protocol = dataclasses.replace(SMALL, epochs=6, dropout=0.0)
    ledger = Ledger(tmp_path, published=False)
    said: list[str] = []
    report = sweep_language(runs(protocol), ledger, CPU, folder, say=said.append)
    assert len(report.finished) == len(ledger) == 4
    assert sum(line.startswith("epoch") for line in said) == 6
    for record in Ledger(tmp_path, published=False):  # as read again from the file
        best, metrics = record.best, record.result["metrics"]
        assert best is not None
        validation = [row[0] for row in metrics["validation"]]
        assert len(validation) == 6
        assert best.validation == min(validation)
        assert best.test == metrics["test"][best.epoch][0]
        assert best.test < 12 < validation[0] * 2  # guessing is at 13
        assert record.result["parameters"] == count_parameters(record.run.structure, 8, record.run.rank)
        assert record.data["train"] == 75 * 4 - 4
    again = sweep_language(runs(protocol), ledger, CPU, folder)
    assert len(again.present) == 4
    assert not again.finished
    assert not list(tmp_path.glob(".checkpoints/*"))


def test_rates_fall_when_validation_does_not_improve(folder: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, published=False)
    sweep_language(runs(dataclasses.replace(SMALL, epochs=8)), ledger, CPU, folder)
    falls = 0
    for record in ledger:
        metrics = {name: [row[0] for row in rows] for name, rows in record.result["metrics"].items()}
        rate, best = 20.0, math.inf
        for epoch, value in enumerate(metrics["validation"]):
            assert metrics["rate"][epoch] == pytest.approx(rate)
            if value < best:
                best = value
            else:
                rate, falls = rate / 4, falls + 1
    assert falls


def test_an_interrupted_sweep_goes_on_as_if_nothing_had_happened(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = Ledger(tmp_path / "whole", published=False), Ledger(tmp_path / "parts", published=False)
    sweep_language(runs(), whole, CPU, folder)
    # Another epoch seems to take for ever: each call stops after one.
    monkeypatch.setattr("torchldr_paper.language.sweep._SLACK", 1e12)
    for epoch in range(SMALL.epochs):
        assert not len(parts)
        # In the second epoch one class goes ahead; in the third the others catch up with it.
        some = [run for run in runs() if epoch != 1 or run.structure == "dense"]
        report = sweep_language(some, parts, CPU, folder, max_seconds=100.0)
        assert len(report.left) == len(some)
    monkeypatch.undo()
    sweep_language(runs(), parts, CPU, folder)
    assert results(parts) == results(whole)


def test_what_a_process_had_when_it_was_killed_is_gone_on_with(folder: Path, tmp_path: Path) -> None:
    whole, parts = Ledger(tmp_path / "whole", published=False), Ledger(tmp_path / "parts", published=False)
    sweep_language(runs(), whole, CPU, folder)

    def killed(line: str) -> None:
        if line.startswith("epoch 2 of"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep_language(runs(), parts, CPU, folder, checkpoint_seconds=0, say=killed)
    said: list[str] = []
    sweep_language(runs(), parts, CPU, folder, checkpoint_seconds=0, say=said.append)
    assert sum("goes on after epoch 2" in line for line in said) == 3
    assert results(parts) == results(whole)
    assert not list(parts.results.glob(".checkpoints/*"))


def test_what_another_process_trains_is_left_to_it(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    protocol = dataclasses.replace(SMALL, epochs=1)
    first, second = runs(protocol)[:2]
    ledger, stale = (Ledger(tmp_path, published=False) for _ in range(2))
    claim = Claim(tmp_path, first.hash)
    assert claim.take()
    report = sweep_language([first], ledger, CPU, folder, max_seconds=1.0)
    assert report.left == [first]
    assert f"{first.label}: waiting, another process trains it" in caplog.text
    claim.release()
    assert sweep_language([first], ledger, CPU, folder).finished == [first]
    report = sweep_language([first, second], stale, CPU, folder)
    assert (report.present, report.finished) == ([first], [second])
    assert sweep_language([first], stale, CPU, folder, force=True).finished == [first]
    assert not (tmp_path / ".checkpoints").exists()


def test_classes_trained_apart_are_the_same(folder: Path, tmp_path: Path) -> None:
    together, apart = Ledger(tmp_path / "a", published=False), Ledger(tmp_path / "b", published=False)
    wanted = [*runs(), Run("wikitext2", "lstm", "ldr_sd", 2, fixed=True, protocol=SMALL)]
    sweep_language(wanted, together, CPU, folder)
    for run in wanted:
        sweep_language([run], apart, CPU, folder)
    assert len(results(together)) == len(wanted)
    for key, result in results(together).items():
        other = results(apart)[key]
        assert result["parameters"] == other["parameters"]
        for name, rows in result["metrics"].items():  # type: ignore[attr-defined]
            assert np.asarray(rows) == pytest.approx(np.asarray(other["metrics"][name]), rel=1e-3)  # type: ignore[index]


def test_one_that_is_trained_by_itself_is_the_same(folder: Path, tmp_path: Path) -> None:
    """As processes and Ray train it; where classes are alone the numbers are, too."""
    apart, together = Ledger(tmp_path / "a", published=False), Ledger(tmp_path / "b", published=False)
    run = runs()[0]
    report = sweep([run], apart, Library(CPU, folder), work=train_language)
    sweep_language([run], together, CPU, folder)
    assert report.finished == [run]
    assert results(apart) == results(together)


def test_one_that_fails_is_listed(folder: Path, tmp_path: Path) -> None:
    wrong = Run("wikitext2", "lstm", "circulant", protocol=SMALL)
    other = runs(dataclasses.replace(SMALL, epochs=1))[0]
    report = sweep_language([wrong, other], Ledger(tmp_path, published=False), CPU, folder)
    assert report.finished == [other]
    assert "unknown structure 'circulant'" in report.failed[wrong.label]
    assert not (tmp_path / ".checkpoints").exists()


def test_the_papers_budgets() -> None:
    table = get_table("lstm")
    assert len(table.cells) == 19
    for structure, ranks in values.LSTM_RANKS.items():
        counts = tuple(count_parameters(structure, 128, rank) for rank in ranks)
        assert counts == values.LSTM_BUDGETS
    assert count_parameters("dense", 128, None) == 65536


def test_rows_of_the_table(folder: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, published=False)
    rows = table_rows(get_table("lstm"), ledger)
    assert {row["state"] for row in rows} == {"missing"}
    assert rows[1]["paper"] == 166.97


def test_the_command(folder: Path, tmp_path: Path) -> None:
    arguments = ["paper", "lstm", "--quick", "--only", "structure=low_rank", "rank=2", "--device", "cpu"]
    arguments += ["--data-dir", str(folder), "--results", str(tmp_path), "--json"]
    result = CliRunner().invoke(command_line(), arguments)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert row["state"] == "done"
    assert row["data"] == "user"
    assert row["parameters"] == 2048
    assert row["quick"]
    assert row["difference"] is None  # not the official text


def test_absent_data_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLDR_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = sweep_language(runs(), Ledger(tmp_path, published=False), CPU)
    assert "Put train.txt" in report.absent["wikitext2"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 7}, "hidden and embedding must be equal"),
        ({"lrs": (1.0, 2.0)}, "one positive rate"),
        ({"precision": "fp8"}, "unknown precision 'fp8'. Known: full, bf16"),
        ({"dropout": 1.0}, "dropout must lie in"),
        ({"trials": 2}, "momentum, trials and validation"),
        ({"bptt": 0}, "bptt must be at least 1"),
    ],
)
def test_wrong_protocols(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **change)  # type: ignore[arg-type]


def test_a_language_model_needs_its_protocol() -> None:
    with pytest.raises(ValueError, match="unknown model 'lstm'"):
        Run("wikitext2", "lstm")
    with pytest.raises(ValueError, match="unknown model 'shl'"):
        Run("wikitext2", "shl", protocol=SMALL)
    run = runs()[0]
    assert Run.from_config(json.loads(json.dumps(run.config()))) == run
