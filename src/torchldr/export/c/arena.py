"""Where values lie: in the caller's x and y, or in one arena that they share by their lifetimes."""

from __future__ import annotations

from dataclasses import dataclass

from .steps import Buffer, Step, Steps, Value


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
