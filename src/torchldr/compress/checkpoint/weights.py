"""Compressing the weights of a .safetensors file or a mapping without the model: `compress_weights`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...matrices import StructuredMatrix
from ...progress import Report, silent
from ..candidates import CANDIDATES, Weight, check_finite
from ..errors import project_all
from ..report import CompressionReport, described
from ..selection import Spec, check_room, check_spec, chosen
from ..session import Session, check_count, check_time

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SUFFIX = ".weight"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of all such files (shards) of a folder.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for another kind of file, a damaged one, or a folder without any or with a tensor twice.
        ImportError: without the package safetensors.
    """
    path, found, places = Path(path), dict[str, Tensor](), dict[str, Path]()
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        pickles = sorted(p.name for p in path.iterdir() if p.suffix in PICKLES)
        hint = f"; {pickles[0]} is a pickle, which torchldr never reads: convert it" if pickles else ""
        raise ValueError(f"{path} has no .safetensors file{hint}.")
    for file in files:
        for name, tensor in _read_file(file).items():
            if name in found:
                raise ValueError(f"{path}: {name} is in {places[name].name} and {file.name}.")
            found[name], places[name] = tensor, file
    return found


def _read_file(file: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise ImportError(
            "reading .safetensors files needs the package safetensors: pip install safetensors"
        ) from None
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist.")
    if file.suffix in PICKLES:
        raise ValueError(
            f"{file} is a pickle, which torchldr never reads: convert it with "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')."
        )
    if not file.is_file():
        raise ValueError(f"{file} is not a file; name a .safetensors file, or a folder of them.")
    found: dict[str, Tensor] = {}
    try:
        with safe_open(file, "numpy") as headers:  # torch would ask for memory of the file's size
            names = list(headers.keys())
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or no .safetensors file ({str(error).rstrip('.')}).") from None
    with safe_open(file, "pt") as opened:
        for name in names:
            try:
                found[name] = opened.get_tensor(name)
            except Exception as error:
                # A dtype that this torch does not have; safetensors raises several classes.
                raise ValueError(f"{file}: {name} cannot be read ({error}).") from None
    return found


Source = Mapping[str, Tensor] | str | os.PathLike[str]


@dataclass(frozen=True)
class TensorWeight(Weight):
    """One matrix (out, in) of a source, under its name there."""

    source: Mapping[str, Tensor]
    key: str
    kind = "tensor"

    @property
    def matrices(self) -> list[Tensor]:
        return [self.source[self.key].detach()]

    @property
    def names(self) -> list[str]:
        return [self.key]

    @property
    def aliases(self) -> list[str]:
        """Its name, and that of its module."""
        return list(dict.fromkeys((self.key, self.key.removesuffix(_SUFFIX))))


def open_tensors(who: str, source: Source) -> Mapping[str, Tensor]:
    """The tensors of a mapping, or of a path (`read_tensors`)."""
    if isinstance(source, str | os.PathLike):
        return read_tensors(source)
    if not isinstance(source, Mapping):
        raise TypeError(f"{who}: wanted a path or a mapping of names to tensors, got {source!r}.")
    for name, tensor in source.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise TypeError(
                f"{who}: a mapping must give tensors by name, got {type(tensor).__name__} for {name!r}."
            )
    return source


def find_tensors(
    who: str, source: Mapping[str, Tensor], skip: Sequence[str], min_features: int
) -> tuple[list[TensorWeight], dict[str, str]]:
    """The matrices that may be replaced, and the reasons why other matrices are left alone.

    Raises:
        ValueError: if an entry of `skip`, a name or a pattern, matches nothing.
    """
    found, left = [], {}
    weights = [TensorWeight(source, name) for name in source]
    for pattern in skip:
        if not any(weight.matches([pattern]) for weight in weights):
            raise ValueError(f"{who}: no tensor matches skip={pattern!r}.")
    for weight in weights:
        W = source[weight.key]
        if W.ndim != 2:
            continue
        if weight.matches(skip):
            left[weight.key] = "skipped"
        elif W.dtype not in DTYPES:
            dtype = str(W.dtype).removeprefix("torch.")
            left[weight.key] = f"is {dtype}, not floating point of 16 bits or more"
        elif min(W.shape) < min_features:
            left[weight.key] = f"has {min(W.shape)} features, fewer than min_features={min_features}"
        else:
            found.append(weight)
    return found, left


def compress_weights(
    source: Source,
    spec: Spec,
    *,
    skip: Sequence[str] = (),
    min_features: int = 32,
    structures: Sequence[str] = CANDIDATES,
    time_limit: float | None = None,
    seed: int = 0,
    progress: Report | None = None,
) -> tuple[dict[str, Tensor | StructuredMatrix], CompressionReport]:
    """Project the matrices of a checkpoint on structured ones; everything else stays as it is.

    Every tensor with two axes counts as a layer's weight (out_features, in_features). That includes
    embeddings: `skip` them if they should stay.

    Args:
        source: the path of a .safetensors file, of a folder of them (shards), or a mapping of names to
            tensors (a state_dict).
        spec: a budget, a Structure for all, or a mapping of names and patterns to structures, as for
            `compress_`. Names may end in ".weight" or leave it out.
        skip: names and patterns of matrices to leave alone.
        min_features: matrices with fewer rows or columns are left alone.
        structures: names of the classes that a budget may choose from.
        time_limit, seed, progress: as for `compress_`.

    Returns:
        The tensors by name, with structured matrices for those that were replaced, and a report.

    Examples:
        >>> weights = {"0.weight": torch.randn(64, 64), "0.bias": torch.zeros(64)}
        >>> made, report = compress_weights(weights, 0.25, structures=["low_rank"])
        >>> made["0.weight"]
        LowRank(64, 64, rank=8, dtype=torch.float32)
    """
    who = "compress_weights"
    check_spec(who, spec)
    check_count(who, min_features=min_features)
    tensors = open_tensors(who, source)
    weights, left = find_tensors(who, tensors, skip, min_features)
    if not weights:
        raise ValueError(
            f"{who}: no tensor can be replaced: none has two axes of {min_features} or more, or all are "
            "skipped."
        )
    check_finite(who, weights)
    check_time(who, time_limit)
    check_room(who, spec, weights, structures)
    session = Session(seed, time_limit, progress or silent)
    found = chosen(who, spec, weights, left, structures, session)
    made = project_all(session, weights, found.structures)
    vectors, rows = described(weights, found.structures, made, found.stopwatch)
    replaced = {weight.name: p.matrix for weight, some in zip(weights, made, strict=True) for p in some}
    whole = {name: replaced.get(name, tensors[name]) for name in tensors}
    before = sum(tensors[name].numel() for name in tensors if tensors[name].is_floating_point())
    saved = sum(row.parameters_before - row.parameters_after for row in rows)
    return whole, CompressionReport(
        rows, {**left, **found.stays}, before, before - saved, None, found.notes, vectors
    )
