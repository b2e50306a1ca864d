"""`Structure`, and plans, which map names and patterns to structures; both as JSON too."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.checks import checked_int
from ..matrices import StructuredMatrix, get_structure, structures

_FORM = '{"name or pattern": {"structure": "ldr_sd", "rank": 4, "options": {}}, ..}'


@dataclass(frozen=True, init=False)
class Structure:
    """A structured class with its rank and options, for a layer's weight.

    Args:
        name: of a structured class (`torchldr.structures()` lists them). "dense" leaves a layer alone.
        rank: number of generator pairs; None means 1, or no rank for a class without one.
        **options: the class's own options, such as `block_size`.

    Examples:
        >>> Structure("ldr_sd", rank=4)
        Structure('ldr_sd', rank=4)
        >>> Structure("block_circulant", block_size=4).options
        {'block_size': 4}
    """

    name: str
    rank: int | None
    items: tuple[tuple[str, Any], ...]

    def __init__(self, name: str, rank: int | None = None, **options: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"Structure: name must be a str, got {name!r}.")
        cls = get_structure(name)
        options = {name: value for name, value in cls.check_options(options).items() if name in options}
        if rank is not None and not cls.ranked:
            raise ValueError(f"Structure: {name!r} has no rank, got rank={rank}.")
        if rank is not None:
            rank = checked_int("Structure", "rank", rank)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "rank", 1 if rank is None and cls.ranked else rank)
        object.__setattr__(self, "items", tuple(sorted(options.items())))

    @property
    def cls(self) -> type[StructuredMatrix]:
        return get_structure(self.name)

    @property
    def is_dense(self) -> bool:
        """Whether it leaves a weight as it is."""
        return not self.cls.structured

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.items)

    def parameters(self, out_features: int, in_features: int) -> int:
        """The number of parameters of a matrix of this shape; an error if the rank is too large for it."""
        cls = self.cls
        shapes = cls.check_shapes(out_features, in_features, self.rank, cls.check_options(self.options))
        return sum(map(math.prod, shapes.values()))

    def parameters_of(self, matrices: Sequence[Tensor]) -> int:
        """The total number of parameters of matrices of these shapes."""
        return sum(self.parameters(*W.shape) for W in matrices)

    def multiply_adds(self, out_features: int, in_features: int) -> int | None:
        """An estimate of the multiply-adds of one fast product with a vector; None for a class without one.

        >>> Structure("low_rank", 4).multiply_adds(512, 512), Structure("dense").multiply_adds(512, 512)
        (4096, 262144)
        """
        count = self.cls.multiply_adds(out_features, in_features, self.rank or 1, **self.options)
        return None if count is None else round(count)

    def stored_bytes(self, matrices: Sequence[Tensor]) -> int:
        """The bytes of matrices of these shapes and dtypes, including their random constants.

        >>> W = torch.zeros(64, 64)
        >>> Structure("low_rank", 2).stored_bytes([W]), Structure("fastfood").stored_bytes([W])
        (1024, 1280)
        """
        cls, total, options = self.cls, 0, self.cls.check_options(self.options)
        for W in matrices:
            m, n = W.shape
            given = {"dtype": W.dtype, "generator": torch.Generator(), **options}
            constants = cls.constants(m, n, self.rank or 1, **given)
            total += self.parameters(m, n) * W.element_size()
            total += sum(constants[name].nbytes for name in cls.drawn)
        return total

    def __repr__(self) -> str:
        parts = [repr(self.name)] + [f"rank={self.rank}"] * (self.rank is not None)
        return f"Structure({', '.join(parts + [f'{key}={value!r}' for key, value in self.items])})"


DENSE = Structure(next(name for name, cls in structures().items() if not cls.structured))


def matching(plan: Mapping[str, Structure], names: Iterable[str]) -> str | None:
    """The key that applies to a layer with these names: an exact one, else the longest, else the latest.

    >>> plan = {"*": Structure("low_rank"), "head": Structure("ldr_sd"), "*.q": Structure("circulant")}
    >>> [matching(plan, [name]) for name in ("head", "body.q", "body.k")]
    ['head', '*.q', '*']
    """
    names = list(names)
    scores = {
        key: (key in names, len(key), place)
        for place, key in enumerate(plan)
        if key in names or any(fnmatchcase(name, key) for name in names)
    }
    return max(scores, key=lambda key: scores[key], default=None)


# Plans as JSON.


def structure_to_dict(structure: Structure) -> dict[str, Any]:
    """A structure as a JSON object.

    >>> structure_to_dict(Structure("low_rank", 2))
    {'structure': 'low_rank', 'rank': 2, 'options': {}}
    """
    return {"structure": structure.name, "rank": structure.rank, "options": structure.options}


def plan_to_dict(plan: Mapping[str, Structure]) -> dict[str, dict[str, Any]]:
    """A plan as a JSON object."""
    return {key: structure_to_dict(structure) for key, structure in plan.items()}


def plan_from_dict(plan: object, who: str = "plan") -> dict[str, Structure]:
    """The plan of a parsed JSON document; "rank" and "options" may be left out.

    Raises:
        ValueError: for another form, or an unknown structure or option. The message names the entry.

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
        FileNotFoundError: if there is no such file.
        ValueError: if it holds no plan; the message names the entry.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist.")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{file} is not a JSON file ({error}).") from None
    return plan_from_dict(document, str(file))


def write_plan(plan: Mapping[str, Structure], path: str | os.PathLike[str]) -> None:
    """Write a plan to a JSON file, which `read_plan` reads."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(plan_to_dict(plan), indent=2) + "\n", encoding="utf-8")


def _short(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
