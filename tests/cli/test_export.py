"""`torchldr export`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from torchldr.cli.app import command_line

MODEL = """
import torch
from torch import nn
from torchldr import StructuredLinear

def build():
    torch.manual_seed(0)
    return nn.Sequential(StructuredLinear(12, 12, structure="low_rank"), nn.ReLU(), nn.Linear(12, 3))

model = build()
number = 3
gelu = nn.GELU()

def fails():
    raise RuntimeError("no luck")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some_model.py"
    path.write_text(MODEL)
    return path


def invoke(*arguments: object):
    return CliRunner().invoke(command_line(), ["export", *map(str, arguments)])


@pytest.mark.parametrize("name", ["build", "model"])
def test_c(name: str, file: Path, tmp_path: Path):
    ran = invoke(f"{file}:{name}", "--input", 1, 12, "--out", tmp_path / "c", "--name", "net", "--json")
    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert [layer["form"] for layer in report["layers"]] == ["two products", "rows"]
    assert (tmp_path / "c" / "net.c").is_file()
    ran = invoke(f"{file}:{name}", "--to", "c", "--input", 1, 12, "-o", tmp_path / "d")
    assert ran.exit_code == 0
    assert "low_rank 12 x 12" in ran.stdout


def test_c_in_integers(file: Path, tmp_path: Path):
    x = torch.randn(50, 12)
    np.save(tmp_path / "x.npy", x.numpy())
    save_file({"x": x}, tmp_path / "x.safetensors")
    texts = []
    for name in ("x.npy", "x.safetensors"):
        options = ["--input", 1, 12, "--arithmetic", "integer", "--calibration", tmp_path / name]
        ran = invoke(f"{file}:build", *options, "--out", tmp_path / name[2:], "--json")
        assert ran.exit_code == 0, ran.output
        assert json.loads(ran.stdout)["input_size"] == 12
        texts.append((tmp_path / name[2:] / "model.c").read_text())
    assert texts[0] == texts[1]
    assert "float" not in texts[0]


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--arithmetic", "integer"], 2, "need each other"),
        (["--calibration", "x.npy"], 2, "need each other"),
        (["--arithmetic", "fixed"], 2, "one of float, integer"),
        (["--arithmetic", "integer", "--calibration", "x.npy", "--to", "onnx"], 2, "goes with --to c"),
        (["--arithmetic", "integer", "--calibration", "none.npy"], 1, "there is no file none.npy"),
        (["--arithmetic", "integer", "--calibration", "some_model.py"], 1, "is not a .npy or .safetensors"),
        (["--arithmetic", "integer", "--calibration", "x.npy"], 1, "batch of shape (50, 11)"),
        (["--arithmetic", "integer", "--calibration", "two.safetensors"], 1, "it holds 2"),
    ],
)
def test_wrong_calibration(options, code, says, file: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    np.save("x.npy", np.zeros((50, 11), np.float32))
    save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, "two.safetensors")
    ran = invoke(f"{file}:build", "--input", 1, 12, *options)
    assert ran.exit_code == code
    assert says in " ".join(ran.output.replace("│", " ").split())
    assert not Path("model").exists()


def test_onnx_of_a_model_in_a_module(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    ran = invoke("some_model:model", "--to", "onnx", "--input", 1, 12, "--json")
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["bytes"] == (tmp_path / "model.onnx").stat().st_size


def test_a_state_is_loaded(file: Path, tmp_path: Path):
    state = {
        "0.G": torch.zeros(1, 12), "0.H": torch.zeros(1, 12), "0.bias": torch.zeros(12),
        "2.weight": torch.zeros(3, 12), "2.bias": torch.tensor([0.5, 1.5, 2.5]),
    }  # fmt: skip
    save_file(state, tmp_path / "state.safetensors")
    options = ["--input", 1, 12, "--state", tmp_path / "state.safetensors", "--out", tmp_path / "c"]
    assert invoke(f"{file}:build", *options).exit_code == 0
    assert "0.5f, 1.5f, 2.5f" in (tmp_path / "c" / "model.c").read_text()
    save_file({"a": torch.zeros(1)}, tmp_path / "state.safetensors")
    ran = invoke(f"{file}:build", *options[:-1], tmp_path / "d")
    assert ran.exit_code == 1
    assert "does not fit" in ran.output
    torch.save(state, tmp_path / "state.safetensors")
    ran = invoke(f"{file}:build", *options[:-1], tmp_path / "d")
    assert ran.exit_code == 1
    assert "is not a .safetensors file" in ran.output
    ran = invoke(f"{file}:build", "--input", 1, 12, "--state", tmp_path, "--out", tmp_path / "d")
    assert ran.exit_code == 1
    assert "there is no file" in ran.output


@pytest.mark.parametrize(
    ("model", "options", "code", "says"),
    [
        ("build", ["--input", 1, 12, "--to", "rust"], 2, "c, onnx"),
        ("build", ["--input", 1, 12, "--weights", "int4"], 2, "int8, float32"),
        ("build", [], 2, "shape of an input"),
        ("fails", ["--input", 1, 12], 1, "fails with RuntimeError: no luck"),
        ("number", ["--input", 1, 12], 1, "must be or return an nn.Module"),
        ("absent", ["--input", 1, 12], 1, "has no 'absent'"),
        ("gelu", ["--input", 1, 12], 1, "has no C"),
        ("build", ["--input", 2, 12], 1, "one input at a time"),
        ("build", ["--input", 1, 12, "--name", "a b"], 1, "C identifier"),
    ],
)
def test_errors(model, options, code, says, file: Path, tmp_path: Path):
    ran = invoke(f"{file}:{model}", *options, "--out", tmp_path / "c")
    assert ran.exit_code == code, ran.output
    assert says in ran.output
    assert not (tmp_path / "c").exists()


def test_a_file_imports_those_beside_it(tmp_path: Path):
    (tmp_path / "beside_the_model.py").write_text(MODEL)
    (tmp_path / "with_imports.py").write_text("from beside_the_model import model")
    ran = invoke(f"{tmp_path}/with_imports.py:model", "--input", 1, 12, "-o", tmp_path / "c")
    assert ran.exit_code == 0, ran.output


def test_where_no_model_is(tmp_path: Path):
    ran = invoke("model", "--input", 1, 2)
    assert ran.exit_code == 2
    assert "file.py:name" in ran.output
    (tmp_path / "wrong.py").write_text("def (")
    assert "fails with SyntaxError" in invoke(tmp_path / "wrong.py:model", "--input", 1, 2).output
    assert "there is no file" in invoke(tmp_path / "no.py:model", "--input", 1, 2).output
