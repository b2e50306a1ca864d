"""The weights of a .safetensors file or of a mapping, without the code of a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SUFFIX = ".weight"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class TensorFile(Mapping[str, Tensor]):
    """The tensors of a .safetensors file, each read when it is asked for.

    Args:
        path: the file; its header is checked at once.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: where it is no .safetensors file, or damaged.
        ImportError: without the package safetensors.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            raise ImportError(
                "reading .safetensors files needs the package safetensors: pip install safetensors"
            ) from None
        if not self.path.exists():
            raise FileNotFoundError(f"{self.path} does not exist.")
        if self.path.suffix in PICKLES:
            raise ValueError(
                f"{self.path} is a pickle, which is never read here: write it anew with "
                "safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')."
            )
        if not self.path.is_file():
            raise ValueError(f"{self.path} is not a file; name a .safetensors file, or a folder of them.")
        try:
            with safe_open(self.path, "numpy") as file:  # torch would ask for memory of the file's size
                self._names: tuple[str, ...] = tuple(file.keys())
                self.metadata: dict[str, str] = dict(file.metadata() or {})
        except SafetensorError as error:
            raise ValueError(
                f"{self.path} is damaged or no .safetensors file ({str(error).rstrip('.')})."
            ) from None

    @cached_property
    def _open(self) -> Any:
        from safetensors import safe_open

        return safe_open(self.path, "pt").__enter__()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        try:
            tensor: Tensor = self._open.get_tensor(name)
        except Exception as error:
            # A dtype that this torch does not have; safetensors raises several classes.
            raise ValueError(f"{self.path}: {name} cannot be read ({error}).") from None
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> tuple[type[TensorFile], tuple[Path]]:
        return TensorFile, (self.path,)  # a worker opens the file for itself


class TensorFolder(Mapping[str, Tensor]):
    """The tensors of all .safetensors files (shards) of a folder, each read when it is asked for.

    Raises:
        ValueError: where there are none, they are pickles, or two files hold a tensor of one name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._files: dict[str, TensorFile] = {}
        found = sorted(self.path.glob("*.safetensors"))
        if not found:
            pickles = sorted(p.name for p in self.path.iterdir() if p.suffix in PICKLES)
            hint = f"; {pickles[0]} is a pickle, which is never read here: write it anew" if pickles else ""
            raise ValueError(f"{self.path} has no .safetensors file{hint}.")
        for file in found:
            tensors = TensorFile(file)
            for name in tensors:
                if name in self._files:
                    other = self._files[name].path.name
                    raise ValueError(f"{self.path}: {name} is in {other} and {file.name}.")
                self._files[name] = tensors

    def files(self) -> list[Path]:
        """The files, each once."""
        return list(dict.fromkeys(file.path for file in self._files.values()))

    def __getitem__(self, name: str) -> Tensor:
        return self._files[name][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __reduce__(self) -> tuple[type[TensorFolder], tuple[Path]]:
        return TensorFolder, (self.path,)


Source = Mapping[str, Tensor] | str | os.PathLike[str]


@dataclass(frozen=True)
class TensorWeight:
    """One matrix (out, in) of a source, under the name that it has there."""

    source: Mapping[str, Tensor]
    name: str
    kind = "tensor"

    @property
    def matrices(self) -> list[Tensor]:
        return [self.source[self.name].detach()]

    @property
    def names(self) -> list[str]:
        return [self.name]

    @property
    def layer(self) -> str:
        """The module that a matrix of this name is the weight of, or else its own name."""
        return self.name.removesuffix(_SUFFIX)

    @property
    def aliases(self) -> list[str]:
        return list(dict.fromkeys((self.name, self.layer)))

    @property
    def size(self) -> int:
        return self.matrices[0].numel()


def open_tensors(who: str, source: Source) -> Mapping[str, Tensor]:
    """A mapping as it is, a path as a `TensorFile` or `TensorFolder`."""
    if isinstance(source, str | os.PathLike):
        return TensorFolder(source) if Path(source).is_dir() else TensorFile(source)
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

    Args:
        who: the caller, for errors.
        source: the tensors.
        skip: names and patterns of those to leave alone.
        min_features: matrices with fewer rows or columns are left alone.

    Raises:
        ValueError: where nothing matches an entry of `skip`, or a matrix is not finite.
    """
    found, left = [], {}
    for pattern in skip:
        if not any(fnmatchcase(alias, pattern) for name in source for alias in _aliases(source, name)):
            raise ValueError(f"{who}: no tensor matches skip={pattern!r}.")
    for name in source:
        W = source[name]
        if W.ndim != 2:
            continue
        if any(fnmatchcase(alias, pattern) for alias in _aliases(source, name) for pattern in skip):
            left[name] = "skipped"
        elif W.dtype not in DTYPES:
            left[name] = f"is {str(W.dtype).removeprefix('torch.')}, not floating point of 16 bits or more"
        elif min(W.shape) < min_features:
            left[name] = f"has {min(W.shape)} features, fewer than min_features={min_features}"
        else:
            found.append(TensorWeight(source, name))
    return found, left


def _aliases(source: Mapping[str, Tensor], name: str) -> list[str]:
    return TensorWeight(source, name).aliases


def check_finite(who: str, weights: Sequence[Any], what: str = "") -> None:
    """Raise for a weight with entries that are not finite, or without any numbers (on the meta device).

    Args:
        who: the caller, for the error.
        weights: as `candidates.Weight`.
        what: they are called in the error, before their name.
    """
    for weight in weights:
        for W in weight.matrices:
            if W.is_meta:
                raise ValueError(f"{who}: {what}{weight.name} is on the meta device: load it first.")
            if not W.isfinite().all():
                raise ValueError(f"{who}: {what}{weight.name} has entries that are not finite.")
