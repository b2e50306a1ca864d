"""The order of files: imports run in no circle, also inside functions and for types; tests mirror sources."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import torchldr
import torchldr_paper


def modules_of(folder: Path) -> dict[str, Path]:
    found = {}
    for path in folder.rglob("*.py"):
        *parts, last = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts if last == "__init__" else (*parts, last))] = path
    return found


def imported(name: str, path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a module imports, anywhere in it."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{source}.{alias.name}"
                target = full if full in modules else source
                if target in modules and target != name:
                    yield target


@pytest.mark.parametrize("package", [torchldr, torchldr_paper], ids=lambda package: package.__name__)
def test_there_are_no_circles(package):
    modules = modules_of(Path(package.__file__).parent)
    graph = {name: set(imported(name, path, modules)) for name, path in modules.items()}
    assert sum(map(len, graph.values())) > len(graph)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' <- '.join(error.args[1])}") from None


ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "tests": "src/torchldr",
    "tests/gpu": "src/torchldr",
    "tests/scripts": "scripts",
    "paper/tests": "paper/src/torchldr_paper",
}


def without_source(tests: Path, source: Path) -> list[str]:
    """Tests in folders whose names do not begin with a module, as test_app_help.py does with app.py."""
    found = []
    for path in tests.glob("*/**/test_*.py"):
        folder = source / path.relative_to(tests).parent
        names = {part.stem for part in folder.glob("*") if part.suffix in ("", ".py")}
        words = path.stem.split("_")[1:]
        if names.isdisjoint("_".join(words[:count]) for count in range(1, len(words) + 1)):
            found.append(path.relative_to(tests).as_posix())
    return found


@pytest.mark.parametrize("tests", FOLDERS)
def test_tests_mirror_sources(tests):
    """What is about a whole package lies at the top of its tests."""
    others = [other for other in FOLDERS if other.startswith(f"{tests}/")]
    found = without_source(ROOT / tests, ROOT / FOLDERS[tests])
    assert not [path for path in found if not f"{tests}/{path}".startswith(tuple(others))]


def test_tests_without_a_source_are_found(tmp_path):
    for name in ("app.py", "parts/one.py"):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).touch()
    for name in ("test_whole.py", "parts/test_one_more.py", "parts/test_ones.py", "other/test_app.py"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).touch()
    found = without_source(tmp_path / "tests", tmp_path / "source")
    assert sorted(found) == ["other/test_app.py", "parts/test_ones.py"]
