"""What to put where: the frozen `Structure`, and which entry of a mapping a layer's name takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from ..core.checks import check_int
from ..matrices import StructuredMatrix, get_structure, structures


@dataclass(frozen=True, init=False)
class Structure:
    """A structured class with its rank and options: what a layer's weight becomes.

    Args:
        name: of a structured class (`torchldr.structures()` lists them). "dense" leaves a layer alone.
        rank: of the class's generators; None means 1, or nothing for a class without a rank.
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
        cls.check_options(options)
        if rank is not None and not cls.ranked:
            raise ValueError(f"Structure: {name!r} has no rank, got rank={rank}.")
        if rank is not None:
            check_int("Structure", "rank", rank)
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
        """How many parameters a matrix of this shape has; an error where the rank is too large for it."""
        cls = self.cls
        shapes = cls.check_shapes(out_features, in_features, self.rank, cls.check_options(self.options))
        return sum(map(math.prod, shapes.values()))

    def multiply_adds(self, out_features: int, in_features: int) -> int | None:
        """An estimate of the multiply-adds of one fast product with a vector; None for a class without one.

        >>> Structure("low_rank", 4).multiply_adds(512, 512), Structure("dense").multiply_adds(512, 512)
        (4096, 262144)
        """
        count = self.cls.multiply_adds(out_features, in_features, self.rank or 1, **self.options)
        return None if count is None else round(count)

    def stored_bytes(self, matrices: Sequence[Tensor]) -> int:
        """The bytes that matrices of these shapes and dtypes take, drawn constants with them.

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


def check_plan(plan: Mapping[str, Structure]) -> None:
    """Every key a name or a pattern, every value a Structure."""
    for key, value in plan.items():
        if not isinstance(key, str):
            raise TypeError(f"compress_: the keys of a mapping are names or patterns, got {key!r}.")
        if not isinstance(value, Structure):
            raise TypeError(f"compress_: {key!r} must map to a torchldr.Structure, got {value!r}.")


def matching(plan: Mapping[str, Structure], names: Iterable[str]) -> str | None:
    """The key that decides for a layer with these names: exact before longer before later.

    >>> plan = {"*": Structure("low_rank"), "head": Structure("ldr_sd"), "*.q": Structure("circulant")}
    >>> [matching(plan, [name]) for name in ("head", "body.q", "body.k")]
    ['head', '*.q', '*']
    """
    best: tuple[bool, int, int] | None = None
    decides = None
    names = list(names)
    for place, key in enumerate(plan):
        exact = key in names
        if exact or any(fnmatchcase(name, key) for name in names):
            score = exact, len(key), place
            if best is None or score > best:
                best, decides = score, key
    return decides
