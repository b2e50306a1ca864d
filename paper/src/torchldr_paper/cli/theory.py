"""`torchldr theory`; the command line mounts it with `register`."""

from __future__ import annotations

from typing import Annotated

import typer

from torchldr.cli import AsJson, say, show

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
    asked = {"epsilon": epsilon, "delta": delta, "agnostic": agnostic}
    show({**asked, "rows": found} if as_json else found, as_json, columns=COLUMNS)
    if as_json:
        return
    say(
        "Upper bounds for one class against the others; parameters without 'paper' are those of that "
        f"network.\nSamples: enough for error {epsilon:g} with probability {1 - delta:g}"
        f"{', whatever the labels' if agnostic else ', where the class fits the labels'}."
    )
