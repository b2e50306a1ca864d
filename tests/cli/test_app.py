"""The command line: what it prints where, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import torchldr
from torchldr import cli, demo


@pytest.fixture(autouse=True)
def no_data_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHLDR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_version(run):
    assert run("--version") == (0, f"torchldr {torchldr.__version__}\n", "")


def test_info_says_what_is_on_and_what_is_missing(run):
    code, out, err = run("info")
    assert (code, err) == (0, "")
    for fact in (torchldr.__version__, "C kernels", "ldr_sd", "extra onnx"):
        assert fact in out


def test_info_as_json(run):
    code, out, err = run("info", "--json")
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert facts["versions"]["torchldr"] == torchldr.__version__
    assert facts["structures"] == list(torchldr.structures())
    assert all(path["on"] == (path["why_not"] is None) for path in facts["fast_paths"])


def test_info_about_the_routes_of_a_class(run):
    code, out, err = run("info", "--structure", "low_rank", "--n", 64, "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert {row["route"] for row in rows} == {"two_products", "dense"}
    assert sum(row["taken"] for row in rows) == 1


@pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like"])
def test_json_has_no_infinity(run, structure):
    """The costs of routes that do not serve are infinite."""
    code, out, err = run("info", "--structure", structure, "--n", 64, "--json")
    rows = json.loads(out, parse_constant=pytest.fail)
    assert (code, err) == (0, "")
    assert any(row["microseconds"] is None for row in rows)
    assert all(row["why_not"] for row in rows if row["microseconds"] is None)


def test_structures_is_the_registry(run):
    code, out, err = run("structures", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (code, err) == (0, "")
    assert list(rows) == list(torchldr.structures())
    assert all(row["summary"] for row in rows.values())
    # The paper's counts for its 784-pixel network, less the output layer's 7,850.
    assert rows["ldr_sd"]["parameters"] == 10_986 - 7_850
    assert rows["ldr_td"]["parameters"] == 14_122 - 7_850
    assert rows["fastfood"]["parameters"] == 10_202 - 7_850
    assert rows["circulant"]["parameters"] == 8_634 - 7_850


def test_structures_as_a_table(run):
    code, out, _ = run("structures")
    assert code == 0
    assert all(name in out for name in torchldr.structures())


def test_a_failure_is_one_line_and_exit_code_1(run, tmp_path):
    code, out, err = run("analyze", str(tmp_path / "nowhere.safetensors"))
    assert (code, out) == (1, "")
    assert err.startswith("torchldr: ")
    assert err.count("\n") == 1


def test_a_failure_with_its_traceback(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        cli.main(["--traceback", "analyze", str(tmp_path / "nowhere.safetensors")])


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("info", "--nonsense"), ("info", "--structure", "nonsense"), ("demo", "--steps", "0")],
)
def test_wrong_use_is_exit_code_2(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: torchldr" in err


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices, each product once."""

    def run_once(functions, seconds):
        for function in functions.values():
            function()
        return dict.fromkeys(functions, 1.0)

    monkeypatch.setattr(demo, "minimum_seconds", run_once)
    for name, value in (("SIZE", 32), ("LARGE", 64), ("BUDGET", 256)):
        monkeypatch.setattr(demo, name, value)


@pytest.mark.usefixtures("small_demo")
def test_demo_prints_the_table_to_stdout_and_saves_the_picture(run, tmp_path):
    picture = tmp_path / "out" / "demo.png"
    code, out, err = run("demo", "--steps", "2", "--out", str(picture), "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["structure"] for row in rows} == set(torchldr.structures())
    assert all(row["parameters"] <= 256 for row in rows if row["structure"] != "dense")
    assert [row["error"] for row in rows] == sorted(row["error"] for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture}" in err


@pytest.mark.usefixtures("small_demo")
def test_the_demo_is_deterministic():
    first, second = demo.run(steps=3), demo.run(steps=3)
    assert [row["error"] for row in first.rows] == [row["error"] for row in second.rows]


def test_the_demos_target_is_in_ldr_sd_at_rank_2():
    n = 64
    T = demo.shifts_with_gains(n, 4, torch.Generator().manual_seed(1)).double()
    again = torch.Generator().manual_seed(1)
    torch.randperm(n // 2, generator=again), torch.randn(4, generator=again)
    p, q = (demo._walk(n, again).double() for _ in range(2))
    A, C = (torch.diag(gains[1:] / gains[:-1], -1) for gains in (p, q))
    assert torch.linalg.matrix_rank(T - A @ T @ C.mT, rtol=1e-5) == 2
    assert torch.linalg.matrix_rank(T, rtol=1e-5) > 32
