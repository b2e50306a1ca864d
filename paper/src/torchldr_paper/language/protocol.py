"""How a language model trains: the settings of the PyTorch word-language-model example, as in the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..protocol import DTYPES, Protocol, check, check_choice, check_whole

PRECISIONS = ("full", "bf16")


@dataclass(frozen=True)
class LanguageProtocol(Protocol):
    """One layer of LSTM between an embedding and a decoder, trained by plain gradient descent.

    Attributes:
        epochs, batch, lrs: as in `Protocol`; the text is cut into `batch` columns that are read side by
            side. A rate is the first one: it is divided by `anneal` after an epoch without a better
            validation loss.
        momentum, trials, validation: 0, 1 and 0: neither momentum nor trials, and the corpus has its own
            part for validation.
        train_limit, test_limit: how many words of the training part, and of the validation and the test
            part, to use at most.
        hidden, embedding: sizes of the layer and of the words' vectors. They are equal, so that the
            structured matrices are square.
        bptt: words of a column a step; gradients stop there, the state goes on.
        evaluation_batch: columns of the validation and of the test part.
        clip: largest norm of a step's gradient over all parameters.
        dropout: of the embedded words and of the layer's outputs.
        anneal: see `lrs`.
        bound: after every step the entries of learned operators (subdiagonals and corners) are brought back
            into [-bound, bound]; 0 leaves them alone. At a learning rate of 20 they would pass 1, and
            products of 128 of them overflow within a hundred steps; below 1 the sums over shifts stay short.
        precision: "full" trains in `dtype` throughout; "bf16" multiplies the decoder's matrices in
            bfloat16 while it trains, as torch.autocast does, everything else in `dtype`.
    """

    epochs: int = 40
    batch: int = 20
    momentum: float = 0.0
    lrs: tuple[float, ...] = (20.0,)
    trials: int = 1
    validation: float = 0.0
    hidden: int = 128
    embedding: int = 128
    bptt: int = 35
    evaluation_batch: int = 10
    clip: float = 0.25
    dropout: float = 0.2
    anneal: float = 4.0
    bound: float = 0.9
    precision: str = "bf16"

    models: ClassVar[tuple[str, ...]] = ("lstm",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lrs", tuple(float(lr) for lr in self.lrs))
        for name in ("epochs", "batch", "hidden", "bptt", "evaluation_batch", "train_limit", "test_limit"):
            check_whole("LanguageProtocol", name, getattr(self, name), 1)
        fixed, sizes = [self.momentum, self.trials, self.validation], (self.hidden, self.embedding)
        for fits, what, got in (
            (len(self.lrs) == 1 and self.lrs[0] > 0, "lrs must be one positive rate", self.lrs),
            (fixed == [0, 1, 0], "momentum, trials and validation are 0, 1 and 0", fixed),
            (sizes[0] == sizes[1], "hidden and embedding must be equal, for square matrices", sizes),
            (0 <= self.dropout < 1, "dropout must lie in [0, 1)", self.dropout),
            (self.bound >= 0, "bound must not be negative", self.bound),
            (self.clip > 0, "clip must be positive", self.clip),
            (self.anneal >= 1, "anneal must be at least 1", self.anneal),
        ):
            check(fits, f"LanguageProtocol: {what}", got)
        check_choice("LanguageProtocol", "precision", self.precision, PRECISIONS)
        check_choice("LanguageProtocol", "dtype", self.dtype, DTYPES)

    @classmethod
    def quick(cls) -> LanguageProtocol:
        """A small version for a laptop: two epochs over the first words."""
        return cls(epochs=2, train_limit=28_000, test_limit=7_000, precision="full")

    @property
    def is_quick(self) -> bool:
        paper = LanguageProtocol()
        limited = self.train_limit is not None or self.test_limit is not None
        return limited or self.epochs < paper.epochs
