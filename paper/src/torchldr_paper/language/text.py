"""A corpus where it is trained on: columns that are read side by side, and masks of dropout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.text import Corpus
from ..protocol import LanguageProtocol
from ..trainer.batches import derived_seed


@dataclass(frozen=True)
class Text:
    """A corpus on a device, within the limits of a protocol.

    Attributes:
        source, fingerprint, words: of the corpus.
        train: (T, batch), each column a stretch of the text.
        scored: (S, 2 evaluation_batch): the columns of validation, then those of the test, the shorter
            ones filled up; both are read at once.
        weights: 1 for an entry of `scored` that is to be predicted, else 0, alike.
    """

    source: str
    fingerprint: str
    words: int
    train: Tensor
    scored: Tensor
    weights: Tensor

    @classmethod
    def of(cls, corpus: Corpus, protocol: LanguageProtocol, device: torch.device | str = "cpu") -> Text:
        dtype = getattr(torch, protocol.dtype)
        train = columns(corpus.train[: protocol.train_limit], protocol.batch)
        parts = [
            columns(part[: protocol.test_limit], protocol.evaluation_batch)
            for part in (corpus.valid, corpus.test)
        ]
        length = max(map(len, parts))
        scored = torch.zeros(length, 2 * protocol.evaluation_batch, dtype=torch.int64)
        weights = torch.zeros(scored.shape, dtype=dtype)
        for index, part in enumerate(parts):
            place = slice(index * protocol.evaluation_batch, (index + 1) * protocol.evaluation_batch)
            scored[: len(part), place] = part
            weights[1 : len(part), place] = 1
        return cls(
            source=corpus.source,
            fingerprint=corpus.fingerprint,
            words=corpus.words,
            train=train.to(device),
            scored=scored.to(device),
            weights=weights.to(device),
        )

    @property
    def device(self) -> torch.device:
        return self.train.device

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many words are predicted in training, validation and test."""
        half = self.weights.shape[1] // 2
        validation, test = (int(part.sum()) for part in self.weights.split(half, 1))
        return (len(self.train) - 1) * self.train.shape[1], validation, test


def columns(words: np.ndarray, count: int) -> Tensor:
    """A text cut into `count` stretches of equal length, as columns; what is left over goes."""
    rows = len(words) // count
    if rows < 2:
        raise ValueError(
            f"language model: {len(words)} words are too few for {count} columns of two or more."
        )
    return torch.from_numpy(words[: rows * count]).view(count, rows).T.contiguous()


class Masks:
    """Masks of dropout for every word of an epoch, drawn anew from seed and epoch alone.

    All replicas share them, as they share the text: an interrupted run goes on as if nothing had
    happened, and runs that are trained apart see what they would see together. The numbers are those of
    the device's own generator.

    Attributes:
        kept: 1 with probability 1 - p, else 0, shape (T, batch, 2, size): for the words' vectors and for
            the layer's outputs. None where nothing is dropped.
    """

    def __init__(self, text: Text, protocol: LanguageProtocol, seed: int) -> None:
        self.seed, self.share = seed, 1 - protocol.dropout
        rows, batch = text.train.shape
        self.kept: Tensor | None = None
        if protocol.dropout:
            shape = (rows - 1, batch, 2, protocol.hidden)
            self.kept = torch.empty(shape, dtype=torch.uint8, device=text.device)

    def draw(self, epoch: int) -> None:
        if self.kept is not None:
            source = torch.Generator(self.kept.device).manual_seed(derived_seed(self.seed, "dropout", epoch))
            self.kept.bernoulli_(self.share, generator=source)
