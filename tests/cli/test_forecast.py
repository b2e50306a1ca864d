"""`torchldr forecast`: columns of a CSV file."""

from __future__ import annotations

import csv
import json
import os
import threading

import numpy as np
import pytest

from torchldr import cli
from torchldr.forecast import LinearForecaster

T = np.arange(400)
A = 10 + 3 * np.sin(T / 24 * 2 * np.pi) + 0.1 * np.random.default_rng(0).standard_normal(400)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["date", "load", "wind", "flat"])
        writer.writerows([f"2024-{t}", a, a**2, 1] for t, a in zip(T, A, strict=True))
    return path


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(["forecast", *map(str, arguments)])
    return end.value.code, *capsys.readouterr()


SIZES = ("--past", 48, "--horizon", 12, "--rank", 2)


def test_a_forecast_in_every_form(capsys, file, tmp_path):
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "out", tmp_path / "f.png"
    more = ("--columns", "load", "wind", "--json", "--plot", plot, "--out", out)
    code, text, messages = run(capsys, file, *SIZES, *more)
    assert code == 0, messages
    found = json.loads(text)
    assert found["columns"] == ["load", "wind"]
    assert (found["rank"], found["weights"], found["dense_weights"]) == (2, 120, 576)
    assert found["test_r2"] > 0.9
    load = [row["forecast"] for row in found["forecast"] if row["column"] == "load"]
    truth = 10 + 3 * np.sin((400 + np.arange(12)) / 24 * 2 * np.pi)
    assert np.abs(np.array(load) - truth).max() < 0.6
    assert all(row["lower"] < row["forecast"] < row["upper"] for row in found["forecast"])
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len((out / "forecast.csv").read_text().splitlines()) == 1 + 24
    assert LinearForecaster.load(out / "forecaster.npz").rank_ == 2


def test_a_table_and_a_forecaster_for_each_column(capsys, file):
    code, text, messages = run(capsys, file, *SIZES, "--columns", "load", "wind", "--per-channel")
    assert code == 0
    assert "upper" in text
    assert "240 weights" in messages


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--columns", "lod"), 2, "Did you mean 'load'"),
        (("--columns", "date"), 2, "more than numbers"),
        (("--center", "median"), 2, "must be one of"),
        (("--gaps", "fill"), 2, "must be one of"),
        (("--rank", 13, "--horizon", 12), 2, "must be at most 12"),
        (("--test", 1.5), 2, "between 0 and 1"),
        (("--plot", "f.pdf"), 2, ".png or .svg"),
        ((), 1, "column 'flat' is constant"),
        (("--columns", "load", "--past", 380), 1, "at least past + horizon"),
    ],
)
def test_wrong_use(capsys, file, options, code, message):
    found, text, messages = run(capsys, file, *SIZES, *options)
    assert (found, text) == (code, "")
    assert message in " ".join(messages.replace("│", " ").split())


def test_files_that_hold_no_series(capsys, tmp_path):
    for text, message in (
        ("", "no values"),
        ("a,b\n1,2\n\n3\n", "line 4 has 1 cells"),
        ("a\nx\n", "no column"),
        ("a,b\n", "no values"),
        ("1.5,2\n2,3\n", "first line must hold the names"),
        ("a,a\n1,2\n", "has 2 columns 'a'"),
        ("a\n1\n\ninf\n", "is infinite in line 4"),
        ("a,b\n1,2\n3,NA\n", "has no value in line 3"),
        ("a\n\N{LATIN SMALL LETTER E WITH ACUTE}\n".encode("latin-1"), "not text in UTF-8"),
    ):
        (tmp_path / "bad.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
        code, _, messages = run(capsys, tmp_path / "bad.csv")
        assert code == 2
        assert message in " ".join(messages.replace("│", " ").split())


@pytest.mark.parametrize(("delimiter", "point"), [(";", "."), (";", ","), ("\t", "."), (",", ".")])
def test_cells_as_programs_write_them(capsys, tmp_path, delimiter, point):
    """An index without a name is no series; NA is a gap."""
    rows = [
        ["", "date", "load"],
        *([str(t), f"2024-{t}", f"{a:.4f}".replace(".", point)] for t, a in zip(T, A, strict=True)),
    ]
    rows[50][2] = "NA"
    path = tmp_path / "data.csv"
    path.write_text("\r\n".join(delimiter.join(row) for row in rows) + "\r\n\r\n", encoding="utf-8-sig")
    code, text, messages = run(capsys, path, *SIZES, "--gaps", "split", "--json")
    assert code == 0, messages
    found = json.loads(text)
    assert found["columns"] == ["load"]
    assert found["test_r2"] > 0.9


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_series_may_come_through_a_pipe(capsys, file, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=lambda: pipe.write_text(file.read_text()), daemon=True)
    writer.start()
    code, _, messages = run(capsys, pipe, *SIZES, "--columns", "load")
    assert code == 0, messages
    code, _, messages = run(capsys, tmp_path / "none.csv", *SIZES)
    assert code == 1
    assert "there is no file" in messages
