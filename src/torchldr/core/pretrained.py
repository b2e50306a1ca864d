"""What the config of a Hugging Face model says of the layers that torchldr changed.

`save_pretrained` writes the config beside the tensors, and `from_pretrained` reads it, with `torchldr.hf`
imported. It stands where transformers keeps how a model is quantized, which has room for one method.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

METHOD = "torchldr"
VERSIONS = (1, 2)  # of the format; the second has layers that are rounded, too
_READ_AS_DENSE = "gguf"  # transformers keeps the name of this method, and forbids to save under it


def declare(model: nn.Module, **parts: Callable[[nn.Module], Mapping[str, Any]]) -> None:
    """Say in the config which layers are changed; models of other libraries are left as they are.

    Args:
        model: one of Hugging Face's, or one that holds some.
        **parts: functions that find the entries of a model by name: "layers" for structured ones, "rounded"
            for what `quantize_` did. What the config said of the others stays.
    """
    for owner in _owners(model):
        config, old = owner.config, _said(owner)
        found = {name: dict(find(owner)) for name, find in parts.items()}
        kept = {name: _get(old, name) for name in ("layers", "rounded")} if _method(old) == METHOD else {}
        said = {name: entries for name, entries in {**kept, **found}.items() if entries}
        if said:
            version = VERSIONS["rounded" in said]
            config.quantization_config = {"quant_method": METHOD, "version": version, "layers": {}, **said}
            if getattr(getattr(owner, "quantization_method", None), "value", None) == _READ_AS_DENSE:
                vars(owner)["hf_quantizer"] = None
        elif _method(old) == METHOD:
            del config.quantization_config


def check_unclaimed(who: str, model: nn.Module) -> None:
    """Errors for a model that another method has quantized, and for layers that have adapters of peft."""
    tuners = sys.modules.get("peft.tuners.tuners_utils")  # where nobody has imported it, there are none
    for name, module in model.named_modules():
        if tuners is not None and isinstance(module, tuners.BaseTunerLayer):
            raise ValueError(
                f"{who}: {name} has an adapter of peft, which could not be merged into a changed layer. Call "
                "merge_and_unload() first, or add adapters afterwards."
            )
    for owner in _owners(model):
        if (method := _method(_said(owner))) not in (None, METHOD, _READ_AS_DENSE):
            raise ValueError(
                f"{who}: the model is quantized by {method}, and its config has room for one method. Load it "
                "without, or call its dequantize() first. One that is never saved can go on after `del "
                "model.config.quantization_config`."
            )


def check_present(who: str, model: nn.Module) -> None:
    """An error for weights that accelerate keeps elsewhere, and lends to each call: changes would be lost."""
    for name, module in model.named_modules():
        if "_hf_hook" in vars(module) and any(p.is_meta for p in module.parameters(recurse=False)):
            raise ValueError(
                f"{who}: the weights of {name} are offloaded by accelerate; load the model without that."
            )


def _owners(model: nn.Module) -> Iterator[Any]:
    """The models of transformers that are not within another."""
    if hasattr(type(model), "base_model_prefix") and hasattr(model, "config"):
        yield model
    else:
        for child in model.children():
            yield from _owners(child)


def _said(owner: Any) -> Any:
    return getattr(owner.config, "quantization_config", None)


def _get(said: Any, name: str) -> Any:
    """Of a mapping, as in a file, or of an object, as transformers has when it has read it."""
    return said.get(name) if isinstance(said, Mapping) else getattr(said, name, None)


def _method(said: Any) -> str | None:
    method = _get(said, "quant_method")
    return getattr(method, "value", method)
