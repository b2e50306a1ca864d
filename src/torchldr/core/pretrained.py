"""The entry for changed layers in the config of a Hugging Face model.

`save_pretrained` writes the config beside the tensors, and `from_pretrained` reads it if `torchldr.hf` is
imported. The entry is `quantization_config`, which has room for one method.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

METHOD = "torchldr"
VERSIONS = (1, 2, 3)  # of the format: 2 had roundings beside the layers, 3 has them in the entries
_READ_AS_DENSE = "gguf"  # transformers reserves the name of this method, and refuses to save under it


def declare(model: nn.Module, describe: Callable[[nn.Module], Mapping[str, Any]]) -> None:
    """Record the changed layers in the config; models of other libraries do not change.

    Args:
        model: one of Hugging Face's, or one that holds some.
        describe: finds the entries of a model by name.
    """
    for owner in _owners(model):
        config, old = owner.config, _said(owner)
        if layers := dict(describe(owner)):
            version = VERSIONS[-1] if any("rounded" in entry for entry in layers.values()) else VERSIONS[0]
            config.quantization_config = {"quant_method": METHOD, "version": version, "layers": layers}
            if getattr(getattr(owner, "quantization_method", None), "value", None) == _READ_AS_DENSE:
                vars(owner)["hf_quantizer"] = None
        elif _method(old) == METHOD:
            del config.quantization_config


def check_unclaimed(who: str, model: nn.Module) -> None:
    """Raise for a model that another method quantized, and for layers with peft adapters."""
    for name, module in model.named_modules():
        if is_adapter(module):
            raise ValueError(
                f"{who}: {name} has an adapter of peft, which cannot be merged into a changed layer. Call "
                "merge_and_unload() first, or add adapters afterwards."
            )
    for owner in _owners(model):
        if (method := _method(_said(owner))) not in (None, METHOD, _READ_AS_DENSE):
            raise ValueError(
                f"{who}: the model is quantized by {method}, and its config has room for one method. Load it "
                "without quantization, or call its dequantize() first. If you will not save the model, `del "
                "model.config.quantization_config` is enough."
            )


def is_adapter(module: nn.Module) -> bool:
    """Whether peft has put this module around a layer."""
    tuners = sys.modules.get("peft.tuners.tuners_utils")  # not imported: there are none
    return tuners is not None and isinstance(module, tuners.BaseTunerLayer)


def check_present(who: str, model: nn.Module) -> None:
    """Raise for weights that accelerate offloads, because changes would be lost."""
    for name, module in model.named_modules():
        if "_hf_hook" in vars(module) and any(p.is_meta for p in module.parameters(recurse=False)):
            raise ValueError(
                f"{who}: the weights of {name} are offloaded by accelerate; load the model without that."
            )


def _owners(model: nn.Module) -> Iterator[Any]:
    """The outermost transformers models."""
    if hasattr(type(model), "base_model_prefix") and hasattr(model, "config"):
        yield model
    else:
        for child in model.children():
            yield from _owners(child)


def _said(owner: Any) -> Any:
    return getattr(owner.config, "quantization_config", None)


def _method(said: Any) -> str | None:
    # A mapping as in the file, or transformers' object.
    method = said.get("quant_method") if isinstance(said, Mapping) else getattr(said, "quant_method", None)
    return getattr(method, "value", method)
