"""The paper's tables and figures as lists of runs, each with the paper's value beside it.

`TABLES` has them by the names that `torchldr paper` takes. A table is data: which runs, which number of
a run is compared (`metric`), and where in the paper the value stands. `tables` fills it in from a ledger.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType

from . import paper_values as values
from .language.protocol import LanguageProtocol
from .protocol import Protocol, Run

SHL_DATA = ("mnist_bg_rot", "mnist_noise_6", "cifar10_grey", "norb")
CNN_DATA = ("mnist_bg_rot", "mnist_noise_6", "cifar10", "norb")
RANK_PROTOCOL = Protocol(trials=5)
SCALES = (0.005, 0.01, 0.018, 0.03, 0.06)
FASTFOOD_SCALES = (0.3, 1.0, 3.0)
FASTFOOD_GAINS = (32.0, 1024.0)
OUTPUT_SCALES = (0.1, 0.3, 1.0, 3.0)
FASTFOOD_GAIN = 1024.0  # on 784 pixels: the authors' two Hadamard transforms are not normalised
LOW_RANK_START = {"init_std": 0.01, "output_std": 3.0}  # the best of these on Rectangles, by validation
# The deviation of G and H, or None for the scale of nn.Linear; and the gain of the matrices.
LSTM_STARTS = ((None, None), (0.01, None), (0.03, None), (None, 0.1), (None, 0.01))
LSTM_START: Mapping[str, float] = {"toeplitz_like": 0.01}  # the others take None
LSTM_GAIN = 0.1
DENSE_STDS = (0.01, 0.1, 0.2, 0.4, 0.8)  # of the unstructured layer's input matrices
DENSE_GAINS = (0.1, 0.3, 0.4, 0.5, 0.7, 1.5, 3.0)
DENSE_BOTH = (0.02, 0.5)  # a deviation and a gain: matrices of deviation 0.01
LSTM_START_BUDGETS = (1, 4)  # of the table's six: 3072 and 17,408 parameters
SWEEPS = ("scales", "lstm_starts", "conv_starts")  # tables of starts, beside those of the paper
CHANNELS_L1 = 1e-4  # of what replaces convolutions, as the authors trained it
AUTHORS_STD = 0.01  # of G and H there
TRIED_GAIN = 0.03  # of LDR-SD behind the authors' start, in trials
WIDE_GAINS = {"toeplitz_like": (0.003,), "ldr_sd": (0.003, 0.01)}  # of 3072: a step moves all shifts
WIDE_GAIN = {"toeplitz_like": 0.003, "ldr_sd": 0.01}  # the best by validation


@dataclass(frozen=True)
class Cell:
    """One number of the paper, or one that belongs beside it.

    Attributes:
        run: what to run, from seed 0 and by the full protocol.
        paper: the paper's value, None where it has none.
        source: where in the paper it stands.
        metric: "test", "mean" (of the trials at the best learning rate), "generalization" (training
            less test accuracy) or "perplexity" (of the test part: less is better).
        matches: rank of the LDR-SD layer whose budget this one matches.
        parameters: as the paper counts them, where that may differ from our count.
    """

    run: Run
    paper: float | None
    source: str
    metric: str = "test"
    matches: int | None = None
    parameters: int | None = None


@dataclass(frozen=True)
class Quoted:
    """A number of the literature that the paper quotes: an accuracy on MNIST-bg-rot."""

    source: str
    method: str
    parameters: int
    test: float
    data: str = "mnist_bg_rot"


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    quoted: tuple[Quoted, ...] = ()

    def runs(self) -> tuple[Run, ...]:
        """Its runs without repetition, in order."""
        return tuple({cell.run.hash: cell.run for cell in self.cells}.values())

    def changed(self, change: Callable[[Run], Run]) -> Table:
        """The same table with other runs: another protocol, another start."""
        return replace(self, cells=tuple(replace(cell, run=change(cell.run)) for cell in self.cells))


def _run(data: str, model: str, structure: str, rank: int | None = None, **fields: object) -> Run:
    return Run(data, model, structure, rank, **{"init": "paper", **fields})  # type: ignore[arg-type]


def _rectangles() -> Iterator[Cell]:
    for (structure, rank), value in values.RECTANGLES.items():
        start = LOW_RANK_START if structure == "low_rank" else {}
        start = {"gain": FASTFOOD_GAIN} if structure == "fastfood" else start
        yield Cell(_run("rectangles", "shl", structure, rank, **start), value, "Table 13")


def _shl() -> Iterator[Cell]:
    for column, data in enumerate(SHL_DATA):
        for (structure, rank), four in values.SHL.items():
            yield Cell(_run(data, "shl", structure, rank), four[column], "Tables 1 and 6")
        sixteen = values.SHL["dense", None][column] + values.SHL_RANK_16_GAIN[column]
        yield Cell(_run(data, "shl", "ldr_sd", 16), round(sixteen, 2), "Section 5.1")


def _cnn() -> Iterator[Cell]:
    for column, data in enumerate(CNN_DATA):
        for (structure, rank), four in values.CNN.items():
            yield Cell(_run(data, "cnn", structure, rank), four[column], "Table 7")
        source = "footnote of Section 5" if column > 1 else "Table 9"
        yield Cell(_run(data, "cnn", "ldr_sd", 16), values.CNN_RANK_16[column], source)


def _budgets(baseline: str) -> Iterator[Cell]:
    """LDR-SD beside pruning or RHU at equal budgets; the hidden layer has 784 inputs on both sets."""
    for (model, data), columns in values.BUDGETS.items():
        source = "Table 8" if model == "shl" else "Table 9"
        for i, rank in enumerate(values.BUDGET_RANKS):
            yield Cell(_run(data, model, "ldr_sd", rank), columns["ldr_sd"][i], source, matches=rank)
            limit = {"keep": 2 * 784 * (rank + 1)} if baseline == "pruning" else {}
            limit |= {"hidden": values.RHU_UNITS[model][i]} if baseline == "rhu" else {}
            yield Cell(_run(data, model, "dense", **limit), columns[baseline][i], source, matches=rank)


def _samples() -> Iterator[Cell]:
    for (model, data), rows in values.SAMPLES.items():
        source = "Table 10" if model == "shl" else "Table 11"
        for structure, four in rows.items():
            for fraction, value in zip(values.FRACTIONS, four, strict=True):
                run = _run(data, model, structure, _one(structure), train_fraction=fraction)
                yield Cell(run, value, source)


def _generalization() -> Iterator[Cell]:
    for column, data in enumerate(SHL_DATA):
        for structure, four in values.GENERALIZATION.items():
            run = _run(data, "shl", structure, _one(structure))
            yield Cell(run, four[column], "Table 12", metric="generalization")


def _rank() -> Iterator[Cell]:
    for column, data in enumerate(SHL_DATA):
        dense = values.SHL["dense", None][column]
        yield Cell(_run(data, "shl", "dense", protocol=RANK_PROTOCOL), None, "Figure 3", metric="mean")
        for structure in ("ldr_sd", "toeplitz_like", "low_rank"):
            for rank in values.BUDGET_RANKS:
                stated = structure == "ldr_sd" and rank == 16
                value = round(dense + values.SHL_RANK_16_GAIN[column], 2) if stated else None
                run = _run(data, "shl", structure, rank, protocol=RANK_PROTOCOL)
                yield Cell(run, value, "Figure 3", metric="mean")


def _noise() -> Iterator[Cell]:
    for level in range(1, 7):
        for structure in ("dense", "ldr_sd", "ldr_td"):
            rank = _one(structure)
            value = values.SHL[structure, rank][1] if level == 6 else None
            yield Cell(_run(f"mnist_noise_{level}", "shl", structure, rank), value, "Tables 1 and 6")


def _scales() -> Iterator[Cell]:
    """Every start of the hidden layer with every start of the output layer."""
    outputs = (None, *OUTPUT_SCALES)
    value = values.RECTANGLES["low_rank", 4]
    for output, init in product(outputs, ("linear", "paper")):
        run = _run("rectangles", "shl", "low_rank", 4, init=init, output_std=output)
        yield Cell(run, value, "Table 13")
    for output, std in product(outputs, SCALES):
        yield Cell(
            _run("rectangles", "shl", "low_rank", 4, init_std=std, output_std=output), value, "Table 13"
        )
    value = values.RECTANGLES["fastfood", None]
    for output, start in product(outputs, (None, *FASTFOOD_SCALES)):
        run = _run("rectangles", "shl", "fastfood", init_std=start, output_std=output)
        yield Cell(run, value, "Table 13")
    for gain in FASTFOOD_GAINS:
        yield Cell(_run("rectangles", "shl", "fastfood", gain=gain), value, "Table 13")


def _lstm() -> Iterator[Cell]:
    def run(structure: str, rank: int | None = None) -> Run:
        std = LSTM_START.get(structure)
        return _run(
            "wikitext2", "lstm", structure, rank, init="linear", init_std=std, protocol=LanguageProtocol()
        )

    yield Cell(run("dense"), values.LSTM_DENSE, "Table 2", metric="perplexity")
    for structure, ranks in values.LSTM_RANKS.items():
        for rank, value in zip(ranks, values.LSTM[structure], strict=True):
            yield Cell(run(structure, rank), value, "Table 2", metric="perplexity")


def _lstm_gain() -> Iterator[Cell]:
    """A tenth of what the parameters make: a step moves the matrices less, at the same rate."""
    fields = {"init": "linear", "gain": LSTM_GAIN, "protocol": LanguageProtocol()}
    dense = _run("wikitext2", "lstm", "dense", None, **fields)
    yield Cell(dense, values.LSTM_DENSE, "Table 2", metric="perplexity")
    for structure, ranks in values.LSTM_RANKS.items():
        for rank, value in zip(ranks, values.LSTM[structure], strict=True):
            run = _run("wikitext2", "lstm", structure, rank, **fields)
            yield Cell(run, value, "Table 2", metric="perplexity")


def _lstm_dense() -> Iterator[Cell]:
    """The unstructured layer by start, by gain and by the precision of its decoder."""
    plain = _run("wikitext2", "lstm", "dense", init="linear", protocol=LanguageProtocol())
    runs = [plain, *(replace(plain, init_std=std) for std in DENSE_STDS)]
    runs += [replace(plain, gain=gain) for gain in DENSE_GAINS]
    runs += [replace(plain, init_std=DENSE_BOTH[0], gain=DENSE_BOTH[1])]
    runs += [replace(plain, protocol=LanguageProtocol(precision="full"))]
    for run in runs:
        yield Cell(run, values.LSTM_DENSE, "Table 2", metric="perplexity")


def _lstm_authors() -> Iterator[Cell]:
    """The start of the authors' own code, whose Toeplitz-like class has no corners."""
    protocol = LanguageProtocol()
    dense = _run("wikitext2", "lstm", "dense", protocol=protocol)
    yield Cell(dense, values.LSTM_DENSE, "Table 2", metric="perplexity")
    for structure, ranks in values.LSTM_RANKS.items():
        for rank, value in zip(ranks, values.LSTM[structure], strict=True):
            run = _as_the_authors("wikitext2", "lstm", structure, rank, protocol=protocol)
            yield Cell(run, value, "Table 2", metric="perplexity")


def _as_the_authors(data: str, model: str, structure: str, rank: int | None, **fields: object) -> Run:
    """Their form of a class: Toeplitz-like is LDR-SD whose operators stay shifts."""
    if structure == "toeplitz_like":
        return _run(data, model, "ldr_sd", rank, fixed=True, **fields)
    return _run(data, model, structure, rank, **fields)


def _lstm_starts() -> Iterator[Cell]:
    """Which start suits which class: three epochs each, judged by their validation."""
    protocol = LanguageProtocol(epochs=3)
    for structure, ranks in values.LSTM_RANKS.items():
        for std, gain in LSTM_STARTS:
            for budget in LSTM_START_BUDGETS:
                run = _run(
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
            run = _run("cifar10", model, structure, rank, init=init)
            yield Cell(run, value, "Table 3", parameters=parameters)
        if structure == "dense":  # with the biases of the authors' code
            run = _run("cifar10", model, structure, rank, init="linear", bias=True)
            yield Cell(run, value, "Table 3", parameters=parameters)


def _one(structure: str) -> int | None:
    return None if structure == "dense" else 1


def _quoted() -> tuple[Quoted, ...]:
    return tuple(
        Quoted(source, method, parameters, round(100 - error, 2))
        for source, method, parameters, error in values.LITERATURE
    )


TABLES: Mapping[str, Table] = MappingProxyType(
    {
        table.name: table
        for table in (
            Table("rectangles", "Rectangles, single hidden layer", tuple(_rectangles())),
            Table("shl", "Single hidden layer, both budgets", tuple(_shl()), _quoted()),
            Table("cnn", "CNN, both budgets", tuple(_cnn())),
            Table("pruning", "LDR-SD and magnitude pruning at equal budgets", tuple(_budgets("pruning"))),
            Table("rhu", "LDR-SD and fewer hidden units at equal budgets", tuple(_budgets("rhu"))),
            Table("samples", "Sample complexity, rank one", tuple(_samples())),
            Table("generalization", "Generalisation error, rank one", tuple(_generalization())),
            Table("rank", "Accuracy against rank, mean of five trials", tuple(_rank())),
            Table("noise", "Six levels of noise, rank one", tuple(_noise())),
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
            Table("scales", "Low rank and Fastfood on Rectangles by initial scale", tuple(_scales())),
        )
    }
)


def get_table(name: str) -> Table:
    """The table of this name.

    Raises:
        ValueError: for an unknown one, with the nearest known.
    """
    if name in TABLES:
        return TABLES[name]
    near = difflib.get_close_matches(name, TABLES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown table {name!r}.{hint} Known: {', '.join(TABLES)}.")
