"""Recurrent layers in a graph, for any number of steps: ONNX's own operators, or a loop.

Each direction of each layer is one of

    LSTM, GRU     in a file, where its matrices are dense: what runtimes have fast code for
    a loop        whose body is the step with its products (Scan in a file, `scan` in a program)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence

from ..functional.exported.dense import DenseWeight
from ..functional.recurrence import Product, State
from ..nn.recurrent.base import StructuredRecurrent
from ..nn.recurrent.inputs import Given

Run: TypeAlias = Callable[..., tuple[Tensor, ...]]  # x, (steps, batch), state to outputs, state
_ORDER = {"ifgo": "iofg", "rzn": "zrn"}  # of the gates in ONNX


def run_in_loops_(layer: StructuredRecurrent, *, onnx: bool) -> None:
    """Let a layer whose structured weights have become modules multiply by them, for any number of steps.

    With `onnx` a file is written, which may hold ONNX's own operators.
    """
    _fix_weights_(layer)
    runs: dict[str, Run] = {}
    for suffix in layer._all_suffixes():
        weights = [_dense(layer, f"weight_{side}{suffix}") for side in ("ih", "hh")]
        dense = [W for W in weights if W is not None and W.dtype == torch.float32]  # runtimes lack float64
        if onnx and len(dense) == 2 and not layer.proj_size:
            own = OwnOperator(layer, suffix, *dense)
            layer.add_module(f"operator{suffix}", own)
            runs[suffix] = own
        else:
            runs[suffix] = partial(loop, LoopStep(layer, suffix))
    layer.register_forward_pre_hook(_refuse_packed, with_kwargs=True)
    layer.__dict__["_product"] = partial(_product, layer)
    layer.__dict__["_run"] = partial(_run, layer, runs)


def _fix_weights_(layer: nn.Module) -> None:
    """Weights that parametrizations compute, as parameters."""
    if parametrize.is_parametrized(layer):
        computed = list(cast(nn.ModuleDict, layer.parametrizations))
        values = {name: getattr(layer, name).detach() for name in computed}
        # torch's own way would change the class, which is that of the original too.
        layer.__class__ = type(layer).__mro__[1]
        del layer.parametrizations
        for name, value in values.items():
            layer.register_parameter(name, nn.Parameter(value, requires_grad=False))


def _refuse_packed(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if any(isinstance(value, PackedSequence) for value in (*args, *kwargs.values())):
        raise ValueError(f"{type(layer).__name__}: packed sequences are not exported; give padded ones.")


def _dense(layer: StructuredRecurrent, name: str) -> Tensor | None:
    weight = getattr(layer, name)
    if isinstance(weight, DenseWeight):
        return weight.weight
    return weight if isinstance(weight, Tensor) else None


def _product(layer: StructuredRecurrent, side: str, suffix: str, **_: bool) -> Product:
    weight = getattr(layer, f"weight_{side}{suffix}")
    bias = getattr(layer, f"bias_{side}{suffix}") if layer.bias else None
    if isinstance(weight, Tensor):
        return lambda x: linear(x, weight, bias)
    return lambda x: weight(x) if bias is None else weight(x) + bias


def _run(
    layer: StructuredRecurrent, runs: Mapping[str, Run], given: Given, state: State
) -> tuple[Tensor, State]:
    """All layers, in the place of `StructuredRecurrent._run`."""
    sizes = given.data.shape[:2]

    def run(suffix: str, x: Tensor, start: State) -> tuple[Tensor, State]:
        y, *last = runs[suffix](x, sizes, *start)
        return y.flatten(0, 1), tuple(last)

    return layer._run_layers(given, state, run)


class OwnOperator(nn.Module):
    """One direction of a layer by ONNX's LSTM or GRU: (steps * batch, features) to (steps, batch, h)."""

    def __init__(self, layer: StructuredRecurrent, suffix: str, into: Tensor, hidden: Tensor) -> None:
        super().__init__()
        self.operator, self.size = layer.torch_class.__name__, layer.hidden_size
        self.direction = "reverse" if suffix.endswith("reverse") else "forward"
        places = [layer.gates.index(gate) for gate in _ORDER[layer.gates]]
        parts = {"W": into, "R": hidden}
        if layer.bias:
            parts |= {"B_W": getattr(layer, f"bias_ih{suffix}"), "B_R": getattr(layer, f"bias_hh{suffix}")}
        made = {
            name: t.unflatten(0, (len(places), -1))[places].flatten(0, 1).unsqueeze(0)
            for name, t in parts.items()
        }
        self.register_buffer("W", made["W"])
        self.register_buffer("R", made["R"])
        self.register_buffer("B", torch.cat((made["B_W"], made["B_R"]), 1) if layer.bias else None)

    def forward(self, x: Tensor, sizes: torch.Size, *start: Tensor) -> tuple[Tensor, ...]:
        given = (x.unflatten(0, sizes), self.W, self.R, self.B, None, *(part.unsqueeze(0) for part in start))
        attributes = {"hidden_size": self.size, "direction": self.direction}
        attributes |= {"linear_before_reset": 1} if self.operator == "GRU" else {}
        shapes = [(sizes[0], 1, sizes[1], self.size), *[(1, sizes[1], self.size)] * len(start)]
        y, *last = torch.onnx.ops.symbolic_multi_out(
            self.operator, given, attributes, dtypes=[x.dtype] * len(shapes), shapes=shapes
        )
        return y.squeeze(1), *(part.squeeze(0) for part in last)


def loop(step: LoopStep, x: Tensor, sizes: torch.Size, *start: Tensor) -> tuple[Tensor, ...]:
    """The same by a loop over the steps."""
    tensors, many, reverse = step.tensors(), len(start), step.suffix.endswith("reverse")

    def body(*given: Tensor) -> list[Tensor]:
        # torch's loop reads no tensors but its arguments.
        named = dict(zip(tensors, given[many + 1 :], strict=True))
        after = functional_call(step, named, (given[many], *given[:many]), tie_weights=False)
        return [*after, after[0].clone()]  # no two of them may share memory

    products = step.layer._product("ih", step.suffix, dense=True)(x).unflatten(0, sizes)
    products = products.flip(0) if reverse else products
    first = [part.clone() for part in start]  # nor may these, which come from a caller
    *last, y = torch.ops.higher_order.scan(body, first, [products], (*tensors.values(),))
    return y.flip(0) if reverse else y, *last


class LoopStep(nn.Module):
    """One step: its input products and the state before it to the state after it."""

    def __init__(self, layer: StructuredRecurrent, suffix: str) -> None:
        super().__init__()
        self.layer, self.suffix = layer, suffix

    def tensors(self) -> dict[str, Tensor]:
        """What a step reads."""
        parts = {f"layer.{part}{self.suffix}" for part in ("weight_hh", "bias_hh", "weight_hr")}
        every = chain(
            self.named_parameters(remove_duplicate=False), self.named_buffers(remove_duplicate=False)
        )
        return {name: t for name, t in every if ".".join(name.split(".")[:2]) in parts}

    def forward(self, x: Tensor, *state: Tensor) -> State:
        hidden = self.layer._product("hh", self.suffix, dense=True)
        return self.layer._step(x, state, hidden, self.suffix)
