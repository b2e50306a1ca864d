"""`torchldr bench`: the grid, the rows, interruption, extrapolation, the paper's values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from torchldr.cli import Many
from torchldr_paper.bench.grid import QUICK, Case, Grid
from torchldr_paper.bench.measure import Setting, available_bytes, measure, structured_layer
from torchldr_paper.bench.paper_values import RANKS, SIZES, acceleration, in_paper
from torchldr_paper.cli import bench as command

FAST = Setting(repeats=1, seconds=0)
SMALL = ("--n", "32", "--repeats", "1", "--rank", "1", "2")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("bench", cls=Many)(command.bench_command)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, ["bench", *arguments])


def test_the_papers_tables():
    assert set(in_paper()) == {"ldr_sd", "ldr_td", "low_rank", "toeplitz_like"}
    assert acceleration("ldr_sd", 32768, 1) == 46.1
    assert acceleration("toeplitz_like", 512, 16) == 0.161
    assert acceleration("low_rank", 4096, 2) == 871
    assert acceleration("ldr_td", 512, 1) is None
    assert acceleration("ldr_sd", 512, 3) is None
    for name in set(in_paper()) - {"ldr_td"}:  # speed-ups grow with n
        for rank in RANKS:
            column = [acceleration(name, n, rank) for n in SIZES]
            assert column == sorted(column)


def test_the_grid_leaves_out_what_cannot_be():
    grid = Grid(structures=("circulant", "ldr_sd"), sizes=(8, 4), ranks=(1, 8), batches=(1, 3))
    cases = list(grid.cases())
    assert cases[0] == Case("inference", "circulant", 4, None, 1)
    assert Case("inference", "ldr_sd", 8, 8, 3) in cases
    assert not any(case.rank == 8 and case.n == 4 for case in cases)
    assert not any(case.what == "training" and case.batch == 1 for case in cases)
    assert len(cases) == len(set(cases))
    assert QUICK.deadline is not None


def test_layers_are_near_one():
    layer = structured_layer("ldr_td", 64, 2)
    assert 0 < (layer.subdiagonal_A - 1).abs().max() < 0.01
    assert layer.bias is None


@pytest.mark.parametrize("what", ["inference", "training"])
@pytest.mark.parametrize("structure", ["ldr_sd", "ldr_td", "toeplitz_like", "circulant"])
def test_a_row(what, structure):
    row = measure(Case(what, structure, 32, None if structure == "circulant" else 2, 3), FAST)
    assert row["ratio"] == pytest.approx(row["dense_ms"] / row["ours_ms"])
    assert row["ours_ms"] > 0
    assert (row["extrapolated"], row["paper"]) == (False, None)
    assert what == "training" or row["path"] != "dense"  # the plan "fast" is for inference


@pytest.mark.parametrize("limit", [{"dense_bytes": 4 * 20**2}, {"dense_work": 20**2}])
def test_a_large_dense_side_is_extrapolated(limit):
    row = measure(Case("inference", "ldr_sd", 64, 1, 1), FAST._replace(**limit))
    assert row["extrapolated"]
    assert row["dense_ms"] > 0


def test_the_paper_is_quoted_for_single_vectors_alone():
    assert measure(Case("inference", "ldr_sd", 512, 4, 1), FAST)["paper"] == 0.0405
    assert measure(Case("inference", "ldr_sd", 512, 4, 2), FAST)["paper"] is None


@pytest.mark.parametrize(("product", "path"), [("auto", "dense"), ("dense", "dense"), ("fast", "fast")])
def test_the_product_that_was_taken(product, path):
    assert measure(Case("inference", "ldr_sd", 32, 1, 2), FAST._replace(product=product))["path"] == path


def test_the_command_prints_a_table(run):
    result = run(*SMALL, "--structure", "ldr_sd", "low_rank", "--batch", "2")
    assert result.exit_code == 0, result.output
    for words in (("inference", "ldr_sd", "fast"), ("training", "low_rank", "dense")):
        lines = [line for line in result.stdout.splitlines() if all(word in line for word in words)]
        assert len(lines) == 2, words  # of ranks 1 and 2
    assert "[8/8] training low_rank n = 32 rank 2 batch 2" in result.stderr


def test_json_out_and_plot(run, tmp_path):
    out, plot = tmp_path / "deep" / "bench.json", tmp_path / "deep" / "speed.png"
    options = (
        "--what",
        "inference",
        "--dense-limit",
        "0.000001",
        "--json",
        "--out",
        str(out),
        "--plot",
        str(plot),
    )
    result = run(*SMALL, *options)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed == json.loads(out.read_text())
    assert {row["structure"] for row in printed["rows"]} == {"low_rank", "toeplitz_like", "ldr_sd", "ldr_td"}
    assert all(row["extrapolated"] for row in printed["rows"])
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_an_extrapolated_time_is_marked(run):
    result = run(*SMALL, "--structure", "ldr_sd", "--what", "inference", "--dense-limit", "0.000001")
    assert re.search(r"\d\*", result.stdout)
    assert "extrapolated by n^2" in result.stdout


def test_an_interrupt_keeps_what_is_measured(run, monkeypatch, tmp_path):
    def interrupted(case: Case, setting: Setting) -> dict[str, object]:
        if case.batch == 50:
            raise KeyboardInterrupt
        return measure(case, setting)

    monkeypatch.setattr("torchldr_paper.bench.measure.measure", interrupted)
    out = tmp_path / "bench.json"
    result = run(*SMALL, "--structure", "ldr_sd", "--out", str(out))
    assert result.exit_code == 130
    assert "interrupted: 2 of 6 cases were measured" in result.stderr
    assert "ldr_sd" in result.stdout
    assert len(json.loads(out.read_text())["rows"]) == 2


def test_a_deadline_ends_the_run(capsys):
    rows, interrupted = command.run(Grid(sizes=(16,), deadline=-1), FAST)
    assert (rows, interrupted) == ([], False)
    assert "left out 12 cases, from inference ldr_sd" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ("--structure", "ldr_s"),
        ("--what", "x"),
        ("--product", "x"),
        ("--device", "tpu"),
        ("--n", "0"),
        ("--plot", "a.gif"),
        ("--rank", "65", "--n", "64", "--structure", "ldr_sd"),
    ],
)
def test_wrong_use(run, wrong):
    result = run(*wrong)
    assert result.exit_code == 2
    assert wrong[0] in result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for what is missing elsewhere")
def test_no_cuda(run):
    result = run("--device", "cuda")
    assert isinstance(result.exception, ValueError)
    assert "no CUDA device" in str(result.exception)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("what", ["inference", "training"])
@pytest.mark.parametrize("structure", ["ldr_sd", "ldr_td", "toeplitz_like", "low_rank"])
def test_on_a_gpu(what, structure):
    row = measure(Case(what, structure, 256, 2, 4), FAST._replace(device="cuda"))
    assert 0 < row["ours_ms"] < 100


def test_memory_is_found():
    assert available_bytes("cpu") > 2**28


def test_what_was_measured_is_shown_where_it_cannot_be_written(run, tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "bench.json"
    small = ["--structure", "low_rank", "--n", "32", "--rank", "1", "--batch", "1", "--what", "inference"]
    found = run(*small, "--quick", "--out", str(out))
    assert isinstance(found.exception, NotADirectoryError)
    assert "low_rank" in found.stdout
