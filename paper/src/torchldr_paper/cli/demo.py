"""`torchldr demo`: one matrix fitted by every class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchldr.cli import AsJson, say, show

from .progress import steps


def demo_command(
    out: Annotated[Path, typer.Option(help="Where to save the picture.")] = Path("out/demo.png"),
    adam: Annotated[int, typer.Option("--steps", min=1, help="Steps of Adam for each class.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Fit one matrix by every class, with a picture (a minute).

    The matrix is a sum of shifts with varying gains. The table has the
    parameters, the error and the speed of each class.
    """
    from torchldr.matrices import structures

    from .. import demo

    result = demo.run(steps=adam, seed=seed, progress=steps(len(structures())))
    show(result.rows, as_json, title=None if as_json else demo.TITLE)
    say(demo.NOTE)
    saved = demo.save_picture(result, out)
    say(f"picture: {out}" if saved else "no picture: pip install matplotlib")
