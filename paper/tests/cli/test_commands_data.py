"""`torchldr data`: what it prints where, and its exit codes."""

from __future__ import annotations

import json

import pytest

from torchldr import cli

pytestmark = pytest.mark.usefixtures("no_data_of_the_user")


def test_data_list(run):
    code, out, err = run("data", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert (code, err) == (0, "")
    assert rows["rectangles"]["state"] == "stand-in"
    assert rows["cifar10"]["state"] == "absent"
    assert "cifar10_grey" in run("data", "list")[1]


def test_data_fetch_of_an_unknown_name_is_wrong_use(run):
    code, out, err = run("data", "fetch", "rectangle")
    assert (code, out) == (2, "")
    assert "Did you mean 'rectangles'" in err


def test_a_failure_is_one_line_and_exit_code_1(run, tmp_path):
    code, out, err = run("data", "list", "--data-dir", str(tmp_path / "nowhere"))
    assert (code, out) == (1, "")
    assert err == f"torchldr: data_dir: '{tmp_path / 'nowhere'}' is not a folder.\n"


def test_a_failure_with_its_traceback(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        cli.main(["--traceback", "data", "list", "--data-dir", str(tmp_path / "nowhere")])
