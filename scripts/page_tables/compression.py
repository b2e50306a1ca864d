"""The tables of the study of compression, from results/compression.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torchldr_paper.compression.methods import FACTORS, FIXED, PRUNED, methods
from torchldr_paper.compression.tables import Row, Rows, best, better, render, times, title
from torchldr_paper.tables.markdown import markdown

TITLES = {
    "shl_cifar": "one hidden layer, grey CIFAR-10",
    "cnn_cifar": "CNN, CIFAR-10",
    "shl_mnist": "one hidden layer, MNIST",
    "cnn_mnist": "CNN, MNIST",
    "lstm": "LSTM, WikiText-2",
    "gpt": "GPT, WikiText-2",
}


def findings(tables: Mapping[str, Sequence[Row]]) -> str:
    """What tables say together, in Markdown: the best class by factor, all against low rank, starts."""
    tables = {name: rows for name, rows in tables.items() if rows}
    if not tables:
        return "Not measured yet.\n"
    bests = []
    for name, rows in tables.items():
        tops = [best([row for row in rows if row["method"] != PRUNED], factor) for factor in FACTORS]
        cells = ["-" if top is None else f"`{top['method']}` {_signed(top, top['dense'])}" for top in tops]
        bests.append([TITLES[name], *cells])
    against = [
        [title(method), *_against(tables, method, "accuracy"), *_against(tables, method, "perplexity")]
        for method in dict.fromkeys(m.name for m in methods())
        if method not in ("dense", "low_rank", *FIXED)
    ]
    columns = ["against `low_rank`", "images: better in", "by points", "text: better in", "perplexity"]
    images, text = (_pruned_wins(tables, metric) for metric in ("accuracy", "perplexity"))
    lines = [
        markdown(["the best but for pruning", *times(FACTORS)], bests, left=1 + len(FACTORS)),
        markdown(columns, against),
        f"Of all methods magnitude pruning is the best in {images} on images and in {text} on text.",
    ]
    starts = []
    for name, rows in tables.items():
        chosen = [row["start"] for row in rows if row["metric"] == "accuracy" and "start" in row]
        if chosen:
            starts.append(f"{chosen.count('fresh')} of {len(chosen)} rows ({TITLES[name]})")
    if starts:
        lines += ["", f"Validation preferred a fresh start to the projection in {', '.join(starts)}."]
    return "\n".join(lines) + "\n"


def _gain(row: Row, since: float) -> float:
    """How far a row after fine-tuning is from a value: points of accuracy, or perplexity in percent."""
    after = float(row["after"])
    return after - since if row["metric"] == "accuracy" else 100 * (after / since - 1)


def _signed(row: Row, since: float) -> str:
    gain = _gain(row, since)
    return f"{gain:+.2f}" if row["metric"] == "accuracy" else f"{gain:+.1f} %"


def _against(tables: Mapping[str, Sequence[Row]], method: str, metric: str) -> tuple[str, str]:
    """In how many columns a method is better than low rank, and by how much at least and at most."""
    pairs: list[tuple[Row, Row]] = []
    for rows in tables.values():
        known = {row["factor"]: row for row in rows if row["method"] == "low_rank"}
        own = [row for row in rows if row["method"] == method and row["factor"] in known]
        pairs += [(row, known[row["factor"]]) for row in own if row["metric"] == metric]
    pairs = [(row, other) for row, other in pairs if None not in (row["after"], other["after"])]
    if not pairs:
        return "-", "-"
    won = sum(better(row, other) for row, other in pairs)
    pairs.sort(key=lambda pair: _gain(pair[0], pair[1]["after"]))
    least, most = (_signed(row, other["after"]) for row, other in (pairs[0], pairs[-1]))
    return f"{won} of {len(pairs)}", f"{least} to {most}"


def _pruned_wins(tables: Mapping[str, Sequence[Row]], metric: str) -> str:
    own = [rows for rows in tables.values() if rows[0]["metric"] == metric]
    tops = [top for rows in own for factor in FACTORS if (top := best(rows, factor)) is not None]
    return f"{sum(top['method'] == PRUNED for top in tops)} of {len(tops)} columns"


def table(of: str, results: Path) -> str:
    """A table of the study, or what all of them say together ("findings")."""
    rows = Rows(results)
    return findings({name: rows.of(name) for name in TITLES}) if of == "findings" else render(rows.of(of))
