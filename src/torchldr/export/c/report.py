"""What a C export takes of flash and RAM, layer by layer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from .steps import LayerRow

_COLUMNS = ("layer", "what", "how", "flash", "RAM", "multiplications")


@dataclass(frozen=True)
class CReport:
    """What `to_c` wrote.

    Attributes:
        folder: where it is.
        title: what the model is.
        weights: "int8" or "float32".
        layers: what became of each layer: its constants in flash, its output and working memory in RAM.
        flash: bytes of all constants, with the tables that layers share.
        arena: bytes of the one block of memory that layers share in turn.
    """

    folder: str
    title: str
    weights: str
    layers: tuple[LayerRow, ...]
    flash: int
    arena: int

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "layers": [row._asdict() for row in self.layers]}, indent=1)

    def rows(self) -> list[dict[str, object]]:
        """The layers as a command prints them."""
        return [dict(zip(_COLUMNS, row, strict=True)) for row in self.layers]

    def markdown(self) -> str:
        lines: list[tuple[str, ...]] = [_COLUMNS, ("---", "---", "---", "---:", "---:", "---:")]
        lines += [(r.name, r.kind, r.form, *(f"{v:,}" for v in r[3:])) for r in self.layers]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def __str__(self) -> str:
        head = f"{self.folder}: {self.weights}, {self.flash:,} bytes of flash for constants, "
        lines = [head + f"{self.arena:,} bytes of RAM"]
        for r in self.layers:
            size = f"{r.flash:,} bytes of flash, {r.ram:,} of RAM, {r.multiplications:,} multiplications"
            lines.append(f"  {r.name}: {r.kind}: {r.form}, {size}")
        return "\n".join(lines)
