"""The package where it is deployed: a wheel in an environment of its own, run by others; Numba broken."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchldr

if sys.platform == "win32":
    pytest.skip("users and limits of POSIX", allow_module_level=True)
import pwd
import resource

ROOT = Path(__file__).resolve().parents[1]
BARE = {"PATH": os.environ["PATH"]}  # all that a deployed process knows of its surroundings


def run(*command: str | Path, **options: Any) -> str:
    """What a command prints, away from the checkout; an error fails the test with its text."""
    options = {"cwd": Path(sys.executable).anchor, **options}
    ran = subprocess.run(command, capture_output=True, text=True, **options)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an environment with nothing but our wheel in it, where nobody may write to the package.

    torch is lent by this environment, by a path that reads none of its .pth files and so not its torchldr.
    """
    folder = tmp_path_factory.mktemp("deployment")
    tree, home = folder / "tree", folder / "environment"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):  # a copy, as setuptools leaves files behind
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, tree)
    (wheel,) = folder.glob("torchldr-*.whl")
    assert torchldr.__version__ in wheel.name
    run(sys.executable, "-m", "venv", "--without-pip", home)
    clean = home / "bin" / "python"
    packages = Path(run(clean, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib"))
    run(sys.executable, "-m", "pip", "--python", clean, "install", "--no-deps", "--no-index", wheel)
    folders = [path for path in (packages / "torchldr").rglob("*") if path.is_dir()]
    folders.append(packages / "torchldr")
    for path in folders:
        path.chmod(0o555)
    yield home
    for path in folders:
        path.chmod(stat.S_IRWXU)


@pytest.fixture(scope="module")
def stranger() -> list[str]:
    """What makes a command run as a user whom nobody knows and who may read everything and write nothing.

    To read everything is more than other users can, but where this interpreter lies below root's home they
    could not start it.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become another user")
    known = {entry.pw_uid for entry in pwd.getpwall()}
    number = next(uid for uid in range(54321, 65000) if uid not in known)
    reads = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    prefix = ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups", *reads]
    tried = subprocess.run([*prefix, sys.executable, "-c", ""], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"cannot become another user here: {tried.stderr.strip()}")
    return prefix


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
def test_a_wheel_works_in_a_clean_environment(environment: Path, tmp_path: Path):
    settings = {**BARE, "NUMBA_CACHE_DIR": str(tmp_path)}
    printed = run(environment / "bin" / "python", "-c", SMOKE, env=settings)
    assert printed.strip() == str(len(torchldr.structures()))
    version = run(environment / "bin" / "torchldr", "--version", env=settings)
    assert version == f"torchldr {torchldr.__version__}\n"
    assert list(tmp_path.rglob("*.nbi"))  # Numba's folder is the one that it was told


# A product of LDR-TD, in training and in inference with a plan; then what `torchldr info` has to say.
PRODUCT = """
import json, torch, torchldr, torchldr.info
layer, x = torchldr.StructuredLinear(160, 160, structure="ldr_td"), torch.randn(3, 160)
with torch.no_grad():
    right = x @ layer.matrix().to_dense().mT + layer.bias
torch.testing.assert_close(layer(x), right, rtol=1e-4, atol=1e-4)
with torch.no_grad():
    torch.testing.assert_close(layer.eval()(x), right, rtol=1e-4, atol=1e-4)
facts = torchldr.info.info()
json.dumps(facts)
print(json.dumps({path["name"]: path for path in facts["fast_paths"]}))
"""
LOOPS, DISK = "compiled loops", "compiled loops on disk"


@pytest.mark.slow
def test_a_user_who_can_write_neither_to_the_package_nor_at_home(environment: Path, request):
    prefix = request.getfixturevalue("stranger") if os.geteuid() == 0 else []
    settings = {**BARE, "HOME": "/nonexistent"}
    paths = json.loads(run(*prefix, environment / "bin" / "python", "-c", PRODUCT, env=settings))
    assert paths[LOOPS]["on"], paths[LOOPS]
    assert "no locator available" in paths[DISK]["why_not"]
    assert "NUMBA_CACHE_DIR" in paths[DISK]["why_not"]


@pytest.mark.slow
def test_a_user_without_a_home_whom_nobody_knows(environment: Path, stranger: list[str], tmp_path: Path):
    tmp_path.chmod(0o777)
    command = [*stranger, environment / "bin" / "python", "-c", PRODUCT]
    paths = json.loads(run(*command, env=BARE, cwd=tmp_path))
    assert paths[LOOPS]["on"], paths[LOOPS]
    assert "no home folder is known" in paths[DISK]["why_not"]
    assert list(tmp_path.iterdir()) == []  # no folder named ~


def test_a_full_disk(tmp_path: Path):
    """No byte can be written to a file, as where the disk is full or a quota is used up."""
    settings = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    paths = json.loads(run(sys.executable, "-c", PRODUCT, env=settings, preexec_fn=full))
    assert paths[LOOPS]["on"], paths[LOOPS]
    assert "OSError" in paths[DISK]["why_not"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# Where nothing is compiled: products, gradients, solving and projection of all classes.
PLAIN = """
import torch, torchldr, torchldr.info
for name, cls in torchldr.structures().items():
    layer = torchldr.StructuredLinear(64, 64, structure=name, dtype=torch.float64)
    x, parameters = torch.randn(3, 64, dtype=torch.float64), list(layer.parameters())
    W = layer.matrix().to_dense()
    losses = [y.square().sum() for y in (layer(x), x @ W.mT + layer.bias)]
    for got, right in zip(*(torch.autograd.grad(loss, parameters) for loss in losses)):
        torch.testing.assert_close(got, right, rtol=1e-7, atol=1e-7)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(layer.eval()(x), x @ W.mT + layer.bias)
        torch.testing.assert_close(layer.matrix().prepare()(x), x @ W.mT)
T = torchldr.ToeplitzLike.random(8, 8, rank=2, dtype=torch.float64)
b = torch.randn(8, dtype=torch.float64)
torch.testing.assert_close(T.solve(b), torch.linalg.solve(T.to_dense(), b))
torchldr.from_dense(torch.randn(8, 8), "ldr_sd", 1)
paths = {path["name"]: path for path in torchldr.info.info()["fast_paths"]}
print(paths["compiled loops"]["why_not"])
"""


def test_without_numba():
    said = run(sys.executable, "-c", "import sys; sys.modules['numba'] = None\n" + PLAIN)
    assert said.startswith("numba is not installed; the forms in torch serve")


def test_a_numba_that_cannot_be_imported(tmp_path: Path):
    (tmp_path / "numba.py").write_text("raise OSError('libllvmlite.so: cannot open shared object file')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + PLAIN
    said = run(sys.executable, "-c", code)
    assert said.startswith("numba cannot be imported: OSError: libllvmlite.so: cannot open shared object")


UNABLE = """
from numba.core.dispatcher import Dispatcher
def compile(self, signature):
    raise RuntimeError("no code for this processor\\nand more")
Dispatcher.compile = compile
"""


@pytest.mark.parametrize("code", [UNABLE, "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'"])
def test_a_numba_that_does_not_compile(code: str):
    said = run(sys.executable, "-c", code + "\n" + PLAIN)
    assert said.endswith("; the forms in torch serve there\n")
    for loops in ("the stencil: ",):
        assert loops in said
    assert code is not UNABLE or "the stencil: RuntimeError: no code for this processor; " in said
