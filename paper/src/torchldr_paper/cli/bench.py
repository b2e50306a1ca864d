"""`torchldr bench`.

Results go to stdout, progress to stderr. Ctrl-C ends the run early: the cases measured so far are printed,
saved and drawn, and the exit code is 130, as shells give interrupted programs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchldr.cli import AsJson, say, show, wrong_use
from torchldr.json_text import json_text
from torchldr.whole_file import whole_file

from .progress import steps

if TYPE_CHECKING:
    from ..bench.grid import Grid
    from ..bench.measure import Setting

Rows = list[dict[str, Any]]
INTERRUPTED = 130
PRODUCTS = ("auto", "fast", "dense")


def bench_command(
    structure: Annotated[
        list[str] | None, typer.Option(help="Classes; `torchldr structures` lists them.")
    ] = None,
    n: Annotated[list[int] | None, typer.Option(min=1, help="Sizes of the square layers.")] = None,
    rank: Annotated[list[int] | None, typer.Option(min=1, help="Ranks, for classes that have one.")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Vectors at a time; default 1 and 50.")
    ] = None,
    what: Annotated[str, typer.Option(help="inference, training or both.")] = "both",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    product: Annotated[str, typer.Option(help="The product in inference: fast, auto or dense.")] = "fast",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and repeats: within a minute.")] = False,
    repeats: Annotated[int | None, typer.Option(min=1, help="Rounds of each case, at least.")] = None,
    dense_limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="GiB for dense layers; larger ones are extrapolated. Default: half of the free memory.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw speed-up against n to this .png or .svg.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time each class against a dense layer on this machine.

    One vector and a batch, in inference and in training, with the paper's
    speed-ups beside ours. Ctrl-C ends it and shows the cases measured so far.
    """
    import torch

    from torchldr.timing import machine

    from ..bench.grid import KINDS, QUICK, Grid
    from ..bench.measure import Setting, available_bytes

    _check(structure, what, device, product, plot)
    grid = QUICK if quick else Grid()
    grid = grid._replace(
        structures=structure or grid.structures, sizes=n or grid.sizes, ranks=rank or grid.ranks,
        batches=batch or grid.batches, what=KINDS if what == "both" else (what,),
        repeats=repeats or grid.repeats,
    )  # fmt: skip
    if next(grid.cases(), None) is None:
        raise typer.BadParameter("a rank is at most the size of the layer.", param_hint="--rank")
    limit = available_bytes(device) / 2 if dense_limit is None else dense_limit * 2**30
    setting = Setting(device, product, grid.repeats, grid.seconds, dense_bytes=limit)
    rows, interrupted = run(grid, setting)
    precision = torch.get_float32_matmul_precision()
    asked = {"device": device, "product": product, "matmul_precision": precision}
    result = {"machine": machine(), **asked, "rows": rows}
    if as_json:
        print(json_text(result))
    else:
        print_table(rows)
    if out is not None:
        with whole_file(out) as stream:
            stream.write((json_text(result, indent=1) + "\n").encode())
    if plot is not None and rows:
        from ..bench.plot import save_plot

        save_plot(rows, plot)
        say(f"picture: {plot}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def run(grid: Grid, setting: Setting) -> tuple[Rows, bool]:
    """Measure the cases of a grid: the rows, and whether Ctrl-C ended it early."""
    from ..bench import measure

    cases = list(grid.cases())
    rows: Rows = []
    start, step = time.monotonic(), steps(len(cases))
    try:
        for case in cases:
            if grid.deadline is not None and time.monotonic() - start > grid.deadline:
                break
            rows.append(measure.measure(case, setting))
            step(f"{case}: {rows[-1]['ratio']:.3g} ({rows[-1]['path']})")
    except KeyboardInterrupt:
        say(f"interrupted: {len(rows)} of {len(cases)} cases were measured")
        return rows, True
    if len(rows) < len(cases):
        say(f"out of time: left out {len(cases) - len(rows)} cases, from {cases[len(rows)]} on")
    return rows, False


def print_table(rows: Rows) -> None:
    """The rows as a table on stdout."""
    shown = []
    for row in rows:
        star = "*" if row["extrapolated"] else ""
        numbers = {"n": row["n"], "rank": row["rank"], "batch": row["batch"]}
        times = {"dense ms": f"{row['dense_ms']:.4g}{star}", "ours ms": f"{row['ours_ms']:.4g}"}
        ratios = {"ratio": f"{row['ratio']:.3g}{star}", "paper": row["paper"]}
        named = {"what": row["what"], "structure": row["structure"]}
        shown.append({**named, **numbers, **times, **ratios, "path": row["path"]})
    show(shown, False, right=("n", "rank", "batch", "dense ms", "ours ms", "ratio", "paper"))
    if any(row["extrapolated"] for row in rows):
        print("* the dense matrix is too large here: its time is extrapolated by n^2 from a smaller one")


def _check(structures: list[str] | None, what: str, device: str, product: str, plot: Path | None) -> None:
    """Raise typer.BadParameter, exit code 2, for arguments that make no grid."""
    import torch

    from torchldr.matrices import get_structure

    from ..bench.grid import KINDS

    for name, value, known in (
        ("what", what, (*KINDS, "both")),
        ("product", product, PRODUCTS),
        ("device", device, ("cpu", "cuda")),
    ):
        if value not in known:
            raise typer.BadParameter(f"--{name} must be one of {', '.join(known)}, got {value!r}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here.")
    with wrong_use("--structure"):
        for name in structures or ():
            get_structure(name)
    if plot is not None and plot.suffix.lower() not in (".png", ".svg"):
        raise typer.BadParameter(f"--plot takes a name that ends in .png or .svg, got {str(plot)!r}.")
