"""`to_c`: a model as C99 for a microcontroller."""

from __future__ import annotations

import copy
import os
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.checks import check_choices
from ...nn import StructuredLinear, quantize_
from ...nn.freeze import thawed
from ...nn.recurrent.base import StructuredRecurrent
from ..check import ExportError, first_line, outputs
from ..inputs import Inputs, random_like, take_inputs
from ..layers import check_weights
from ..program import exported, quiet
from .files import NAN, CReport, render
from .graph import Tracer
from .integer.api import integer_files
from .kernels import PRELUDES
from .steps import plan
from .writer import Source

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_KEYWORD = re.compile(
    r"auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|"
    r"goto|if|inline|int|long|register|restrict|return|short|signed|sizeof|static|struct|"
    r"switch|typedef|union|unsigned|void|volatile|while|main|test"
)  # and what test.c takes


def to_c(
    model: nn.Module,
    example: Any,
    folder: str | os.PathLike[str],
    *,
    weights: str = "int8",
    arithmetic: str = "float",
    calibration: Any = None,
    name: str = "model",
    nan: str = "pass",
) -> CReport:
    """Write a model as C99 without allocation, for a microcontroller.

    Args:
        model: structured layers (linear and recurrent), `nn.Linear`, 2d convolutions and max-pooling, ReLU,
            sigmoid, tanh, softmax, views and sums of these, in float32. It is not changed; exported as in
            `eval()`.
        example: an input, a batch of 1.
        folder: a new folder for `{name}.c`, `{name}.h`, `test.c` (an input and the model's answer) and
            `README.md`. Nothing is written if something fails.
        weights: "int8" stores weights as `torchldr.quantize_` rounds them, "float32" as they are.
        arithmetic: "float", or "integer": C without floating point, with inputs and outputs in int8. Needs
            weights="int8" and a calibration.
        calibration: for integers, inputs of the training set, which set the scales: a tensor, or batches as a
            DataLoader gives them. A few hundred inputs are enough.
        name: of the files, and of the function `{name}_run(x, y)`, with float or int8_t pointers.
        nan: "pass" lets NaN through as PyTorch does; with "error" the function also returns 1 if x or y has a
            NaN, else 0. Compile without `-ffast-math`, which assumes that no NaN occurs.

    Returns:
        The flash and RAM that each layer takes. With integers, an `IntegerReport`: `reference(quantize(x))`
        computes the output of the C in torch, bit for bit, and `dequantize` turns it into numbers.

    Raises:
        ExportError: the model cannot be written in C; the error names the node.
        FileExistsError: the folder exists.
    """
    folder = _check_arguments(folder, weights, name, nan)
    _check_arithmetic(arithmetic, weights, nan, calibration)
    inputs = _check_inputs(model, example)
    check_weights("to_c", model, torch.float32)
    model = copy.deepcopy(thawed(model)).cpu().eval().requires_grad_(False)
    if weights == "int8" and arithmetic == "float":
        quantize_(model)
    given = random_like(inputs, torch.Generator().manual_seed(0))
    try:
        answers = outputs(model, given)
    except Exception as error:
        shape = tuple(given.tensors()[0].shape)
        raise ExportError(f"to_c: the model fails on an input of {shape}: {first_line(error)}") from error
    layers = _as_nodes_(model)
    program = exported("to_c", model, inputs)
    with quiet():
        program = program.run_decompositions({})  # no step changes what another one has seen
    kind = type(model).__name__.removeprefix("Parametrized")
    if arithmetic == "integer":
        (x,) = given.tensors()
        title = f"{kind} in integers with int8 weights"
        made_in_integers, files = integer_files(program, layers, x, calibration, folder, name, title)
        _write(folder, files)
        return made_in_integers
    source = Source(weights)
    made = Tracer(source, layers).run(program)
    floats = plan(made)
    flash = sum(row.flash for row in made.rows) + source.table_bytes()
    title = f"{kind} with {weights} weights"
    report = CReport(os.fspath(folder), title, weights, tuple(made.rows), flash, 4 * floats)
    answer = torch.cat([t.flatten() for t in answers]).numpy()
    files = render(name, made, source, report, given.tensors()[0], answer, nan)
    _write(folder, files)
    return report


def _check_arguments(folder: str | os.PathLike[str], weights: str, name: str, nan: str) -> Path:
    check_choices("to_c", weights=(weights, PRELUDES), nan=(nan, NAN))
    if not isinstance(name, str) or not _NAME.fullmatch(name) or _KEYWORD.fullmatch(name):
        raise ValueError(f"to_c: name must be a C identifier that is no keyword, got {name!r}.")
    folder = Path(folder)
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"to_c: {folder} exists already; name a folder to be made.")
    if not folder.absolute().parent.is_dir():
        raise FileNotFoundError(f"to_c: the folder {folder.parent} does not exist.")
    return folder


def _check_arithmetic(arithmetic: str, weights: str, nan: str, calibration: Any) -> None:
    check_choices("to_c", arithmetic=(arithmetic, ("float", "integer")))
    if arithmetic == "float":
        if calibration is not None:
            raise ValueError('to_c: calibration is for arithmetic="integer"; floats need none.')
        return
    if weights != "int8":
        raise ValueError(f'to_c: arithmetic="integer" takes weights="int8", got {weights!r}.')
    if nan != "pass":
        raise ValueError(
            'to_c: integers have no NaN; check the input before it is quantized, not by nan="error".'
        )
    if calibration is None:
        raise ValueError('to_c: arithmetic="integer" needs calibration: inputs of the training set.')


def _check_inputs(model: nn.Module, example: Any) -> Inputs:
    inputs = take_inputs("to_c", model, example)
    tensors = inputs.tensors()
    if len(tensors) != 1:
        raise ExportError(f"to_c: the model must take one tensor, the example has {len(tensors)}.")
    (x,) = tensors
    if x.dtype != torch.float32:
        raise TypeError(f"to_c: the example must be float32, got {x.dtype}.")
    steps_first = any(
        isinstance(module, StructuredRecurrent) and not module.batch_first for module in model.modules()
    )
    if x.ndim > 1 and x.shape[0] != 1 and not steps_first:
        raise ExportError(
            f"to_c: a microcontroller takes one input at a time, the example has shape {tuple(x.shape)}: "
            "its first size must be 1."
        )
    return inputs


def _write(folder: Path, files: dict[str, str]) -> None:
    """All files, or none."""
    with tempfile.TemporaryDirectory(dir=folder.absolute().parent, prefix=f".{folder.name}.") as draft:
        made = Path(draft) / folder.name
        made.mkdir()
        for name, text in files.items():
            (made / name).write_text(text, encoding="utf-8")
        made.rename(folder)


# Layers that torch.export sees as one node.


def _layer_node(index: int, layer: StructuredLinear, x: Tensor) -> Tensor:
    return torch.ops.torchldr.c_layer(x, index, layer.out_features)


def _recurrent_node(
    index: int, layer: StructuredRecurrent, name: str, input: Any, hx: Any = None
) -> tuple[Tensor, Any]:
    who = f"to_c: {name or 'the model'}"
    if hx is not None:
        raise ExportError(f"{who} is given a state; C begins with zeros.")
    if not isinstance(input, Tensor):
        raise ExportError(f"{who} is given a {type(input).__name__}; C takes a tensor.")
    if layer.proj_size:
        raise ExportError(f"{who} has a projection (proj_size), for which there is no C.")
    if input.ndim == 3 and input.shape[0 if layer.batch_first else 1] != 1:
        raise ExportError(f"{who} sees a batch of several sequences; export a batch of 1.")
    directions, count = 2 if layer.bidirectional else 1, len(layer.state_names)
    shape = [*input.shape[:-1], directions * layer.hidden_size]
    state = [layer.num_layers * directions, *[1] * (input.ndim - 2), layer.hidden_size]
    y, *states = torch.ops.torchldr.c_recurrent(input, index, shape, state, count)
    return y, tuple(states) if count > 1 else states[0]


torch.library.define("torchldr::c_layer", "(Tensor x, int index, int features) -> Tensor")
torch.library.define(
    "torchldr::c_recurrent", "(Tensor x, int index, int[] shape, int[] state, int count) -> Tensor[]"
)
torch.library.register_fake(
    "torchldr::c_layer", lambda x, index, features: x.new_empty(*x.shape[:-1], features)
)
torch.library.register_fake(
    "torchldr::c_recurrent",
    lambda x, index, shape, state, count: [x.new_empty(s) for s in (shape, *[state] * count)],
)


def _as_nodes_(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Let structured layers be traced as single nodes; the layers by the index of their node."""
    layers: list[tuple[str, nn.Module]] = []
    for name, module in model.named_modules():
        if isinstance(module, StructuredLinear) and type(module).forward is StructuredLinear.forward:
            module.__dict__["forward"] = partial(_layer_node, len(layers), module)
        elif isinstance(module, StructuredRecurrent):
            module.__dict__["forward"] = partial(_recurrent_node, len(layers), module, name)
        else:
            continue
        layers.append((name, module))
    return layers
