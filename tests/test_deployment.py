"""The package where it is deployed: wheels in an environment of its own, run by others; no kernels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from json import loads
from pathlib import Path
from typing import Any

import pytest

import torchldr

from .processes import Case, Ran, in_forks, in_forks_of, once

if sys.platform == "win32":
    pytest.skip("users and limits of POSIX", allow_module_level=True)
import pwd

ROOT = Path(__file__).resolve().parents[1]
BARE = {"PATH": os.environ["PATH"]}  # all that a deployed process knows of its surroundings

# Builds the wheels of copies, as setuptools leaves files in the tree that it builds. In forks: it keeps
# what it has read of a project.
BUILD = """
import os, sys
from setuptools import build_meta
for tree in sys.argv[1:]:
    if os.fork() == 0:
        os.chdir(tree)
        build_meta.build_wheel("..")
        os._exit(0)
    assert os.wait()[1] == 0
"""


def run(*command: str | Path, **options: Any) -> str:
    """What a command prints; an error fails the test with its text."""
    ran = subprocess.run(command, capture_output=True, text=True, **options)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def build(folder: Path) -> list[str]:
    """The wheels of the library and of the paper."""
    trees = {"library": ROOT, "paper": ROOT / "paper"}
    for name, source in trees.items():
        (folder / name).mkdir()
        for file in ("pyproject.toml", "README.md", "LICENSE", *(["setup.py"] if name == "library" else [])):
            shutil.copy(source / file, folder / name)
        ignored = shutil.ignore_patterns("*.egg-info", "__pycache__", "*.so")
        shutil.copytree(source / "src", folder / name / "src", ignore=ignored)
    # To compile the kernels again takes most of a minute: they are those of the checkout, as if just built.
    kernels = "torchldr/kernels/cpu/_kernels.so"
    if (ROOT / "src" / kernels).exists():
        (folder / "library" / "setup.cfg").write_text("[build]\nbuild_lib = built\n")
        (folder / "library" / "built" / kernels).parent.mkdir(parents=True)
        shutil.copyfile(ROOT / "src" / kernels, folder / "library" / "built" / kernels)
    run(sys.executable, "-c", BUILD, *(folder / name for name in trees))
    return [str(*folder.glob(f"{name}-*.whl")) for name in ("torchldr", "torchldr_paper")]


@pytest.fixture
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [Path(wheel) for wheel in once(tmp_path_factory, "wheels", build)]


def names_in(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


# The C export's runtime and CUDA kernels are text; those of the CPU come compiled, where there is a compiler.
KINDS = {"c", "cu", "py", "typed"} | ({"so"} if shutil.which(os.environ.get("CC", "cc")) else set())


@pytest.mark.slow
def test_the_wheel_is_the_library_alone_and_small(wheels: list[Path]):
    wheel = wheels[0]
    platform = re.sub("[-.]", "_", sysconfig.get_platform())
    assert wheel.name == f"torchldr-{torchldr.__version__}-py3-none-{platform}.whl"
    assert wheel.stat().st_size < 1_000_000
    names = names_in(wheel)
    metadata = f"torchldr-{torchldr.__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"torchldr", metadata}
    assert {name.rpartition(".")[2] for name in names if name.startswith("torchldr/")} == KINDS
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert sources <= names


@pytest.mark.slow
def test_the_other_wheel_holds_the_published_ledger_and_the_page(wheels: list[Path]):
    wheel = wheels[1]
    assert wheel.name == f"torchldr_paper-{torchldr.__version__}-py3-none-any.whl"
    names = names_in(wheel)
    published = ROOT / "paper" / "src" / "torchldr_paper" / "ledger" / "published"
    shipped = {path for path in published.rglob("*") if path.is_file()}
    shipped |= {published.parents[1] / "report" / f"page.{kind}" for kind in ("html", "css", "js")}
    shipped |= set(published.parents[1].rglob("*.py"))
    assert {str(path.relative_to(ROOT / "paper" / "src")) for path in shipped} <= names
    (entries,) = (name for name in names if name.endswith("entry_points.txt"))
    assert "[torchldr.commands]" in zipfile.ZipFile(wheel).read(entries).decode()


@contextmanager
def environment(folder: Path, wheel: Path) -> Iterator[tuple[Path, Path]]:
    """An environment with nothing but our wheel in it, where nobody may write to the package.

    torch is lent by this environment, by a path that reads none of its .pth files and so not its torchldr.
    Yields the folders of the scripts and of the packages.
    """
    home = folder / "environment"
    venv.create(home)
    clean = home / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(home)}))
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", clean]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=home, env=BARE)
    folders = [path for path in (packages / "torchldr").rglob("*") if path.is_dir()]
    folders.append(packages / "torchldr")
    for path in folders:
        path.chmod(0o555)
    yield home / "bin", packages
    for path in folders:
        path.chmod(0o755)


def stranger() -> list[str]:
    """What makes a command run as a user whom nobody knows and who may read everything and write nothing.

    To read everything is more than other users can, but where this interpreter lies below root's home they
    could not start it. Nothing where we cannot become such a user.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    known = {entry.pw_uid for entry in pwd.getpwall()}
    number = next(uid for uid in range(54321, 65000) if uid not in known)
    reads = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    prefix = ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups", *reads]
    tried = subprocess.run([*prefix, sys.executable, "-S", "-c", ""], capture_output=True, cwd="/")
    return prefix if tried.returncode == 0 else []


# Not by torch.testing.assert_close, which imports for a second.
NEAR = """
import torch
def near(a, b, most):
    return torch.allclose(a, b, rtol=most, atol=most)
"""

SMOKE = (
    NEAR
    + """
import sys, torchldr, torchldr.testing
from pathlib import Path
assert Path(torchldr.__file__).is_relative_to(sys.prefix), torchldr.__file__
assert (Path(torchldr.__file__).parent / "py.typed").is_file()
for name, cls in torchldr.structures().items():
    layer = torchldr.StructuredLinear(12, 10, structure=name)
    x = torch.randn(3, 12)
    layer(x).sum().backward()
    with torch.no_grad():
        assert near(layer.eval()(x), x @ layer.matrix().to_dense().mT + layer.bias, 1e-5)
print(len(torchldr.structures()))
"""
)

# The console script of the environment.
SCRIPT = "import runpy, sys; sys.argv[:] = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
# The wheel of the paper is unpacked beside the library, which is all that there is to install.
UNPACK = """
import sys, zipfile
wheel, folder = sys.argv[1:3]
del sys.argv[1:3]
zipfile.ZipFile(wheel).extractall(folder)
"""

WITHOUT = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
"""
OPTIONAL = ("typer", "rich", "safetensors", "matplotlib", "PIL", "tensorboard", "scipy", "torchldr_paper")
OPTIONAL += ("onnx", "onnxscript", "onnxruntime", "filelock", "pytest", "hypothesis")
ALONE = """
import torch, torchldr, torchldr.compress, torchldr.export, torchldr.testing
from torchldr.info import info

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
torchldr.compress_(model, torchldr.Structure("low_rank", rank=2))
model(torch.randn(3, 64)).sum().backward()
torchldr.StructuredLinear(12, 10, structure="toeplitz_like")(torch.randn(3, 12))
info()
"""
COMMAND = "from torchldr.__main__ import main; main()"

# A product of LDR-TD by C, in training and in inference; then what `torchldr info` has to say.
PRODUCT = (
    NEAR
    + """
import json, torchldr, torchldr.info
layer = torchldr.StructuredLinear(48, 48, structure="ldr_td")
x = torch.randn(3, 48)
with torch.no_grad():
    right = x @ layer.matrix().to_dense().mT + layer.bias
assert near(layer(x), right, 1e-4)
with torch.no_grad():
    assert near(layer.eval()(x), right, 1e-4)
facts = torchldr.info.info()
json.dumps(facts)
print(json.dumps({path["name"]: path for path in facts["fast_paths"]}))
"""
)
LOOPS = "C kernels"


@pytest.fixture
def deployed(tmp_path_factory: pytest.TempPathFactory, wheels: list[Path]) -> dict[str, Ran]:
    """What happened to the wheels in a clean environment; strangers may be missing."""

    def named(cases: dict[str, Case], python: list[str | Path], settings: dict[str, str]) -> dict[str, Ran]:
        return dict(zip(cases, in_forks_of(python, [*cases.values()], env=settings), strict=True))

    def deploy(folder: Path) -> dict[str, Ran]:
        empty = folder / "empty"
        empty.mkdir(mode=0o777)
        empty.chmod(0o777)
        with environment(folder, wheels[0]) as (scripts, packages):
            script = str(scripts / "torchldr")
            cases = {
                "smoke": Case(SMOKE),
                "product": Case(PRODUCT),
                "version": Case(SCRIPT, (script, "--version")),
                "no paper": Case(SCRIPT, (script, "paper", "list")),
                "alone": Case(WITHOUT + ALONE, OPTIONAL),
                "no command": Case(WITHOUT + COMMAND, OPTIONAL),
                "paper": Case(
                    UNPACK + SCRIPT,
                    (str(wheels[1]), str(packages), script, "paper", "rectangles", "--show", "--json"),
                ),
            }
            found = named(cases, [scripts / "python"], BARE)
            prefix = stranger()
            if prefix or os.geteuid() != 0:
                cases = {"no home": Case(PRODUCT, environment={"HOME": "/nonexistent"})}
                if prefix:
                    cases["nobody"] = Case(PRODUCT, cwd=str(empty))
                python = [*prefix, scripts / "python"]
                found |= named(cases, python, BARE)
                found["empty"] = Ran(0, "\n".join(map(str, empty.iterdir())), "")
        return found

    return {name: Ran(*ran) for name, ran in once(tmp_path_factory, "deployed", deploy).items()}


def lines(deployed: dict[str, Ran], name: str) -> str:
    """What a case printed; skips where there was no such user."""
    if name not in deployed:
        pytest.skip("needs root and setpriv, to become another user")
    assert deployed[name].code == 0, deployed[name].err
    return deployed[name].out


@pytest.mark.slow
def test_a_wheel_works_in_a_clean_environment(deployed: dict[str, Ran]):
    assert lines(deployed, "smoke").strip() == str(len(torchldr.structures()))
    assert deployed["version"] == (0, f"torchldr {torchldr.__version__}\n", "")
    paths = loads(lines(deployed, "product"))
    assert paths[LOOPS]["on"] is ("so" in KINDS), paths[LOOPS]


@pytest.mark.slow
def test_the_commands_of_the_other_wheel(deployed: dict[str, Ran]):
    code, out, err = deployed["no paper"]
    assert (code, out) == (2, "")
    assert "pip install torchldr-paper" in err
    assert any(row["test"] is not None for row in loads(lines(deployed, "paper")))
    assert deployed["paper"].err == ""


@pytest.mark.slow
def test_the_wheel_works_with_torch_and_numpy_alone(deployed: dict[str, Ran]):
    lines(deployed, "alone")
    assert deployed["no command"].code == 1
    assert deployed["no command"].err.endswith("; pip install torchldr[cli]\n")


@pytest.mark.slow
@pytest.mark.parametrize("user", ["no home", "nobody"])
def test_a_user_who_can_write_nowhere(deployed: dict[str, Ran], user: str):
    paths = loads(lines(deployed, user))
    assert paths[LOOPS]["on"] is ("so" in KINDS), paths[LOOPS]
    assert lines(deployed, "empty") == ""  # nothing was written


FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""

# Without kernels: products, gradients, solving and projection of all classes.
PLAIN = (
    NEAR
    + """
import torchldr, torchldr.info
from torchldr.kernels.cpu import library
library._loaded = lambda: (None, "the kernels were not built")
for name, cls in torchldr.structures().items():
    layer = torchldr.StructuredLinear(64, 64, structure=name, dtype=torch.float64)
    x, parameters = torch.randn(3, 64, dtype=torch.float64), list(layer.parameters())
    W = layer.matrix().to_dense()
    losses = [y.square().sum() for y in (layer(x), x @ W.mT + layer.bias)]
    for got, right in zip(*(torch.autograd.grad(loss, parameters) for loss in losses)):
        assert near(got, right, 1e-7)
    with torch.no_grad():
        for served in (layer.eval(), torchldr.freeze(layer)):
            assert near(served(x), x @ W.mT + layer.bias, 1e-7)
T = torchldr.ToeplitzLike.random(8, 8, rank=2, dtype=torch.float64)
b = torch.randn(8, dtype=torch.float64)
assert near(T.solve(b), torch.linalg.solve(T.to_dense(), b), 1e-7)
torchldr.from_dense(torch.randn(8, 8), "ldr_sd", 1, effort=0.01)
paths = {path["name"]: path for path in torchldr.info.info()["fast_paths"]}
print(paths["C kernels"]["why_not"])
"""
)


def test_a_full_disk_and_no_kernels():
    """No byte can be written, as where a quota is used up; the library was built without a compiler."""
    full, absent = in_forks([Case(FULL + PRODUCT), Case(PLAIN)])
    assert not full.code, full.err
    assert not absent.code, absent.err
    assert absent.out == "the kernels were not built\n"
    assert (
        absent.err.count("RuntimeWarning: the kernels were not built; products on the CPU take plain torch")
        == 1
    )
