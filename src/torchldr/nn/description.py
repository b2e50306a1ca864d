"""The JSON description of a layer, for saving, loading and Hugging Face's config.

    {"kind": "linear", "structure": "ldr_sd", "rank": 4, "options": {}, "shape": [512, 784], "bias": true}

An attention has such entries as its "parts", a convolution one as its "linear". A recurrent layer has its
sizes, and "weights" where these differ. "rounded" says how `quantize_` rounded it: "integers" or "training".
An entry without a kind is a rounded dense layer. Tied tensors are listed beside the tensors, by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.utils import parametrize

from ..core import pretrained
from .attention import StructuredAttention
from .channels.stack import MatrixStack
from .linear import StructuredLinear
from .pointwise import StructuredPointwise
from .recurrent.base import StructuredRecurrent
from .tensors import runs_as_made

Entry = dict[str, Any]


def linear_entry(structure: Mapping[str, Any], shape: tuple[int, int], bias: bool) -> Entry:
    """The entry of a StructuredLinear with this "structure", "rank" and "options"."""
    return {"kind": "linear", **structure, "shape": list(shape), "bias": bias}


def describe(module: nn.Module) -> Entry | None:
    """The entry of a structured module, or None for others.

    >>> describe(StructuredLinear(8, 4, structure="low_rank", rank=2)) == {
    ...     "kind": "linear", "structure": "low_rank", "rank": 2, "options": {}, "shape": [4, 8], "bias": True
    ... }
    True
    """
    if not runs_as_made(module):  # a subclass with a forward of its own is for its own class to make
        return None
    if isinstance(module, StructuredLinear):
        shape = module.out_features, module.in_features
        return linear_entry(_structure(module), shape, module.bias is not None)
    if isinstance(module, StructuredPointwise):
        return {"kind": "conv2d", "stride": list(module.stride), "linear": describe(module.linear)}
    if isinstance(module, StructuredAttention):
        parts = {name: describe(child) for name, child in module.named_children()}
        return {
            "kind": "attention",
            "embed_dim": module.embed_dim,
            "num_heads": module.num_heads,
            "parts": {name: entry for name, entry in parts.items() if entry is not None},
        }
    if isinstance(module, StructuredRecurrent):
        stacks = {name: _structure(stack) for name, stack in module._stacks().items()}
        inputs = [f"weight_ih{suffix}" for suffix in module._all_suffixes()]
        alike = list(stacks) == inputs and all(one == stacks[inputs[0]] for one in stacks.values())
        return {
            "kind": module.torch_class.__name__.lower(),
            **(stacks[inputs[0]] if alike else {"weights": stacks}),
            "input_size": module.input_size,
            "hidden_size": module.hidden_size,
            "num_layers": module.num_layers,
            "bidirectional": module.bidirectional,
        }
    return None


def _structure(layer: StructuredLinear | MatrixStack) -> Entry:
    return {"structure": layer.structure.name, "rank": layer.rank, "options": dict(layer.options)}


def descriptions(model: nn.Module) -> dict[str, Entry]:
    """The entries of all structured and rounded modules of a model, by name.

    An entry includes the modules inside a structured module, except for their rounding.
    """
    found: dict[str, Entry] = {}
    for name, module in model.named_modules(remove_duplicate=False):  # parents come before their children
        inside = "kind" in found.get(name.rpartition(".")[0], {})
        if not inside and (entry := describe(module)) is not None:
            found[name] = entry
        if (how := _rounding(module)) is not None:
            found.setdefault(name, {})["rounded"] = how
    return found


def split_rounding(entries: Mapping[str, Entry]) -> tuple[dict[str, Entry], dict[str, str]]:
    """The layers to build, and how modules were rounded, by name."""
    layers = {name: {k: v for k, v in entry.items() if k != "rounded"} for name, entry in entries.items()}
    rounded = {name: entry["rounded"] for name, entry in entries.items() if "rounded" in entry}
    return {name: entry for name, entry in layers.items() if entry or name not in rounded}, rounded


def _rounding(module: nn.Module) -> str | None:
    """How `quantize_` rounded a module's weights."""
    if not parametrize.is_parametrized(module):
        return None
    kept: Any = module.parametrizations
    return next((how for one in kept.values() if (how := getattr(one[-1], "rounding", None))), None)


def declare(model: nn.Module) -> None:
    """Record structured and rounded layers in the config of a Hugging Face model."""
    pretrained.declare(model, descriptions)
