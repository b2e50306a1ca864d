"""The little HTML that we write: everything that is not markup is escaped here."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from html import escape
from typing import Any, NewType

Html = NewType("Html", str)
"""Text that is markup already."""


def element(tag: str, *children: Html | str, **attributes: Any) -> Html:
    """An element; strings that come from data go through `text` first.

    Underscores in the names of attributes are hyphens, one at the end is dropped; True is an attribute
    without a value, None and False are none.

    >>> element("a", text("x < y"), href="#b", data_rank=2, class_="run", hidden=False)
    '<a href="#b" data-rank="2" class="run">x &lt; y</a>'
    """
    parts = [tag]
    for name, value in attributes.items():
        key = name.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(key)
        elif value is not None and value is not False:
            parts.append(f'{key}="{escape(str(value))}"')
    return Html(f"<{' '.join(parts)}>{''.join(children)}</{tag}>")


def text(value: Any) -> Html:
    """Anything as text."""
    return Html(escape(str(value)))


def join(parts: Iterable[Html], separator: str = "\n") -> Html:
    return Html(separator.join(parts))


def packed(value: Any) -> Html:
    """JSON, compressed, in letters that can stand anywhere: the page unpacks it."""
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return Html(base64.b64encode(gzip.compress(compact.encode(), mtime=0)).decode())
