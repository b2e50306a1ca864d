"""JSON that every reader takes: numbers that are not finite become null."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["json_text"]


def json_text(value: Any, *, indent: int = 2, default: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON; `default` converts objects that JSON does not know, as in `json.dumps`.

    >>> json_text({"microseconds": [1.5, math.inf, math.nan]}, indent=0).replace("\\n", "")
    '{"microseconds": [1.5,null,null]}'
    """
    return json.dumps(_finite(value), indent=indent, default=default, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
