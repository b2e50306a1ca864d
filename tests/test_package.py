"""The package as a user gets it: its import and its metadata."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tomllib
from collections import Counter
from pathlib import Path

import torchldr
import torchldr_paper
from torchldr.info import EXTRAS

from .processes import Case, in_forks_of

ROOT = Path(__file__).resolve().parents[1]


LOADED = """
import sys
before = set(sys.modules)
import torchldr
print(*set(sys.modules) - before)
"""
QUIET = "import warnings; warnings.simplefilter('error'); import torchldr"
ATTRIBUTES = "import torchldr; torchldr.compress.Bytes, torchldr.export.to_onnx, torchldr.testing.contract"
MODES = """
import torch
with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
    import torchldr
layer, x = torchldr.StructuredLinear(96, 90).eval(), torch.randn(3, 96)
with torch.no_grad():
    torch.testing.assert_close(torch.compile(layer, backend="eager")(x), layer(x))
layer.train()
torch.compile(layer, backend="eager")(x).sum().backward()
found = layer.G.grad.clone()
layer.zero_grad()
layer(x).sum().backward()
torch.testing.assert_close(found, layer.G.grad)
"""


def test_import():
    """Of four interpreters: what is loaded; nothing warns; modules are attributes; modes do not matter."""
    ran = in_forks_of([sys.executable], [Case(code) for code in (LOADED, QUIET, ATTRIBUTES, MODES)])
    assert [each.code for each in ran] == [0, 0, 0, 0], [each.err for each in ran]
    loaded = set(ran[0].out.split())
    packages = {name.partition(".")[0] for name in loaded}
    assert packages - sys.stdlib_module_names == {"torch", "torchldr"}
    for heavy in ("torch._dynamo", "torch._inductor", "torch.export", "torch.onnx"):
        assert heavy not in loaded
    for later in ("cli", "compress", "export", "info", "testing"):  # what few use
        assert importlib.util.find_spec(f"torchldr.{later}") is not None
        assert f"torchldr.{later}" not in loaded


def test_every_public_name_exists():
    assert all(hasattr(torchldr, name) for name in torchldr.__all__)


MODULES = (
    "algebra", "compress", "export", "linalg", "matrices", "matrices.classical", "nn", "operators",
    "pictures", "project", "testing",
)  # fmt: skip


def test_there_are_some_thirty_names_at_the_root():
    assert 25 <= len(torchldr.__all__) <= 35


def test_no_two_public_names_differ_only_in_case():
    modules = [torchldr, *(importlib.import_module(f"torchldr.{name}") for name in MODULES)]
    names = {name for module in modules for name in module.__all__}
    lower = Counter(name.lower() for name in names)
    assert not [name for name in names if lower[name.lower()] > 1]


def test_the_extras_that_info_knows_are_those_of_the_package():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    named = {
        extra: tuple(entry.split(">=")[0] for entry in entries if not entry.startswith("torchldr["))
        for extra, entries in extras.items()
        if extra not in ("dev", "docs")
    }
    assert named == EXTRAS


def test_the_two_packages_have_one_version():
    project = tomllib.loads((ROOT / "paper" / "pyproject.toml").read_text())["project"]
    assert torchldr_paper.__version__ == torchldr.__version__
    assert f"torchldr[cli]=={torchldr.__version__}" in project["dependencies"]
    assert f"version: {torchldr.__version__}\n" in (ROOT / "CITATION.cff").read_text()
