"""Structured modules from projected weights, and dense ones from structured modules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils import _pytree as pytree

from ..core.stacks import stack as stack_matrices
from ..matrices import StructuredMatrix
from ..nn import MatrixStack, StructuredGRU, StructuredLinear, StructuredLSTM
from ..nn.computed import ComputedWeight
from ..nn.recurrent.base import StructuredRecurrent, arguments_of
from ..nn.tensors import as_node, in_format_of, is_proxy, let_prune
from .structure import DENSE, Structure

# What nn.Module keeps of hooks. The registries themselves move, so that handles given out still remove.
_HOOKS = tuple(name for name in vars(nn.Module()) if "forward" in name or "backward" in name)


class StructuredPointwise(ComputedWeight):
    """A 1 x 1 convolution whose channels are mixed by a structured matrix.

    Args:
        linear: the matrix and the bias, from in_channels to out_channels.
        stride: (rows, columns) between the pixels that are kept.

    Shape:
        Input (..., in_channels, height, width), output (..., out_channels, height', width') as nn.Conv2d.

    Examples:
        >>> layer = StructuredPointwise(StructuredLinear(64, 32, structure="low_rank", rank=2))
        >>> layer(torch.randn(5, 64, 7, 7)).shape
        torch.Size([5, 32, 7, 7])
    """

    kernel_size = (1, 1)

    def __init__(self, linear: nn.Module, stride: Sequence[int] = (1, 1)) -> None:
        super().__init__()
        self.linear, self.stride = linear, (int(stride[0]), int(stride[1]))

    @property
    def weight(self) -> Tensor:
        return self.linear.weight[..., None, None]  # type: ignore[index]

    @weight.setter
    def weight(self, value: Tensor) -> None:
        self._check_weight_is_learned()

    @property
    def bias(self) -> nn.Parameter | None:
        bias: Any = self.linear.bias  # not among the parameters where it is computed
        return bias

    def forward(self, x: Tensor) -> Tensor:
        if is_proxy(x):
            return as_node(self, x)
        down, right = self.stride
        pixels = x[..., ::down, ::right].movedim(-3, -1)
        # nn.Conv2d's result can be viewed as (batch, -1), and models do so.
        return in_format_of(self.linear(pixels).movedim(-1, -3), x)

    def extra_repr(self) -> str:
        return f"stride={self.stride}"


def quiet_linear(
    out_features: int, in_features: int, structure: Structure, dtype: torch.dtype
) -> StructuredLinear:
    """A StructuredLinear without a bias that leaves torch's random numbers alone."""
    chosen: Any = {"structure": structure.cls, "rank": structure.rank, **structure.options}
    with torch.random.fork_rng(devices=[]):
        return StructuredLinear(in_features, out_features, False, dtype=dtype, **chosen)


def quiet_recurrent(layer: nn.RNNBase, plan: Mapping[str, Structure]) -> StructuredRecurrent:
    """A structured layer for one of torch's, with its biases and other weights, and new numbers elsewhere.

    The plan has the weights that are structured, by torch's names for them.
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
    """Let a layer hold a matrix, or a stack of them; copies of their tensors, or these themselves."""
    matrix = stack_matrices(matrices) if isinstance(holder, MatrixStack) else matrices[0]
    for name, tensor in matrix.tensors.items():
        held = tensor.detach().clone() if copy else tensor.detach()
        if (before := holder._parameters.get(name)) is not None:
            holder._parameters[name] = nn.Parameter(held, requires_grad=before.requires_grad)
        elif name not in holder._non_persistent_buffers_set:
            holder._buffers[name] = held


def replace_modules(model: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> None:
    """Put replacements in every place where a module is registered, with its hooks and its mode.

    Places are also lists, tuples and mappings that modules have as attributes: some models call from there
    what they have registered by `add_module`.
    """
    for old, new in replacements.items():
        new.__dict__.update({name: old.__dict__[name] for name in _HOOKS if name in old.__dict__})
        if prune.is_pruned(old):  # a new module has nothing to prune
            hooks = old._forward_pre_hooks.items()
            kept = ((key, hook) for key, hook in hooks if not isinstance(hook, prune.BasePruningMethod))
            new._forward_pre_hooks = OrderedDict(kept)
        if new.training != old.training:
            new.train(old.training)
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in replacements:
                parent._modules[name] = replacements[child]
        for name, value in list(vars(parent).items()):
            if isinstance(value, list | tuple | dict):
                held = {id(leaf) for leaf in pytree.tree_leaves(value)}
                if any(id(old) in held for old in replacements):
                    found = pytree.tree_map_only(nn.Module, lambda old: replacements.get(old, old), value)
                    vars(parent)[name] = found
    _set_nesting(model)


def _set_nesting(model: nn.Module) -> None:
    """Keep nn.TransformerEncoder from nesting padded batches while it has structured layers.

    It looks at its first layer alone before it does, and our layers take no nested tensors. Results differ
    only at padded positions, which nesting sets to zero.
    """
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder):
            structured = any(isinstance(module, StructuredLinear) for module in encoder.modules())
            kept = encoder.__dict__
            if structured and kept.get("use_nested_tensor"):
                kept["use_nested_tensor"], kept["_nests_when_dense"] = False, True
            elif not structured and kept.pop("_nests_when_dense", False):
                kept["use_nested_tensor"] = True


def dense_linear(layer: nn.Module) -> nn.Linear:
    """The nn.Linear of the same function, with the same bias."""
    let_prune(layer)
    weight: Any = layer.weight
    learned = any(p.requires_grad for name, p in layer.named_parameters() if "bias" not in name)
    return plain_linear(weight, own_parameter(layer, "bias"), learned)


def own_parameter(layer: nn.Module, name: str) -> nn.Parameter | None:
    """A layer's parameter; of one that is computed, as by pruning, its value as a new one."""
    if name in layer._parameters:
        return layer._parameters[name]
    learned = any(p.requires_grad for key, p in layer.named_parameters() if name in key)
    return nn.Parameter(getattr(layer, name).detach().clone(), learned)


def plain_linear(weight: Tensor, bias: nn.Parameter | None, learned: bool) -> nn.Linear:
    """An nn.Linear with a copy of a weight, and this very bias."""
    out_features, in_features = weight.shape
    made = nn.utils.skip_init(nn.Linear, in_features, out_features, False, dtype=weight.dtype)
    made.weight = nn.Parameter(weight.detach().clone(), requires_grad=learned)
    made._parameters["bias"] = bias
    return made
