"""`torchldr theory`; the command line mounts it with `register`."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from torchldr.cli import AsJson

from .options import PANEL

COLUMNS = (
    "model", "hidden", "structure", "rank", "paper_parameters", "parameters", "degree", "vc_bound",
    "of_dense", "samples",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(
        "theory", rich_help_panel=PANEL, epilog="Example: torchldr theory --model shl --epsilon 0.05"
    )(theory_command)


def theory_command(
    model: Annotated[str, typer.Option(help="shl, cnn or both.")] = "both",
    epsilon: Annotated[float, typer.Option(help="Excess error, between 0 and 1.")] = 0.1,
    delta: Annotated[float, typer.Option(help="Probability of failure, between 0 and 1.")] = 0.05,
    agnostic: Annotated[
        bool, typer.Option("--agnostic", help="Samples to be near the best of the class, right or not.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """VC-dimension bounds and sample sizes of the paper's networks.

    Dense and structured ones: upper bounds, to compare classes by.
    """
    from ..theory.paper import MODELS, rows

    if model not in (*MODELS, "both"):
        raise typer.BadParameter(f"--model must be one of {', '.join(MODELS)}, both, got {model!r}.")
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0 < value < 1:
            raise typer.BadParameter(f"--{name} must lie between 0 and 1, got {value}.")
    found = rows(MODELS if model == "both" else (model,), epsilon, delta, agnostic=agnostic)
    if as_json:
        print(json.dumps({"epsilon": epsilon, "delta": delta, "agnostic": agnostic, "rows": found}, indent=2))
        return
    _print_table(found)
    print(
        "Upper bounds for one class against the others; parameters without 'paper' are those of that "
        f"network.\nSamples: enough for error {epsilon:g} with probability {1 - delta:g}"
        f"{', whatever the labels' if agnostic else ', where the class fits the labels'}.",
        file=sys.stderr,
    )


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_edge=False, pad_edge=False)
    for name in COLUMNS:
        left = name in ("model", "structure")
        table.add_column(name.replace("_", " "), justify="left" if left else "right", no_wrap=True)
    before: tuple[Any, ...] | None = None
    for row in rows:
        if before not in (None, (row["model"], row["hidden"])):
            table.add_section()
        before = row["model"], row["hidden"]
        table.add_row(*(_cell(row[name]) for name in COLUMNS))
    Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False).print(table)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.3g}"
    return str(value)
