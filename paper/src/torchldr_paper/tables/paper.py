"""The paper's tables and figures as lists of runs, each with the paper's value beside it.

`TABLES` has them by the names that `torchldr paper` takes. A table is data: which runs, which number of
a run is compared (`metric`), and where in the paper the value stands. `rows` fills it in from a ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import MappingProxyType

from ..messages import unknown
from ..protocol import Protocol
from . import values
from .cells import LOW_RANK_START, Cell, Table, paper_run
from .flash import flash_table
from .language import language_tables

SHL_DATA = ("mnist_bg_rot", "mnist_noise_6", "cifar10_grey", "norb")
CNN_DATA = ("mnist_bg_rot", "mnist_noise_6", "cifar10", "norb")
RANK_PROTOCOL = Protocol(trials=5)
SCALES = (0.005, 0.01, 0.018, 0.03, 0.06)
FASTFOOD_SCALES = (0.3, 1.0, 3.0)
FASTFOOD_GAINS = (32.0, 1024.0)
OUTPUT_SCALES = (0.1, 0.3, 1.0, 3.0)
FASTFOOD_GAIN = 1024.0  # on 784 pixels: the authors' two Hadamard transforms are not normalised
SWEEPS = ("scales", "lstm_starts", "conv_starts")  # tables of starts, beside those of the paper


def _rectangles() -> Iterator[Cell]:
    for (structure, rank), value in values.RECTANGLES.items():
        start = LOW_RANK_START if structure == "low_rank" else {}
        start = {"gain": FASTFOOD_GAIN} if structure == "fastfood" else start
        yield Cell(paper_run("rectangles", "shl", structure, rank, **start), value, "Table 13")


def _shl() -> Iterator[Cell]:
    for column, data in enumerate(SHL_DATA):
        for (structure, rank), four in values.SHL.items():
            yield Cell(paper_run(data, "shl", structure, rank), four[column], "Tables 1 and 6")
        sixteen = values.SHL["dense", None][column] + values.SHL_RANK_16_GAIN[column]
        yield Cell(paper_run(data, "shl", "ldr_sd", 16), round(sixteen, 2), "Section 5.1")


def _cnn() -> Iterator[Cell]:
    for column, data in enumerate(CNN_DATA):
        for (structure, rank), four in values.CNN.items():
            yield Cell(paper_run(data, "cnn", structure, rank), four[column], "Table 7")
        source = "footnote of Section 5" if column > 1 else "Table 9"
        yield Cell(paper_run(data, "cnn", "ldr_sd", 16), values.CNN_RANK_16[column], source)


def _budgets(baseline: str) -> Iterator[Cell]:
    """LDR-SD beside pruning or RHU at equal budgets; the hidden layer has 784 inputs on both sets."""
    for (model, data), columns in values.BUDGETS.items():
        source = "Table 8" if model == "shl" else "Table 9"
        for i, rank in enumerate(values.BUDGET_RANKS):
            yield Cell(paper_run(data, model, "ldr_sd", rank), columns["ldr_sd"][i], source, matches=rank)
            limit = {"keep": 2 * 784 * (rank + 1)} if baseline == "pruning" else {}
            limit |= {"hidden": values.RHU_UNITS[model][i]} if baseline == "rhu" else {}
            yield Cell(paper_run(data, model, "dense", **limit), columns[baseline][i], source, matches=rank)


def _samples() -> Iterator[Cell]:
    for (model, data), rows in values.SAMPLES.items():
        source = "Table 10" if model == "shl" else "Table 11"
        for structure, four in rows.items():
            for fraction, value in zip(values.FRACTIONS, four, strict=True):
                run = paper_run(data, model, structure, _one(structure), train_fraction=fraction)
                yield Cell(run, value, source)


def _generalization() -> Iterator[Cell]:
    for column, data in enumerate(SHL_DATA):
        for structure, four in values.GENERALIZATION.items():
            run = paper_run(data, "shl", structure, _one(structure))
            yield Cell(run, four[column], "Table 12", metric="generalization")


def _rank() -> Iterator[Cell]:
    for column, data in enumerate(SHL_DATA):
        dense = values.SHL["dense", None][column]
        yield Cell(paper_run(data, "shl", "dense", protocol=RANK_PROTOCOL), None, "Figure 3", metric="mean")
        for structure in ("ldr_sd", "toeplitz_like", "low_rank"):
            for rank in values.BUDGET_RANKS:
                stated = structure == "ldr_sd" and rank == 16
                value = round(dense + values.SHL_RANK_16_GAIN[column], 2) if stated else None
                run = paper_run(data, "shl", structure, rank, protocol=RANK_PROTOCOL)
                yield Cell(run, value, "Figure 3", metric="mean")


def _noise() -> Iterator[Cell]:
    for level in range(1, 7):
        for structure in ("dense", "ldr_sd", "ldr_td"):
            rank = _one(structure)
            value = values.SHL[structure, rank][1] if level == 6 else None
            yield Cell(paper_run(f"mnist_noise_{level}", "shl", structure, rank), value, "Tables 1 and 6")


def _scales() -> Iterator[Cell]:
    """Every start of the hidden layer with every start of the output layer."""
    outputs = (None, *OUTPUT_SCALES)
    value = values.RECTANGLES["low_rank", 4]
    for output, init in product(outputs, ("linear", "paper")):
        run = paper_run("rectangles", "shl", "low_rank", 4, init=init, output_std=output)
        yield Cell(run, value, "Table 13")
    for output, std in product(outputs, SCALES):
        yield Cell(
            paper_run("rectangles", "shl", "low_rank", 4, init_std=std, output_std=output), value, "Table 13"
        )
    value = values.RECTANGLES["fastfood", None]
    for output, start in product(outputs, (None, *FASTFOOD_SCALES)):
        run = paper_run("rectangles", "shl", "fastfood", init_std=start, output_std=output)
        yield Cell(run, value, "Table 13")
    for gain in FASTFOOD_GAINS:
        yield Cell(paper_run("rectangles", "shl", "fastfood", gain=gain), value, "Table 13")


def _shl_open() -> Iterator[Cell]:
    """Toeplitz-like as the authors' code has it, where both operators are shifts without a corner."""
    for rank in (2, 4):
        value = values.SHL["toeplitz_like", rank][SHL_DATA.index("cifar10_grey")]
        run = paper_run("cifar10_grey", "shl", "ldr_sd", rank, fixed=True)
        yield Cell(run, value, "Tables 1 and 6")


def _one(structure: str) -> int | None:
    return None if structure == "dense" else 1


_TABLES = (
    Table("rectangles", "Rectangles, single hidden layer", tuple(_rectangles())),
    Table("shl", "Single hidden layer, both budgets", tuple(_shl()), values.LITERATURE),
    Table("cnn", "CNN, both budgets", tuple(_cnn())),
    Table("pruning", "LDR-SD and magnitude pruning at equal budgets", tuple(_budgets("pruning"))),
    Table("rhu", "LDR-SD and fewer hidden units at equal budgets", tuple(_budgets("rhu"))),
    Table("samples", "Sample complexity, rank one", tuple(_samples())),
    Table("generalization", "Generalisation error, rank one", tuple(_generalization())),
    Table("rank", "Accuracy against rank, mean of five trials", tuple(_rank())),
    Table("noise", "Six levels of noise, rank one", tuple(_noise())),
    *language_tables(),
    flash_table(),
    Table("shl_open", "Toeplitz-like single hidden layers without corners", tuple(_shl_open())),
    Table("scales", "Low rank and Fastfood on Rectangles by initial scale", tuple(_scales())),
)
TABLES: Mapping[str, Table] = MappingProxyType({table.name: table for table in _TABLES})
"""The paper's tables by name: what `torchldr paper list` prints."""


def get_table(name: str) -> Table:
    """The table of this name.

    Raises:
        ValueError: for an unknown one, with the nearest known.
    """
    if name not in TABLES:
        raise ValueError(unknown("table", name, TABLES))
    return TABLES[name]
