"""Texts for language modelling: WikiText-2, and a user's own in the same form.

A corpus is three files, one for training, one for validation and one for testing. Words are what white space
separates, and every line ends with the word `<eos>`, as in the PyTorch word-language-model example; words
are numbered in the order in which they first appear, over the three files in this order.

    wikitext-2/    {train,valid,test}.txt, or wiki.{train,valid,test}.tokens
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from torchldr_paper.data.dataset import Array, DataFileError, DatasetNotFoundError, Source
from torchldr_paper.data.places import VARIABLE, search_path

END = "<eos>"
PARTS = ("train", "valid", "test")
FOLDERS = ("wikitext-2", "wikitext2", ".")
NAMES = ("{}.txt", "wiki.{}.tokens")
ADDRESS = "https://github.com/pytorch/examples/tree/main/word_language_model/data/wikitext-2"

# What the official files hold, the paper's numbers: tokens of the three parts, and distinct words.
OFFICIAL = (2_088_628, 217_646, 245_569), 33_278


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as numbers.

    Attributes:
        name: "wikitext2".
        train, valid, test: the words' numbers, shape (n,), int64.
        words: how many distinct words there are.
        source: "official" where the files hold what WikiText-2's hold, else "user".
        fingerprint: sha256 over the three parts.
        origin: the folder of the files.
    """

    name: str
    train: Array
    valid: Array
    test: Array
    words: int
    source: Source
    fingerprint: str
    origin: str = ""


def load_corpus(name: str = "wikitext2", data_dir: str | os.PathLike[str] | None = None) -> Corpus:
    """Load a corpus from `data_dir`, `$TORCHLDR_DATA` or the user's cache folder, the first that has it.

    Raises:
        ValueError: for an unknown name.
        DatasetNotFoundError: when a file is not here; the message says what to put where.
        DataFileError: when a file has no words or is no text.
    """
    if name != "wikitext2":
        raise ValueError(f"unknown corpus {name!r}. Known: wikitext2.")
    places = search_path(data_dir)
    ways = product(places, FOLDERS, NAMES)
    sets = (tuple(place / folder / form.format(part) for part in PARTS) for place, folder, form in ways)
    files = next((files for files in sets if all(file.is_file() for file in files)), None)
    if files is None:
        looked = ", ".join(map(str, places))
        raise DatasetNotFoundError(
            f"{name}: its files are not here. Looked in {looked}. Put train.txt, valid.txt and test.txt "
            f"into {places[0] / FOLDERS[0]}; they are offered at {ADDRESS}. Another folder is named by "
            f"data_dir or ${VARIABLE}."
        )
    numbers: dict[str, int] = {}
    train, valid, test = (_read(file, numbers) for file in files)
    counts = len(train), len(valid), len(test)
    source: Source = "official" if (counts, len(numbers)) == OFFICIAL else "user"
    digest = hashlib.sha256()
    for part in (train, valid, test):
        digest.update(f"{len(part)}\n".encode())
        digest.update(part.astype("<i8").tobytes())
    return Corpus(
        name, train, valid, test, len(numbers), source, digest.hexdigest(), origin=str(files[0].parent)
    )


def _read(file: Path, numbers: dict[str, int]) -> Array:
    """The words of a file by their numbers; new words get the next ones."""
    found: list[int] = []
    try:
        with file.open(encoding="utf-8") as stream:
            for line in stream:
                found += [numbers.setdefault(word, len(numbers)) for word in (*line.split(), END)]
    except UnicodeDecodeError as error:
        raise DataFileError(f"{file}: expected text in UTF-8 ({error}).") from error
    if len(found) < 2:
        raise DataFileError(f"{file}: expected at least two words to predict one from, got {len(found)}.")
    return np.asarray(found, dtype=np.int64)
