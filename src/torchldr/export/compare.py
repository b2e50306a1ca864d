"""One model in several modes: file size and latency in onnxruntime."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ..timing import minimum_seconds
from .check import feeds, require, session
from .forms import MODES
from .inputs import take_inputs
from .onnx import to_onnx


class Measured(NamedTuple):
    """One mode: seconds are the least over the repeats; ratios are to the mode "dense", above 1 is better."""

    mode: str
    bytes: int
    smaller: float
    load_seconds: float
    run_seconds: float
    faster: float
    deviation: float


@dataclass(frozen=True)
class Comparison:
    """What `compare` found, mode by mode."""

    rows: tuple[Measured, ...]

    def __str__(self) -> str:
        head = f"{'mode':8}{'bytes':>14}{'smaller':>9}{'load ms':>10}{'run us':>10}{'faster':>8}"
        lines = [f"{head}{'deviation':>11}"]
        for r in self.rows:
            lines.append(
                f"{r.mode:8}{r.bytes:14,}{r.smaller:9.2f}{r.load_seconds * 1e3:10.1f}"
                f"{r.run_seconds * 1e6:10.0f}{r.faster:8.2f}{r.deviation:11.1e}"
            )
        return "\n".join(lines)


def compare(
    model: nn.Module,
    example_inputs: Any,
    *,
    modes: Sequence[str] = MODES,
    folder: str | os.PathLike[str] | None = None,
    threads: int = 1,
    repeats: int = 20,
    seconds: float = 0.3,
    **options: Any,
) -> Comparison:
    """Export a model in several modes and time the files in onnxruntime, taking turns.

    Args:
        model, example_inputs: as for `to_onnx`; times are for inputs like the example.
        modes: which; "dense" is always among them, to compare with.
        folder: where `model_<mode>.onnx` are kept; by default they are deleted.
        threads: of onnxruntime.
        repeats, seconds: rounds at least, and about how long for each mode.
        **options: for `to_onnx`.

    Returns:
        A table that can be printed.
    """
    require("compare", "onnx", "onnxscript", "onnxruntime")
    inputs = take_inputs("compare", model, example_inputs)
    with tempfile.TemporaryDirectory() as kept_for_now:
        place = Path(kept_for_now if folder is None else folder)
        reports, sessions, loads = {}, {}, {}
        for mode in dict.fromkeys((*modes, "dense")):
            path = place / f"model_{mode}.onnx"
            reports[mode] = to_onnx(model, example_inputs, path, mode=mode, **options)
            session(path, threads)  # the first one of a process also loads libraries
            start = time.perf_counter()
            sessions[mode] = session(path, threads)
            loads[mode] = time.perf_counter() - start
        calls = {mode: partial(s.run, None, feeds(s, inputs)) for mode, s in sessions.items()}
        times = minimum_seconds(calls, repeats, seconds)
    dense = reports["dense"].bytes, times["dense"]
    rows = []
    for mode, report in reports.items():
        smaller, faster = dense[0] / report.bytes, dense[1] / times[mode]
        off = float("nan") if report.deviation is None else report.deviation
        rows.append(Measured(mode, report.bytes, smaller, loads[mode], times[mode], faster, off))
    return Comparison(tuple(rows))
