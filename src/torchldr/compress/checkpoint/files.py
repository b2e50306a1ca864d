"""The weights of a .safetensors file or of a mapping, without the code of a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..candidates import Weight

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SUFFIX = ".weight"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


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

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __reduce__(self) -> tuple[type[TensorFiles], tuple[Path]]:
        return TensorFiles, (self.path,)  # a worker opens the files for itself


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


def check_finite(who: str, weights: Sequence[Weight], what: str = "") -> None:
    """Raise for a weight with entries that are not finite, or without any numbers (on the meta device).

    The error says `what` before the weight's name.
    """
    for weight in weights:
        for W in weight.matrices:
            if W.is_meta:
                raise ValueError(f"{who}: {what}{weight.name} is on the meta device: load it first.")
            if not W.isfinite().all():
                raise ValueError(f"{who}: {what}{weight.name} has entries that are not finite.")
