"""`torchldr export`: a model as C or ONNX."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson
from .printing import say, show

FORMATS = ("c", "onnx")
KINDS = ("float", "integer")


def export_command(
    model: Annotated[
        str,
        typer.Argument(
            help="Where the model is: `file.py:name` or `package.module:name`, an nn.Module or a function "
            "that makes one.",
            show_default=False,
        ),
    ],
    to: Annotated[str, typer.Option("--to", help="c or onnx.")] = "c",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder (c) or file (onnx) to write.")
    ] = None,
    shape: Annotated[
        list[int] | None, typer.Option("--input", min=1, help="Shape of an input: --input 1 784.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", help="A .safetensors file with the model's state_dict.")
    ] = None,
    weights: Annotated[str, typer.Option(help="In C: int8 or float32.")] = "int8",
    arithmetic: Annotated[
        str, typer.Option(help="In C: float, or integer, with int8 inputs and outputs; needs --calibration.")
    ] = "float",
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="For integers, a few hundred inputs of the training set: an array (count, ..) in .npy, "
            "or the one tensor of a .safetensors file."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the C files and of the function NAME_run.")] = "model",
    as_json: AsJson = False,
) -> None:
    """Write a model as C for a microcontroller, or as ONNX.

    C99 comes with a table of flash and RAM, layer by layer.
    """
    import torch

    from ..export import ExportError, to_c, to_onnx
    from ..export.c.kernels import PRELUDES

    choices = (("--to", to, FORMATS), ("--weights", weights, PRELUDES), ("--arithmetic", arithmetic, KINDS))
    for option, value, known in choices:
        if value not in known:
            raise typer.BadParameter(f"must be one of {', '.join(known)}, got {value!r}.", param_hint=option)
    if not shape:
        raise typer.BadParameter("give the shape of an input, such as --input 1 784.", param_hint="--input")
    if (arithmetic == "integer") != (calibration is not None):
        raise typer.BadParameter(
            "--calibration and --arithmetic integer need each other.", param_hint="--calibration"
        )
    if arithmetic == "integer" and (to, weights) != ("c", "int8"):
        raise typer.BadParameter("integer goes with --to c and --weights int8.", param_hint="--arithmetic")
    inputs = None if calibration is None else load_inputs(calibration)
    made = load_model(model)
    if state is not None:
        if not state.is_file():
            raise FileNotFoundError(f"there is no file {state}.")
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            made.load_state_dict(load_file(state))
        except SafetensorError as error:
            raise ValueError(f"{state} is not a .safetensors file: {error}.") from error
        except RuntimeError as error:
            raise ValueError(f"{state} does not fit {model}: {error}") from error
    example = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    try:
        if to == "onnx":
            found = to_onnx(made, example, out or Path(f"{name}.onnx"))
            print(found.to_json() if as_json else found)
            return
        report = to_c(
            made,
            example,
            out or Path(name),
            weights=weights,
            arithmetic=arithmetic,
            calibration=inputs,
            name=name,
        )
    except ExportError as error:  # one line for a user, as other errors
        raise ValueError(str(error)) from error
    if as_json:
        print(report.to_json())
        return
    show(report.rows(), False)
    say(f"{report.folder}: {report.flash:,} bytes of flash for constants, {report.arena:,} bytes of RAM")


def load_inputs(path: Path) -> Any:
    """The inputs in a .npy or .safetensors file, as a tensor.

    Raises:
        ValueError: the file is neither, or holds something else.
    """
    import numpy as np
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}.")
    try:
        found = [np.load(path, allow_pickle=False)] if path.suffix == ".npy" else [*load_file(path).values()]
    except (ValueError, EOFError, SafetensorError) as error:
        raise ValueError(f"{path} is not a .npy or .safetensors file: {error}.") from error
    if len(found) != 1:
        raise ValueError(f"{path} must hold one tensor, the inputs; it holds {len(found)}.")
    return torch.as_tensor(found[0])


def load_model(where: str) -> Any:
    """The model that `file.py:name` or `module:name` stands for.

    Raises:
        ValueError: where there is none.
    """
    from torch import nn

    import torchldr.nn  # noqa: F401 -- all classes are known before the user's file asks for one

    place, _, name = where.rpartition(":")
    if not place or not name:
        raise typer.BadParameter(f"must be file.py:name or module:name, got {where!r}.", param_hint="MODEL")
    if place.endswith(".py") and not Path(place).is_file():
        raise FileNotFoundError(f"there is no file {place}.")
    try:
        module = _run_file(Path(place)) if place.endswith(".py") else _import_here(place)
        found = getattr(module, name, None)
        made = found if isinstance(found, nn.Module) else found() if callable(found) else None
    except Exception as error:
        raise ValueError(f"{where} fails with {type(error).__name__}: {error}") from error
    if found is None:
        raise ValueError(f"{place} has no {name!r}.")
    if not isinstance(made, nn.Module):
        raise ValueError(f"{where} must be or return an nn.Module, got {type(made or found).__name__}.")
    return made


def _run_file(path: Path) -> Any:
    """The module that a file makes; it may import files beside it, as a script does."""
    sys.path.insert(0, str(path.parent.absolute()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _import_here(name: str) -> Any:
    """The module of this name, from the current folder too."""
    sys.path.insert(0, "")
    return importlib.import_module(name)
