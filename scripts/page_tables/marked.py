"""Pages with tables between marks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Make = Callable[[str, Mapping[str, str]], str]


_MARKED = re.compile(r"(<!-- table: (\w+)((?: \w+=\S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str, make: Make) -> str:
    """A page with every part from `<!-- table: NAME key=value .. -->` to `<!-- end -->` made anew."""

    def part(found: re.Match[str]) -> str:
        return f"{found[1]}{make(found[2], dict(pair.split('=', 1) for pair in found[3].split()))}{found[4]}"

    return _MARKED.sub(part, text)
