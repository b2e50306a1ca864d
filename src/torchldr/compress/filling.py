"""Empty structured modules, and filling them with matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..core.stacks import stack as stack_matrices
from ..matrices import StructuredMatrix
from ..nn import MatrixStack, StructuredGRU, StructuredLinear, StructuredLSTM
from ..nn.recurrent.base import StructuredRecurrent, arguments_of
from ..nn.replace import plain_linear
from .structure import DENSE, Structure
from .targets import parts_of


def quiet_linear(
    out_features: int, in_features: int, structure: Structure, dtype: torch.dtype
) -> StructuredLinear:
    """A StructuredLinear without a bias that leaves torch's random numbers alone."""
    chosen: Any = {"structure": structure.cls, "rank": structure.rank, **structure.options}
    with torch.random.fork_rng(devices=[]):
        return StructuredLinear(in_features, out_features, False, dtype=dtype, **chosen)


def quiet_recurrent(layer: nn.RNNBase, plan: Mapping[str, Structure]) -> StructuredRecurrent:
    """A structured layer for one of torch's. It shares biases and dense weights; the rest is not filled yet.

    The plan maps torch's names of the structured weights to structures.
    """
    some = next(layer.parameters())
    cls: Any = StructuredLSTM if isinstance(layer, nn.LSTM) else StructuredGRU
    sides = {name[: len("weight_ih")] for name in plan}
    which = "both" if len(sides) > 1 else "input" if sides == {"weight_ih"} else "hidden"
    with torch.random.fork_rng(devices=[]):
        made: StructuredRecurrent = cls(
            **arguments_of(layer), dtype=some.dtype, structure=DENSE.cls, which=which
        )
        for name, dense in made._stacks().items():
            m, n, gates = dense.out_features, dense.in_features, len(made.gates)
            del made._modules[name]
            if name not in plan:
                made.register_parameter(name, None)
                continue
            made.structure, common = plan[name].cls, {"layer": type(made), "dtype": some.dtype}
            chosen: Any = {"rank": plan[name].rank, "options": plan[name].options, **common}
            made.add_module(name, MatrixStack((gates,), n, m, structure=made.structure, **chosen))
    made.to(some.device)
    for name, p in layer._parameters.items():
        if name in made._parameters:
            made._parameters[name] = p
        elif p is not None:
            made.get_submodule(name).requires_grad_(p.requires_grad)
    return made


def fill(holder: StructuredLinear | MatrixStack, matrices: Sequence[StructuredMatrix], *, copy: bool) -> None:
    """Put a matrix, or a stack of several, into a layer: their tensors, or copies of them."""
    matrix = stack_matrices(matrices) if isinstance(holder, MatrixStack) else matrices[0]
    for name, tensor in matrix.tensors.items():
        held = tensor.detach().clone() if copy else tensor.detach()
        if (before := holder._parameters.get(name)) is not None:
            holder._parameters[name] = nn.Parameter(held, requires_grad=before.requires_grad)
        elif name not in holder._non_persistent_buffers_set:
            holder._buffers[name] = held


def split_attention(original: nn.MultiheadAttention) -> dict[str, nn.Module]:
    """The projections of torch's attention as dense layers with copied numbers; out_proj shares its bias."""
    joint = original.in_proj_bias
    made: dict[str, nn.Module] = {}
    for i, (name, part) in enumerate(parts_of(original).items()):
        bias = original.out_proj._parameters["bias"]
        if name != "out_proj":
            third = None if joint is None else joint.detach().chunk(3)[i].clone()
            bias = None if third is None else nn.Parameter(third, joint.requires_grad)
        made[name] = plain_linear(part.matrices[0], bias, part.parameter.requires_grad)
    return made
