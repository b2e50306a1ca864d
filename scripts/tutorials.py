"""Run the tutorials, examples/tutorials/NAME.py, and write them with their output: docs/tutorials/NAME.md.

python scripts/tutorials.py [NAME ...]

A tutorial is a script in cells, as editors and notebooks read it: `# %%` begins code, `# %% [markdown]` text.
What a cell prints stands behind it, and so does a picture that it saves.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "examples" / "tutorials"
PAGES = ROOT / "docs" / "tutorials"
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def names() -> list[str]:
    return sorted(path.stem for path in SOURCES.glob("*.py"))


def cells(text: str) -> Iterator[tuple[bool, str]]:
    """Whether a cell is text, and what it says."""
    _, *parts = CELL.split(text)
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
        yield bool(kind), text if kind else body


def run(name: str, pictures: Path) -> str:
    """The page of a tutorial; its pictures go to a folder of its name in `pictures`."""
    parts: list[str] = []
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, (is_text, body) in enumerate(cells((SOURCES / f"{name}.py").read_text(encoding="utf-8"))):
            if is_text:
                parts.append(body)
                continue
            known, printed = set(Path().glob("*.png")), io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(body, f"{name}.py, cell {number}", "exec"), namespace)
            parts.append(f"```py\n{body.strip()}\n```")
            if printed.getvalue():
                parts.append(f"```text\n{printed.getvalue().rstrip()}\n```")
            for file in sorted(set(Path().glob("*.png")) - known):
                kept = pictures / name / file.name
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(file.read_bytes())
                parts.append(f"![{file.stem.capitalize()}]({name}/{file.name})")
    source = f"../../examples/tutorials/{name}.py"
    parts.append(f"The whole script: [`{name}.py`]({source}). What stands here is what it printed.")
    return "\n\n".join(parts) + "\n"


def main(chosen: list[str]) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in chosen or names():
        page = run(name, PAGES)
        (PAGES / f"{name}.md").write_text(page, encoding="utf-8")
        print(PAGES / f"{name}.md")


if __name__ == "__main__":
    main(sys.argv[1:])
