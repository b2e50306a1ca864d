"""The package as a user gets it: its import and its metadata."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import torchldr
from torchldr.info import EXTRAS

ROOT = Path(__file__).resolve().parents[1]


def python(code: str, executable: str | Path = sys.executable) -> str:
    """What a fresh interpreter prints, away from the checkout; an error fails the test with its text."""
    root = Path(sys.executable).anchor
    ran = subprocess.run([executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that importing torchldr loads beyond those that torch has loaded."""
    code = """if True:
        import sys, torch
        before = set(sys.modules)
        import torchldr
        print(*set(sys.modules) - before)
    """
    return set(python(code).split())


def test_import_loads_this_package_and_parts_of_torch_alone(loaded):
    packages = {name.partition(".")[0] for name in loaded}
    assert packages - sys.stdlib_module_names == {"torch", "torchldr"}


@pytest.mark.parametrize("name", ["torch._dynamo", "torch._inductor", "torch.export", "torch.onnx"])
def test_import_leaves_the_heavy_parts_of_torch_alone(loaded, name):
    assert name not in loaded


@pytest.mark.parametrize("name", ["bench", "cli", "compress", "export", "info", "testing"])
def test_import_leaves_what_few_use_for_later(loaded, name):
    assert importlib.util.find_spec(f"torchldr.{name}") is not None
    assert f"torchldr.{name}" not in loaded


def test_import_warns_of_nothing():
    python("import torch, warnings; warnings.simplefilter('error'); import torchldr")


def test_every_public_name_exists():
    assert all(hasattr(torchldr, name) for name in torchldr.__all__)


def test_the_extras_that_info_knows_are_those_of_the_package():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    named = {
        extra: tuple(entry for entry in entries if not entry.startswith("torchldr["))
        for extra, entries in extras.items()
        if extra != "dev"
    }
    assert named == EXTRAS
