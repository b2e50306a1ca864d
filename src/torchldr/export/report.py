"""The report of an export to ONNX, and the error of all exports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .layers import ExportedLayer


class ExportError(RuntimeError):
    """A model that cannot be exported as asked, or whose exported file computes something else."""


def first_line(error: BaseException) -> str:
    """What another package's error says, in one line."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


@dataclass(frozen=True)
class ExportReport:
    """What `to_onnx` wrote.

    Attributes:
        path: the file.
        mode: "fft", "matmul" or "dense".
        opset: of the file.
        bytes: its size.
        layers: what became of each structured layer.
        operators: the file's operators with their numbers.
        deviation: the largest difference of an output of onnxruntime and of the model on random input,
            relative to the largest entry of that output; None if it was not checked.
        tolerance: what was allowed.
    """

    path: str
    mode: str
    opset: int
    bytes: int
    layers: tuple[ExportedLayer, ...]
    operators: dict[str, int]
    deviation: float | None
    tolerance: float

    def to_json(self) -> str:
        content: dict[str, Any] = {**self.__dict__, "layers": [layer._asdict() for layer in self.layers]}
        return json.dumps(content, indent=1)

    def __str__(self) -> str:
        checked = "not checked" if self.deviation is None else f"deviation {self.deviation:.1e}"
        lines = [f"{self.path}: mode {self.mode}, opset {self.opset}, {self.bytes:,} bytes, {checked}"]
        return "\n".join([*lines, *(f"  {layer}" for layer in self.layers)])
