"""What a compression did, layer by layer."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..json_text import json_text
from ..matrices import Projection
from ..tables import UNLIMITED, table_text, wrapped
from .budget import Stopwatch
from .candidates import Weight
from .structure import DENSE, Structure

VECTORS = 64  # at a time, for what a report says of latencies
FITTED = "the loader gave fewer than 4 batches, so outputs were compared on a batch used for fitting too"


@dataclass(frozen=True)
class LayerReport:
    """One weight, and what it became.

    `multiply_adds` count one input vector, by the formulas of the classes (None for a class of your own).
    `residual` is |W - M| / |W|; `weighted_residual` weights errors by the activations. Latencies are in
    milliseconds.
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
    latency_before: float | None = None
    latency_after: float | None = None


@dataclass(frozen=True)
class CompressionReport:
    """What `compress_` did: its layers, what was left alone and why, and the sizes of the whole model.

    `distance` compares the model's outputs with the original's on held-out batches, if there was a loader:
    the relative error, or for logits the mean divergence of the softmax. `notes` say what the search skipped.
    Latencies are those of the layers alone, one after the other, with `vectors` at a time. `elsewhere` is the
    kind of module that holds most of the other parameters, and their bytes.
    """

    layers: tuple[LayerReport, ...]
    left: dict[str, str] = field(default_factory=dict)
    model_parameters_before: int = 0
    model_parameters_after: int = 0
    distance: float | None = None
    notes: tuple[str, ...] = ()
    vectors: int | None = None
    logits: bool = False  # whether `distance` is a divergence
    elsewhere: tuple[str, int] | None = None

    @property
    def summary(self) -> str:
        """The result in a few sentences."""
        if not self.parameters_before:
            return "Nothing was replaced."
        layers = _percent(self.parameters_before, self.parameters_after)
        model = _percent(self.model_parameters_before, self.model_parameters_after)
        said = f"The layers shrank to {layers} of their parameters, the model to {model}"
        if layers != model and self.elsewhere is not None:
            kind, size = self.elsewhere
            amount = f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.3g} kB"
            said += f", because {amount} of it are in {kind} modules"
        if self.distance is None:
            return f"{said}. The error of the outputs is unknown without a loader."
        where = "your batches" if FITTED in self.notes else "held-out batches"
        if self.logits:
            more = 100 * math.expm1(min(self.distance, 50.0))
            return (
                f"{said}. On {where} its predictions diverge by {self.distance:.2g} nats, "
                f"some {more:.2g} % of perplexity."
            )
        return (
            f"{said}. On {where} the outputs differ by {self.distance:.2g} of their size. Scores move less: "
            "a sentence encoder that was off by 0.43 lost half a point of 87 in rank correlation."
        )

    @property
    def parameters_before(self) -> int:
        """Parameters of all weights that could be replaced, including those that stay dense."""
        return sum(layer.parameters_before for layer in self.layers)

    @property
    def parameters_after(self) -> int:
        return sum(layer.parameters_after for layer in self.layers)

    @property
    def bytes_before(self) -> int:
        return sum(layer.bytes_before for layer in self.layers)

    @property
    def bytes_after(self) -> int:
        return sum(layer.bytes_after for layer in self.layers)

    @property
    def residual(self) -> float:
        """The root mean square of the layers' residuals, by parameters."""
        total = sum(layer.residual**2 * layer.parameters_before for layer in self.layers)
        return (total / (self.parameters_before or 1)) ** 0.5

    @property
    def latency_before(self) -> float | None:
        """Milliseconds of the layers one after the other; None if they were not measured."""
        return _sum([layer.latency_before for layer in self.layers])

    @property
    def latency_after(self) -> float | None:
        return _sum([layer.latency_after for layer in self.layers])

    @property
    def slower(self) -> list[str]:
        """Weights that take at least a tenth longer than before."""
        return [one.name for one in self.layers if (one.latency_after or 0) > 1.1 * (one.latency_before or 0)]

    def to_json(self) -> str:
        """All of it as JSON."""
        totals = {
            f"{what}_{when}": getattr(self, f"{what}_{when}")
            for what in ("parameters", "bytes", "latency")
            for when in ("before", "after")
        }
        return json_text({**asdict(self), **totals})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON to a file."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int = UNLIMITED) -> str:
        """A table and what else there is to say, in lines of this width."""
        head = ("layer", "shape", "structure", "parameters", "residual", "multiply-adds")
        lines = table_text(head, [*map(_row, self.layers)], width, right=head[3:], breaks=head[2:])
        said = [f"weights: {_change(self.parameters_before, self.parameters_after)} parameters"]
        if self.latency_before is not None and self.latency_after is not None:
            change = f"latency: {self.latency_before:.3g} -> {self.latency_after:.3g} ms"
            calls = f" for {self.vectors} vectors a call, measured here" if self.vectors else ""
            said.append(f"{change}{calls}")
            if self.slower:
                advice = "a Latency budget limits the time, and materialize_ trades memory for speed"
                said.append(f"slower than dense here: {', '.join(self.slower)}; {advice}")
        before, after = self.model_parameters_before, self.model_parameters_after
        said.append(f"model: {_change(before, after)} parameters")
        reasons: dict[str, list[str]] = {}
        for name, why in self.left.items():
            reasons.setdefault(why, []).append(name)
        said += [f"left alone: {', '.join(names)} ({why})" for why, names in reasons.items()]
        said += [f"note: {note}" for note in self.notes]
        said += self.summary.replace(". ", ".\n").split("\n")
        return "\n".join([*lines, *(line for text in said for line in wrapped(text, width))])


def words(structure: Structure) -> str:
    """A structure in words.

    >>> words(Structure("low_rank", 3)), words(Structure("block_circulant", block_size=4))
    ('low_rank rank=3', 'block_circulant block_size=4')
    """
    rank = [f"rank={structure.rank}"] * (structure.rank is not None)
    return " ".join([structure.name, *rank, *(f"{key}={value}" for key, value in structure.items)])


def described(
    weights: Sequence[Weight],
    structures: Sequence[Structure],
    made: Sequence[Sequence[Projection]],
    stopwatch: Stopwatch | None,
) -> tuple[int, tuple[LayerReport, ...]]:
    """The rows of a report, and the number of vectors in a timed call."""
    stopwatch = stopwatch or Stopwatch(VECTORS, 3, 0.002)
    return stopwatch.batch, tuple(map(partial(_describe, stopwatch), weights, structures, made))


def _describe(
    stopwatch: Stopwatch, weight: Weight, structure: Structure, found: Sequence[Projection]
) -> LayerReport:
    """The row of a weight and its projections (none if it stays dense)."""
    matrices, (before, after) = weight.matrices, stopwatch(weight, [DENSE, structure])
    operations = [structure.multiply_adds(*W.shape) for W in matrices]
    known = [count for count in operations if count is not None]
    squares = [float(W.to("cpu", torch.float64).square().sum()) for W in matrices]
    lost = sum(p.residual**2 * square for p, square in zip(found, squares, strict=False))  # none where dense
    return LayerReport(
        name=weight.name,
        kind=weight.kind,
        structure=structure.name,
        rank=structure.rank,
        options=structure.options,
        shape=(matrices[0].shape[0], matrices[0].shape[1]),
        matrices=len(matrices),
        parameters_before=weight.size,
        parameters_after=structure.parameters_of(matrices),
        bytes_before=weight.size * matrices[0].element_size(),
        bytes_after=structure.stored_bytes(matrices),
        multiply_adds_before=weight.size,
        multiply_adds_after=sum(known) if len(known) == len(operations) else None,
        residual=(lost / (sum(squares) or 1.0)) ** 0.5,
        weighted_residual=found[0].weighted_residual if found else None,
        tied=tuple(weight.names[1:]),
        latency_before=before,
        latency_after=after,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _row(layer: LayerReport) -> tuple[str, str, str, str, str, str]:
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
        words(Structure(layer.structure, layer.rank, **layer.options)),
        f"{layer.parameters_before:,} -> {layer.parameters_after:,}",
        residual,
        f"{layer.multiply_adds_before:,} -> {operations}",
    )


def _percent(before: int, after: int) -> str:
    return f"{100 * after / (before or 1):.3g} %"


def _change(before: int, after: int) -> str:
    share = f" ({100 * after / before:.1f} %)" if before else ""
    return f"{before:,} -> {after:,}{share}"
