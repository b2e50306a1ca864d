"""The paper's tables of language models and of what replaces convolutions, and our variations on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..language.protocol import LanguageProtocol
from ..protocol import Protocol, Run
from . import values
from .cells import Cell, Table, paper_run

# The deviation of G and H, or None for the scale of nn.Linear; and the gain of the matrices.
LSTM_STARTS = ((None, None), (0.01, None), (0.03, None), (None, 0.1), (None, 0.01))
LSTM_START: Mapping[str, float] = {"toeplitz_like": 0.01}  # the others take None
LSTM_GAIN = 0.1
DENSE_STDS = (0.01, 0.1, 0.2, 0.4, 0.8)  # of the unstructured layer's input matrices
DENSE_GAINS = (0.1, 0.3, 0.4, 0.5, 0.7, 1.5, 3.0)
DENSE_BOTH = (0.02, 0.5)  # a deviation and a gain: matrices of deviation 0.01
LSTM_START_BUDGETS = (1, 4)  # of the table's six: 3072 and 17,408 parameters
CHANNELS_L1 = 1e-4  # of what replaces convolutions, as the authors trained it
AUTHORS_STD = 0.01  # of G and H there
TRIED_GAIN = 0.03  # of LDR-SD behind the authors' start, in trials
WIDE_GAINS = {"toeplitz_like": (0.003,), "ldr_sd": (0.003, 0.01)}  # of 3072: a step moves all shifts
WIDE_GAIN = {"toeplitz_like": 0.003, "ldr_sd": 0.01}  # the best by validation


def language_tables() -> tuple[Table, ...]:
    """The tables of both, in the order in which they are listed."""
    return (
        Table("lstm", "Test perplexity on WikiText-2, one LSTM layer", tuple(_lstm())),
        Table("lstm_gain", "Test perplexity on WikiText-2 with a gain of 0.1", tuple(_lstm_gain())),
        Table(
            "lstm_dense",
            "Test perplexity on WikiText-2, the unstructured layer by start, gain and precision",
            tuple(_lstm_dense()),
        ),
        Table(
            "lstm_authors",
            "Test perplexity on WikiText-2 from the authors' start",
            tuple(_lstm_authors()),
        ),
        Table(
            "lstm_starts",
            "Test perplexity on WikiText-2 after three epochs, by start",
            tuple(_lstm_starts()),
        ),
        Table("conv", "CIFAR-10, replacing convolutions", tuple(_convolution(square=False))),
        Table(
            "conv_square",
            "CIFAR-10, replacing convolutions, hidden layer cut out of a square one",
            tuple(_convolution(square=True)),
        ),
        Table(
            "conv_authors",
            "CIFAR-10, replacing convolutions as the authors' code does",
            tuple(_convolution_authors()),
        ),
        Table(
            "conv_trials",
            "CIFAR-10, the wide rows of conv_authors by start, two rates and one trial",
            tuple(_convolution_trials()),
        ),
        Table("conv_gain", "CIFAR-10, the wide rows without and with a gain", tuple(_convolution_gain())),
        Table(
            "conv_starts",
            "CIFAR-10, dense and Toeplitz-like rows by start",
            tuple(_convolution_starts()),
        ),
    )


def _lstm() -> Iterator[Cell]:
    def run(structure: str, rank: int | None = None) -> Run:
        std = LSTM_START.get(structure)
        return paper_run(
            "wikitext2", "lstm", structure, rank, init="linear", init_std=std, protocol=LanguageProtocol()
        )

    yield Cell(run("dense"), values.LSTM_DENSE, "Table 2", metric="perplexity")
    for structure, ranks in values.LSTM_RANKS.items():
        for rank, value in zip(ranks, values.LSTM[structure], strict=True):
            yield Cell(run(structure, rank), value, "Table 2", metric="perplexity")


def _lstm_gain() -> Iterator[Cell]:
    """A tenth of what the parameters make: a step moves the matrices less, at the same rate."""
    fields = {"init": "linear", "gain": LSTM_GAIN, "protocol": LanguageProtocol()}
    dense = paper_run("wikitext2", "lstm", "dense", None, **fields)
    yield Cell(dense, values.LSTM_DENSE, "Table 2", metric="perplexity")
    for structure, ranks in values.LSTM_RANKS.items():
        for rank, value in zip(ranks, values.LSTM[structure], strict=True):
            run = paper_run("wikitext2", "lstm", structure, rank, **fields)
            yield Cell(run, value, "Table 2", metric="perplexity")


def _lstm_dense() -> Iterator[Cell]:
    """The unstructured layer by start, by gain and by the precision of its decoder."""
    plain = paper_run("wikitext2", "lstm", "dense", init="linear", protocol=LanguageProtocol())
    runs = [plain, *(replace(plain, init_std=std) for std in DENSE_STDS)]
    runs += [replace(plain, gain=gain) for gain in DENSE_GAINS]
    runs += [replace(plain, init_std=DENSE_BOTH[0], gain=DENSE_BOTH[1])]
    runs += [replace(plain, protocol=LanguageProtocol(precision="full"))]
    for run in runs:
        yield Cell(run, values.LSTM_DENSE, "Table 2", metric="perplexity")


def _lstm_authors() -> Iterator[Cell]:
    """The start of the authors' own code, whose Toeplitz-like class has no corners."""
    protocol = LanguageProtocol()
    dense = paper_run("wikitext2", "lstm", "dense", protocol=protocol)
    yield Cell(dense, values.LSTM_DENSE, "Table 2", metric="perplexity")
    for structure, ranks in values.LSTM_RANKS.items():
        for rank, value in zip(ranks, values.LSTM[structure], strict=True):
            run = _as_the_authors("wikitext2", "lstm", structure, rank, protocol=protocol)
            yield Cell(run, value, "Table 2", metric="perplexity")


def _as_the_authors(data: str, model: str, structure: str, rank: int | None, **fields: object) -> Run:
    """Their form of a class: Toeplitz-like is LDR-SD whose operators stay shifts."""
    if structure == "toeplitz_like":
        return paper_run(data, model, "ldr_sd", rank, fixed=True, **fields)
    return paper_run(data, model, structure, rank, **fields)


def _lstm_starts() -> Iterator[Cell]:
    """Which start suits which class: three epochs each, judged by their validation."""
    protocol = LanguageProtocol(epochs=3)
    for structure, ranks in values.LSTM_RANKS.items():
        for std, gain in LSTM_STARTS:
            for budget in LSTM_START_BUDGETS:
                run = paper_run(
                    "wikitext2",
                    "lstm",
                    structure,
                    ranks[budget],
                    init="linear",
                    init_std=std,
                    gain=gain,
                    protocol=protocol,
                )
                yield Cell(run, None, "Table 2", metric="perplexity")


def _convolution(square: bool) -> Iterator[Cell]:
    """The hidden layer of the structured rows is native, or cut out of a square one as in the paper.

    Dense layers start as torch's own, as the authors' do; their Toeplitz-like class has no corners, and what
    they add to the loss of channels helps it (LDR-SD does without). Wide ones need a small gain.
    """
    for (model, structure, rank), (value, parameters) in values.CONVOLUTION.items():
        if structure == "dense" and square:
            continue
        fields: dict[str, object] = {"init": "linear"} if structure == "dense" else {}
        if (model, structure) == ("channels", "toeplitz_like"):
            fields["l1"] = CHANNELS_L1
        if model == "wide":
            fields["gain"] = WIDE_GAIN[structure]
        name = f"{model}_square" if square else model
        run = _as_the_authors("cifar10", name, structure, rank, **fields)
        yield Cell(run, value, "Table 3", parameters=parameters)


def _convolution_authors() -> Iterator[Cell]:
    """The structured rows as in the authors' code: a hidden layer of blocks, their start and L1 term."""
    for (model, structure, rank), (value, parameters) in values.CONVOLUTION.items():
        if structure != "dense":
            run = _as_the_authors(
                "cifar10", f"{model}_blocks", structure, rank, init_std=AUTHORS_STD, l1=CHANNELS_L1
            )
            yield Cell(run, value, "Table 3", parameters=parameters)


def _convolution_trials() -> Iterator[Cell]:
    """The wide rows of these by start, and LDR-SD with a gain: two rates, one trial."""
    slow, fast = (Protocol(lrs=lrs, trials=1) for lrs in ((0.0002, 0.0005), (0.001, 0.002)))
    for (model, structure, rank), (value, parameters) in values.CONVOLUTION.items():
        starts: list[dict[str, object]] = []
        if model == "wide":
            starts = [{"init_std": s, "l1": CHANNELS_L1, "protocol": slow} for s in (AUTHORS_STD, None)]
        if (model, structure) == ("wide", "ldr_sd"):
            starts.append({"init_std": AUTHORS_STD, "gain": TRIED_GAIN, "protocol": fast})
        for fields in starts:
            run = _as_the_authors("cifar10", f"{model}_blocks", structure, rank, **fields)
            yield Cell(run, value, "Table 3", parameters=parameters)


def _convolution_gain() -> Iterator[Cell]:
    """The wide rows without and with a gain, which makes the first layer's steps smaller than the others'."""
    for (model, structure, rank), (value, parameters) in values.CONVOLUTION.items():
        for gain in (None, *WIDE_GAINS[structure]) if model == "wide" else ():
            run = _as_the_authors("cifar10", model, structure, rank, gain=gain)
            yield Cell(run, value, "Table 3", parameters=parameters)


def _convolution_starts() -> Iterator[Cell]:
    """Dense and Toeplitz-like rows by start, the latter in the library's own form, with corners."""
    for (model, structure, rank), (value, parameters) in values.CONVOLUTION.items():
        for init in ("paper", "linear") if structure != "ldr_sd" else ():
            run = paper_run("cifar10", model, structure, rank, init=init)
            yield Cell(run, value, "Table 3", parameters=parameters)
        if structure == "dense":  # with the biases of the authors' code
            run = paper_run("cifar10", model, structure, rank, init="linear", bias=True)
            yield Cell(run, value, "Table 3", parameters=parameters)
