"""Plans as JSON: names and patterns to structures."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..structure import Structure

_FORM = '{"name or pattern": {"structure": "ldr_sd", "rank": 4, "options": {}}, ..}'


def structure_to_dict(structure: Structure) -> dict[str, Any]:
    """A structure as JSON has it.

    >>> structure_to_dict(Structure("low_rank", 2))
    {'structure': 'low_rank', 'rank': 2, 'options': {}}
    """
    return {"structure": structure.name, "rank": structure.rank, "options": structure.options}


def plan_to_dict(plan: Mapping[str, Structure]) -> dict[str, dict[str, Any]]:
    """A plan as JSON has it."""
    return {key: structure_to_dict(structure) for key, structure in plan.items()}


def plan_from_dict(plan: object, who: str = "plan") -> dict[str, Structure]:
    """The plan of a parsed JSON document; "rank" and "options" may be left out.

    Args:
        plan: what JSON gave.
        who: what to call it in errors.

    Raises:
        ValueError: for another form, an unknown structure or option, naming the entry.

    Examples:
        >>> plan_from_dict({"encoder.*": {"structure": "low_rank", "rank": 8}})
        {'encoder.*': Structure('low_rank', rank=8)}
    """
    if not isinstance(plan, Mapping) or not plan:
        raise ValueError(f"{who}: a plan must be {_FORM}, got {_short(plan)}.")
    made = {}
    for key, entry in plan.items():
        if not isinstance(entry, Mapping) or not isinstance(entry.get("structure"), str):
            raise ValueError(f"{who}: {key!r}: a plan must be {_FORM}, got {_short(entry)} here.")
        if unknown := sorted(set(entry) - {"structure", "rank", "options"}):
            raise ValueError(f"{who}: {key!r}: unknown entry {unknown[0]!r}; a plan must be {_FORM}.")
        options = entry.get("options") or {}
        if not isinstance(options, Mapping):
            raise ValueError(f"{who}: {key!r}: options must be an object, got {_short(options)}.")
        try:
            made[key] = Structure(entry["structure"], entry.get("rank"), **options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{who}: {key!r}: {error}") from None
    return made


def read_plan(path: str | os.PathLike[str]) -> dict[str, Structure]:
    """The plan in a JSON file: for `compress_`, or for `torchldr compress --plan`.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: where it holds no plan, naming the entry.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist.")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON file ({error}).") from None
    return plan_from_dict(document, str(file))


def write_plan(plan: Mapping[str, Structure], path: str | os.PathLike[str]) -> None:
    """Write a plan to a JSON file, which `read_plan` reads."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(plan_to_dict(plan), indent=2) + "\n", encoding="utf-8")


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
