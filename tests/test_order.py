"""No modules import each other in a circle, counting imports inside functions and for types."""

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
