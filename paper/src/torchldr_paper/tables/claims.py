"""The paper's headline claims, each true or false on our runs, with the numbers that decide it.

A claim compares means over seeds. On stand-in data it says whether the same holds there, and is marked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ledger.ledger import Ledger
from .paper import get_table
from .rows import Row, table_rows

FIXED = ("toeplitz_like", "hankel_like", "vandermonde_like", "low_rank")
LEARNED = ("ldr_sd", "ldr_td")
SPEED_FROM = 4096  # from which size on the paper has LDR-SD ahead of an unstructured product
_NAMES = {"ldr_sd": "LDR-SD", "ldr_td": "LDR-TD", "dense": "unstructured", "low_rank": "low rank"}
_NAMES |= {"toeplitz_like": "Toeplitz-like", "hankel_like": "Hankel-like"}
_DATA = {"mnist_bg_rot": "MNIST-bg-rot", "mnist_noise_6": "MNIST-noise", "cifar10_grey": "CIFAR-10 in grey"}
_DATA |= {"cifar10": "CIFAR-10"}


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper on one dataset: `holds` is None where runs are missing."""

    claim: str
    where: str
    data: str
    source: str | None
    holds: bool | None
    numbers: str

    def row(self) -> Row:
        keys = ("claim", "where", "data", "source", "holds", "numbers")
        return {key: getattr(self, key) for key in keys}


def claims(ledger: Ledger, benchmarks: Path | None = None) -> list[Row]:
    """The claims as rows; `benchmarks` is a folder with ldr_sd_speed.json, for the claim about speed."""
    found = [claim for part in _PARTS for claim in part(_Results(ledger))]
    return [claim.row() for claim in (*found, *_speed(benchmarks))]


class _Results:
    """Numbers by table and cell."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._rows = ledger, dict[str, list[Row]]()

    def find(
        self, table: str, dataset: str, structure: str, rank: int | None = None, **more: Any
    ) -> Row | None:
        """The row of a cell that has been run."""
        if table not in self._rows:
            self._rows[table] = table_rows(get_table(table), self._ledger)
        wanted = {"dataset": dataset, "structure": structure, "rank": rank, **more}
        rows = (row for row in self._rows[table] if row["test"] is not None)
        return next((row for row in rows if all(row[key] == wanted[key] for key in wanted)), None)


def _compared(
    claim: str, where: str, data: str, ours: Row | None, others: Sequence[Row | None], *, less: bool = False
) -> Claim:
    """Whether our row is ahead of all others, by which number and which of them is the best."""
    known = [row for row in others if row is not None]
    if ours is None or len(known) < len(others):
        return Claim(claim, where, data, None, None, "not run")
    best = (min if less else max)(known, key=lambda row: row["test"])
    ahead = ours["test"] < best["test"] if less else ours["test"] > best["test"]
    numbers = f"{ours['test']:.2f} against {best['test']:.2f} ({_name(best)})"
    return Claim(claim, where, data, ours["data"], ahead, numbers)


def _name(row: Row) -> str:
    rank = "" if row["rank"] is None else f" of rank {row['rank']}"
    share = "" if row["fraction"] == 1 else f", {row['fraction']:.0%} of the images"
    return f"{_NAMES.get(row['structure'], row['structure'])}{rank}{share}"


def _fixed_classes(results: _Results) -> Iterator[Claim]:
    where = "Section 5.1, Tables 1, 6, 7"
    for table, names in (("shl", ("mnist_bg_rot", "mnist_noise_6", "cifar10_grey")), ("cnn", _MNIST)):
        kind = "hidden layer" if table == "shl" else "CNN"
        for data in names:
            for structure, rank in (("ldr_sd", 2), ("ldr_td", 4)):
                yield _compared(
                    f"{_NAMES[structure]} of rank 1 beats the fixed classes at its budget ({kind})",
                    where,
                    _DATA[data],
                    results.find(table, data, structure, 1),
                    [results.find(table, data, fixed, rank) for fixed in FIXED],
                )


def _unstructured(results: _Results) -> Iterator[Claim]:
    where = "Section 5.1, Figure 3"
    for table, names in (("shl", (*_MNIST, "cifar10_grey")), ("cnn", (*_MNIST, "cifar10"))):
        kind = "hidden layer" if table == "shl" else "CNN"
        for data in names:
            dense = [results.find(table, data, "dense")]
            sixteen = results.find(table, data, "ldr_sd", 16)
            text = f"LDR-SD of rank 16, a twentieth of the parameters, beats the unstructured layer ({kind})"
            yield _compared(text, where, _DATA[data], sixteen, dense)
    for table, kind in (("shl", "hidden layer"), ("cnn", "CNN")):
        for data in _MNIST:
            ours = [results.find(table, data, structure, 1) for structure in LEARNED]
            best = max((row for row in ours if row), key=lambda row: row["test"], default=None)
            text = f"A learned class of rank 1 beats the unstructured layer ({kind})"
            yield _compared(text, where, _DATA[data], best, [results.find(table, data, "dense")])


def _samples(results: _Results) -> Iterator[Claim]:
    where = "Section 5.4, Tables 10, 11"
    for model, share in (("shl", 0.25), ("cnn", 0.5)):
        kind = "hidden layer" if model == "shl" else "CNN"
        ours = results.find("samples", "mnist_noise_6", "ldr_td", 1, model=model, fraction=share)
        all_images = results.find("samples", "mnist_noise_6", "dense", None, model=model, fraction=1.0)
        text = f"LDR-TD on {share:.0%} of the images beats the unstructured layer on all ({kind})"
        yield _compared(text, where, "MNIST-noise", ours, [all_images])


def _generalization(results: _Results) -> Iterator[Claim]:
    for data in (*_MNIST, "cifar10_grey"):
        for structure in LEARNED:
            yield _compared(
                f"{_NAMES[structure]} has a smaller generalisation error than the unstructured layer",
                "Section 5.4, Table 12",
                _DATA[data],
                results.find("generalization", data, structure, 1),
                [results.find("generalization", data, "dense")],
                less=True,
            )


def _ranks(results: _Results) -> Iterator[Claim]:
    for data in (*_MNIST, "cifar10_grey"):
        yield _compared(
            "Learned operators beat a second rank (LDR-SD of rank 1, Toeplitz-like of rank 2)",
            "Section 5.1, Figure 3",
            _DATA[data],
            results.find("rank", data, "ldr_sd", 1),
            [results.find("rank", data, "toeplitz_like", 2)],
        )


def _language(results: _Results) -> Iterator[Claim]:
    """By the authors' start."""
    for budget, (rank, other) in enumerate(_LSTM):
        yield _compared(
            "LDR-SD has a smaller perplexity than Toeplitz-like and low rank at each budget",
            "Section 5.2, Table 2",
            f"WikiText-2, {_LSTM_PARAMETERS[budget]:,} parameters",
            results.find("lstm_authors", "wikitext2", "ldr_sd", rank),
            [
                results.find("lstm_authors", "wikitext2", name, other)
                for name in ("toeplitz_like", "low_rank")
            ],
            less=True,
        )


def _convolutions(results: _Results) -> Iterator[Claim]:
    """Two structured matrices against convolutions, pooling and a dense layer."""
    best = results.find("conv", "cifar10", "dense", None, model="conv4_pool")
    for model in ("channels", "wide"):
        ours = results.find("conv", "cifar10", "ldr_sd", 16, model=model)
        text = f"LDR-SD in place of convolutions ({model}) comes within 1.05 points of them"
        if ours is None or best is None:
            yield Claim(text, "Section 5.3, Table 3", "CIFAR-10", None, None, "not run")
            continue
        numbers = f"{ours['test']:.2f} against {best['test']:.2f} (four channels and pooling)"
        holds = ours["test"] >= best["test"] - 1.05
        yield Claim(text, "Section 5.3, Table 3", "CIFAR-10", ours["data"], holds, numbers)


def _speed(folder: Path | None) -> Iterator[Claim]:
    """One vector times an LDR-SD matrix of rank 1, frozen, on a CPU; from a stored benchmark."""
    text = (
        f"LDR-SD of rank 1 multiplies a vector 3.34 to 46.1 times as fast as BLAS from n = {SPEED_FROM:,} on"
    )
    path = None if folder is None else folder / "ldr_sd_speed.json"
    if path is None or not path.is_file():
        return
    rows: Sequence[Mapping[str, Any]] = json.loads(path.read_text("utf-8"))["sections"]["ldr_sd"]
    ours = [
        row
        for row in rows
        if (row["what"], row["rank"], row["batch"]) == ("inference", 1, 1)
        and row["n"] >= SPEED_FROM
        and row["paper"] is not None
    ]
    if ours:
        holds = all(row["ratio"] >= row["paper"] for row in ours)
        numbers = ", ".join(f"{row['ratio']:.1f} at {row['n']:,} ({row['paper']:g})" for row in ours)
        yield Claim(text, "appendix on speed", "-", "benchmark", holds, numbers)


_MNIST = ("mnist_bg_rot", "mnist_noise_6")
_LSTM = ((1, 2), (2, 3), (4, 5), (8, 9), (16, 17), (24, 25))
_LSTM_PARAMETERS = (2048, 3072, 5120, 9216, 17408, 25600)
_PARTS: tuple[Callable[[_Results], Iterator[Claim]], ...] = (
    _fixed_classes,
    _unstructured,
    _samples,
    _generalization,
    _ranks,
    _language,
    _convolutions,
)
