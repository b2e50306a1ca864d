"""Tables in Markdown, and pages that hold them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

Make = Callable[[str, Mapping[str, str]], str]


def markdown(header: Sequence[str], body: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table; the first columns, `left` of them, to the left, the others to the right."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, rule, *body))


def filled(text: str, make: Make, kind: str = "table") -> str:
    """A page with every part from `<!-- kind: NAME key=value .. -->` to `<!-- end -->` made anew."""
    marked = re.compile(rf"(<!-- {kind}: (\w+)((?: \w+=\S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)

    def part(found: re.Match[str]) -> str:
        return f"{found[1]}{make(found[2], dict(pair.split('=', 1) for pair in found[3].split()))}{found[4]}"

    return marked.sub(part, text)
