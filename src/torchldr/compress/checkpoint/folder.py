"""Folders of weights without a model: written by `save_weights`, read by `load_weights`."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ...core.pretrained import METHOD
from ...core.stacks import own_names
from ...matrices import StructuredMatrix, get_structure
from ...nn.description import linear_entry, split_rounding
from ..folder import MANIFEST, read_manifest, read_tensors, safetensors_torch, write_folder
from ..report import CompressionReport
from ..structure import Structure, structure_to_dict

REPORT = "report.json"
_SUFFIX = ".weight"


def save_weights(
    weights: Mapping[str, Tensor | StructuredMatrix],
    folder: str | os.PathLike[str],
    report: CompressionReport | None = None,
    *,
    force: bool = False,
) -> None:
    """Write tensors and structured matrices to a folder, in the format of `save_compressed`.

    A structured "x.weight" is written as a `StructuredLinear` named x, with the bias "x.bias" if there is
    one. If every such x is an nn.Linear in a model, `load_compressed(model, folder)` puts structured layers
    into it. `load_weights` reads any such folder without a model.

    Args:
        weights: by name, as from `compress_weights`.
        folder: a new or empty folder. It appears under its name only when everything is written.
        report: also written, as report.json.
        force: replace a folder that `save_weights` or `save_compressed` wrote.

    Raises:
        FileExistsError: if the folder is not empty; with `force`, if it holds anything but such a model.
    """
    state: dict[str, Tensor] = {}
    layers: dict[str, Any] = {}
    origins: dict[str, str] = {}  # the name of the weight that each structured layer came from
    for name, W in weights.items():
        if not isinstance(W, StructuredMatrix):
            state[name] = W
            continue
        layer, (m, n) = name.removesuffix(_SUFFIX), W.shape
        for leaf in W.tensors:
            if f"{layer}.{leaf}" in weights:
                raise ValueError(f"save_weights: {layer}.{leaf} is also the name of a tensor of {name}.")
        state |= {f"{layer}.{leaf}": W.tensors[leaf] for leaf in sorted(own_names(W))}
        bias = weights.get(f"{layer}.bias") if layer != name else None
        biased = isinstance(bias, Tensor) and bias.shape == (m,) and bias.is_floating_point()
        chosen = structure_to_dict(Structure(W.name, W.rank, **W.options))
        layers[layer] = linear_entry(chosen, (m, n), biased)
        origins[layer] = name
    with new_folder(folder, force=force) as partial:
        write_folder("save_weights", partial, state, layers, weights=origins)
        if report is not None:
            report.save(partial / REPORT)


@contextmanager
def dense_beside(
    weights: Mapping[str, Tensor | StructuredMatrix], file: str | os.PathLike[str] | None
) -> Iterator[None]:
    """Write a plain .safetensors file of dense tensors, in place only if the context ends without an error.

    Structured matrices become dense. Without a path nothing is written.
    """
    if file is None:
        yield
        return
    path = Path(file)
    tensors = {
        name: (W.to_dense() if isinstance(W, StructuredMatrix) else W).detach().to("cpu").contiguous()
        for name, W in weights.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path) as partial:
        safetensors_torch("dense_beside").save_file(tensors, partial / path.name, {"format": "pt"})
        yield
        (partial / path.name).replace(path)


def check_target(path: Path, force: bool) -> None:
    """Raise if a folder may not or cannot be written."""
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise NotADirectoryError(f"{parent} is not a folder.")
    if not os.access(parent, os.W_OK):
        raise PermissionError(f"{parent} may not be written.")
    if path.is_dir() and not any(path.iterdir()):
        return
    if os.path.lexists(path):
        ours = (path / MANIFEST).is_file() or _declares(path / "config.json")
        if not force:
            hint = "; --force (force=True) replaces it" if ours else ""
            raise FileExistsError(f"{path} exists already{hint}.")
        if not ours:
            raise FileExistsError(f"{path} exists and is not a compressed model: it will not be replaced.")


def _declares(config: Path) -> bool:
    """Whether this is the config of a Hugging Face model that we compressed."""
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
        return found["quantization_config"]["quant_method"] == METHOD
    except (OSError, ValueError, KeyError, TypeError):
        return False


@contextmanager
def new_folder(folder: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """A folder for a compressed model, in place only if the context ends without an error."""
    path = Path(folder)
    check_target(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path) as partial:
        yield partial
        _move(partial, path)


def load_weights(
    folder: str | os.PathLike[str], *, dense: bool = True
) -> dict[str, Tensor | StructuredMatrix]:
    """The weights in a folder, under their names in the checkpoint.

    Args:
        folder: written by `torchldr compress` or `save_weights`, or by `save_compressed` if only nn.Linear
            layers were replaced.
        dense: whether to return dense tensors, a state_dict of the original model, instead of
            `StructuredMatrix` objects.

    Raises:
        FileNotFoundError: if a file of the folder is missing.
        ValueError: if the folder is damaged or needs its model.
    """
    path = Path(folder)
    manifest = read_manifest("load_weights", path)
    state = read_tensors("load_weights", path, manifest)
    origins = manifest.get("weights", {})
    weights: dict[str, Tensor | StructuredMatrix] = dict(state)
    layers, _ = split_rounding(manifest["layers"])
    for name, entry in layers.items():
        if entry.get("kind") != "linear":
            raise ValueError(
                f"load_weights: {name} is of kind {entry.get('kind')}, which needs its model: use "
                "load_compressed, then materialize_ and state_dict()."
            )
        matrix, used = _matrix(name, entry, state)
        for key in used:
            weights.pop(key, None)
        weights[origins.get(name, name + _SUFFIX)] = matrix.to_dense() if dense else matrix
    return weights


def _matrix(
    name: str, entry: Mapping[str, Any], state: Mapping[str, Tensor]
) -> tuple[StructuredMatrix, list[str]]:
    """The matrix of a manifest's entry, and its tensors' keys; tensors that are not stored are made anew."""
    try:
        cls, (m, n), rank = get_structure(entry["structure"]), entry["shape"], entry["rank"]
        shapes = cls.check_shapes(m, n, rank, cls.check_options(entry["options"]))
        for leaf, wanted in shapes.items():  # before anything of that size is allocated
            if state[f"{name}.{leaf}"].numel() != math.prod(wanted):
                got = tuple(state[f"{name}.{leaf}"].shape)
                raise ValueError(f"{leaf} has shape {got}, rank={rank} needs {tuple(wanted)}.")
        keys = {leaf: f"{name}.{leaf}" for leaf in (*shapes, *cls.drawn)}
        made = cls(m, n, **entry["options"], **{leaf: state[key] for leaf, key in keys.items()})
    except KeyError as error:
        raise ValueError(f"load_weights: {name}: the folder lacks {error}.") from None
    except Exception as error:
        # The manifest's values reach every class, so any error means a bad manifest.
        raise ValueError(f"load_weights: {name}: {error}") from None
    return made, list(keys.values())


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary folder on the same disk."""
    place, name = path.parent, f".{path.name}."
    with tempfile.TemporaryDirectory(".tmp", name, place, ignore_cleanup_errors=True) as folder:
        (partial := Path(folder) / path.name).mkdir()
        yield partial


def _move(partial: Path, path: Path) -> None:
    """Move a written folder to its name; into an existing one file by file, the manifest last."""
    if path.is_symlink() or path.is_dir():
        files = sorted(partial.iterdir(), key=lambda file: file.name == MANIFEST)
        for file in files:
            file.replace(path / file.name)
        names = {file.name for file in files}
        for old in path.glob("model-*.safetensors"):
            if old.name not in names:
                old.unlink()
    else:
        partial.rename(path)
