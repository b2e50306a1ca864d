"""`load` a dataset by name or path, and say which ones are here."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from torchldr_paper.data import official, recipes
from torchldr_paper.data.containers import Located
from torchldr_paper.data.dataset import DataFileError, Dataset, DatasetNotFoundError, Splits
from torchldr_paper.data.places import VARIABLE, search_path
from torchldr_paper.data.recipes import FOLDER, find_photographs, read_photographs
from torchldr_paper.data.registry import DATASETS, Facts, Spec, lookup
from torchldr_paper.data.user import load_npz

Wanted = Literal["auto", "official", "stand-in"]


@dataclass(frozen=True)
class DatasetStatus(Facts):
    """A row of `torchldr data list`.

    Attributes:
        state: "official" (the files are here), "stand-in" (it can be made here) or "absent".
        where: the folder of the files, what the stand-in is made from, or what is missing.
    """

    state: Literal["official", "stand-in", "absent"]
    where: str


def load(
    name: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    *,
    source: Wanted = "auto",
    verify: bool = True,
) -> Dataset:
    """Load a dataset: the owner's files if they are found, else a stand-in if a recipe is known.

    `load` looks in `data_dir`, in `$TORCHLDR_DATA` and in the user's cache folder. It parses files
    once and keeps the arrays beside them, or in the user's cache folder if that is not writable,
    until a file changes.

    Args:
        name: a name of the registry (`names()`), or the path of a .npz file of your own, whose
            arrays `torchldr_paper.data.user` documents.
        data_dir: a folder to look in first.
        seed: random seed of a stand-in; official data does not depend on it.
        source: "official" refuses a stand-in, "stand-in" makes one even if the files are found.
        verify: compare files with the published checksums when they are parsed.

    Returns:
        The dataset; its `source` says whether it is official, a stand-in or the user's.

    Raises:
        ValueError: for an unknown name or source, or a negative seed.
        DatasetNotFoundError: if it is not found; the message says which files to put where.
        DataFileError: if a file is damaged or not the expected one.

    >>> data = load("rectangles", source="stand-in")
    >>> data.train_x.shape, data.classes, data.source
    ((1200, 1, 28, 28), 2, 'stand-in')
    """
    if isinstance(name, os.PathLike) or str(name).endswith(".npz"):
        return load_npz(name)
    spec = lookup(name)
    if source not in ("auto", "official", "stand-in"):
        raise ValueError(f"source must be 'auto', 'official' or 'stand-in', got {source!r}.")
    if operator.index(seed) < 0:
        raise ValueError(f"seed must be an integer from 0, got {seed}.")
    places = search_path(data_dir)
    incomplete: list[Located] = []
    if source != "stand-in":
        located, incomplete = official.find(spec, places)
        if located is not None:
            return official.load_official(spec, located, verify=verify)
    if source == "official" or spec.recipe is None:
        raise DatasetNotFoundError(_absent(spec, places, incomplete))
    if incomplete:
        raise DataFileError(
            f"{_partly(spec, incomplete[0])} Complete them, or load with source='stand-in' to have one made."
        )
    return _make(spec, places, seed, verify=verify)


def status(data_dir: str | os.PathLike[str] | None = None) -> list[DatasetStatus]:
    """Every dataset of the registry with what is present here; opens no file."""
    places, rows = search_path(data_dir), []
    for spec in DATASETS.values():
        located, incomplete = official.find(spec, places)
        lacking = _lacking(spec, places)
        state: Literal["official", "stand-in", "absent"] = "absent"
        if located is not None:
            state, where = "official", str(located.containers[0].parent)
        elif incomplete:
            where = _partly(spec, incomplete[0])
        elif spec.recipe is None:
            where = f"get it from {spec.addresses[0]}"
        elif lacking:
            where = f"a stand-in needs {' and '.join(lacking)}"
        else:
            state, where = "stand-in", "made from a seed"
        known = {fact.name: getattr(spec, fact.name) for fact in fields(Facts)}
        rows.append(DatasetStatus(**known, state=state, where=where))
    return rows


def table() -> list[dict[str, str | int]]:
    """The paper's table of image classification datasets: dataset, train, test, classes.

    >>> [row["dataset"] for row in table()]
    ['MNIST-bg-rot', 'MNIST-noise', 'CIFAR-10', 'NORB', 'Rectangles']
    """
    rows: dict[str, dict[str, str | int]] = {}
    for spec in DATASETS.values():
        title = spec.title.split(",")[0]  # one row for the six levels, one for colour and grey
        if spec.in_paper:
            row = {"train": spec.train, "test": spec.test, "classes": spec.classes}
            rows.setdefault(title, {"dataset": title, **row})
    return list(rows.values())


def _make(spec: Spec, places: list[Path], seed: int, *, verify: bool) -> Dataset:
    """Make a stand-in by its recipe."""
    if _lacking(spec, places):
        raise DatasetNotFoundError(_absent(spec, places, []))
    sizes, made = (spec.train, spec.test, seed), "recipe"
    if spec.recipe == "rectangles":
        splits = recipes.rectangles(*sizes)
    else:
        found, _ = official.find(lookup("mnist"), places)
        assert found is not None  # by `_lacking`
        digits = official.load_official(lookup("mnist"), found, verify=verify)
        mnist = Splits(digits.train_x, digits.train_y, digits.test_x, digits.test_y)
        if spec.recipe == "noise":
            splits, made = recipes.mnist_noise(mnist, spec.level, *sizes), "recipe and MNIST"
        else:
            pictures = find_photographs(places)
            splits = recipes.mnist_bg_rot(mnist, read_photographs(pictures), *sizes)
            made = f"recipe, MNIST and {len(pictures)} photographs in {pictures[0].parent}"
    return Dataset.of(splits, **spec.facts, source="stand-in", origin=f"made from seed {seed} by {made}")


def _lacking(spec: Spec, places: list[Path]) -> list[str]:
    """The sources of a stand-in that are missing."""
    lacking = []
    if spec.recipe in ("noise", "bg_rot") and official.find(lookup("mnist"), places)[0] is None:
        lacking.append("MNIST")
    if spec.recipe == "bg_rot" and not find_photographs(places):
        lacking.append(f"photographs (.png) in {FOLDER}/")
    return lacking


def _partly(spec: Spec, located: Located) -> str:
    missing = [file.name for file in located.missing]
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"{spec.name}: incomplete in {located.root}: {len(located.found)} of {len(spec.files)} "
        f"files are there, missing {', '.join(missing[:3])}{more}."
    )


def _absent(spec: Spec, places: list[Path], incomplete: list[Located]) -> str:
    """The message for a dataset that is not found: which files to put where, and where to get them."""
    looked = ", ".join(f"{p}{'' if p.is_dir() else ' (no such folder)'}" for p in places)
    lines = [f"{spec.name}: its official files are not here. Looked in {looked}."]
    lines += [_partly(spec, located) for located in incomplete]
    files = spec.downloads
    several = f" ... {files[-1]} ({len(files)} files)" if len(files) > 1 else ""
    lines.append(
        f"Put {files[0]}{several} into {places[0] / spec.folders[0]}; the owner offers "
        f"{'them' if several else 'it'} at {spec.addresses[0]}. Or run: torchldr data fetch "
        f"{spec.name}"
    )
    if spec.recipe is None:
        lines.append("No recipe for a stand-in is known.")
    elif lacking := _lacking(spec, places):
        lines.append(f"A stand-in can be made once there is {' and '.join(lacking)}.")
        if "MNIST" in lacking:
            lines.append("For MNIST run: torchldr data fetch mnist")
        if any(FOLDER in what for what in lacking):
            lines.append(
                f"Put some twenty photographs as .png into {places[0] / FOLDER} (or install "
                "scikit-image, whose photographs serve)."
            )
    else:
        lines.append("A stand-in can be made: source='auto' or 'stand-in'.")
    lines.append(f"Another folder is named by data_dir or ${VARIABLE}.")
    return "\n".join(lines)
