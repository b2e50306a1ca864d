"""The paper's tables of language models and of what replaces convolutions, and our variations on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from ..protocol import LanguageProtocol, Protocol, Run
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


Cells = tuple[Cell, ...]


def language_tables() -> tuple[Table, ...]:
    """The tables of both, in the order in which they are listed."""
    perplexity, conv = "Test perplexity on WikiText-2", "CIFAR-10, replacing convolutions"
    return (
        Table("lstm", f"{perplexity}, one LSTM layer", _of_each_class(_lstm)),
        Table("lstm_gain", f"{perplexity} with a gain of {LSTM_GAIN}", _of_each_class(_with_gain)),
        Table("lstm_even", f"{perplexity} with even steps", _of_each_class(_even)),
        Table("lstm_dense", f"{perplexity}, the unstructured layer by start, gain and precision", _dense()),
        Table("lstm_authors", f"{perplexity} from the authors' start", _of_each_class(_authors)),
        Table("lstm_bias", f"{perplexity} from the authors' start with one bias", _one_bias()),
        Table("lstm_starts", f"{perplexity} after three epochs, by start", _starts()),
        Table("conv", conv, _of_each_row(_native)),
        Table("conv_square", f"{conv}, hidden layer cut out of a square one", _of_each_row(_square)),
        Table("conv_authors", f"{conv} as the authors' code does", _of_each_row(_blocks)),
        Table(
            "conv_trials",
            "CIFAR-10, the wide rows of conv_authors by start, two rates and one trial",
            _of_each_row(_trials),
        ),
        Table("conv_gain", "CIFAR-10, the wide rows without and with a gain", _of_each_row(_gains)),
        Table("conv_starts", "CIFAR-10, dense and Toeplitz-like rows by start", _of_each_row(_by_start)),
    )


# Language models, by class and rank.


def _of_each_class(run: Callable[[str, int | None], Run]) -> Cells:
    """The unstructured layer, and every class at every rank of the paper's table."""
    rows: list[tuple[str, int | None, float]] = [("dense", None, values.LSTM_DENSE)]
    for structure, ranks in values.LSTM_RANKS.items():
        rows += [(structure, *pair) for pair in zip(ranks, values.LSTM[structure], strict=True)]
    return tuple(_perplexity(run(structure, rank), value) for structure, rank, value in rows)


def _perplexity(run: Run, paper: float | None) -> Cell:
    return Cell(run, paper, "Table 2", metric="perplexity")


def _wikitext(structure: str, rank: int | None = None, **fields: object) -> Run:
    return paper_run("wikitext2", "lstm", structure, rank, **{"protocol": LanguageProtocol(), **fields})


def _lstm(structure: str, rank: int | None) -> Run:
    return _wikitext(structure, rank, init="linear", init_std=LSTM_START.get(structure))


def _with_gain(structure: str, rank: int | None) -> Run:
    """A tenth of what the parameters make: a step moves the matrices less, at the same rate."""
    return _wikitext(structure, rank, init="linear", gain=LSTM_GAIN)


def _even(structure: str, rank: int | None) -> Run:
    """Every tensor at the rate that `parameter_groups` gives it; the unstructured layer is as it was."""
    return _wikitext(structure, rank, init="linear", even=None if structure == "dense" else True)


def _authors(structure: str, rank: int | None) -> Run:
    """The start of the authors' own code, whose Toeplitz-like class has no corners."""
    return _as_the_authors("wikitext2", "lstm", structure, rank, protocol=LanguageProtocol())


def _one_bias() -> Cells:
    """What is worse than the paper from the authors' start, with the one bias of their code."""
    cells = (cell for cell in _of_each_class(_authors) if cell.run.method in ("dense", "toeplitz_like"))
    return tuple(replace(cell, run=replace(cell.run, one_bias=True)) for cell in cells)


def _dense() -> Cells:
    """The unstructured layer by start, by gain and by the precision of its decoder."""
    plain = _wikitext("dense", init="linear")
    runs = [plain, *(replace(plain, init_std=std) for std in DENSE_STDS)]
    runs += [replace(plain, gain=gain) for gain in DENSE_GAINS]
    runs += [replace(plain, init_std=DENSE_BOTH[0], gain=DENSE_BOTH[1])]
    runs += [replace(plain, protocol=LanguageProtocol(precision="full"))]
    return tuple(_perplexity(run, values.LSTM_DENSE) for run in runs)


def _starts() -> Cells:
    """Which start suits which class: three epochs each, judged by their validation."""
    fields = {"init": "linear", "protocol": LanguageProtocol(epochs=3)}
    return tuple(
        _perplexity(_wikitext(structure, ranks[budget], init_std=std, gain=gain, **fields), None)
        for structure, ranks in values.LSTM_RANKS.items()
        for std, gain in LSTM_STARTS
        for budget in LSTM_START_BUDGETS
    )


# What replaces convolutions, by network, class and rank.


def _of_each_row(runs: Callable[[str, str, int | None], Iterable[Run]]) -> Cells:
    """What stands beside each row of the paper's table."""
    return tuple(
        Cell(run, value, "Table 3", parameters=parameters)
        for row, (value, parameters) in values.CONVOLUTION.items()
        for run in runs(*row)
    )


def _as_the_authors(data: str, model: str, structure: str, rank: int | None, **fields: object) -> Run:
    """Their form of a class: Toeplitz-like is LDR-SD whose operators stay shifts."""
    if structure == "toeplitz_like":
        return paper_run(data, model, "ldr_sd", rank, fixed=True, **fields)
    return paper_run(data, model, structure, rank, **fields)


def _native(model: str, structure: str, rank: int | None, cut: str = "") -> Iterator[Run]:
    """The rows with a hidden layer of their own shape.

    Dense layers start as torch's own, as the authors' do; their Toeplitz-like class has no corners, and what
    they add to the loss of channels helps it (LDR-SD does without). Wide ones need a small gain.
    """
    fields: dict[str, object] = {"init": "linear"} if structure == "dense" else {}
    if (model, structure) == ("channels", "toeplitz_like"):
        fields["l1"] = CHANNELS_L1
    if model == "wide":
        fields["gain"] = WIDE_GAIN[structure]
    yield _as_the_authors("cifar10", model + cut, structure, rank, **fields)


def _square(model: str, structure: str, rank: int | None) -> Iterator[Run]:
    """The structured rows with a hidden layer that is cut out of a square one, as in the paper."""
    if structure != "dense":
        yield from _native(model, structure, rank, cut="_square")


def _blocks(model: str, structure: str, rank: int | None) -> Iterator[Run]:
    """The structured rows as in the authors' code: a hidden layer of blocks, their start and L1 term."""
    if structure != "dense":
        start = {"init_std": AUTHORS_STD, "l1": CHANNELS_L1}
        yield _as_the_authors("cifar10", f"{model}_blocks", structure, rank, **start)


def _trials(model: str, structure: str, rank: int | None) -> Iterator[Run]:
    """The wide rows of these by start, and LDR-SD with a gain: two rates, one trial."""
    slow, fast = (Protocol(lrs=lrs, trials=1) for lrs in ((0.0002, 0.0005), (0.001, 0.002)))
    starts: list[dict[str, object]] = []
    if model == "wide":
        starts = [{"init_std": s, "l1": CHANNELS_L1, "protocol": slow} for s in (AUTHORS_STD, None)]
    if (model, structure) == ("wide", "ldr_sd"):
        starts.append({"init_std": AUTHORS_STD, "gain": TRIED_GAIN, "protocol": fast})
    for fields in starts:
        yield _as_the_authors("cifar10", f"{model}_blocks", structure, rank, **fields)


def _gains(model: str, structure: str, rank: int | None) -> Iterator[Run]:
    """The wide rows without and with a gain, which makes the first layer's steps smaller than the others'."""
    for gain in (None, *WIDE_GAINS[structure]) if model == "wide" else ():
        yield _as_the_authors("cifar10", model, structure, rank, gain=gain)


def _by_start(model: str, structure: str, rank: int | None) -> Iterator[Run]:
    """Dense and Toeplitz-like rows by start, the latter in the library's own form, with corners."""
    for init in ("paper", "linear") if structure != "ldr_sd" else ():
        yield paper_run("cifar10", model, structure, rank, init=init)
    if structure == "dense":  # with the biases of the authors' code
        yield paper_run("cifar10", model, structure, rank, init="linear", bias=True)
