"""The tables of the documentation that come from benchmarks: `python -m torchldr_paper.tables.benchmarks`.

    python -m torchldr_paper.tables.benchmarks [--root FOLDER] [--check]

In docs/performance.md, docs/tridiagonal.md and README.md of a checkout everything between
`<!-- table: NAME -->` and `<!-- end -->` is replaced by the table of that name, rendered from
results/bench/*.json and results/tridiagonal_learning.jsonl; README's `<!-- speed table -->` stands for one
called "speed". --check changes nothing and exits with 1 where a page differs from its results.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..trainer.operators import accuracies, movements

Rows = Sequence[Mapping[str, Any]]
Results = Mapping[str, Rows]  # rows by section

PAGES = ("docs/performance.md", "docs/tridiagonal.md", "README.md")
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_README = re.compile(r"<!-- speed table -->(?!\n<!-- table)")


def number(value: float | None) -> str:
    """Three digits, without exponents.

    >>> number(0.0256), number(46.13), number(17900.0), number(None)
    ('0.0256', '46.1', '17,900', '-')
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table; the first column to the left, numbers to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (header, rule, *body))


def _cells(
    structure: str, ranks: Sequence[int] = (1, 2, 4, 8, 16), least: int = 0
) -> Callable[[Results], str]:
    """A class's speed-ups by size and rank, the paper's in brackets, from the size `least` on."""

    def table(results: Results) -> str:
        rows = {(r["n"], r["rank"]): r for r in results["cells"] if r["structure"] == structure}
        sizes = sorted({n for n, _ in rows if n >= least})
        body = [
            [f"{n:,}", *(f"{number(rows[n, r]['ratio'])} ({number(rows[n, r]['paper'])})" for r in ranks)]
            for n in sizes
        ]
        return markdown(["n", *(f"r = {r}" for r in ranks)], body)

    return table


def _pivot(
    section: str, down: str, across: str, value: str, where: Mapping[str, Any]
) -> Callable[[Results], str]:
    """Rows of a section as a table of two axes; `*` marks what was extrapolated, `d` the dense plan."""

    def table(results: Results) -> str:
        rows = [r for r in results[section] if all(r[k] == v for k, v in where.items())]
        columns = list(dict.fromkeys(r[across] for r in rows))
        body = []
        for key in dict.fromkeys(r[down] for r in rows):
            found = {r[across]: r for r in rows if r[down] == key}
            marks = {
                c: "*" * r.get("extrapolated", False) + " d" * (r.get("path") == "dense")
                for c, r in found.items()
            }
            line = [number(found[c][value]) + marks[c] if c in found else "-" for c in columns]
            body.append([f"{key:,}" if isinstance(key, int) else str(key), *line])
        return markdown([down, *(f"{across} {c}" if isinstance(c, int) else str(c) for c in columns)], body)

    return table


def _listed(
    section: str, columns: Mapping[str, str], where: Callable[[Mapping[str, Any]], bool] = bool
) -> Callable[[Results], str]:
    """Rows of a section as they are: columns by the names of their headings."""

    def table(results: Results) -> str:
        rows = [r for r in results[section] if where(r)]
        body = [[_text(r.get(key)) for key in columns] for r in rows]
        return markdown(list(columns.values()), body)

    return table


def _learning(results: Results) -> str:
    """Test accuracies by task, layer and rate, the rate that is best in validation in bold."""
    runs = results["rows"]
    rates = sorted({run["rate"] for run in runs}, reverse=True)
    body = []
    for found in accuracies(runs):
        cells = []
        for rate in rates:
            tests = found.tests.get(rate)
            mark = "**" if rate == found.rate else ""
            cells.append("-" if tests is None else f"{mark}{statistics.mean(tests):.1f}{mark}")
        body.append([found.task, _layer(found.kind), f"{found.parameters:,}", *cells, f"{found.ms:.1f}"])
    header = ["task", "hidden layer", "its parameters", *(f"rate {rate:g}" for rate in rates), "ms a step"]
    return f"{markdown(header, body)}\n{_protocol(runs)}\n"


def _layer(kind: str) -> str:
    return kind if " " in kind else f"`{kind}`"


def _protocol(runs: Rows) -> str:
    """How many runs there are and how long they trained, as the runs themselves have it."""
    seeds = Counter((run["task"], run["kind"], run["rate"]) for run in runs).values()
    epochs, batches = {len(run["epochs"]) - 1 for run in runs}, {run["batch"] for run in runs}
    parts = _counted(seeds, "seed"), _counted(epochs, "epoch"), _counted(batches, "example")
    return f"{len(runs)} runs of {parts[0]} and {parts[1]}, {parts[2]} a step."


def _counted(values: Collection[int], what: str) -> str:
    least, most = min(values), max(values)
    return f"{least if least == most else f'{least} to {most}'} {what}{'s' * (most > 1)}"


def _movements(results: Results) -> str:
    """The operators of LDR-TD by task and epoch."""
    body = [
        [
            moved.task,
            str(moved.epoch),
            f"{moved.growth[0]:.4f} to {moved.growth[1]:.4f}",
            f"{moved.row_sum:.3f}",
        ]
        for moved in movements(results["rows"])
    ]
    return markdown(["task", "epoch", "growth", "row sum"], body)


_MODES = {"bfloat16": "bfloat16", "autocast": "autocast", "tf32": "TF32"}


def _steps(results: Results) -> str:
    """Training on a GPU from n = 2048 on: a row for each class, rank and dtype, a column for each size."""
    sizes = sorted({(row["n"], row["rows"]) for row in results["rows"] if row["n"] >= 2048})
    cases: dict[tuple[Any, ...], dict[tuple[int, int], str]] = {}
    for row in results["rows"]:
        case = cases.setdefault((row["structure"], row["rank"], row["mode"]), {})
        case[row["n"], row["rows"]] = f"{row['ratio']:.2f}"
    header = ["structure", "rank", "numbers", *(f"{n:,}, {rows:,} rows" for n, rows in sizes)]
    body = [
        [structure, _text(rank), _MODES[mode], *(found.get(size, "-") for size in sizes)]
        for (structure, rank, mode), found in cases.items()
    ]
    return markdown(header, body)


def _calls(results: Results) -> str:
    """Inference on a GPU, "eager / captured": a row for each class, dtype and batch, a column for each n."""
    sizes = sorted({row["n"] for row in results["rows"]})
    cases: dict[tuple[Any, ...], dict[int, str]] = {}
    for row in results["rows"]:
        if row["batch"] in (1, 64, 4096):
            captured = f"{row['captured']:.2g}" if "captured" in row else "-"
            case = cases.setdefault((row["structure"], row["rank"], row["mode"], row["batch"]), {})
            case[row["n"]] = f"{row['eager']:.2g} / {captured}"
    header = ["structure", "rank", "numbers", "rows", *(f"n = {n:,}" for n in sizes)]
    body = [
        [structure, _text(rank), _MODES[mode], _text(batch), *(found.get(n, "-") for n in sizes)]
        for (structure, rank, mode, batch), found in sorted(cases.items(), key=lambda item: str(item[0][:3]))
    ]
    return markdown(header, body)


def _peers(results: Results) -> str:
    """Their time over ours: a row for each job, peer and batch, a column for each size."""
    sizes = sorted({row["n"] for row in results["rows"]})
    cases: dict[tuple[Any, ...], dict[int, str]] = {}
    for row in results["rows"]:
        case = cases.setdefault((row["what"], row["peer"], row["batch"]), {})
        case[row["n"]] = f"{row['ratio']:.2g}" if row["ratio"] < 100 else f"{row['ratio']:,.0f}"
    header = ["what", "beside", "rows", *(f"n = {n:,}" for n in sizes)]
    body = [
        [what, name, _text(batch), *(found.get(n, "-") for n in sizes)]
        for (what, name, batch), found in sorted(cases.items())
    ]
    return markdown(header, body)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return number(value) if isinstance(value, float) or value is None else str(value)


def _has(key: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: key in row


def _is(what: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: row.get("what") == what


def _of(table: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: row.get("table") == table


_TIMES = {"dense_ms": "dense ms", "ours_ms": "ours ms", "ratio": "ratio"}
_CASE = {"structure": "structure", "n": "n", "rank": "rank", "batch": "batch"}
_GPU = {"tf32_ms": "TF32 ms", "bf16_ms": "bf16 ms", "ours_ms": "ours ms", "ratio_tf32": "over TF32"}

_CHANNELS = {
    "structure": "structure", "channels": "channels", "features": "n", "rank": "rank", "batch": "batch",
    "fast_ms": "fast ms", "dense_ms": "dense ms", "ratio": "ratio", "auto": "auto",
}  # fmt: skip

# By name: the file (JSON under results/bench, or JSON lines under results) and what is made of its sections.
TABLES: dict[str, tuple[str, Callable[[Results], str]]] = {
    "speed": ("cpu_speed", _cells("ldr_sd", (1, 4, 16), least=2048)),
    "ldr_sd": ("cpu_speed", _cells("ldr_sd")),
    "toeplitz_like": ("cpu_speed", _cells("toeplitz_like")),
    "low_rank": ("cpu_speed", _cells("low_rank")),
    "hard": ("cpu_speed", _pivot("hard", "regime", "n", "slower", {})),
    "training": ("cpu_speed", _listed("training", {**_CASE, **_TIMES, "path": "path"})),
    "auto": ("cpu_speed", _pivot("auto", "n", "batch", "ratio", {"structure": "ldr_sd"})),
    "growth": ("cpu_speed", _listed("growth", {
        "n": "n", "ours_ms": "ms", "ours_ms_growth": "times before",
        "peak_mb_batch_256": "peak MB at batch 256", "peak_mb_batch_256_growth": "times before"})),
    "memory": ("cpu_speed", _listed("memory", {
        "structure": "structure", "n": "n", "seconds": "s", "mb_above_import": "peak MB above the import"})),
    "million": ("cpu_speed", _listed("million", {
        "structure": "structure", "n": "n", "seconds": "s", "mb_above_import": "peak MB above the import"})),
    "operations": ("cpu_speed", _pivot("operations", "structure", "mode", "operations", {})),
    "rates": ("cpu_speed", _listed("floor", {"what": "rate", "value": "measured"}, _has("value"))),
    "floor": ("cpu_speed", _listed("floor", {
        "n": "n", "ours_ms": "ours ms", "four_ffts_ms": "four single FFTs ms",
        "four_batched_ffts_ms": "four of a batch ms", "dense_bytes_ms": "reading a dense matrix ms"},
        _has("n"))),
    "gpu": ("gpu_speed", _listed("rows", {**_CASE, **_GPU, "ratio_bf16": "over bf16"}, _is("inference"))),
    "gpu_training": ("gpu_training", _steps),
    "gpu_inference": ("gpu_inference", _calls),
    "peers": ("peers_cpu", _peers),
    "gpu_peers": ("peers_cuda", _peers),
    "gpu_stencil": ("gpu_speed", _listed("rows", {
        "n": "n", "vectors": "vectors", "forward_ms": "forward ms", "backward_ms": "backward ms"},
        _is("stencil"))),
    "gpu_kernels": ("kernel_speed", _listed("rows", {
        "what": "what", "torch_ms": "torch ms", "cudnn_ms": "cuDNN ms", "ours_ms": "ours ms",
        "ratio": "ratio"})),
    "channels": ("channels_speed", _listed("rows", _CHANNELS, _is("training"))),
    "channels_inference": ("channels_speed", _listed("rows", _CHANNELS,
        lambda row: row["what"] == "inference" and row["features"] == 1024 and row["rank"] != 4)),
    "gpu_channels": ("channels_speed_cuda", _listed("rows", {
        **_CHANNELS, "fast_mib": "fast MiB", "dense_mib": "dense MiB"},
        lambda row: row["channels"] > 1 and row["rank"] != 4)),
    "port_layer": ("port_speed", _listed("rows", {
        "n": "n", "kind": "entries", "corners": "corners", "seeds": "operators", "accepted": "accepted",
        "c": "c", "port_ms": "port ms", "over_stencil": "over stencil", "over_dense": "over dense",
        "error": "error", "stencil_error": "of the stencil"})),
    "td_learning": ("tridiagonal_learning", _learning),
    "td_operators": ("tridiagonal_learning", _movements),
}  # fmt: skip


def render(name: str, folder: Path) -> str:
    """The table of this name from the results in a folder, or a line that says how to make them."""
    if name not in TABLES:
        raise ValueError(f"unknown table {name!r}. Known: {', '.join(TABLES)}.")
    file, make = TABLES[name]
    missing = f"Not measured yet: `python benchmarks/{file}.py`.\n"
    content = _content(file, folder)
    if content is None:
        return missing
    sections = content.get("sections") or {"rows": content.get("rows", [])}
    machine = content["machine"]
    where = (
        f"{machine['machine']}, {machine['threads']} threads"
        if machine["device"] == "cpu" or file == "cpu_speed"
        else machine["device"]
    )
    try:
        table = make(sections)
    except KeyError:
        return missing
    return f"{table}\nMeasured on {where}, torch {machine['torch']}.\n"


def _content(file: str, folder: Path) -> dict[str, Any] | None:
    """A benchmark's machine and rows: one object in the folder, or a line a run in the folder above."""
    path, lines = folder / f"{file}.json", folder.parent / f"{file}.jsonl"
    if path.exists():
        return dict(json.loads(path.read_text()))
    rows = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    return {"machine": rows[0]["machine"], "rows": rows} if rows else None


def filled(text: str, folder: Path) -> str:
    """A page with every marked table rendered anew."""
    text = _README.sub("<!-- speed table -->\n<!-- table: speed -->\n<!-- end -->", text)
    return _MARKED.sub(lambda found: f"{found[1]}\n{render(found[2], folder)}\n{found[3]}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the pages of a checkout, or with --check say which differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    stale = []
    for page in PAGES:
        path = options.root / page
        if not path.exists():
            continue
        before = path.read_text()
        after = filled(before, options.root / "results" / "bench")
        if after != before:
            stale.append(page)
            if not options.check:
                path.write_text(after)
    for page in stale:
        print(f"{page}: {'differs from its results' if options.check else 'filled'}", file=sys.stderr)
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
