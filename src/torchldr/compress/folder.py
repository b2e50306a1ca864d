"""A compressed model in a folder: `save_compressed` writes it, `load_compressed` reads it.

The manifest holds checksums of the tensors and of itself; manifests of version 0.1 lack the latter.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..core.checks import check_model
from ..core.pretrained import check_unclaimed
from ..nn.description import declare, describe, descriptions, split_rounding
from ..nn.quantize import quantize_
from ..nn.replace import replace_modules
from ..nn.tensors import add_axes
from ..version import __version__
from ..whole_file import whole_file
from .replacing import build

_WHO = "load_compressed"
FORMAT, MANIFEST = "torchldr.compressed", "manifest.json"
VERSIONS = (1, 2)  # version 2 marks rounded layers in their entries
_CHECKSUM = "sha256"


def save_compressed(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Write a model with structured layers to a folder, which `load_compressed` reads.

    The tensors file is named after its checksum, and the manifest is replaced last, in one step. So a reader
    finds either the old model or the new one, never a mixture. Tied tensors are written once.

    Args:
        model: any module; its whole state_dict is written.
        folder: created if it does not exist.
    """
    check_model("save_compressed", model)
    write_folder("save_compressed", Path(folder), model.state_dict(keep_vars=True), descriptions(model))


def write_folder(
    who: str, path: Path, state: Mapping[str, Any], layers: Mapping[str, Any], **more: Any
) -> None:
    """Write tensors by name and a manifest with these layers and entries. Errors begin with `who`."""
    save = safetensors_torch(who).save
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{who}: {key} is a {type(value).__name__}, only tensors can be written.")
        if id(value) in first:
            aliases[key] = first[id(value)]
        else:
            first[id(value)] = key
            # A copy, since views of one storage are refused.
            tensors[key] = value.detach().to("cpu", copy=True).contiguous()
    content = save(tensors)
    checksum = hashlib.sha256(content).hexdigest()
    file = f"model-{checksum[:16]}.safetensors"
    manifest = {
        "format": FORMAT,
        "version": VERSIONS[any("rounded" in entry for entry in layers.values())],
        "torchldr": __version__,
        "tensors": {"file": file, "sha256": checksum},
        "shapes": {key: list(value.shape) for key, value in tensors.items()},
        "aliases": aliases,
        "layers": layers,
        **more,
    }
    manifest[_CHECKSUM] = _checksum(manifest)
    path.mkdir(parents=True, exist_ok=True)
    with whole_file(path / file) as stream:
        stream.write(content)
    with whole_file(path / MANIFEST) as stream:
        stream.write((json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode())
    for old in path.glob("model-*.safetensors"):
        if old.name != file:
            old.unlink()


def load_compressed(model: nn.Module, folder: str | os.PathLike[str]) -> nn.Module:
    """Load the layers and numbers that `save_compressed` wrote into a model, in place.

    Args:
        model: a model of the original architecture, dense or with the same structured layers. It keeps its
            device and dtype.
        folder: what `save_compressed` wrote.

    Returns:
        The model.

    Raises:
        FileNotFoundError: where a file of the folder is missing.
        ValueError: if the folder is damaged or does not fit the model. The message names the layer, and the
            model is unchanged.
    """
    check_model(_WHO, model)
    check_unclaimed(_WHO, model)
    path = Path(folder)
    manifest = read_manifest(_WHO, path)
    state = read_tensors(_WHO, path, manifest)
    modules = dict(model.named_modules(remove_duplicate=False))
    made: dict[nn.Module, nn.Module] = {}
    entries: dict[nn.Module, tuple[str, Any]] = {}
    layers, _ = split_rounding(manifest["layers"])
    for name, entry in layers.items():
        if name not in modules:
            raise _misfit(f"the model has no layer {name}")
        old = modules[name]
        first, known = entries.setdefault(old, (name, entry))
        if known != entry:
            raise _misfit(f"{name} and {first} are one layer in the model but two in the folder")
        if first != name or describe(old) == entry:
            continue
        if name == "":
            raise _misfit("the model is itself a layer, which cannot be replaced in place")
        if "weights" in manifest and type(old).__name__ == "Conv1D":
            raise _misfit(
                f"{name}: the folder was made from weights alone, and a Conv1D stores its weight transposed; "
                "use load_weights, or compress_ on the model"
            )
        try:
            made[old] = build(old, entry)
        except Exception as error:
            # The manifest's values reach every class, so any error means a bad manifest.
            raise _misfit(f"{name}: {error}") from None
    replace_modules(model, made)
    try:
        _retie(model, manifest["aliases"], {part for new in made.values() for part in new.modules()})
        add_axes(model, state)
        rounded, floats = _without_integers(model, state)
        floats = _without_extras(model, floats)
        _check_state(model, floats)
    except ValueError:
        replace_modules(model, {new: old for old, new in made.items()})
        raise
    model.load_state_dict(floats)
    if rounded:
        quantize_(model, where=lambda name, module: name in rounded)
        model.load_state_dict(_without_extras(model, state))
    declare(model)
    return model


def _without_integers(model: nn.Module, state: dict[str, Tensor]) -> tuple[set[str], dict[str, Tensor]]:
    """The modules whose weights are integers only in the folder, and the tensors with floats in their place.

    These floats have the right shape and no meaning: `quantize_` makes room for the integers after all else
    has fitted.
    """
    wanted, rounded, floats = model.state_dict(keep_vars=True), set(), dict(state)
    for key, integers in state.items():
        owner, mark, name = key.removesuffix(".original1").rpartition("parametrizations.")
        kept = key in wanted or integers.is_floating_point()
        if mark and key.endswith(".original1") and not kept:
            del floats[key]
            scale = floats.pop(f"{owner}{mark}{name}.original0", integers)
            floats[owner + name] = integers.to(scale.dtype)
            rounded.add(owner.removesuffix("."))
    return rounded, floats


def safetensors_torch(who: str) -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise ImportError(f"{who} needs the package safetensors: pip install safetensors") from None
    return safetensors.torch


def _misfit(what: str, who: str = _WHO) -> ValueError:
    return ValueError(f"{who}: {what}.")


def _checksum(manifest: dict[str, Any]) -> str:
    """The checksum of all other entries, independent of their layout."""
    content = {key: value for key, value in manifest.items() if key != _CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_manifest(who: str, path: Path) -> dict[str, Any]:
    """The checked manifest of a folder. Errors begin with `who`."""
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        checksum = _checksum(manifest) if isinstance(manifest, dict) else None
    except (ValueError, RecursionError) as error:
        raise _misfit(f"{file} is not JSON ({error})", who) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _misfit(f"{file} is not the manifest of a compressed model", who)
    version = manifest.get("version")
    if version not in VERSIONS:
        raise _misfit(
            f"{file} has format version {version!r}, this torchldr reads {VERSIONS}; update torchldr", who
        )
    if manifest.get(_CHECKSUM, checksum) != checksum:
        raise _misfit(f"{file} is damaged or was edited: its checksum is not that of its content", who)
    parts = {"tensors": str, "aliases": str, "layers": dict, "shapes": list}
    for name, kind in {**parts, **({"weights": str} if "weights" in manifest else {})}.items():
        part = manifest.get(name)
        if not isinstance(part, dict):
            raise _misfit(f"{file} lacks tensors, shapes, aliases or layers", who)
        for key, value in part.items():
            if not isinstance(value, kind):
                raise _misfit(
                    f"{file}: {name}: {key} must be a {kind.__name__}, got {type(value).__name__}", who
                )
    return manifest


def read_tensors(who: str, path: Path, manifest: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a folder by name; tied ones appear under all their names."""
    name, checksum = manifest["tensors"].get("file", ""), manifest["tensors"].get("sha256")
    if Path(name).name != name or not name.isprintable() or not name.endswith(".safetensors"):
        raise _misfit(f"the tensors file must lie in the folder itself, got {name!r}", who)
    content = (path / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != checksum:
        raise _misfit(f"{path / name} is damaged: its checksum is not the one in {MANIFEST}", who)
    try:
        state: dict[str, Tensor] = safetensors_torch(who).load(content)
    except ImportError:
        raise
    except Exception as error:
        # safetensors raises several classes of its own, all for damaged content.
        raise _misfit(f"{path / name} cannot be read ({error})", who) from None
    if {key: list(value.shape) for key, value in state.items()} != manifest["shapes"]:
        raise _misfit(f"the shapes in {MANIFEST} are not those of {name}", who)
    for key, leader in manifest["aliases"].items():
        if leader not in state:
            raise _misfit(f"{key} is tied to {leader}, which {name} lacks", who)
    return {**state, **{key: state[leader] for key, leader in manifest["aliases"].items()}}


def _retie(model: nn.Module, aliases: dict[str, str], new: set[nn.Module]) -> None:
    """Tie the tensors of new modules as in the folder; weights to be quantized are tied as floats."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for pair in aliases.items():
        (owner, _, leaf), (source, _, root) = (_float_name(key).rpartition(".") for key in pair)
        if owner in modules and source in modules and modules[owner] in new:
            for registry in ("_parameters", "_buffers"):
                held, given = getattr(modules[owner], registry), getattr(modules[source], registry)
                if leaf in held and root in given:
                    held[leaf] = given[root]


def _float_name(key: str) -> str:
    """A weight's name before `quantize_`; other names stay."""
    owner, mark, name = key.rpartition("parametrizations.")
    return owner + name.removesuffix(".original1") if mark and key.endswith(".original1") else key


def _without_extras(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without buffers that the model no longer has, such as the positions in old files."""
    wanted, modules = model.state_dict(keep_vars=True), dict(model.named_modules(remove_duplicate=False))

    def needed(key: str, value: Tensor) -> bool:
        owner, _, leaf = key.rpartition(".")
        computed = owner in modules and leaf in modules[owner]._non_persistent_buffers_set
        return key in wanted or not (computed or not value.is_floating_point())

    return {key: value for key, value in state.items() if needed(key, value)}


def _check_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    wanted = model.state_dict(keep_vars=True)
    for key, value in wanted.items():
        if key not in state:
            owner, _, leaf = key.rpartition(".")
            computed = any(other.startswith(f"{owner}.parametrizations.{leaf}.") for other in state)
            why = "; a parametrization computes it there, so the model needs the same one" if computed else ""
            raise _misfit(f"{key} of the model is not in the folder{why}")
        if isinstance(value, Tensor) and value.is_meta:
            raise _misfit(f"{key} of the model is on the meta device: call model.to_empty(device=..) first")
        if isinstance(value, Tensor) and value.shape != state[key].shape:
            shapes = f"{tuple(value.shape)} in the model and {tuple(state[key].shape)} in the folder"
            raise _misfit(f"{key} has shape {shapes}")
    for key in state:
        if key not in wanted:
            raise _misfit(f"{key} of the folder is not in the model")
