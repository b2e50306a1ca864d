"""What an experiment is: a `Run`, the `Protocol` it follows, and the hash that names both.

A run trains one model on one dataset from one seed, at every learning rate and trial of its protocol.
It holds no state and no path of this machine, so the same run means the same experiment anywhere;
its hash is the key of the ledger.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from torchldr.matrices import get_structure

from .messages import unknown

CONVOLUTIONS = ("conv3", "conv3_pool", "conv4_pool")
REPLACEMENTS = ("channels", "wide", "channels_square", "wide_square", "channels_blocks", "wide_blocks")
MODELS = ("shl", "cnn", *CONVOLUTIONS, *REPLACEMENTS)
INITS = ("linear", "paper")
DTYPES = ("float32", "float64")
PRECISIONS = ("full", "bf16")
HASH_LENGTH = 16


class Replica(NamedTuple):
    """One of the networks that a run trains: its learning rate and which trial at that rate."""

    lr: float
    trial: int


@dataclass(frozen=True)
class Protocol:
    """How a run trains and how its result is chosen. The defaults are the paper's.

    Attributes:
        epochs: passes over the training images; a pruned network trains this long before and after.
        batch: images a step; the last step of an epoch takes what is left.
        momentum: of stochastic gradient descent.
        lrs: learning rates, each tried `trials` times from weights of its own.
        trials: see `lrs`.
        validation: share of the training images that select the result and train nothing.
        train_limit, test_limit: how many images to use at most; None means all.
        dtype: "float32" or "float64".
    """

    epochs: int = 50
    batch: int = 50
    momentum: float = 0.9
    lrs: tuple[float, ...] = (0.0002, 0.0005, 0.001, 0.002)
    trials: int = 3
    validation: float = 0.15
    train_limit: int | None = None
    test_limit: int | None = None
    dtype: str = "float32"

    models: ClassVar[tuple[str, ...]] = MODELS

    def __post_init__(self) -> None:
        who = type(self).__name__
        object.__setattr__(self, "lrs", tuple(float(lr) for lr in self.lrs))
        for part in fields(self):
            if part.type in ("int", "int | None"):
                check_whole(who, part.name, getattr(self, part.name), 1)
        for fits, what, got in self._rules():
            check(fits, f"{who}: {what}", got)
        check_choice(who, "dtype", self.dtype, DTYPES)

    def _rules(self) -> Iterator[tuple[Any, str, Any]]:
        """Conditions, with the message and the value to show if one does not hold."""
        positive = self.lrs and all(lr > 0 for lr in self.lrs)
        yield positive, "lrs must be one or more positive numbers", self.lrs
        yield 0 <= self.momentum < 1, "momentum must lie in [0, 1)", self.momentum
        yield 0 <= self.validation < 1, "validation must lie in [0, 1)", self.validation
        yield self.validation, "validation must exceed 0, it selects the result", self.validation

    @classmethod
    def quick(cls) -> Protocol:
        """A small version for a laptop: fewer epochs, rates, trials and images."""
        return cls(epochs=15, lrs=(0.0005, 0.002), trials=1, train_limit=3000, test_limit=2000)

    @property
    def is_quick(self) -> bool:
        """Whether this is less than the paper's protocol."""
        paper = type(self)()
        limited = self.train_limit is not None or self.test_limit is not None
        return limited or self.epochs < paper.epochs or self.trials < paper.trials

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The networks that are trained together, by learning rate, then by trial."""
        return tuple(Replica(lr, trial) for lr in self.lrs for trial in range(self.trials))


@dataclass(frozen=True)
class LanguageProtocol(Protocol):
    """How one layer of LSTM between an embedding and a decoder trains: by plain gradient descent.

    The settings are those of the PyTorch word-language-model example, as in the paper.

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

    def _rules(self) -> Iterator[tuple[Any, str, Any]]:
        fixed, sizes = [self.momentum, self.trials, self.validation], (self.hidden, self.embedding)
        yield len(self.lrs) == 1 and self.lrs[0] > 0, "lrs must be one positive rate", self.lrs
        yield fixed == [0, 1, 0], "momentum, trials and validation are 0, 1 and 0", fixed
        yield sizes[0] == sizes[1], "hidden and embedding must be equal, for square matrices", sizes
        yield 0 <= self.dropout < 1, "dropout must lie in [0, 1)", self.dropout
        yield self.bound >= 0, "bound must not be negative", self.bound
        yield self.clip > 0, "clip must be positive", self.clip
        yield self.anneal >= 1, "anneal must be at least 1", self.anneal
        check_choice("LanguageProtocol", "precision", self.precision, PRECISIONS)

    @classmethod
    def quick(cls) -> LanguageProtocol:
        """A small version for a laptop: two epochs over the first words."""
        return cls(epochs=2, train_limit=28_000, test_limit=7_000, precision="full")


@dataclass(frozen=True)
class Run:
    """One experiment: which network learns what, and from which seed.

    Attributes:
        data: a dataset's name, or the path of a user's .npz file.
        model: "shl" (single hidden layer), "cnn", one of the convolutions and replacements of `models`, or
            "lstm", which has a protocol of its own.
        structure: class of the hidden layer's weight; "dense" is the unstructured layer.
        rank: its rank; None is 1 for a class that has a rank.
        options: the class's own options, a mapping or sorted pairs.
        init: "linear" or "paper", as in `StructuredLinear`; with "paper" the recurrent matrices of a language
            model start at the identity and its biases at 0.
        init_std: where given, the weights that carry the scale (G and H, the S of Fastfood, or the only
            ones) start normal with this deviation instead, in all structured layers.
        output_std: where given, the output layer's weights start normal with this deviation and its
            biases at 0, instead of as `nn.Linear`'s.
        gain: where given, the hidden matrix of "shl", what replaces convolutions, or a language model's input
            matrices, are so many times what the class makes of their parameters. What replaces convolutions,
            and language models with init="linear", start with parameters that make up for it, so that a
            smaller gain makes the steps of the matrices smaller at the same rate. For language models
            `init_std` stays as it is.
        even: True gives each tensor of a language model's input matrices a rate of its own, at which a
            step moves the matrix as far as it would move a dense one (`torchldr.compress.even_factors`), and
            operators a tenth of that.
        l1: where given, so many times the absolute values of G and H of the layer that replaces convolutions
            are added to the loss.
        fixed: True leaves the operators of LDR-SD what they are at the start, shifts without a corner. That
            is the Toeplitz-like class as the authors trained it, and counted and named as such.
        bias: True gives convolutions, or the layer that replaces them, and the hidden layer behind it biases,
            as the authors' code has them: with convolutions both start as torch's own, else at 0. Parameters
            are counted without, as in the paper.
        one_bias: True gives the gates of a language model one bias, as the authors' code has it; `nn.LSTM`
            has two with the same gradient, so their sum learns twice as fast.
        hidden: number of hidden units; None is the size of the layer's input. Fewer is RHU.
        keep: where given, magnitude pruning of a dense hidden layer down to so many weights.
        weights: "int8" also scores the networks with weights rounded as `torchldr.quantize_` rounds them.
        train_fraction: share of the training images to train on; those for validation stay.
        seed: from which the split, the order of images and all initial weights are drawn.
        protocol: how it is trained.
    """

    data: str
    model: str = "shl"
    structure: str = "dense"
    rank: int | None = None
    options: tuple[tuple[str, Any], ...] = ()
    init: str = "linear"
    init_std: float | None = None
    output_std: float | None = None
    gain: float | None = None
    even: bool | None = None
    l1: float | None = None
    fixed: bool | None = None
    bias: bool | None = None
    one_bias: bool | None = None
    hidden: int | None = None
    keep: int | None = None
    weights: str | None = None
    train_fraction: float = 1.0
    seed: int = 0
    protocol: Protocol = field(default_factory=Protocol)

    def __post_init__(self) -> None:
        data: Any = self.data
        if not isinstance(data, str):
            raise TypeError(f"Run: data must be a name or a path, got {data!r}.")
        check_choice("Run", "model", self.model, self.protocol.models)
        check_choice("Run", "init", self.init, INITS)
        structure = get_structure(self.structure)
        given: Any = self.options
        pairs: Iterable[Any] = given.items() if isinstance(given, Mapping) else given
        object.__setattr__(self, "options", tuple(sorted((str(k), v) for k, v in pairs)))
        structure.check_options(dict(self.options))
        if structure.ranked and self.rank is None:
            object.__setattr__(self, "rank", 1)
        what = f"Run: the structure {self.structure!r} has no rank"
        check(structure.ranked or self.rank is None, what, f"rank={self.rank}")
        for name, least in (("rank", 1), ("hidden", 1), ("keep", 1), ("seed", 0)):
            check_whole("Run", name, getattr(self, name), least)
        share = self.train_fraction
        check(0 < share <= 1, "Run: train_fraction must lie in (0, 1]", share)
        for name in ("init_std", "output_std", "gain", "l1"):
            value = getattr(self, name)
            check(value is None or value > 0, f"Run: {name} must be positive", value)
        gained = ("shl", "lstm", *REPLACEMENTS)
        biased = tuple(m for m in (*CONVOLUTIONS, *REPLACEMENTS) if not m.endswith("_square"))
        self._check("keep", self.structure == "dense", "prunes a dense layer")
        rounds = self.weights == "int8" and self.model in ("shl", "cnn")
        self._check("weights", rounds, "is 'int8' or None and for the models shl and cnn")
        gains = self.model in gained and self.keep is None
        self._check("gain", gains, f"is for the models {', '.join(gained)} without keep")
        evens = self.even is True and self.model == "lstm" and self.gain is None
        self._check("even", evens, "is True or None and for the model lstm without gain")
        fixes = self.fixed is True and self.structure == "ldr_sd"
        self._check("fixed", fixes, "is True or None and for the structure 'ldr_sd'")
        biases = self.bias is True and self.model in biased
        self._check("bias", biases, f"is True or None and for the models {', '.join(biased)}")
        single = self.one_bias is True and self.model == "lstm"
        self._check("one_bias", single, "is True or None and for the model lstm")
        counts = self.model in REPLACEMENTS and structure.ranked
        self._check("l1", counts, f"is for the models {', '.join(REPLACEMENTS)} and classes with a rank")

    def _check(self, name: str, fits: bool, what: str) -> None:
        """Raise an error for a field that does not fit the others, and say what it is for."""
        value = getattr(self, name)
        if value is not None and not fits:
            others = f"with model={self.model!r}, structure={self.structure!r}, keep={self.keep}"
            check(False, f"Run: {name} {what}", f"{value!r} {others}")

    @property
    def epochs(self) -> int:
        """How many epochs it takes: those before pruning and those after."""
        return self.protocol.epochs * (2 if self.keep is not None else 1)

    @property
    def method(self) -> str:
        """What a table calls it: the structure's name, "pruning" or "rhu"."""
        if self.keep is not None:
            return "pruning"
        if self.fixed:
            return "toeplitz_like"
        return "rhu" if self.hidden is not None and self.structure == "dense" else self.structure

    @property
    def label(self) -> str:
        """A short description for messages and progress bars."""
        parts = [self.data, self.model, self.method]
        parts += [f"r={self.rank}"] if self.rank is not None else []
        parts += [f"hidden={self.hidden}"] if self.hidden is not None else []
        parts += [f"keep={self.keep}"] if self.keep is not None else []
        parts += [f"{self.train_fraction:.0%}"] if self.train_fraction < 1 else []
        return " ".join([*parts, *self.marks, f"seed={self.seed}"])

    @property
    def marks(self) -> list[str]:
        """What was chosen about its start and training: "std=0.01", "open", ..."""
        numbers = {"std": self.init_std, "output_std": self.output_std, "gain": self.gain, "l1": self.l1}
        precise = getattr(self.protocol, "precision", None) == "full" and not self.protocol.is_quick
        flags = {
            "even steps": self.even,
            "open": self.fixed,
            "bias": self.bias,
            "one bias": self.one_bias,
            "full precision": precise,
            "int8": self.weights,
        }
        chosen = [f"{name}={value:g}" for name, value in numbers.items() if value is not None]
        return chosen + [name for name, flag in flags.items() if flag]

    def config(self) -> dict[str, Any]:
        """All of it as JSON values. Fields that are None are left out, so that new fields change no hash."""
        config = {name: getattr(self, name) for name in self.__match_args__}
        config["options"] = dict(self.options) or None
        protocol = {name: getattr(self.protocol, name) for name in self.protocol.__match_args__}
        protocol["lrs"] = list(self.protocol.lrs)
        config["protocol"] = {k: v for k, v in protocol.items() if v is not None}
        return {k: v for k, v in config.items() if v is not None}

    @classmethod
    def from_config(cls, config: Any) -> Self:
        """The run that `config()` describes.

        Raises:
            ValueError: for an unknown key or an impossible value.
            TypeError: for a value of another kind.
        """
        config = _mapping("a config", config)
        protocol = _mapping("protocol", config.get("protocol", {}))
        # Each model is trained by one kind of protocol.
        kind = LanguageProtocol if config.get("model") in LanguageProtocol.models else Protocol
        unknown = [k for k in config if k not in cls.__match_args__]
        unknown += [f"protocol.{k}" for k in protocol if k not in kind.__match_args__]
        if unknown:
            raise ValueError(f"Run: unknown key {unknown[0]!r} in a config.")
        return cls(**{**config, "protocol": kind(**protocol)})

    @cached_property
    def hash(self) -> str:
        """The first digits of a sha256 over the config: equal runs have equal hashes everywhere."""
        text = json.dumps(self.config(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]

    @cached_property
    def seedless(self) -> str:
        """The hash of the run from seed 0: the same for all seeds."""
        return self.with_seed(0).hash

    def with_seed(self, seed: int) -> Run:
        return self if seed == self.seed else replace(self, seed=seed)


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"Run: {name} must be a mapping, got {type(value).__name__}.")
    return value


def check(fits: Any, what: str, got: Any) -> None:
    """Raise if a value does not fit, and say what it must be."""
    if not fits:
        raise ValueError(f"{what}, got {got}.")


def check_whole(who: str, name: str, value: Any, least: int) -> None:
    """Raise if a field is not an int of at least `least`; None passes."""
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{who}: {name} must be an int, got {value!r}.")
    check(value >= least, f"{who}: {name} must be at least {least}", value)


def check_choice(who: str, name: str, value: Any, known: tuple[str, ...]) -> None:
    """Raise where a field is not one of the known names."""
    if value not in known:
        raise ValueError(f"{who}: {unknown(name, value, known)}")
