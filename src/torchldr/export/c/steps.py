"""A model as steps of C: what each reads, writes and needs, the text of it, and where values lie.

Values lie in the caller's x and y, or in one arena that they share by their lifetimes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Buffer:
    """Memory of some values: a number of floats, and where it lies.

    Where that is still to be planned, it is needed from the step `first` to the step `last`, and gets floats
    `start` to `end` of the arena.
    """

    def __init__(self, size: int, place: str | None = None) -> None:
        self.size, self.place = size, place
        self.first = self.last = self.start = 0

    @property
    def end(self) -> int:
        return self.start + self.size

    def meets(self, other: Buffer) -> bool:
        return self.first <= other.last and other.first <= self.last


@dataclass(eq=False)
class Value:
    """A tensor of the graph: a part of a buffer."""

    buffer: Buffer
    shape: tuple[int, ...]
    offset: int = 0
    format: Any = None  # of integers

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


def plan(made: Steps) -> int:
    """Give every buffer, working memory included, its place; the floats of the arena.

    Outputs are written to y one after the other; a copy is added where that is not possible.
    """
    start = 0
    for i, value in enumerate(made.outputs):
        place = f"y + {start}" if start else "y"
        if value.buffer.place is None and value.whole:
            value.buffer.place = place
        else:
            made.outputs[i] = Value(Buffer(value.size, place), value.shape)
            made.steps.append(Step(f"copy({{0}}, {{y}}, {value.size});", [value], [made.outputs[i]]))
        start += value.size
    _write_in_place(made.steps)
    placed: list[Buffer] = []
    for buffer in sorted(_unplaced(made.steps), key=lambda buffer: -buffer.size):
        for other in sorted(placed, key=lambda other: other.start):
            if buffer.meets(other) and buffer.start < other.end and other.start < buffer.end:
                buffer.start = other.end
        buffer.place = f"arena + {buffer.start}"
        placed.append(buffer)
    return max((buffer.end for buffer in placed), default=0)


def _write_in_place(steps: list[Step]) -> None:
    """Let elementwise steps write over what nobody reads any more."""
    for i, step in enumerate(steps):
        if not step.elementwise:
            continue
        x, y = step.reads[0], step.writes[0]
        read_later = any(value.buffer is x.buffer for later in steps[i + 1 :] for value in later.reads)
        # Of parts of x a step reads all numbers while it writes, but a single one before.
        parts = any(v.buffer is x.buffer and not v.whole and v.size > 1 for v in step.reads[1:])
        if x.buffer.place is not None or not x.whole or read_later or parts:
            continue
        old = x.buffer
        for value in (value for other in steps for value in (*other.reads, *other.writes)):
            if value.buffer is old:
                value.buffer = y.buffer


def _unplaced(steps: list[Step]) -> list[Buffer]:
    """The buffers without a place, with the steps that they are needed for."""
    found: dict[Buffer, None] = {}
    for i, step in enumerate(steps):
        for buffer in (value.buffer for value in (*step.writes, *step.reads, step.work)):
            if buffer.place is None and buffer.size:
                buffer.first = buffer.first if buffer in found else i
                found[buffer], buffer.last = None, i
    return list(found)
