"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(header: Sequence[str], body: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table; the first columns, `left` of them, to the left, the others to the right."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, rule, *body))
