"""The package stands on public names of torchldr: in the `__all__` of a module that docs/api describes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

import torchldr_paper

FOLDER = Path(torchldr_paper.__file__).parent
PAGES = (Path(__file__).resolve().parents[2] / "docs" / "api").glob("*.md")
DESCRIBED = {name for page in PAGES for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)}


class Used(NamedTuple):
    """A name of torchldr that a line imports."""

    module: str
    name: str
    where: str

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}"


def imports() -> Iterator[Used]:
    """Every name that the sources import from torchldr, inside functions too."""
    for path in sorted(FOLDER.rglob("*.py")):
        file = path.relative_to(FOLDER)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom | ast.Import):
                continue
            where = f"{file}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and not node.level and is_torchldr(node.module or ""):
                yield from (Used(node.module or "", alias.name, where) for alias in node.names)
            if isinstance(node, ast.Import):
                yield from (Used(alias.name, "", where) for alias in node.names if is_torchldr(alias.name))


def is_torchldr(module: str) -> bool:
    return module.partition(".")[0] == "torchldr"


def is_public(used: Used) -> bool:
    if any(part.startswith("_") for part in used.module.split(".")):
        return False
    if used.name == "__version__":
        return True
    if used.module != "torchldr" and used.module not in DESCRIBED:
        return False
    return used.name in getattr(import_module(used.module), "__all__", ())


@pytest.fixture(scope="module")
def every_use() -> list[Used]:
    return list(imports())


def test_there_is_something_to_look_at(every_use: list[Used]):
    assert len(every_use) > 30
    assert any(is_public(used) for used in every_use)


def test_they_are_public(every_use: list[Used]):
    """In the `__all__` of a module that has a page in docs/api."""
    assert [f"{used.where} imports {used.full}" for used in every_use if not is_public(used)] == []


def test_the_library_imports_nothing_of_this_package():
    spec = find_spec("torchldr")
    assert spec is not None
    assert spec.origin is not None
    for path in Path(spec.origin).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.partition(".")[0] == "torchldr_paper" for name in names), path
