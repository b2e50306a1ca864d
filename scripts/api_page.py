"""Write docs/api.md: every public name with its arguments and its first sentence.

python scripts/api_page.py          rewrite the page
python scripts/api_page.py --check  only say whether it is up to date
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torchldr
import torchldr_paper
from torchldr import (
    algebra,
    cli,
    compress,
    executors,
    export,
    linalg,
    matrices,
    nn,
    operators,
    pictures,
    project,
    testing,
)
from torchldr.export import c
from torchldr.matrices import classical
from torchldr_paper import data, theory

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# Names

Every public name with its arguments and what it is in a sentence; `help(torchldr.StructuredLinear)` has the
rest. What begins with an underscore, and modules that are not listed, may change at any time.
`torchldr_paper` comes with the package torchldr-paper.
"""
Group = tuple[str, str, Callable[[Any], bool]]


def defined_in(*modules: str) -> Callable[[Any], bool]:
    return lambda thing: getattr(thing, "__module__", "").startswith(modules)


def is_structure(thing: Any) -> bool:
    return isinstance(thing, type) and thing in torchldr.structures().values()


# A name of `torchldr` goes to the first group that takes it.
GROUPS: list[Group] = [
    ("Layers", "layer.md", defined_in("torchldr.nn")),
    ("Structured classes", "classes/index.md", is_structure),
    ("Compression", "compress.md", defined_in("torchldr.compress")),
    ("Projection", "projection.md", defined_in("torchldr.project")),
    ("Matrices", "algebra.md", lambda thing: True),
]
MODULES: dict[ModuleType, str] = {
    matrices: "classes/index.md",
    classical: "equivariance.md",
    operators: "algebra.md",
    algebra: "algebra.md",
    linalg: "solving.md",
    project: "projection.md",
    nn: "recurrent.md",
    compress: "compress.md",
    export: "export.md",
    c: "export.md",
    testing: "testing.md",
    executors: "scaling.md",
    pictures: "performance.md",
    cli: "../CONTRIBUTING.md",
    torchldr_paper: "experiments.md",
    data: "experiments.md",
    theory: "theory.md",
}
WITH_METHODS = (torchldr.StructuredLinear, torchldr.StructuredMatrix)


def page() -> str:
    """The whole text."""
    top = {name: getattr(torchldr, name) for name in torchldr.__all__}
    parts, left = [HEAD], dict(top)
    for title, link, takes in GROUPS:
        chosen = {name: thing for name, thing in left.items() if takes(thing)}
        left = {name: thing for name, thing in left.items() if name not in chosen}
        parts.append(f"## [{title}]({link})\n\n{table(chosen)}")
        parts += [methods(cls) for cls in WITH_METHODS if cls.__name__ in chosen]
    for module, link in MODULES.items():
        own = {name: thing for name, thing in public(module) if top.get(name) is not thing}
        parts.append(f"## [`{module.__name__}`]({link})\n\n{table(own)}")
    return "\n".join(parts)


def public(module: ModuleType) -> Iterable[tuple[str, Any]]:
    """A module's names: those in `__all__`, else what it defines without an underscore."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [(name, getattr(module, name)) for name in listed]
    here = defined_in(module.__name__)
    return [(name, thing) for name, thing in vars(module).items() if name[0] != "_" and here(thing)]


def table(things: Mapping[str, Any], *, bound: bool = False) -> str:
    """A row for each name; `bound` leaves out the first argument of methods."""
    rows = [f"| `{name}{arguments(thing, bound)}` | {summary(thing)} |\n" for name, thing in things.items()]
    return "| name | what it is |\n|---|---|\n" + "".join(rows)


def methods(cls: type) -> str:
    """The methods and properties that a class has of this library."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("torchldr"):
            found.update({name: thing for name, thing in vars(base).items() if name[0] != "_"})
    documented = {
        name: thing for name, thing in sorted(found.items()) if thing.__doc__ and not is_plain(thing)
    }
    return f"Of a `{cls.__name__}`:\n\n{table(documented, bound=True)}"


def is_plain(thing: Any) -> bool:
    """Whether it is a value, whose documentation is that of its type."""
    return thing.__doc__ == type(thing).__doc__


def arguments(thing: Any, bound: bool) -> str:
    """The arguments without their types, nothing for what is not called."""
    thing = getattr(thing, "__func__", thing)  # of a class method
    if not callable(thing) or hasattr(thing, "__metadata__") or has_foreign_arguments(thing):
        return ""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    shown = list(signature.parameters.values())[int(bound) :]
    plain = [p.replace(annotation=p.empty, default=short(p.default)) for p in shown]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return text.replace("|", "\\|")


def has_foreign_arguments(thing: Any) -> bool:
    """Whether it is made like its base in another package: an error, a command."""
    if not isinstance(thing, type):
        return False
    return issubclass(thing, BaseException) or getattr(thing.__init__, "__module__", "").startswith("typer")


def short(default: Any) -> Any:
    """A default as it is, dots where it has no short form."""
    text = repr(default)
    return default if default is inspect.Parameter.empty or (len(text) < 60 and text[0] != "<") else Dots()


class Dots:
    def __repr__(self) -> str:
        return "..."


def summary(thing: Any) -> str:
    """The first line of its documentation; the kind of a value."""
    if isinstance(thing, str):
        return f"the text {thing!r}"
    if annotations := getattr(thing, "__metadata__", None):  # of the command line
        return f"an option: {annotations[0].help}"
    if is_plain(thing):
        values = ", ".join(map(str, thing))
        return f"{type(thing).__name__}: {values}" if len(values) < 160 else f"a {type(thing).__name__}"
    first, *more = (inspect.getdoc(thing) or "").split("\n")
    if more and more[0]:  # a sentence that goes on
        first = re.split(r"(?<=\.)\s", " ".join([first, *more]).split("  ")[0])[0]
    return first.replace("|", "\\|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE.name} is out of date: run python scripts/api_page.py")
