"""What all figures have in common: how they look, what a `Picture` holds, how it is saved.

Colours are of the palette of Okabe and Ito, which people with a colour deficiency can tell apart, and
every method has a marker of its own besides; maps of signed values run from blue to red through white.
Figures are made as objects, without pyplot: nothing global changes and no display is needed.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from .core.structures import structures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "FORMATS",
    "LOOKS",
    "PLAIN",
    "SIGNED",
    "NothingToDrawError",
    "Picture",
    "Style",
    "bare",
    "look",
    "new_figure",
    "styled",
]  # fmt: skip

P = ParamSpec("P")
Drawn = TypeVar("Drawn")

FORMATS = ("png", "svg")
"""The formats in which a picture can be saved."""
DPI = 160
SIGNED = "RdBu_r"
"""The colour map of numbers with two signs."""
PLAIN = "gray"
"""The colour map of images."""

_RC: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    "axes.grid": False,
    "axes.labelcolor": "#333333",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.facecolor": "white",
    "figure.titlesize": 11,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "mathtext.fontset": "dejavusans",
    "svg.hashsalt": "torchldr",  # the same figure gives the same file
    "text.color": "#1a1a1a",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}


class Style(NamedTuple):
    """How a method is drawn."""

    colour: str
    marker: str


LOOKS = {"pruning": Style("#7A4B9A", "d"), "rhu": Style("#8A6D3B", "h")}
"""Colours and marks of methods other than structured classes, by name."""
OTHER = Style("#888888", ".")


class NothingToDrawError(ValueError):
    """A figure for which something is missing: the message says what, and what to run."""


@dataclass(frozen=True)
class Picture:
    """A figure and what belongs beside it.

    Attributes:
        name: of its file.
        title: one line.
        caption: what it shows and how to read it.
        figure: the figure itself.
        datasets, models: those that it shows; may be empty.
        vector: whether it is lines and text, better kept as SVG; otherwise it is pixels.
    """

    name: str
    title: str
    caption: str
    figure: Figure
    datasets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    vector: bool = False

    def encode(self, format: str, dpi: int = DPI) -> bytes:
        """The figure as a file of this format, with so many dots an inch."""
        if format not in FORMATS:
            raise ValueError(f"a figure is saved as {' or '.join(FORMATS)}, got {format!r}.")
        stream = io.BytesIO()
        metadata = {"Date": None} if format == "svg" else {"Software": None}
        with _style():
            self.figure.savefig(stream, format=format, dpi=dpi, metadata=metadata)
        return stream.getvalue()

    def save(self, folder: Path, formats: Iterable[str] = FORMATS) -> list[Path]:
        """Write it to a folder, which is made if it is missing; returns the paths of the files."""
        encoded = {folder / f"{self.name}.{format}": self.encode(format) for format in formats}
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in encoded.items():
            path.write_bytes(content)
        return list(encoded)


def styled(draw: Callable[P, Drawn]) -> Callable[P, Drawn]:
    """Decorates a function that draws: it runs in our look, or says that matplotlib is missing."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Drawn:
        with _style():
            return draw(*args, **kwargs)

    return drawn


def _style() -> AbstractContextManager[None]:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("figures need matplotlib; pip install matplotlib") from error
    return matplotlib.rc_context(_RC)


def new_figure(width: float, height: float, rows: int, columns: int, **options: Any) -> tuple[Figure, Any]:
    """A figure with an array of axes, shape (rows, columns).

    Args:
        width, height: in inches.
        rows, columns: of the array.
        options: of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def bare(axes: Axes) -> None:
    """An image without ticks, in a thin frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color("#bbbbbb")
        spine.set_linewidth(0.6)


def look(method: str) -> Style:
    """How a method is drawn; the same grey for those without a look of their own."""
    known = structures().get(method)
    return LOOKS.get(method, OTHER) if known is None else Style(*known.look)
