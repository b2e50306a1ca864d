"""The package as a user gets it: its import, its wheel, its metadata."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import torchldr
from torchldr.info import EXTRAS

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = ("numba", "scipy", "typer", "rich", "matplotlib", "PIL", "tensorboard")
OPTIONAL += ("onnx", "onnxscript", "onnxruntime", "torch._dynamo", "torch._inductor")


def python(code: str, executable: str | Path = sys.executable) -> str:
    """What a fresh interpreter prints, away from the checkout; an error fails the test with its text."""
    root = Path(sys.executable).anchor
    ran = subprocess.run([executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_import_takes_at_most_300_ms_more_than_torch():
    code = "import time, torch; t = time.perf_counter(); import torchldr; print(time.perf_counter() - t)"
    assert min(float(python(code)) for _ in range(3)) < 0.3


def test_import_pulls_in_no_optional_package():
    code = f"import sys, torchldr; print([name for name in {OPTIONAL!r} if name in sys.modules])"
    assert python(code).strip() == "[]"


def test_import_warns_of_nothing():
    python("import torch, warnings; warnings.simplefilter('error'); import torchldr")


def test_import_works_without_numba():
    python(
        "import sys; sys.modules['numba'] = None\n"
        "import torch, torchldr, torchldr.info\n"
        "from torchldr.functional import stencil\n"
        "stencil.unavailable = lambda: 'numba is not installed'\n"
        "layer = torchldr.StructuredLinear(16, 16, structure='ldr_td')\n"
        "assert layer(torch.randn(2, 16)).shape == (2, 16)\n"
        "off = [path for path in torchldr.info.info()['fast_paths'] if not path['on']]\n"
        "assert any('numba is not installed' in path['why_not'] for path in off), off\n"
    )


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
def test_a_wheel_installs_into_a_clean_environment_and_works(tmp_path: Path):
    # Built from a copy, as setuptools leaves files in the tree that it builds.
    for name in ("pyproject.toml", "README.md", "LICENSE", "src"):
        source, copy = ROOT / name, tmp_path / "tree" / name
        copy.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
        else:
            shutil.copy(source, copy)
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        tmp_path,
        tmp_path / "tree",
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("torchldr-*.whl")
    assert torchldr.__version__ in wheel.name

    # torch is lent by this environment, by a path that reads none of its .pth files and so not its torchldr.
    home = tmp_path / "clean"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    clean = home / "bin" / "python"
    packages = Path(python("import sysconfig; print(sysconfig.get_path('purelib'))", clean).strip())
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib"))
    install = [sys.executable, "-m", "pip", "--python", clean, "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True)

    assert python(SMOKE, clean).strip() == str(len(torchldr.structures()))
    ran = subprocess.run([home / "bin" / "torchldr", "--version"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, f"torchldr {torchldr.__version__}\n")
