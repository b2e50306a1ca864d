"""The tables of the study of compression, from results/compression.jsonl.

`<!-- compression: NAME -->` asks for the table NAME, and `<!-- compression: findings -->` for what all
tables say together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torchldr_paper.compression.methods import FACTORS, FIXED, PRUNED, methods
from torchldr_paper.compression.rows import Row, Rows

from .markdown import filled, markdown

_NAMES = {"low_rank": "`low_rank` (truncated SVD)", PRUNED: "magnitude pruning"}
BASELINES = ("dense", "low_rank", PRUNED)
TITLES = {
    "shl_cifar": "one hidden layer, grey CIFAR-10",
    "cnn_cifar": "CNN, CIFAR-10",
    "shl_mnist": "one hidden layer, MNIST",
    "cnn_mnist": "CNN, MNIST",
    "lstm": "LSTM, WikiText-2",
    "gpt": "GPT, WikiText-2",
}


def better(row: Row, other: Row) -> bool:
    """Whether a row is better than another after fine-tuning: more accurate, or less perplexed."""
    if row["after"] is None or other["after"] is None:
        return row["after"] is not None
    gain = row["after"] - other["after"]
    return bool(gain > 0 if row["metric"] == "accuracy" else gain < 0)


def best(rows: Sequence[Row], factor: int, *, structured: bool = False) -> Row | None:
    """The best row at a factor after fine-tuning, of all or of those that are no baseline."""
    found: Row | None = None
    for row in rows:
        if row["factor"] != factor or (structured and row["method"] in BASELINES):
            continue
        if row["after"] is not None and (found is None or better(row, found)):
            found = row
    return found


def render(rows: Sequence[Row]) -> str:
    """A table in Markdown: a line a class, a column a factor, and the classes of one size behind it."""
    if not rows:
        return "Not measured yet.\n"
    first = rows[0]
    unit = "%" if first["metric"] == "accuracy" else "perplexity"
    known = {(row["method"], row["factor"]): row for row in rows}
    lines = [f"Dense: {_number(first, 'dense')} {unit}"]
    if ("dense", 1) in known:
        further = known["dense", 1]
        kept = further.get("stopped") == 0
        gain = "no better, so validation kept it" if kept else _number(further, "after")
        how = "trained anew" if further.get("start") == "fresh" else "trained further"
        lines[0] += f"; {how} in the same way {gain}"
    lines[0] += f". The weights that are compressed have {first['weights']:,}{_share(first)} parameters."
    factors = [factor for factor in FACTORS if any(row["factor"] == factor for row in rows)]
    body = []
    ranked = [name for name in dict.fromkeys(m.name for m in methods()) if name not in ("dense", *FIXED)]
    names = [name for name in ranked if any(row["method"] == name for row in rows)]
    tops = {factor: best(rows, factor) for factor in factors}
    for name in names:
        own = {factor: known.get((name, factor)) for factor in factors}
        body.append([_name(name), *(_cell(row, top=row is tops[factor]) for factor, row in own.items())])
    lines += ["", markdown(["class", *_times(factors)], body).rstrip()]
    fixed = [row for row in rows if row["method"] in FIXED]
    if fixed:
        parts = [
            f"`{row['method']}` at {row['weights'] // row['parameters']} times {_cell(row)}" for row in fixed
        ]
        lines += ["", "Classes of one size: " + ", ".join(parts) + "."]
    absent = [_name(name) for name in ranked if name not in names]
    if absent:
        lines += ["", "Not run here: " + ", ".join(absent) + "."]
    return "\n".join(lines) + "\n"


def _name(method: str) -> str:
    return _NAMES.get(method, f"`{method}`")


def _share(row: Row) -> str:
    """How many parameters the whole dense model has."""
    if "model_parameters" not in row:
        return ""
    return f" of the model's {row['model_parameters'] - row['parameters'] + row['weights']:,}"


def _times(factors: Sequence[int]) -> list[str]:
    return [f"{factor} times" for factor in factors]


def _cell(row: Row | None, *, top: bool = False) -> str:
    if row is None:
        return "-"
    after = _number(row, "after")
    return f"{f'**{after}**' if top else after} ({_number(row, 'before')})"


def _number(row: Row, key: str) -> str:
    value = row[key]
    if value is None:
        return "diverged"
    if row["metric"] == "accuracy":
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 1e4 else f"{value:.0e}"


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
        [_name(method), *_against(tables, method, "accuracy"), *_against(tables, method, "perplexity")]
        for method in dict.fromkeys(m.name for m in methods())
        if method not in ("dense", "low_rank", *FIXED)
    ]
    columns = ["against `low_rank`", "images: better in", "by points", "text: better in", "perplexity"]
    images, text = (_pruned_wins(tables, metric) for metric in ("accuracy", "perplexity"))
    lines = [
        markdown(["the best but for pruning", *_times(FACTORS)], bests, left=1 + len(FACTORS)),
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


def fill(text: str, root: Path) -> str:
    """A page with its tables as the rows of a checkout have them."""
    rows = Rows(root / "results")

    def block(name: str, keys: Mapping[str, str]) -> str:
        if name == "findings":
            return findings({table: rows.of(table) for table in TITLES})
        return render(rows.of(name))

    return filled(text, block, kind="compression")
