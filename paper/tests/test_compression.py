"""The study of compression: budgets, starts, runs that resume, and how tables are written."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchldr
from torchldr_paper import compression
from torchldr_paper.compression import (
    OPERATORS,
    STARTED,
    STUDIES,
    Study,
    compressed,
    kept,
    plan_for,
    run_study,
    started,
    started_layer,
    structure_for,
)
from torchldr_paper.tables.compression import FILE, FIXED, PRUNED, Method, Row, Rows, methods, render

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(64, 64), (48, 192), (192, 48), (50, 61)])
def test_structures_stay_within_their_budget_and_use_it(shape: tuple[int, int]):
    for method in methods():
        if method.name in ("dense", PRUNED, *FIXED) or (made := structure_for(method, *shape)) is None:
            continue
        budget = shape[0] * shape[1] // method.factor
        assert made.parameters(*shape) <= budget
        if made.rank is not None:
            more = torchldr.Structure(made.name, rank=made.rank + 1)
            assert more.parameters(*shape) > budget
    assert structure_for(Method("ldr_td", 20), 32, 32) is None


@pytest.mark.parametrize("shape", [(40, 40), (24, 60), (60, 24)])
@pytest.mark.parametrize("rank", [1, 7, 8])
@pytest.mark.parametrize("name", STARTED)
def test_starts_are_truncated_svds(name: str, rank: int, shape: tuple[int, int]):
    """Of the whole rank with learned operators, which are small, else of half the rank."""
    torch.manual_seed(3)
    W = torch.randn(*shape) @ torch.diag(torch.logspace(0, -1.5, shape[1]))
    M = started(W, torchldr.Structure(name, rank=rank))
    assert M.rank == rank
    assert M.tensors["H"].norm(dim=1).min() > 0  # a generator to spare can learn
    if name in OPERATORS or rank > 1:
        q = rank if name in OPERATORS else rank // 2
        U, s, V = torch.linalg.svd(W, full_matrices=False)
        expected = (U[:, :q] * s[:q]) @ V[:q]
        assert (M.to_dense() - expected).norm() < (0.05 if name in OPERATORS else 1e-4) * expected.norm()


def test_a_started_layer_has_its_bias_and_may_start_elsewhere():
    layer, near = nn.Linear(20, 12), torch.outer(torch.ones(12), torch.arange(20.0))
    structure = torchldr.Structure("cauchy_like", rank=4)
    x = torch.randn(3, 20)
    torch.testing.assert_close(started_layer(layer, structure, near)(x), x @ near.T + layer.bias)


def test_every_weight_but_the_last_is_replaced_in_a_copy():
    dense = nn.Sequential()
    dense.hidden, dense.logits = nn.Linear(40, 40), nn.Linear(40, 3)
    W = dense.hidden.weight.detach().clone()
    for method in methods():
        if (plan := plan_for(method, dense)) is None:
            continue
        model = compressed(dense, method, plan)
        assert type(model.logits) is nn.Linear
        assert torch.equal(dense.hidden.weight, W)
        if method.name == PRUNED:
            left = model.hidden.weight != 0
            assert int(left.sum()) == kept(method, dense.hidden) == 1600 // method.factor
            assert W[left].abs().min() >= W[~left].abs().max()
        elif plan:
            assert model.hidden.structure.name == method.name
            assert model.hidden.rank == plan["hidden"].rank
    best = compressed(dense, Method("low_rank", 2), plan_for(Method("low_rank", 2), dense)).hidden.weight
    tail = torch.linalg.svdvals(W)[10:].norm()
    torch.testing.assert_close((best - W).norm(), tail, rtol=1e-3, atol=1e-4)


def tiny(own_file: Path, **more: object) -> Study:
    return replace(Study("tiny", str(own_file), "shl", 15, 4, 20, rate=0.003, looks=4), **more)


def test_a_study_runs_resumes_and_is_shown(own_file: Path, tmp_path: Path, monkeypatch):
    some = [m for m in methods() if m.factor in (1, 2, 10, None) and m.name != "ldr_td"]
    monkeypatch.setattr(compression, "methods", lambda: some)
    study = tiny(own_file)
    run_study(study, Rows(tmp_path), CPU, None)
    found = {(row["method"], row["factor"]): row for row in Rows(tmp_path).of("tiny")}
    fits = [m for m in some if m.name in ("dense", PRUNED) or structure_for(m, 49, 49)]
    assert found.keys() == {*fits}
    for row in found.values():
        assert 0 <= row["before"] <= 100
        assert 0 <= row["after"] <= 100
        assert row["model_parameters"] == row["parameters"] + 49 * 2 + 2
    assert found["dense", 1]["before"] == pytest.approx(found["dense", 1]["dense"])
    assert found["circulant", None]["stopped"] > 0  # the validation got better
    # Cut off the last line, as a kill would: that row alone is run again.
    lines = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(lines[:-30])
    again = Rows(tmp_path)
    assert len(again.problems) == 1
    run_study(study, again, CPU, None)
    new = (tmp_path / FILE).read_text().splitlines()
    assert len(new) == len(lines.splitlines()) + 1
    last, lost = json.loads(new[-1]), json.loads(lines.splitlines()[-1])
    same = ("method", "factor", "dense", "before", "after")
    assert [last[key] for key in same] == [pytest.approx(lost[key]) for key in same]
    text = render(Rows(tmp_path).of("tiny"))
    assert "| class | 2 times | 10 times |" in text
    assert text.count("**") == 4


def test_fine_tuning_that_diverges_keeps_what_was_best(own_file: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(compression, "methods", lambda: [Method("low_rank", 2)])
    run_study(tiny(own_file, rate=1e30), Rows(tmp_path), CPU, None)
    (row,) = Rows(tmp_path).of("tiny")
    assert (row["stopped"], row["after"]) == (0, row["before"])


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "wikitext-2"
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "valid", "test"):
        drawn = torch.randint(20, (120, 10), generator=generator).tolist()
        (folder / f"{part}.txt").write_text("\n".join(" ".join(f"w{i}" for i in line) for line in drawn))
    monkeypatch.setenv("TORCHLDR_DATA", str(tmp_path / "data"))


def test_the_gpt_runs_by_the_command_and_resumes(corpus: None, tmp_path: Path, monkeypatch):
    some = [Method("low_rank", 10), Method("cauchy_like", 2), Method(PRUNED, 5), Method("ldr_td", 20)]
    monkeypatch.setattr(compression, "methods", lambda: some)
    arguments = ["gpt", "--quick", "--results", str(tmp_path)]
    assert compression.main(arguments) == 0
    rows = Rows(tmp_path)
    assert [row["method"] for row in rows.of("gpt", quick=True)] == ["low_rank", "cauchy_like", PRUNED]
    assert not rows.of("gpt")  # quick rows are no rows of the study itself
    assert rows.rows[0]["weights"] == 2 * 12 * 48**2
    before = (tmp_path / FILE).read_text()
    assert compression.main(arguments) == 0
    assert (tmp_path / FILE).read_text() == before


def test_missing_data_is_one_line_and_exit_code_1(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHLDR_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compression.main(["gpt", "--quick", "--results", str(tmp_path), "--data-dir", str(tmp_path)]) == 1
    assert "its files are not here" in capsys.readouterr().err


def test_the_published_rows_are_shown(capsys):
    assert compression.main(["all", "--show"]) == 0
    shown = capsys.readouterr().out
    assert re.findall(r"^(\w+)$", shown, re.MULTILINE) == [*list(STUDIES)[:4], "lstm", "gpt"]
    assert "Not measured" not in shown


def row(method: str, factor: int | None, after: float | None, **more: Any) -> Row:
    sizes = {"weights": 1000, "parameters": 100, "model_parameters": 350}
    facts = {"metric": "perplexity", "dense": 100.0, "before": 1.0, "after": after}
    return {"method": method, "factor": factor, **facts, **sizes, **more}


def test_a_table_says_what_is_best_and_what_validation_kept():
    rows = [
        row("dense", 1, 100.0, stopped=0),
        row("ldr_sd", 2, 112.2),
        row("low_rank", 2, 110.0),
        row("low_rank", 5, None),
        row("circulant", None, 2e4),
    ]
    text = render(rows)
    assert text.startswith("Dense: 100.0 perplexity; trained further in the same way no better")
    assert "have 1,000 of the model's 1,250 parameters." in text
    assert re.findall(r"^\| `(\w+)`", text, re.MULTILINE) == ["low_rank", "ldr_sd"]  # whatever was run first
    assert "| **110.0** (1.0) | diverged (1.0) |" in text
    assert "`circulant` at 10 times 2e+04 (1.0)" in text
    assert "Not run here: magnitude pruning, `block_circulant`" in text
    accuracy = render([{**one, "metric": "accuracy"} for one in rows])
    assert "**112.20** (1.00)" in accuracy
