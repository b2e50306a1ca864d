"""Tables in Markdown, and pages of the documentation that hold them.

Everything between `<!-- table: NAME key=value .. -->` and `<!-- end -->` is what a function makes of the name
and the keys. A command that fills pages so is `fill_pages`, whose `--check` changes nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

Make = Callable[[str, Mapping[str, str]], str]


def markdown(header: Sequence[str], body: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table; the first columns, `left` of them, to the left, the others to the right."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, rule, *body))


def filled(text: str, make: Make, kind: str = "table") -> str:
    """A page with every marked part made anew."""
    marked = re.compile(rf"(<!-- {kind}: (\w+)((?: \w+=\S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)

    def part(found: re.Match[str]) -> str:
        return f"{found[1]}{make(found[2], dict(pair.split('=', 1) for pair in found[3].split()))}{found[4]}"

    return marked.sub(part, text)


def fill_pages(
    about: str | None,
    pages: Iterable[str],
    fill: Callable[[str, Path], str],
    arguments: Sequence[str] | None = None,
) -> int:
    """The command that fills pages of a checkout.

    Args:
        about: what it does, the first line counts.
        pages: the pages, relative to the checkout; those that are not there are left out.
        fill: from the text of a page and the checkout to the text with its tables.
        arguments: of the command line: `--root FOLDER` names a checkout, `--check` only compares.

    Returns:
        The exit code: 1 where `--check` found a page that differs from its results.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args(arguments)
    stale = []
    for page in pages:
        path = chosen.root / page
        if path.exists() and (text := fill(before := path.read_text("utf-8"), chosen.root)) != before:
            stale.append(page)
            if not chosen.check:
                path.write_text(text, "utf-8")
    for page in stale:
        print(f"{page}: {'differs from its results' if chosen.check else 'filled'}", file=sys.stderr)
    return int(chosen.check and bool(stale))
