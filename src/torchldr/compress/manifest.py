"""The entry of a structured layer in a manifest, and the layer that is built from an entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..matrices import get_structure
from ..nn import MatrixStack, StructuredLinear
from ..nn.recurrent.base import StructuredRecurrent
from ..nn.tensors import runs_as_made
from .attention import StructuredAttention, split_attention
from .layers import StructuredPointwise, empty_recurrent, quiet_linear
from .targets import describe_site

Entry = dict[str, Any]
METHOD, VERSION = "torchldr", 1  # the name of the "quantization" in a Hugging Face config, and of its format


def record(module: nn.Module) -> Entry | None:
    """The entry of a structured module, or None for others.

    >>> record(StructuredLinear(8, 4, structure="low_rank", rank=2)) == {
    ...     "kind": "linear", "structure": "low_rank", "rank": 2, "options": {}, "shape": [4, 8], "bias": True
    ... }
    True
    """
    if not runs_as_made(module):  # a subclass with a forward of its own is for its own class to make
        return None
    if isinstance(module, StructuredLinear):
        shape = [module.out_features, module.in_features]
        return {"kind": "linear", **_structure(module), "shape": shape, "bias": module.bias is not None}
    if isinstance(module, StructuredPointwise):
        return {"kind": "conv2d", "stride": list(module.stride), "linear": record(module.linear)}
    if isinstance(module, StructuredAttention):
        parts = {name: record(child) for name, child in module.named_children()}
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


def records(model: nn.Module) -> dict[str, Entry]:
    """The entries of all structured modules of a model, by name."""
    found: dict[str, Entry] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        # What lies inside a recorded module is part of its entry; parents come before their children.
        if name.rpartition(".")[0] not in found and (entry := record(module)) is not None:
            found[name] = entry
    return found


def declare(model: nn.Module) -> None:
    """Say in the config of a Hugging Face model which layers are structured, so that it can be saved.

    Its `save_pretrained` writes the config; with `torchldr.hf` imported `from_pretrained` reads it. Other
    models are left as they are.
    """
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "save_pretrained"):
        return
    layers = records(model)
    if layers:
        config.quantization_config = {"quant_method": METHOD, "version": VERSION, "layers": layers}
    elif _method(getattr(config, "quantization_config", None)) == METHOD:
        del config.quantization_config


def _method(config: Any) -> Any:
    return (
        config.get("quant_method") if isinstance(config, Mapping) else getattr(config, "quant_method", None)
    )


def _structure(layer: StructuredLinear | MatrixStack) -> Entry:
    return {"structure": layer.structure.name, "rank": layer.rank, "options": dict(layer.options)}


def build(old: nn.Module, entry: Mapping[str, Any]) -> nn.Module:
    """The structured module of an entry, in the place of a dense one; its numbers are still to be loaded.

    Raises:
        ValueError: where the dense one is of another kind or shape.
    """
    site = describe_site(old, [""])
    kind = "linear" if site is not None and site.kind == "conv1d" else site.kind if site is not None else None
    if kind != entry["kind"]:
        if record(old) is not None:
            raise ValueError(
                "the model's layer is compressed in another way than the folder's; load into a dense one"
            )
        raise ValueError(f"the folder has a layer of kind {entry['kind']}, the model a {type(old).__name__}")
    made: nn.Module
    if isinstance(old, nn.MultiheadAttention):
        _same(old, entry, "embed_dim", "num_heads")
        parts: dict[str, nn.Module] = dict(split_attention(old))
        for name, part in entry["parts"].items():
            if name not in parts:
                raise ValueError(f"an attention has no part {name!r}")
            parts[name] = _linear(parts[name], part)
        made = StructuredAttention(old, parts)
    elif isinstance(old, nn.LSTM | nn.GRU):
        _same(old, entry, "input_size", "hidden_size", "num_layers", "bidirectional")
        inputs = [name for name in old._flat_weights_names if name.startswith("weight_ih")]
        weights = entry.get("weights") or dict.fromkeys(inputs, entry)  # without: the same for all inputs
        if unknown := [name for name in weights if name not in old._flat_weights_names]:
            raise ValueError(f"a {type(old).__name__} of these sizes has no {unknown[0]}")
        plan = {
            name: (get_structure(one["structure"]), one["rank"], one["options"])
            for name, one in weights.items()
        }
        made = empty_recurrent(old, plan)
        for name, p in old._parameters.items():
            if name in made._parameters:
                made._parameters[name] = p
    elif isinstance(old, nn.Conv2d):
        if list(old.stride) != entry["stride"]:
            raise ValueError(f"stride is {list(old.stride)} in the model and {entry['stride']} in the folder")
        made = StructuredPointwise(_linear(old, entry["linear"]), old.stride)
    else:
        made = _linear(old, entry)
    return made


def _linear(old: nn.Module, entry: Mapping[str, Any]) -> StructuredLinear:
    site = describe_site(old, [""])
    assert site is not None
    (W,) = site.weights[""]
    bias = old._parameters.get("bias")
    if list(W.shape) != entry["shape"]:
        raise ValueError(
            f"the weight has shape {list(W.shape)} in the model and {entry['shape']} in the folder"
        )
    if (bias is not None) != entry["bias"]:
        raise ValueError(f"bias={bias is not None} in the model and bias={entry['bias']} in the folder")
    structure = get_structure(entry["structure"])
    options = {"rank": entry["rank"], "dtype": W.dtype, **entry["options"]}
    made = quiet_linear(W.shape[0], W.shape[1], structure, **options).to(W.device)
    weight = old._parameters["weight"]
    made.requires_grad_(weight is not None and weight.requires_grad)
    made._parameters["bias"] = bias
    return made


def _same(old: Any, entry: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if getattr(old, name) != entry[name]:
            raise ValueError(f"{name} is {getattr(old, name)} in the model and {entry[name]} in the folder")
