"""A class in one file, and one import: everything else finds it in the registry."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import torchldr
from torchldr import info, testing
from torchldr.core.registry import REGISTRY
from torchldr.export.layers import exportable

TOY = '''
"""A diagonal between two fixed reversals: all that a user writes."""

import torch
import torchldr


class Toy(torchldr.StructuredMatrix, name="toy"):
    """M = J D, cropped: entry i of x times d_i, in reverse order."""

    ranked = False
    scaled = ("d",)

    @classmethod
    def parameter_shapes(cls, out_features, in_features, rank):
        return {"d": (min(out_features, in_features),)}

    @classmethod
    def init_(cls, tensors, out_features, in_features, generator=None, **options):
        tensors["d"].normal_(0, 1, generator=generator)

    def factors(self):
        m, n = self.shape
        k = min(m, n)
        eye = torch.eye(k, dtype=self.dtype, device=self.device)
        pad = torch.nn.functional.pad
        return [(pad(eye.flip(0), (0, 0, 0, m - k)), pad(torch.diag(self.d), (0, n - k)))]

    def _matmul(self, x):
        k = self.d.shape[0]
        return torch.nn.functional.pad((x[..., :k] * self.d).flip(-1), (0, self.out_features - k))

    def _rmatmul(self, y):
        k = self.d.shape[0]
        return torch.nn.functional.pad(y[..., :k].flip(-1) * self.d, (0, self.in_features - k))
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[torchldr.StructuredMatrix]]:
    """The class in a package of its own, imported."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("from .toy import Toy\n")
    (tmp_path / "mine" / "toy.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("mine").Toy  # the one import
    del REGISTRY["toy"], sys.modules["mine"], sys.modules["mine.toy"]


@pytest.fixture
def layer(toy) -> torchldr.StructuredLinear:
    return torchldr.StructuredLinear(24, 24, structure="toy", bias=False, dtype=torch.float64)


def test_the_registry_the_layer_and_the_command_line_know_it(toy, layer):
    assert torchldr.get_structure("toy") is toy
    x = torch.randn(3, 24, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x @ layer.matrix().to_dense().mT)
    assert "toy" in {row["name"] for row in info.describe_structures(24, 24)}


def test_it_has_the_contract(toy):
    testing.check_structure(toy, shapes=((3, 5), (16, 16)))


def test_it_has_products(layer):
    assert [row.product for row in layer.products(64)] == ["fast", "dense"]


def test_it_is_solved_the_general_way(layer):
    M, b = layer.matrix(), torch.randn(24, dtype=torch.float64)
    assert torchldr.linalg.solvers(M) == ["dense", "gmres"]
    torch.testing.assert_close(M @ torchldr.solve(M, b), b)


def test_it_is_projected_onto(layer):
    W = layer.matrix().to_dense().detach()
    assert torchldr.from_dense(W, "toy", effort=0.5).residual < 1e-4


def test_it_is_a_candidate_of_compression(layer):
    model = nn.Sequential(nn.Linear(24, 24, bias=False, dtype=torch.float64))
    model[0].weight = nn.Parameter(layer.matrix().to_dense().detach())
    torchldr.compress_(model, budget=0.2, structures=["toy", "low_rank"], min_features=8)
    assert model[0].structure.name == "toy"


def test_it_is_exported_as_a_dense_matrix(layer):
    model, (row,) = exportable(nn.Sequential(layer), "fft")
    assert (row.structure, row.form) == ("toy", "dense")
    torch.testing.assert_close(model[0].weight, layer.matrix().to_dense())


WITHOUT = """
import sys, torch, torchldr
from torchldr import info, testing

assert {gone!r} not in torchldr.structures() and len(torchldr.structures()) == {count}
for name, cls in torchldr.structures().items():
    M = testing.member(cls, 6, 6, 2 if cls.ranked else None)
    testing.check_values(M)
    assert torch.allclose((M + M).to_dense(), 2 * M.to_dense())
    assert torch.allclose(M.T.to_dense(), M.to_dense().mT)
    assert torchldr.linalg.solvers(M)
torchldr.from_dense(torch.randn(3, 3), "ldr_td", 1, effort=0.01)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
torchldr.compress_(model, budget=0.3, min_features=8, structures=["low_rank"])
"""


def without(name: str, folder: Path) -> None:
    """A copy of the package without one class's folder and its lines in the two files that import it."""
    package = folder / "torchldr"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(torchldr.__file__).parent, package, ignore=ignored)
    shutil.rmtree(package / "matrices" / name)
    cls = torchldr.get_structure(name).__name__
    for file in (package / "__init__.py", package / "matrices" / "__init__.py"):
        lines = file.read_text().splitlines()
        imports = (f"from .{name} import {cls}", f"{cls},", f'"{cls}",')
        file.write_text("\n".join(line for line in lines if line.strip() not in imports) + "\n")


def test_deleting_a_class_leaves_a_package_that_works(tmp_path: Path):
    without("vandermonde_like", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = WITHOUT.format(gone="vandermonde_like", count=len(torchldr.structures()) - 1)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
