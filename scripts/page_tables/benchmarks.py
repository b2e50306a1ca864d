"""Tables from benchmarks: results/bench/*.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchldr_paper.tables.markdown import markdown

Row = Mapping[str, Any]
Rows = Sequence[Row]
Results = Mapping[str, Rows]  # rows by section


def number(value: float | None) -> str:
    """Three digits, without exponents."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _crossed(
    section: str,
    labels: Mapping[str, str],
    across: Callable[[Row], Any],
    heading: Callable[[Any], str],
    cell: Callable[[Row], str],
    *,
    where: Callable[[Row], bool] = bool,
    ordered: bool = False,
) -> Callable[[Results], str]:
    """Rows of a section as a table of two axes: a line for each set of labels, a column for each `across`.

    Args:
        section: which rows.
        labels: keys of a row that name its line, with their headings.
        across: what names a row's column, and `heading` what that column is called.
        cell: what is shown of a row.
        where: which rows are shown.
        ordered: whether lines stand in the order of their labels, else as they first appear.
    """

    def table(results: Results) -> str:
        rows = [row for row in results[section] if where(row)]
        # Numbers in order, words as they first appear.
        columns = sorted(dict.fromkeys(map(across, rows)), key=lambda c: 0 if isinstance(c, str) else c)
        lines: dict[tuple[Any, ...], dict[Any, str]] = {}
        for row in rows:
            lines.setdefault(tuple(row[key] for key in labels), {})[across(row)] = cell(row)
        if ordered:
            lines = dict(sorted(lines.items(), key=lambda line: _order(line[0])))
        header = [*labels.values(), *map(heading, columns)]
        return markdown(
            header,
            [[*map(_text, label), *(found.get(c, "-") for c in columns)] for label, found in lines.items()],
        )

    return table


def _order(label: tuple[Any, ...]) -> tuple[Any, ...]:
    """By the words and numbers of a line's labels; a number that is not given comes first."""
    return tuple((value is not None, value) for value in label)


_speedups = _crossed(  # LDR-SD's by size and rank, the paper's in brackets
    "ldr_sd", {"n": "n"}, lambda row: row["rank"], lambda rank: f"r = {rank}",
    lambda row: f"{number(row['ratio'])} ({number(row['paper'])})",
    ordered=True,
)  # fmt: skip


def _first_page(results: Results) -> str:
    """LDR-SD of rank 1 in four lines: CPU and GPU, inference and training, by features."""
    sizes = 1024, 2048, 4096
    cpu, gpu = (
        [row for row in results[name] if (row["structure"], row["rank"]) == ("ldr_sd", 1)]
        for name in ("gain_cpu", "gpu_compiled")
    )
    lines = {
        f"CPU, {what}, {batch} row{'s' * (batch > 1)}": {
            row["n"]: row["ratio"] for row in cpu if (row["training"], row["batch"]) == (training, batch)
        }
        for what, training, batch in (("inference", False, 1), ("training", True, 64))
    } | {
        f"GPU, {what}, compiled": {
            row["features"]: row["ratio"]
            for row in gpu
            if (row["what"], row["mode"]) == (what, "reduce-overhead")
        }
        for what in ("inference", "training")
    }
    header = ["times as fast as `nn.Linear`", *(f"{n:,} features" for n in sizes)]
    return markdown(header, [[what, *(_short(found[n]) for n in sizes)] for what, found in lines.items()])


def _short(ratio: float) -> str:
    """Two digits."""
    return f"{ratio:.1f}" if 0.95 <= ratio < 9.95 else f"{ratio:.2g}"


def _exported(n: int) -> Callable[[Results], str]:
    """ONNX files of layers of this size in mode fft, a line for each class: size, and speed against dense."""

    def table(results: Results) -> str:
        rows = [row for row in results["rows"] if row["n"] == n and row["file"] == "fft"]
        body = [
            [f"`{row['structure']}`", _text(row["rank"]), number(row["bytes"] / 1e3)]
            + [number(row[f"faster_batch_{batch}"]) for batch in (1, 32)]
            for row in rows
        ]
        return markdown(["class", "rank", "KB", "x1", "x32"], body)

    return table


def _instructions(results: Results) -> str:
    """What a layer costs on a microcontroller, by class."""
    rows = sorted(results["rows"], key=lambda row: row["instructions"])
    body = []
    for row in rows:
        operators = row["operators"] if row["structure"].startswith("ldr") else ""
        sizes = [f"{row[key]:,}" for key in ("weights_bytes", "arena_bytes", "instructions")]
        body.append([f"`{row['structure']}`", str(row["rank"] or ""), operators, row["form"], *sizes])
    head = ["class", "rank", "operators", "how", "weights, bytes", "arena, bytes", "instructions"]
    return markdown(head, body, left=4)


def _integer(results: Results) -> str:
    """Networks on a microcontroller, in floating point and in integers."""
    body = []
    floats, integers = (
        [row for row in results["rows"] if row["arithmetic"] == arithmetic]
        for arithmetic in ("float", "integer")
    )
    for a, b in zip(floats, integers, strict=True):
        sizes = [f"{b[key]:,}" for key in ("flash", "ram", "instructions")]
        scores = [f"{row['accuracy']:.2f}" for row in (a, b)]
        ratio = f"{a['instructions'] / b['instructions']:.0f}"
        body.append([b["dataset"], f"`{b['structure']}`", str(b["rank"] or ""), *scores, *sizes, ratio])
    head = ["dataset", "hidden layer", "rank", "float, %", "integers, %", "flash", "RAM", "instructions"]
    return markdown([*head, "floats / integers"], body, left=2)


def _integer_peers(results: Results) -> str:
    """The same networks by other exporters."""
    body = []
    for row in results["rows"]:
        sizes = [_text(row[key]) for key in ("flash", "ram", "instructions")]
        body.append([row["network"], row["by"], f"{row['accuracy']:.2f}", *sizes])
    return markdown(["network", "by", "accuracy, %", "flash", "RAM", "instructions"], body, left=2)


def _text(value: Any) -> str:
    if value == "tf32":
        return "TF32"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return number(value) if isinstance(value, float) or value is None else str(value)


# By name: files under results/bench, and what is made of their sections.
# Of several files, each is a section by its name.
TABLES: dict[str, tuple[str, Callable[[Results], str]]] = {
    "speed": ("gain_cpu gpu_compiled", _first_page),
    "ldr_sd": ("ldr_sd_speed", _speedups),
    "gpu_compiled": ("gpu_compiled", _crossed(
        "rows", {"structure": "layer", "rank": "rank", "features": "features", "rows": "rows"},
        lambda row: row["mode"], str, lambda row: f"{row['ratio']:.2f}",
        where=lambda row: row["what"] == "training")),
    "export_1024": ("export", _exported(1024)),
    "instructions": ("microcontroller", _instructions),
    "integer": ("integer", _integer),
    "integer_peers": ("integer_peers", _integer_peers),
}  # fmt: skip


def table(name: str, folder: Path) -> str:
    """The table of this name from the results in a folder, or a line that says how to make them."""
    files, make = TABLES[name]
    found = {file: _content(file, folder) for file in files.split()}
    missing = "".join(f"Not measured yet: `python benchmarks/{file}.py`.\n" for file in found)
    contents = {file: content for file, content in found.items() if content is not None}
    if len(contents) < len(found):
        return missing
    sections: Results = {file: content.get("rows", []) for file, content in contents.items()}
    if len(contents) == 1:
        (content,) = contents.values()
        sections = content.get("sections") or {"rows": content.get("rows", [])}
    try:
        made = make(sections)
    except KeyError:
        return missing
    where = "; ".join(_where(content["machine"], file) for file, content in contents.items())
    return f"{made}\nMeasured on {where}.\n"


def _where(machine: Any, file: str) -> str:
    """A machine in words."""
    if isinstance(machine, str):
        return machine
    if "onnxruntime" in machine:
        return f"{machine['machine']}, one thread, onnxruntime {machine['onnxruntime']}"
    threads = "one thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    here = machine["device"] == "cpu" or file == "cpu_speed"
    device = f"{machine['machine']}, {threads}" if here else machine["device"]
    version = f", torchldr {machine['torchldr']}" if "torchldr" in machine else ""
    return f"{device}, torch {machine['torch']}{version}"


def _content(file: str, folder: Path) -> dict[str, Any] | None:
    """A benchmark's machine and rows."""
    path = folder / f"{file}.json"
    return dict(json.loads(path.read_text())) if path.exists() else None
