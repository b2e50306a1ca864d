"""The package as a user gets it: its import and its metadata."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import pytest

import torchldr
import torchldr_paper
from torchldr.info import EXTRAS

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = ("numba", "scipy", "typer", "rich", "matplotlib", "PIL", "tensorboard")
OPTIONAL += ("onnx", "onnxscript", "onnxruntime", "torch._dynamo", "torch._inductor")


def apart() -> dict[str, str]:
    """The variables for another environment, whose packages are its own."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def python(code: str, executable: str | Path = sys.executable) -> str:
    """What a fresh interpreter prints, away from the checkout; an error fails the test with its text."""
    root = Path(sys.executable).anchor
    environment = None if executable == sys.executable else apart()
    ran = subprocess.run([executable, "-c", code], capture_output=True, text=True, cwd=root, env=environment)
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


def test_modules_are_found_as_attributes():
    python("import torchldr; torchldr.compress.Bytes, torchldr.export.to_onnx, torchldr.testing.contract")


def test_the_extras_that_info_knows_are_those_of_the_package():
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    named = {
        extra: tuple(entry.split(">=")[0] for entry in entries if not entry.startswith("torchldr["))
        for extra, entries in extras.items()
        if extra != "dev"
    }
    assert named == EXTRAS


def test_the_two_packages_have_one_version():
    project = tomllib.loads((ROOT / "paper" / "pyproject.toml").read_text())["project"]
    assert torchldr_paper.__version__ == torchldr.__version__
    assert f"torchldr[cli]=={torchldr.__version__}" in project["dependencies"]
    assert f"version: {torchldr.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def build(folder: Path, tree: Path) -> Path:
    """The wheel of a source tree, built from a copy: setuptools leaves files in the tree that it builds."""
    copy = folder / "tree" / tree.name
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
        if (tree / name).is_dir():
            shutil.copytree(tree / name, copy / name, ignore=ignored)
        else:
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree / name, copy)
    out = folder / tree.name
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, copy]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("library"), ROOT)


@pytest.fixture(scope="module")
def paper_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("paper"), ROOT / "paper")


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_the_wheel_is_the_library_alone_and_small(wheel: Path):
    assert wheel.name == f"torchldr-{torchldr.__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 700_000
    names = names_in(wheel)
    metadata = f"torchldr-{torchldr.__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"torchldr", metadata}
    assert {name.rpartition(".")[2] for name in names if name.startswith("torchldr/")} == {"py", "typed"}
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert sources <= names


@pytest.mark.slow
def test_the_other_wheel_holds_the_published_ledger_and_the_page(paper_wheel: Path):
    assert paper_wheel.name == f"torchldr_paper-{torchldr.__version__}-py3-none-any.whl"
    names = names_in(paper_wheel)
    published = ROOT / "paper" / "src" / "torchldr_paper" / "ledger" / "published"
    shipped = {path for path in published.rglob("*") if path.is_file()}
    shipped |= {published.parents[1] / "report" / f"page.{kind}" for kind in ("html", "css", "js")}
    shipped |= set(published.parents[1].rglob("*.py"))
    assert {str(path.relative_to(ROOT / "paper" / "src")) for path in shipped} <= names
    (entries,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "[torchldr.commands]" in zipfile.ZipFile(paper_wheel).read(entries).decode()


ALONE = """
import sys


class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Nothing())
import torch, torchldr, torchldr.compress, torchldr.export, torchldr.testing
from torchldr.info import info

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
torchldr.compress_(model, torchldr.Structure("low_rank", rank=2))
model(torch.randn(3, 64)).sum().backward()
torchldr.StructuredLinear(12, 10, structure="toeplitz_like")(torch.randn(3, 12))
info()
print(torchldr.__file__)
"""


@pytest.mark.slow
def test_the_wheel_works_with_torch_numpy_and_numba_alone(wheel: Path, tmp_path: Path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    blocked = {"typer", "rich", "safetensors", "matplotlib", "PIL", "tensorboard", "scipy", "torchldr_paper"}
    blocked |= {"onnx", "onnxscript", "onnxruntime", "filelock", "pytest", "hypothesis"}
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for code, rc in ((ALONE, 0), (ALONE.partition("import torch,")[0] + COMMAND, 1)):
        code = f"OPTIONAL = {blocked!r}\n{code}"
        ran = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        assert ran.returncode == rc, ran.stderr
        assert rc or ran.stdout.startswith(str(tmp_path))
    assert ran.stderr.endswith("; pip install torchldr[cli]\n")


COMMAND = "from torchldr.__main__ import main; main()"

SMOKE = """
import sys, torch, torchldr, torchldr.testing
from pathlib import Path
assert Path(torchldr.__file__).is_relative_to(sys.prefix), torchldr.__file__
assert (Path(torchldr.__file__).parent / "py.typed").is_file()
for name, cls in torchldr.structures().items():
    layer = torchldr.StructuredLinear(12, 10, structure=name)
    x = torch.randn(3, 12)
    layer(x).sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x), x @ layer.matrix().to_dense().mT + layer.bias)
print(len(torchldr.structures()))
"""


@pytest.mark.slow
def test_the_wheels_install_into_a_clean_environment_and_work(wheel: Path, paper_wheel: Path, tmp_path: Path):
    # torch is lent by this environment, by a path that reads none of its .pth files and so not its torchldr.
    home = tmp_path / "clean"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    clean = home / "bin" / "python"
    packages = Path(python("import sysconfig; print(sysconfig.get_path('purelib'))", clean).strip())
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib"))

    def install(wheel: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", clean, "install"]
        options = ["--no-deps", "--no-index", "--force-reinstall"]
        subprocess.run([*pip, *options, wheel], check=True, capture_output=True, env=apart())

    def torchldr_command(*arguments: str) -> tuple[int, str, str]:
        command = [home / "bin" / "torchldr", *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=apart())
        return ran.returncode, ran.stdout, ran.stderr

    install(wheel)
    assert python(SMOKE, clean).strip() == str(len(torchldr.structures()))
    assert torchldr_command("--version") == (0, f"torchldr {torchldr.__version__}\n", "")
    code, out, err = torchldr_command("paper", "list")
    assert (code, out) == (2, "")
    assert "pip install torchldr-paper" in err

    install(paper_wheel)
    code, out, err = torchldr_command("paper", "rectangles", "--show", "--json")
    assert (code, err) == (0, "")
    assert any(row["test"] is not None for row in json.loads(out))
