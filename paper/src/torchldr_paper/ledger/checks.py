"""What a line of the ledger must hold, so that tables, figures and the report find all there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_DEPTH = 8  # how deep what is not a metric may be nested
_NONE = type(None)
_LINE: Mapping[str, tuple[type, ...]] = {
    "data": (dict,),
    "result": (dict,),
    "machine": (dict,),
    "time": (str,),
}
_RESULT: Mapping[str, tuple[type, ...]] = {
    "parameters": (int,),
    "seconds": (int, float),
    "best": (dict, _NONE),
    "mean": (dict, _NONE),
    "diverged": (list,),
    "metrics": (dict,),
    "notes": (dict, _NONE),
}
_NUMBERS = {int, float}


def check_line(line: Mapping[str, Any], replicas: int) -> None:
    """Raise where a parsed line is no record of so many replicas.

    Raises:
        ValueError, TypeError, KeyError, OverflowError: with what is wrong, but not where.
    """
    _check_kinds(line, _LINE)
    result = line["result"]
    _check_kinds({"notes": None, **result}, _RESULT)
    for numbers in (result["best"] or {}, result["mean"] or {}, {"seconds": result["seconds"]}):
        for name, value in numbers.items():
            if type(value) not in _NUMBERS or not math.isfinite(value):
                raise TypeError(f"{name} must be a finite number, got {value!r:.60}")
    chosen = (result["best"] or {"replica": 0})["replica"]
    if chosen not in range(replicas):
        raise ValueError(f"replica must be one of {replicas}, got {chosen}")
    for row in (result["diverged"], *(row for metric in result["metrics"].values() for row in metric)):
        _check_row(row, replicas)
    plain = {**line, "result": {**result, "metrics": list(result["metrics"])}}
    _check_depth(plain, _DEPTH)
    # Every number is finite, and every text can be written.
    json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()


def _check_row(row: Any, replicas: int) -> None:
    if not isinstance(row, list) or len(row) != replicas or not {*map(type, row)} <= {*_NUMBERS, _NONE}:
        raise ValueError(f"metrics and diverged must hold {replicas} numbers or nulls, got {row!r:.60}")
    if not math.isfinite(sum(filter(None, row))):
        raise ValueError("metrics must be finite")


def _check_kinds(values: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> None:
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise TypeError(f"{name} must not be {type(values[name]).__name__}")


def _check_depth(value: Any, left: int) -> None:
    if not left:
        raise ValueError(f"nested deeper than {_DEPTH}")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(part, left - 1)
