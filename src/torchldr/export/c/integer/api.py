"""A traced model as C in integers: calibration, steps, files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..steps import plan
from .files import IntegerReport, render
from .graph import IntegerTracer
from .ranges import Observer, moved, samples
from .scaling import eight_bits
from .writer import IntegerSource


@torch.no_grad()
def integer_files(
    program: torch.export.ExportedProgram,
    layers: Sequence[tuple[str, Any]],
    example: Tensor,
    calibration: Any,
    folder: Path,
    name: str,
    title: str,
) -> tuple[IntegerReport, dict[str, str]]:
    """The report of an export, and its files by name."""
    inputs = samples(calibration, example)
    observer = Observer(program, layers)
    for x in inputs:
        observer.observe(x)
    taken = eight_bits(*moved("the input", inputs.min().item(), inputs.max().item()))
    source = IntegerSource()
    tracer = IntegerTracer(source, layers, observer.ranges, taken.integers(inputs.flatten(1)), taken)
    made = tracer.run(program)
    outputs = [(value.buffer, value.offset, value.size) for value in made.outputs]
    kinds = tuple((value.format or taken, value.size) for value in made.outputs)
    if tracer.input is None:  # no node at all
        tracer.input = outputs[0][0]
    size = plan(made)
    scratch = (size, tracer.scratch16, tracer.scratch32)
    flash = sum(row.flash for row in made.rows) + source.shared
    ram = size + 2 * tracer.scratch16 + 4 * tracer.scratch32
    report = IntegerReport(
        os.fspath(folder),
        title,
        "int8",
        tuple(made.rows),
        flash,
        ram,
        taken,
        kinds,
        tuple(example.shape),
        tracer.reference(outputs),
    )
    return report, render(name, made, source, report, inputs[0], scratch)
