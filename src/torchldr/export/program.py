"""`to_program`: torch.export with structured layers as plain operations."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from ..core.checks import check_choices
from .check import ExportError, check_program, default_tolerance, first_line
from .forms import MODES, PLANS
from .inputs import Inputs, at_least_two, dynamic_axes, random_like, take_inputs
from .layers import check_weights, exportable


def to_program(
    model: nn.Module,
    example_inputs: Any,
    *,
    mode: str = "fft",
    plan: str = "auto",
    check: bool = True,
    tolerance: float | None = None,
    dynamic_shapes: Any = None,
) -> torch.export.ExportedProgram:
    """Export a model with structured layers by torch.export.

    The program does not need this package. Everything that depends only on parameters is a constant in it, so
    it has no gradients for the structured parameters.

    Args:
        model: any module; it is not changed. Exported as in `eval()`, on the CPU.
        example_inputs: a tensor, a tuple of arguments, or a mapping of keyword arguments.
        mode: "fft" for torch.fft, "matmul" for matrix products and elementwise operations alone, "dense" for
            dense weights.
        plan: "auto" takes dense weights where they are smaller than the fast product's constants, "fast" only
            for classes without a fast product in plain operations (LDR-TD, Cauchy-like).
        check: compare the program with the model on random input.
        tolerance, dynamic_shapes: as for `to_onnx`.

    Returns:
        The program; `program.module()` can be called, and `torch.export.save` writes it.

    Examples:
        >>> from torchldr import StructuredLinear
        >>> model = nn.Sequential(StructuredLinear(256, 256, structure="toeplitz_like", rank=2), nn.ReLU())
        >>> program = to_program(model, torch.randn(2, 256), mode="matmul")
        >>> x = torch.randn(7, 256)
        >>> torch.allclose(program.module()(x), model(x), atol=1e-5)
        True
    """
    check_choices("to_program", mode=(mode, MODES), plan=(plan, PLANS))
    inputs = take_inputs("to_program", model, example_inputs)
    check_weights("to_program", model, torch.float32, torch.float64)
    allowed = default_tolerance("to_program", model, tolerance)
    plain, _ = exportable(model, mode, plan)
    program = traced("to_program", plain, inputs, dynamic_shapes)
    if check:
        example = random_like(inputs, torch.Generator().manual_seed(0))
        check_program(program, reference(model), example, allowed)
    return program


def reference(model: nn.Module) -> nn.Module:
    """A copy of the model as it is exported: on the CPU, in `eval()`."""
    return copy.deepcopy(model).cpu().eval()


def traced(who: str, model: nn.Module, inputs: Inputs, dynamic_shapes: Any) -> torch.export.ExportedProgram:
    """The program of a plain model, which may be changed here."""
    _name_keywords_(model, inputs)
    if dynamic_shapes is not None:
        return exported(who, model, inputs, dynamic_shapes)
    for sequences in (True, False):
        for example in (inputs.map(partial(at_least_two, sequences=sequences)), inputs):
            try:
                program = exported(who, model, example, dynamic_axes(example, sequences=sequences))
            except ExportError as error:  # an axis that must be 1, or must not change
                failed = error
                continue
            if example is inputs or not _fixed(program, inputs):
                return program
    raise failed


def _name_keywords_(model: nn.Module, inputs: Inputs) -> None:
    """Give a `forward` with **kwargs the names of its arguments, which torch.export needs."""
    forward = model.forward
    signature = inspect.signature(forward)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if len(own) == len(signature.parameters):
        return
    given = inputs.kwargs.keys() - {p.name for p in own}
    named: Any = lambda *args, **kwargs: forward(*args, **kwargs)
    named.__signature__ = signature.replace(
        parameters=[
            *own,
            *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in sorted(given)),
        ]
    )
    model.forward = named


def _fixed(program: torch.export.ExportedProgram, inputs: Inputs) -> bool:
    """Whether an axis of size 1 has become another constant."""
    after, before = input_shapes(program), [tuple(t.shape) for t in inputs.tensors()]
    pairs = zip(chain(*after), chain(*before), strict=True)
    return any(isinstance(new, int) and new != old for new, old in pairs)


def input_shapes(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    """The shape of every input: of numbers, and of symbols where it may change."""
    wanted = set(program.graph_signature.user_inputs)
    values = [node.meta.get("val") for node in program.graph.nodes if node.name in wanted]
    return [tuple(v.shape) for v in values if isinstance(v, torch.Tensor)]


def exported(
    who: str, model: nn.Module, inputs: Inputs, dynamic_shapes: Any = None
) -> torch.export.ExportedProgram:
    """What torch.export makes of a model, with errors of one line."""
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(
                model, inputs.args, inputs.kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
    except ExportError:
        raise
    except Exception as error:
        what = f"{who}: torch.export cannot trace {type(model).__name__}"
        raise ExportError(f"{what}: {first_line(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without torch's warnings about itself, and without its fused attention, which reads dense weights."""
    fused = torch.backends.mha.get_fastpath_enabled()
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch._export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    torch.backends.mha.set_fastpath_enabled(False)
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
