from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchldr_paper import TABLES, Ledger, Protocol, Run, get_table, overview, run_rows, table_rows
from torchldr_paper.cli.sweeps import keep_table, parse_filters
from torchldr_paper.language.weights import count_parameters
from torchldr_paper.tables import values

from .ledger.test_ledger import make

NEEDED = {"dataset", "model", "structure", "rank", "parameters", "test", "paper", "data", "seconds"}


def test_names() -> None:
    wanted = {"rectangles", "shl", "cnn", "pruning", "rhu", "samples", "generalization", "rank", "noise"}
    assert wanted <= set(TABLES)
    with pytest.raises(ValueError, match=r"unknown table 'rectangle'\. Did you mean 'rectangles'"):
        get_table("rectangle")


def test_sizes() -> None:
    """Runs of each table; a table shares runs with others, so all of them are fewer than the sum."""
    sizes = {name: len(table.runs()) for name, table in TABLES.items()}
    assert sizes == {
        "rectangles": 9, "shl": 56, "cnn": 48, "pruning": 48, "rhu": 48, "samples": 80,
        "generalization": 20, "rank": 76, "noise": 18, "scales": 57, "lstm": 19, "lstm_starts": 30,
        "lstm_gain": 19, "lstm_authors": 19, "conv": 7, "conv_square": 4, "conv_starts": 13, "conv_gain": 5,
        "conv_authors": 4, "conv_trials": 5, "lstm_dense": 15, "lstm_even": 19, "flash": 324,
        "lstm_bias": 7, "shl_open": 2,
    }  # fmt: skip
    assert len({run.hash for table in TABLES.values() for run in table.runs()}) < sum(sizes.values())


def test_toeplitz_like_as_the_authors_trained_it() -> None:
    """The rows are those of LDR-SD with operators that stay, called and counted as Toeplitz-like."""
    budgets = dict.fromkeys(values.LSTM_RANKS["toeplitz_like"], 0)
    for cell in get_table("lstm_authors").cells:
        if cell.run.method == "toeplitz_like":
            assert cell.run.fixed
            budgets[cell.run.rank] = count_parameters("ldr_sd", 128, cell.run.rank, fixed=True)
    assert list(budgets.values()) == [2048, 3072, 5120, 9216, 17408, 25600]
    methods = {(cell.run.model, cell.run.method) for cell in get_table("conv").cells}
    assert {("channels", "toeplitz_like"), ("wide", "toeplitz_like")} <= methods


def test_values_that_the_papers_text_repeats() -> None:
    # "improve on FC layers of the same dimensions, by 1.73, 13.30, and 2.92 accuracy points"
    gains = [b - a for a, b in zip(values.SHL["dense", None], values.SHL["ldr_td", 1], strict=True)]
    assert [round(gains[i], 2) for i in (0, 1, 3)] == [1.73, 13.30, 2.92]
    # "higher test accuracy than baselines by 3.14, 2.70, 3.55, and 3.37" at LDR-TD's budget; NORB by LDR-SD
    best = [
        max(values.SHL[row][i] for row in values.SHL if row[0] not in ("dense", "ldr_td", "ldr_sd"))
        for i in range(4)
    ]
    assert round(values.SHL["ldr_td", 1][0] - best[0], 2) == 3.14
    assert round(values.SHL["ldr_td", 1][1] - best[1], 2) == 2.70
    assert round(values.SHL["ldr_td", 1][2] - best[2], 2) == 3.55
    # The same numbers stand in several tables.
    for model, table in (("shl", values.SHL), ("cnn", values.CNN)):
        for i, data in enumerate(("mnist_bg_rot", "mnist_noise_6")):
            samples = values.SAMPLES[model, data]
            assert samples["dense"][3] == table["dense", None][i]
            assert samples["ldr_sd"][3] == table["ldr_sd", 1][i] == values.BUDGETS[model, data]["ldr_sd"][0]
            assert samples["ldr_td"][3] == table["ldr_td", 1][i]
    assert values.CNN_RANK_16[0] == values.BUDGETS["cnn", "mnist_bg_rot"]["ldr_sd"][5]
    # "achieved a test error of 55.26", and others' errors
    assert round(100 - values.SHL["ldr_sd", 1][0], 2) == 55.26
    assert len(values.LITERATURE) == 9


def test_an_empty_ledger_gives_every_row(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, published=False)
    for table in TABLES.values():
        rows = table_rows(table, ledger)
        assert len(rows) == len(table.cells) + len(table.quoted)
        assert all(row.keys() == rows[0].keys() for row in rows)
        assert set(rows[0]) >= NEEDED
        assert {row["state"] for row in rows} <= {"missing", "quoted"}
        json.dumps(rows)
    assert {row["state"] for row in overview(ledger)} == {"missing"}


def test_rows_over_seeds(tmp_path: Path) -> None:
    ledger, table = Ledger(tmp_path, published=False), get_table("rectangles")
    (run,) = [run for run in table.runs() if run.structure == "ldr_sd"]
    for seed, test in enumerate((97.0, 98.0, 99.0)):
        ledger.append(make(run.with_seed(seed), test))
    ledger.append(make(run.with_seed(3), 10.0, source="stand-in", fingerprint="s"))
    (row,) = [row for row in table_rows(table, ledger, seeds=3) if row["structure"] == "ldr_sd"]
    assert (row["test"], row["deviation"], row["seeds"], row["seconds"]) == (98.0, 1.0, 3, 7.5)
    assert (row["paper"], row["difference"], row["data"], row["state"]) == (98.39, -0.39, "official", "done")
    assert row["lr"] == [0.001] * 3
    assert row["diverged"] == 3
    assert row["hashes"] == [run.with_seed(seed).hash for seed in range(3)]
    (state,) = [row for row in overview(ledger) if row["name"] == "rectangles"]
    assert (state["done"], state["seeds"], state["state"]) == (1, 3, "partial")
    assert table_rows(table, ledger, seeds=4)[2]["state"] == "partial"


def test_a_stand_in_has_no_difference(tmp_path: Path) -> None:
    ledger, table = Ledger(tmp_path, published=False), get_table("rectangles")
    ledger.append(make(table.runs()[0], source="stand-in"))
    row = table_rows(table, ledger)[0]
    assert (row["test"], row["data"], row["difference"]) == (90.0, "stand-in", None)


def test_metrics(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, published=False)
    for name, want, deviation in (("generalization", 5.0, None), ("rank", 89.0, 0.5)):
        table = get_table(name)
        ledger.append(make(table.runs()[0]))
        row = table_rows(table, ledger)[0]
        assert (row["test"], row["deviation"]) == (want, deviation)


def test_quick_runs_are_kept_apart(tmp_path: Path) -> None:
    from dataclasses import replace

    ledger, table = Ledger(tmp_path, published=False), get_table("rectangles")
    quick = table.changed(lambda run: replace(run, protocol=Protocol.quick()))
    ledger.append(make(quick.runs()[0]))
    assert table_rows(table, ledger)[0]["test"] is None
    assert table_rows(quick, ledger)[0]["test"] == 90.0
    assert table_rows(quick, ledger)[0]["quick"]


def test_own_runs(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, published=False)
    runs = [Run("mine.npz", structure="ldr_sd", rank=r, seed=s) for s in range(2) for r in (1, 2)]
    for run in runs[:3]:
        ledger.append(make(run, source="user"))
    rows = run_rows(runs, ledger)
    assert [(row["rank"], row["seeds"]) for row in rows] == [(1, 2), (2, 1)]


def test_filters() -> None:
    table = keep_table(get_table("pruning"), parse_filters(["model=cnn", "structure=pruning", "rank=1,16"]))
    assert [(cell.run.model, cell.run.method, cell.matches) for cell in table.cells] == [
        ("cnn", "pruning", 1), ("cnn", "pruning", 16), ("cnn", "pruning", 1), ("cnn", "pruning", 16),
    ]  # fmt: skip
    assert len(keep_table(get_table("samples"), parse_filters(["fraction=0.25,1"])).cells) == 40
    assert len(keep_table(get_table("samples"), parse_filters(["fraction=25%,1.0"])).cells) == 40
    assert {
        cell.run.structure for cell in keep_table(get_table("rank"), parse_filters(["rank=-"])).cells
    } == {"dense"}
    with pytest.raises(ValueError, match="There are rank: -, 1, 2, 4, 8, 12, 16"):
        keep_table(get_table("rank"), parse_filters(["rank=99"]))
    with pytest.raises(ValueError, match="There are dataset: rectangles"):
        keep_table(get_table("rectangles"), parse_filters(["dataset=mnist"]))
    with pytest.raises(ValueError, match="key=value"):
        parse_filters(["colour=red"])
