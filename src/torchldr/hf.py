"""Compressed models in Hugging Face's folders: `import torchldr.hf`, then `from_pretrained` as usual.

`compress_` records in the model's config which layers are structured, and `save_pretrained` writes that
beside the tensors. If this module is imported, `AutoModel.from_pretrained(folder)` builds the model on the
meta device, inserts the structured layers, and loads: the dense weights are never allocated. In
transformers' terms this is a quantizer.

Needs transformers: pip install "torchldr[hf]".
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from .compress import CompressionReport, compress_, materialize_
from .compress.checkpoint.folder import check_target, new_folder
from .compress.checkpoint.weights import PICKLES, read_tensors
from .compress.replacing import build
from .compress.selection import Spec
from .core.pretrained import METHOD, VERSIONS
from .nn import StructuredLinear
from .nn.description import Entry, split_rounding
from .nn.parameters import StructuredParameters
from .nn.quantize import Quantized, quantize_, unquantize_
from .nn.replace import replace_modules

try:
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin
except ImportError as error:
    raise ImportError(f'torchldr.hf needs transformers: pip install "torchldr[hf]" ({error})') from None


BATCH, TOKENS = 16, 128  # of a text that calibrates
_STARTS = (True, False, "gaussian", "eva", "orthogonal", "mica")  # of adapters, which leave the layer alone


@register_quantization_config(METHOD)
class TorchldrConfig(QuantizationConfigMixin):  # type: ignore[misc, unused-ignore]
    """Which layers of a model are structured and which are rounded, as `compress_` and `quantize_` write."""

    def __init__(
        self,
        layers: Mapping[str, Entry],
        version: int = VERSIONS[0],
        rounded: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        if version not in VERSIONS:
            raise ValueError(
                f"config.json: a torchldr format of version {version!r}, this torchldr reads {VERSIONS}."
            )
        self.quant_method = METHOD
        entries = {name: dict(entry) for name, entry in layers.items()}
        for name, how in (rounded or {}).items():  # version 2
            entries.setdefault(name, {})["rounded"] = how
        self.version, self.layers = VERSIONS[-1] if rounded else version, entries


@register_quantizer(METHOD)
class TorchldrQuantizer(HfQuantizer):  # type: ignore[misc, unused-ignore]
    """What transformers calls while it loads a model with structured layers."""

    def __init__(self, quantization_config: Any, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        if not self.pre_quantized:
            raise ValueError(
                "TorchldrConfig describes a model that is compressed already. To compress one, load it "
                "without a quantization_config and call torchldr.compress_."
            )

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        made: dict[nn.Module, nn.Module] = {}
        layers, rounded = split_rounding(self.quantization_config.layers)
        for name, (old, entry) in _found(model, layers).items():
            with torch.device("meta"):
                try:
                    made[old] = build(old, entry)
                except (KeyError, TypeError, ValueError) as error:
                    raise ValueError(f"config.json does not fit the model at {name}: {error}") from None
        replace_modules(model, made)
        kinds = dict(_found(model, rounded).values())
        quantize_(model, where=lambda _, module: kinds.get(module) == "integers")
        quantize_(model, training=True, where=lambda _, module: kinds.get(module) == "training")
        for key in list(tied := model.all_tied_weights_keys):
            owner, _, name = key.rpartition(".")
            if (module := model.get_submodule(owner)) in kinds and name not in module._parameters:
                del tied[key]  # a head that was rounded, and its embedding not
        return model

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        for name, module in model.named_modules():
            if isinstance(module, StructuredParameters | parametrize.ParametrizationList):
                for leaf, p in module.named_parameters(name, recurse=False):
                    if not (p.is_meta or getattr(p, "_is_hf_initialized", False) or leaf.endswith(".bias")):
                        raise ValueError(
                            f"config.json does not fit the tensors: {leaf} is not among them. The layer was "
                            "changed in other ways after `compress_` or `quantize_`."
                        )
            if isinstance(module, StructuredParameters):
                module._fill_constants()  # transformers gives memory to unsaved buffers, and no numbers
            elif isinstance(module, parametrize.ParametrizationList) and isinstance(module[-1], Quantized):
                module.requires_grad_(False)  # as what is loaded is not
        return model

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        unquantize_(model)
        return materialize_(model)

    def is_serializable(self, **kwargs: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True

    @property
    def is_qat_trainable(self) -> bool:
        return True

    @property
    def is_compileable(self) -> bool:
        return True


def _found(model: Any, entries: Mapping[str, Any]) -> dict[str, tuple[nn.Module, Any]]:
    """The layers of a model that a folder has entries for, and the entries, by name.

    The folder or the model may have a head around the base model, with entries that find no layer.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    prefix = getattr(model, "base_model_prefix", "")
    found = {}
    for name, entry in entries.items():
        known = [key for key in (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}.")) if key in modules]
        if known:
            found[name] = modules[known[0]], entry
        elif type(model).__name__ in (model.config.architectures or []):
            raise ValueError(f"config.json does not fit the model: it has no layer {name}")
    return found


def text_batches(folder: str | os.PathLike[str], text: Iterable[str]) -> list[dict[str, Any]]:
    """Lines of text as inputs of the model in a folder: batches of `BATCH` lines, `TOKENS` tokens at most."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    lines = [line.strip() for line in text if line.strip()]
    if not lines:
        raise ValueError("the calibration text has no lines.")
    parts = [lines[i : i + BATCH] for i in range(0, len(lines), BATCH)]
    settings = {"padding": True, "truncation": True, "max_length": TOKENS, "return_tensors": "pt"}
    return [dict(tokenizer(part, **settings)) for part in parts]


def compress_folder(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    spec: Spec,
    *,
    text: Iterable[str] | None = None,
    skip: Sequence[str] = (),
    force: bool = False,
    **options: Any,
) -> CompressionReport:
    """Compress the model in one folder of Hugging Face's into another: what `torchldr compress FOLDER` does.

    Args:
        folder: with config.json and .safetensors files, in one or in shards.
        out: a new folder. It gets the compressed model and all other files, such as the tokenizer's.
        spec: a budget or a plan, as for `compress_`.
        text: lines of the model's usual text, to calibrate with.
        skip: names and patterns of layers to leave alone.
        force: replace a compressed model.
        **options: of `compress_`.

    Returns:
        What was done.
    """
    source = Path(folder)
    check_target(Path(out), force)
    model = _loaded(source)
    loader = None if text is None else text_batches(source, text)

    def wanted(module: nn.Module, name: str) -> bool:
        return not any(fnmatchcase(name, pattern) for pattern in skip)

    report = compress_(model, spec, loader=loader, filter_fn=wanted if skip else None, **options)
    with new_folder(out, force=force) as made:
        model.save_pretrained(made)
        report.save(made / "report.json")
        for file in source.iterdir():
            weights = file.suffix in (".safetensors", *PICKLES) or file.name.endswith(".index.json")
            if file.is_file() and not weights and not (made / file.name).exists():
                shutil.copyfile(file, made / file.name)
    return report


def _loaded(folder: Path) -> Any:
    """The model that a folder's config names, in the dtype of its files."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    names = config.architectures or ["AutoModel"]
    cls = getattr(transformers, names[0], None)
    if cls is None:
        raise ValueError(f"{folder}/config.json: transformers has no {names[0]}.")
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"{folder}: the model is quantized or compressed already.")
    state = read_tensors(folder)
    sizes: Counter[torch.dtype] = Counter()
    for tensor in state.values():
        sizes[tensor.dtype] += tensor.numel() if tensor.is_floating_point() else 0
    dtype = max(sizes, key=lambda kind: sizes[kind])  # whatever the config says
    model = cls.from_pretrained(None, config=config, state_dict=state, dtype=dtype).eval()
    if (folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return model


def lora_config(config: Any) -> Any:
    """A `peft.LoraConfig` that accepts structured layers among its targets.

    The adapter is added to the structured product, as for any layer. It cannot be merged, since the sum has
    no structure: merge after `torchldr.materialize_`. Name the targets: peft's "all-linear" does not count
    structured layers.

    Args:
        config: a LoraConfig; it is changed and returned.

    Raises:
        ValueError: where `init_lora_weights` would change the layer's own weight, as PiSSA does.

    Examples:
        peft.get_peft_model(model, torchldr.hf.lora_config(peft.LoraConfig(target_modules=["q_proj"])))
    """
    from peft.tuners.lora import Linear

    if config.init_lora_weights not in _STARTS:
        raise ValueError(
            f"lora_config: init_lora_weights={config.init_lora_weights!r} changes the weight of the layer "
            f"itself, which a structured layer computes. Take one of {_STARTS}."
        )

    class StructuredLora(Linear):  # type: ignore[misc, unused-ignore]
        """A structured layer and its adapters."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Unsupported layer type")  # peft, of any layer but its own
                super().__init__(*args, **kwargs)

        def merge(self, *args: Any, **kwargs: Any) -> None:
            if isinstance(self.get_base_layer(), StructuredLinear):
                raise ValueError(
                    "an adapter of a structured layer cannot be merged: the sum has no structure. Keep it "
                    "beside the layer, or call torchldr.materialize_ first."
                )
            super().merge(*args, **kwargs)

    config._register_custom_module({StructuredLinear: StructuredLora})
    return config
