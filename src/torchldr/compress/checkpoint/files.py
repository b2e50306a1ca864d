"""The weights of a .safetensors file or of a mapping, without the code of a model: `compress_weights`."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...matrices import StructuredMatrix
from ...progress import Report
from ..candidates import CANDIDATES, Weight, check_finite
from ..looks import project_all
from ..progress import Clock, check_count, check_effort
from ..report import CompressionReport, described
from ..selection import Spec, check_spec, chosen
from ..structure import Structure
from ..workers import Workers

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SUFFIX = ".weight"
EFFORT = 10.0  # minutes, for a budget
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NAMED = {  # in files
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool,
}  # fmt: skip


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of a .safetensors file, or of all such files (shards) of a folder, read when asked for.

    Args:
        path: the file or folder; headers are checked at once.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: where it is no .safetensors file, damaged, or a folder without any or with a tensor twice.
        ImportError: without the package safetensors.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.places: dict[str, Path] = {}  # the file of each tensor
        self._open: dict[Path, Any] = {}
        files = sorted(self.path.glob("*.safetensors")) if self.path.is_dir() else [self.path]
        if not files:
            pickles = sorted(p.name for p in self.path.iterdir() if p.suffix in PICKLES)
            hint = f"; {pickles[0]} is a pickle, which is never read here: write it anew" if pickles else ""
            raise ValueError(f"{self.path} has no .safetensors file{hint}.")
        for file in files:
            for name in _names(file):
                if name in self.places:
                    raise ValueError(f"{path}: {name} is in {self.places[name].name} and {file.name}.")
                self.places[name] = file

    def __getitem__(self, name: str) -> Tensor:
        from safetensors import safe_open

        file = self.places[name]
        if file not in self._open:
            self._open[file] = safe_open(file, "pt").__enter__()
        try:
            tensor: Tensor = self._open[file].get_tensor(name)
        except Exception as error:
            # A dtype that this torch does not have; safetensors raises several classes.
            raise ValueError(f"{file}: {name} cannot be read ({error}).") from None
        return tensor

    def mapped(self) -> dict[str, Tensor]:
        """All tensors, mapped and not read: to write to them ends the process.

        Raises:
            ValueError: for a dtype that is not among the usual ones.
        """
        found: dict[str, Tensor] = {}
        for file in dict.fromkeys(self.places.values()):
            found |= _mapped(file)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __reduce__(self) -> tuple[type[TensorFiles], tuple[Path]]:
        return TensorFiles, (self.path,)  # a worker opens the files for itself


def _mapped(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, as `TensorFiles.mapped` has them."""
    content, found = np.memmap(path, np.uint8, "r"), {}
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(bytes(content[8:start]))
    entries.pop("__metadata__", None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        for name, entry in entries.items():
            dtype, (first, last) = _NAMED.get(entry["dtype"]), entry["data_offsets"]
            if dtype is None:
                raise ValueError(f"{path}: {name} is of dtype {entry['dtype']}, which is not supported.")
            data = torch.from_numpy(content[start + first : start + last])
            found[name] = data.view(dtype).reshape(entry["shape"])
    return found


def _names(file: Path) -> list[str]:
    """The names of a file's tensors."""
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
            f"{file} is a pickle, which is never read here: write it anew with "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')."
        )
    if not file.is_file():
        raise ValueError(f"{file} is not a file; name a .safetensors file, or a folder of them.")
    try:
        with safe_open(file, "numpy") as opened:  # torch would ask for memory of the file's size
            return list(opened.keys())
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged or no .safetensors file ({str(error).rstrip('.')}).") from None


Source = Mapping[str, Tensor] | str | os.PathLike[str]


@dataclass(frozen=True)
class TensorWeight(Weight):
    """One matrix (out, in) of a source, under the name that it has there."""

    source: Mapping[str, Tensor]
    key: str
    kind = "tensor"

    @property
    def matrices(self) -> list[Tensor]:
        return [self.source[self.key].detach()]

    @property
    def luggage(self) -> Weight | list[Tensor]:
        return self if isinstance(self.source, TensorFiles) else self.matrices

    @property
    def names(self) -> list[str]:
        return [self.key]

    @property
    def aliases(self) -> list[str]:
        """Its name, and that of the module that it is the weight of."""
        return list(dict.fromkeys((self.key, self.key.removesuffix(_SUFFIX))))


def open_tensors(who: str, source: Source) -> Mapping[str, Tensor]:
    """A mapping as it is, a path as `TensorFiles`."""
    if isinstance(source, str | os.PathLike):
        return TensorFiles(source)
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
    """The matrices that may be replaced, and why others are left alone; what is no matrix is in neither.

    Raises:
        ValueError: where nothing matches an entry of `skip`, a name or a pattern.
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
    effort: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    progress: bool | Report | None = None,
) -> tuple[dict[str, Tensor | StructuredMatrix], CompressionReport]:
    """Project the matrices of a checkpoint on structured ones; everything else stays as it is.

    A matrix is a tensor with two axes, taken as a layer's weight (out_features, in_features). An embedding
    looks the same: `skip` it where it should stay.

    Args:
        source: the path of a .safetensors file, of a folder of them (shards), or a mapping of names to
            tensors (a state_dict).
        spec: a budget, a Structure for all, or a mapping of names and patterns to structures, as for
            `compress_`. A weight is called by its name, or by that without ".weight".
        skip: names and patterns of matrices to leave alone.
        min_features: matrices with fewer rows or columns are left alone.
        structures: names of the classes that a budget may choose from.
        effort: minutes that it may take, by default 10 for a budget and no limit for a plan.
        seed: of the projections.
        jobs: how many processes project; with more than one, a script needs the usual
            `if __name__ == "__main__":`.
        progress: as for `compress_`.

    Returns:
        The tensors by name, structured matrices where they were replaced, and what was done.

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
    planned = isinstance(spec, Structure | Mapping)
    clock = Clock(check_effort(who, effort, None if planned else EFFORT))
    with Workers(jobs, clock=clock, progress=progress, seed=seed) as workers:
        found = chosen(who, spec, weights, left, structures, workers)
        made = project_all(workers, weights, found.structures)
    vectors, rows = described(weights, found.structures, made, found.watch)
    replaced = {weight.name: p.matrix for weight, some in zip(weights, made, strict=True) for p in some}
    whole = {name: replaced.get(name, tensors[name]) for name in tensors}
    before = sum(tensors[name].numel() for name in tensors if tensors[name].is_floating_point())
    saved = sum(row.parameters_before - row.parameters_after for row in rows)
    return whole, CompressionReport(
        rows, {**left, **found.stays}, before, before - saved, None, found.notes, vectors
    )
