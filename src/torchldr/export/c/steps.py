"""A model as steps of C: what each reads, writes and needs, and the text of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple


class Buffer:
    """Memory of some values: a number of floats, and where it lies once that is planned."""

    def __init__(self, size: int, place: str | None = None) -> None:
        self.size, self.place = size, place


@dataclass(eq=False)
class Value:
    """A tensor of the graph: a part of a buffer."""

    buffer: Buffer
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def pointer(self) -> str:
        if self.buffer.place is None:  # no working memory is needed
            return "arena"
        return f"{self.buffer.place} + {self.offset}" if self.offset else self.buffer.place

    @property
    def whole(self) -> bool:
        return self.offset == 0 and self.size == self.buffer.size


@dataclass(eq=False)
class Step:
    """A call: `text` has {0}, {1}, .. for what it reads, {y}, {y1}, .. for what it writes, {work}."""

    text: str
    reads: list[Value]
    writes: list[Value]
    scratch: int = 0
    elementwise: bool = False  # may write where it reads

    def __post_init__(self) -> None:
        self.work = Value(Buffer(self.scratch), (self.scratch,))

    def lines(self) -> list[str]:
        """The text with pointers, once everything has its place."""
        reads = [value.pointer for value in self.reads]
        writes = {"y" if i == 0 else f"y{i}": value.pointer for i, value in enumerate(self.writes)}
        return self.text.format(*reads, **writes, work=self.work.pointer).splitlines()


class LayerRow(NamedTuple):
    """What became of one layer.

    Attributes:
        name: where it stands in the model.
        kind: what it is.
        form: how it multiplies.
        flash: bytes of constants, ram: of its output and working memory.
        multiplications: about.
    """

    name: str
    kind: str
    form: str
    flash: int
    ram: int
    multiplications: int


@dataclass
class Steps:
    """A model as steps."""

    steps: list[Step] = field(default_factory=list)
    rows: list[LayerRow] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    input_size: int = 0
