"""`to_onnx`: a model with structured layers as an ONNX file, checked in onnxruntime."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core.checks import check_choices
from ..json_text import json_text
from ..whole_file import whole_file
from .check import ExportError, check_file, default_tolerance, first_line, require
from .forms import MODES, PLANS
from .graph import expand, graphs
from .inputs import Inputs, random_like, take_inputs
from .layers import ExportedLayer, Held, check_weights, exportable
from .program import input_shapes, quiet, reference, traced

OPSETS = range(18, 24)


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
        return json_text(content, indent=1)

    def __str__(self) -> str:
        checked = "not checked" if self.deviation is None else f"deviation {self.deviation:.1e}"
        lines = [f"{self.path}: mode {self.mode}, opset {self.opset}, {self.bytes:,} bytes, {checked}"]
        return "\n".join([*lines, *(f"  {layer}" for layer in self.layers)])


def to_onnx(
    model: nn.Module,
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    mode: str = "fft",
    plan: str = "auto",
    check: bool = True,
    tolerance: float | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int = 20,
) -> ExportReport:
    """Write a model with structured layers as an ONNX file.

    Args:
        model: any module; it is not changed. Exported as in `eval()`, on the CPU, in float32 or float64.
        example_inputs: a tensor, a tuple of arguments, or a mapping of keyword arguments.
        path: of the file; its folder must exist. Nothing is written if something fails.
        mode: "fft" for the DFT operator, "matmul" for runtimes without it (matrix products, elementwise
            operations, gathers), "dense" for dense weights.
        plan: "auto" takes a dense weight where it is smaller than the fast product's constants, "fast"
            never. "load" keeps the file as small and computes as fast as dense weights do: the graph makes
            the dense matrix from the fast product's constants, and onnxruntime does so once, when it loads.
        check: run the file in onnxruntime on random input and compare with the model.
        tolerance: how large a difference may be relative to the largest entry of an output; by default 1e-4,
            and 1e-10 for a model in float64.
        dynamic_shapes: as torch.export takes them; by default the first axis of every input may change,
            and the length of sequences, where the model allows it.
        input_names, output_names: of the file's inputs and outputs.
        opset: of the file, 18 to 23.

    Returns:
        What was written: size, the form of every layer, the deviation that was found.

    Raises:
        ExportError: the model cannot be exported, or the file computes something else.
    """
    check_choices("to_onnx", mode=(mode, MODES), plan=(plan, PLANS))
    if opset not in OPSETS:
        raise ValueError(f"to_onnx: opset must be between {OPSETS[0]} and {OPSETS[-1]}, got {opset!r}.")
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"to_onnx: the folder {path.parent} does not exist.")
    require("to_onnx", "onnx", "onnxscript", *["onnxruntime"] * check)

    inputs = take_inputs("to_onnx", model, example_inputs)
    check_weights("to_onnx", model, torch.float32, torch.float64)
    allowed = default_tolerance("to_onnx", model, tolerance)
    held: Held = []
    plain, layers = exportable(model, mode, plan, held)
    program = traced("to_onnx", plain, inputs, dynamic_shapes)
    proto = _converted(program, opset, input_names or inputs.tensor_names(), output_names)
    expand(proto, held, opset)
    file = proto.SerializeToString()
    found = None
    if check:
        examples = _examples(inputs, program if dynamic_shapes is None else None)
        found = check_file(file, reference(model), examples, allowed)
    with whole_file(path) as stream:
        stream.write(file)
    operators = dict(
        sorted(Counter(node.op_type for graph in graphs(proto.graph) for node in graph.node).items())
    )
    return ExportReport(str(path), mode, opset, len(file), tuple(layers), operators, found, allowed)


def _examples(inputs: Inputs, program: torch.export.ExportedProgram | None) -> list[Inputs]:
    """Random inputs of the example's shapes, and of others where axes may change."""
    generator = torch.Generator().manual_seed(0)
    examples = [random_like(inputs, generator)]
    if program is not None:
        shapes = input_shapes(program)
        sizes = [size for t in inputs.tensors() for size in t.shape]
        free = [(s, size) for s, size in zip(chain(*shapes), sizes, strict=True) if not isinstance(s, int)]
        new = {str(s): size - 1 if size > 2 else size + 2 for s, size in free}
        if free and all(s.node.expr.is_symbol for s, _ in free):  # else one follows from another
            other = [[s if isinstance(s, int) else new[str(s)] for s in shape] for shape in shapes]
            examples.append(random_like(inputs, generator, other))
    return examples


def _converted(
    program: torch.export.ExportedProgram,
    opset: int,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> Any:
    """The onnx.ModelProto, with placeholders for products; without what is known of values between nodes,
    which runtimes find out, and which is half of a small file."""
    from onnx_ir.passes import common

    try:
        with quiet():
            graph = torch.onnx.export(
                program,
                (),
                dynamo=True,
                verbose=False,
                opset_version=opset,
                input_names=None if input_names is None else list(input_names),
                output_names=None if output_names is None else list(output_names),
            )
            assert graph is not None
            common.ClearMetadataAndDocStringPass()(graph.model)
            proto = graph.model_proto
    except Exception as error:
        raise ExportError(f"to_onnx: torch's exporter cannot convert this model: {_reason(error)}") from error
    for part in graphs(proto.graph):
        del part.value_info[:]
        for node in part.node:
            node.name = ""
    for given in (*proto.graph.input, *proto.graph.output):  # torch names sizes that came out fixed
        for size in given.type.tensor_type.shape.dim:
            if size.dim_param.isdigit():
                size.dim_value = int(size.dim_param)
    return proto


def _reason(error: BaseException) -> str:
    """The innermost cause of an exporter's error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
