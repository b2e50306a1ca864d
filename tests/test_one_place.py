"""A class is one place: no module outside of `matrices` names one; others ask the registry."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchldr

ROOT = Path(torchldr.__file__).parent
CLASSES = {cls.__name__ for cls in torchldr.structures().values() if cls.__module__.startswith("torchldr.")}
# "dense" is also a product and a mode: of that word only comparisons of a structure count.
NAMES = {cls.name for cls in torchldr.structures().values()} - {"dense"}

# What may name classes: the package itself, which exports them. A default value may, too: a layer's class.
EXCEPTIONS = {"__init__.py"}
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in ROOT.rglob("*.py")
    if not path.is_relative_to(ROOT / "matrices") and path.relative_to(ROOT).as_posix() not in EXCEPTIONS
)


def named(source: str) -> Iterator[str]:
    """The classes that a module names: by import, by attribute, by their registered names."""
    tree = ast.parse(source)
    defaults = {
        id(default)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for default in (*node.args.defaults, *node.args.kw_defaults)
    }
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Name) and node.id in CLASSES:
            yield f"line {line}: {node.id}"
        if isinstance(node, ast.Attribute) and node.attr in CLASSES:
            yield f"line {line}: {node.attr}"
        if isinstance(node, ast.ImportFrom):
            yield from (f"line {line}: imports {a.name}" for a in node.names if a.name in CLASSES)
        if isinstance(node, ast.Constant) and node.value in NAMES and id(node) not in defaults:
            yield f"line {line}: {node.value!r}"
        if isinstance(node, ast.Compare) and compares_a_structure(node):
            yield f"line {line}: {ast.unparse(node)}"
        if isinstance(node, ast.keyword) and node.arg == "structure" and is_dense(node.value):
            yield f"line {node.value.lineno}: structure='dense'"


def is_dense(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Constant) and part.value == "dense" for part in ast.walk(node))


def compares_a_structure(node: ast.Compare) -> bool:
    """Whether the word "dense" is compared with a structure or its name."""
    sides = [ast.unparse(side) for side in (node.left, *node.comparators) if not is_dense(side)]
    asked = any(side.endswith(".name") or "structure" in side for side in sides)
    return asked and any(map(is_dense, (node.left, *node.comparators)))


def test_no_class_is_named():
    found = {module: list(named((ROOT / module).read_text(encoding="utf-8"))) for module in MODULES}
    found = {module: places for module, places in found.items() if places}
    assert not found, "these name structured classes; they should ask the registry or the class"


@pytest.mark.parametrize(
    "source",
    [
        "from ..matrices import Circulant",
        "x = torchldr.LowRank.random(3, 3, 1)",
        'if cls.name == "ldr_sd": pass',
        'if structure == "dense": pass',
        'if layer.structure.name in ("dense", "x"): pass',
        'COSTS = {"acdc": 3}',
        'match name:\n    case "fastfood": pass',
        'layer = Layer(structure="dense")',
    ],
)
def test_naming_is_noticed(source: str):
    assert list(named(source))


@pytest.mark.parametrize(
    "source", ['def f(structure="ldr_sd"): pass', 'if plan == "dense": pass', 'MODES = ("fft", "dense")']
)
def test_other_words_are_not(source: str):
    assert not list(named(source))
