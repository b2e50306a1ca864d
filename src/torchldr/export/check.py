"""What an export computes against its model, and the error of all exports."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .inputs import Inputs

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


class ExportError(RuntimeError):
    """A model that cannot be exported as asked, or whose exported file computes something else."""


def first_line(error: BaseException) -> str:
    """What another package's error says, in one line."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def require(who: str, *packages: str) -> None:
    """Raise one clear error if packages are missing."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ImportError(f"{who} needs {', '.join(missing)}: pip install 'torchldr[onnx]'.")


def session(file: str | bytes | os.PathLike[str], threads: int = 0) -> Any:
    """An onnxruntime session on the CPU of a file or its bytes; 0 threads means as many as it likes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(os.fspath(file), options, providers=["CPUExecutionProvider"])


def feeds(running: Any, inputs: Inputs) -> dict[str, Any]:
    """What a session takes, by name: the tensors in their order."""
    names, tensors = [given.name for given in running.get_inputs()], inputs.tensors()
    if len(names) != len(tensors):
        raise ExportError(
            f"to_onnx: the file has the inputs {', '.join(names)}, the example {len(tensors)} tensors."
        )
    return {name: t.numpy() for name, t in zip(names, tensors, strict=True)}


@torch.no_grad()
def outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """The output tensors of a model, in order. It gets copies, because it may change its inputs."""
    inputs = inputs.map(Tensor.clone)
    answer = model(*inputs.args, **inputs.kwargs)
    return [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, Tensor)]


def deviation(found: list[Any], wanted: list[Tensor], who: str = "to_onnx") -> float:
    """The largest difference relative to the largest entry of its output; nan and shapes count as inf."""
    if len(found) != len(wanted):
        raise ExportError(f"{who}: the result has {len(found)} outputs, the model {len(wanted)}.")
    worst = 0.0
    for got, want in zip(found, wanted, strict=True):
        expected = want.detach().cpu().numpy()
        if got.shape != expected.shape:
            raise ExportError(f"{who}: an output has shape {got.shape}, the model's {expected.shape}.")
        if not expected.size:
            continue
        if expected.dtype.kind != "f":
            worst = max(worst, 0.0 if np.array_equal(got, expected) else float("inf"))
            continue
        finite = np.isfinite(expected)
        same = np.array_equal(got[~finite], expected[~finite], equal_nan=True)
        error = np.abs(got[finite] - expected[finite]).max(initial=0.0)
        size = np.abs(expected[finite]).max(initial=0.0)
        relative = float(error / size) if size else float(error)
        worst = max(worst, relative if same and not np.isnan(relative) else float("inf"))
    return worst


def check_file(file: bytes, model: nn.Module, examples: list[Inputs], tolerance: float) -> float:
    """The deviation of a file from its model on these inputs; an error if it exceeds the tolerance."""
    running = session(file, threads=1)
    worst = 0.0
    for inputs in examples:
        try:
            found = running.run(None, feeds(running, inputs))
        except ExportError:
            raise
        except Exception as error:  # onnxruntime has no base class for its errors
            shapes = [tuple(t.shape) for t in inputs.tensors()]
            raise ExportError(
                f"to_onnx: onnxruntime fails on inputs of shapes {shapes}: {first_line(error)}"
            ) from error
        worst = max(worst, deviation(found, outputs(model, inputs)))
    _require_near("to_onnx", "onnxruntime's", worst, tolerance, "; nothing was written")
    return worst


def check_program(
    program: torch.export.ExportedProgram, model: nn.Module, inputs: Inputs, tolerance: float
) -> None:
    """Raise an error if a program differs from its model."""
    found = [output.numpy() for output in outputs(program.module(), inputs)]
    worst = deviation(found, outputs(model, inputs), "to_program")
    _require_near("to_program", "the program's", worst, tolerance)


def _require_near(who: str, whose: str, worst: float, tolerance: float, rest: str = "") -> None:
    if not worst <= tolerance:
        raise ExportError(
            f"{who}: {whose} results differ from the model's by {worst:.1e} of the largest entry, more than "
            f"tolerance={tolerance:.1e}{rest}."
        )


def default_tolerance(who: str, model: nn.Module, given: float | None) -> float:
    if given is not None:
        if not isinstance(given, int | float) or not given > 0:
            raise ValueError(f"{who}: tolerance must be a positive number, got {given!r}.")
        return float(given)
    tensors = (*model.parameters(), *model.buffers())
    dtypes = {t.dtype for t in tensors if t.is_floating_point()}
    return TOLERANCE[torch.float64 if dtypes == {torch.float64} else torch.float32]
