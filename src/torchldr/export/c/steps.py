"""A model as steps of C: what each reads, writes and needs, the text of it, and where values lie.

Values lie in the caller's x and y, or in one arena that they share by their lifetimes.
"""

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


@dataclass
class _Life:
    """Memory that is needed from one step to another."""

    first: int
    last: int
    buffer: Buffer
    start: int = 0

    @property
    def end(self) -> int:
        return self.start + self.buffer.size

    def meets(self, other: _Life) -> bool:
        return self.first <= other.last and other.first <= self.last


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
    placed: list[_Life] = []
    for life in sorted(_lifetimes(made.steps), key=lambda life: -life.buffer.size):
        for other in sorted(placed, key=lambda other: other.start):
            if life.meets(other) and life.start < other.end and other.start < life.end:
                life.start = other.end
        life.buffer.place = f"arena + {life.start}"
        placed.append(life)
    return max((life.end for life in placed), default=0)


def _write_in_place(steps: list[Step]) -> None:
    """Let elementwise steps write over what nobody reads any more."""
    for i, step in enumerate(steps):
        if not step.elementwise:
            continue
        x, y = step.reads[0], step.writes[0]
        read_later = any(value.buffer is x.buffer for later in steps[i + 1 :] for value in later.reads)
        if x.buffer.place is not None or not x.whole or read_later:
            continue
        old = x.buffer
        for value in (value for other in steps for value in (*other.reads, *other.writes)):
            if value.buffer is old:
                value.buffer = y.buffer


def _lifetimes(steps: list[Step]) -> list[_Life]:
    lives: dict[int, _Life] = {}
    for i, step in enumerate(steps):
        for value in (*step.writes, *step.reads, step.work):
            if value.buffer.place is None and value.buffer.size:
                lives.setdefault(id(value.buffer), _Life(i, i, value.buffer)).last = i
    return list(lives.values())
