"""The command line: what it prints where, and its exit codes."""

from __future__ import annotations

import json

import pytest

import torchldr
from torchldr import cli

pytestmark = pytest.mark.usefixtures("no_data_of_the_user")


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


def test_info_about_the_products_of_a_class(run):
    code, out, err = run("info", "--structure", "low_rank", "--n", 64, "--json")
    rows = json.loads(out, parse_constant=pytest.fail)
    assert (code, err) == (0, "")
    assert {row["product"] for row in rows} == {"fast", "dense"}
    assert sum(row["taken"] for row in rows) == 1
    assert all(bool(row["why_not"]) != row["taken"] for row in rows)


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
    [("nonsense",), ("info", "--nonsense"), ("info", "--structure", "nonsense")],
)
def test_wrong_use_is_exit_code_2(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: torchldr" in err
