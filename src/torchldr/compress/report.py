"""What a compression did, layer by layer."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LayerReport:
    """One weight, and what it became.

    `multiply_adds` are of one input vector, by the formulas of the classes (None for a class of your
    own); `residual` is |W - M| / |W|, and `weighted_residual` counts errors by the activations.
    """

    name: str
    kind: str
    structure: str
    rank: int | None
    options: dict[str, Any]
    shape: tuple[int, int]
    matrices: int
    parameters_before: int
    parameters_after: int
    bytes_before: int
    bytes_after: int
    multiply_adds_before: int
    multiply_adds_after: int | None
    residual: float
    weighted_residual: float | None = None
    tied: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompressionReport:
    """What `compress_` did: its layers, what was left alone and why, and the sizes of the whole model."""

    layers: tuple[LayerReport, ...]
    left: dict[str, str] = field(default_factory=dict)
    model_parameters_before: int = 0
    model_parameters_after: int = 0

    @property
    def parameters_before(self) -> int:
        """Of the weights that could be replaced, those that stay dense with them."""
        return sum(layer.parameters_before for layer in self.layers)

    @property
    def parameters_after(self) -> int:
        return sum(layer.parameters_after for layer in self.layers)

    def to_json(self) -> str:
        """All of it as JSON."""
        totals = {"parameters_before": self.parameters_before, "parameters_after": self.parameters_after}
        return json.dumps({**asdict(self), **totals}, indent=2)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    def __str__(self) -> str:
        head = ("layer", "shape", "structure", "parameters", "multiply-adds", "residual")
        rows = [head] + [_row(layer) for layer in self.layers]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = []
        for row in rows:
            left = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
            lines.append("  ".join(left + right).rstrip())
        lines.insert(1, "  ".join("-" * width for width in widths))
        lines.append(f"weights: {_change(self.parameters_before, self.parameters_after)} parameters")
        before, after = self.model_parameters_before, self.model_parameters_after
        lines.append(f"model:   {_change(before, after)} parameters")
        lines += [f"left alone: {name} ({why})" for name, why in self.left.items()]
        return "\n".join(lines)


def _row(layer: LayerReport) -> tuple[str, str, str, str, str, str]:
    options = [f"{key}={value}" for key, value in layer.options.items()]
    options = [f"rank={layer.rank}"] * (layer.rank is not None) + options
    name = layer.name + (f" (= {', '.join(layer.tied)})" if layer.tied else "")
    shape = f"{layer.shape[0]} x {layer.shape[1]}"
    many = f"{layer.matrices} of {shape}" if layer.matrices > 1 else shape
    operations = "?" if layer.multiply_adds_after is None else f"{layer.multiply_adds_after:,}"
    residual = f"{layer.residual:.3f}"
    if layer.weighted_residual is not None:
        residual += f" ({layer.weighted_residual:.3f})"
    return (
        name,
        many,
        " ".join([layer.structure, *options]),
        f"{layer.parameters_before:,} -> {layer.parameters_after:,}",
        f"{layer.multiply_adds_before:,} -> {operations}",
        residual,
    )


def _change(before: int, after: int) -> str:
    share = f" ({100 * after / before:.1f} %)" if before else ""
    return f"{before:,} -> {after:,}{share}"
