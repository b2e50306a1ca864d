"""Between which numbers every node of a traced model lies, on the inputs of a calibration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ...check import ExportError


class Observer(torch.fx.Interpreter):
    """Runs the model in floating point, one input at a time, and keeps the range of every node."""

    def __init__(self, program: torch.export.ExportedProgram, layers: Sequence[tuple[str, Any]]) -> None:
        super().__init__(program.graph_module)
        self.layers = layers
        self.ranges: dict[str, tuple[float, float]] = {}
        known = {**program.state_dict, **program.constants}
        specs = program.graph_signature.input_specs
        self.given = [None if s.kind is InputKind.USER_INPUT else known[s.target] for s in specs]

    def observe(self, x: Tensor) -> None:
        self.run(*[x if part is None else part for part in self.given], enable_io_processing=False)

    def run_node(self, n: torch.fx.Node) -> Any:
        made = super().run_node(n)
        if isinstance(made, Tensor) and made.is_floating_point() and made.numel():
            low, high = self.ranges.get(n.name, (math.inf, -math.inf))
            self.ranges[n.name] = min(low, made.min().item()), max(high, made.max().item())
        return made

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.torchldr.c_layer.default:
            module = self.layers[args[1]][1]
            return type(module).forward(module, args[0])
        if target is torch.ops.torchldr.c_recurrent.default:
            module = self.layers[args[1]][1]
            return pytree.tree_leaves(type(module).forward(module, args[0]))
        return super().call_function(target, args, kwargs)


def samples(calibration: Any, example: Tensor) -> Tensor:
    """The inputs of a calibration, (count, ..), each of the shape of the example.

    Batches are tensors, or tuples whose first entry is one, as of a DataLoader.

    Raises:
        ValueError: there is none, or they do not fit.
    """
    batches = [calibration] if isinstance(calibration, Tensor) else calibration
    if not isinstance(batches, Iterable):
        raise TypeError(f"to_c: calibration must be tensors, got {type(calibration).__name__}.")
    found = []
    for batch in batches:
        x = batch[0] if isinstance(batch, tuple | list) else batch
        if not isinstance(x, Tensor):
            raise TypeError(f"to_c: calibration must be tensors, got {type(x).__name__}.")
        shape = tuple(example.shape)
        if (made := one_by_one(x.detach().cpu().float(), shape)) is None:
            raise ValueError(
                f"to_c: calibration has a batch of shape {tuple(x.shape)}, the example has shape {shape}."
            )
        found.append(made)
    if not found or not sum(map(len, found)):
        raise ValueError("to_c: calibration has no inputs; give it a few hundred of the training set.")
    made = torch.cat(found)
    if not bool(made.isfinite().all()):
        raise ValueError("to_c: calibration has inputs that are not finite.")
    return made


def one_by_one(batch: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Inputs of a shape, (count, *shape); None where they do not fit.

    They are batched along new axes in front, or along the axis that has size 1 in the shape.
    """
    if tuple(batch.shape[max(0, batch.ndim - len(shape)) :]) == shape:
        return batch.reshape(-1, *shape)
    for axis, size in enumerate(shape if batch.ndim == len(shape) else ()):
        if size == 1 and shape[:axis] + shape[axis + 1 :] == (*batch.shape[:axis], *batch.shape[axis + 1 :]):
            return batch.movedim(axis, 0).unsqueeze(axis + 1)
    return None


def moved(name: str, low: float, high: float) -> tuple[float, float]:
    """The range, if it is finite and not a single number."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ExportError(f"to_c: on the calibration's inputs, {name} is not finite.")
    if low == high:
        raise ExportError(
            f"to_c: the calibration never moves {name}, which is always {low:g}. "
            "Calibrate with inputs of the training set; remove what the model itself keeps constant."
        )
    return low, high
