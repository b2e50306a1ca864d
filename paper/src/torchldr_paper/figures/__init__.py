"""The figures of the paper's experiments, as functions of the ledger or of the library alone.

    from torchldr_paper import Ledger
    from torchldr_paper.figures import FIGURES, draw, save_figures

    picture = draw("accuracy_rank", Ledger())       # a Picture: title, caption, matplotlib figure
    picture.save(Path("out/figures"))               # accuracy_rank.png, accuracy_rank.svg
    save_figures(Ledger(), Path("out/figures"))     # all that can be drawn

On the command line: `torchldr figures`. Figures need matplotlib: `pip install matplotlib`. A figure raises
`NothingToDrawError` if its runs are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from torchldr.pictures import FORMATS, NothingToDrawError, Picture

from ..ledger.ledger import Ledger
from ..messages import unknown
from .accuracy import accuracy_against_flash, accuracy_against_parameters, accuracy_against_rank
from .datasets import DataDir, examples
from .language import perplexity_against_parameters, validation_curves
from .learned import learned_channels, learned_weights
from .theory import displacement, operators

__all__ = [
    "FIGURES",
    "FORMATS",
    "Gallery",
    "NothingToDrawError",
    "Picture",
    "accuracy_against_flash",
    "accuracy_against_parameters",
    "accuracy_against_rank",
    "displacement",
    "draw",
    "draw_all",
    "examples",
    "learned_channels",
    "learned_weights",
    "operators",
    "perplexity_against_parameters",
    "save_figures",
    "validation_curves",
]

Draw = Callable[[Ledger, DataDir], Picture]

FIGURES: Mapping[str, Draw] = MappingProxyType(
    {
        "displacement": lambda ledger, data_dir: displacement(),
        "operators": lambda ledger, data_dir: operators(),
        "examples": lambda ledger, data_dir: examples(data_dir),
        "accuracy_rank": lambda ledger, data_dir: accuracy_against_rank(ledger),
        "accuracy_parameters_shl": lambda ledger, data_dir: accuracy_against_parameters(ledger, "shl"),
        "accuracy_parameters_cnn": lambda ledger, data_dir: accuracy_against_parameters(ledger, "cnn"),
        "accuracy_flash": lambda ledger, data_dir: accuracy_against_flash(ledger),
        "weights_mnist_bg_rot": lambda ledger, data_dir: learned_weights(ledger, "mnist_bg_rot", data_dir),
        "weights_cifar10_grey": lambda ledger, data_dir: learned_weights(ledger, "cifar10_grey", data_dir),
        "perplexity_parameters": lambda ledger, data_dir: perplexity_against_parameters(ledger),
        "perplexity_curves": lambda ledger, data_dir: validation_curves(ledger),
        "channels_cifar10": lambda ledger, data_dir: learned_channels(ledger),
    }
)


class Gallery(NamedTuple):
    """What could be drawn, and why the rest could not, by name."""

    pictures: list[Picture]
    left_out: dict[str, str]


def draw(name: str, ledger: Ledger, data_dir: DataDir = None) -> Picture:
    """One figure by its name.

    Raises:
        ValueError: for an unknown name, with the nearest known.
        NothingToDrawError: if its runs are missing; the message says what to run.
        ImportError: if matplotlib is not installed.
    """
    if name not in FIGURES:
        raise ValueError(unknown("figure", name, FIGURES))
    return FIGURES[name](ledger, data_dir)


Step = Callable[[str], None]
"""Called with a line when a figure is drawn or left out."""


def draw_all(
    ledger: Ledger,
    data_dir: DataDir = None,
    names: Iterable[str] | None = None,
    progress: Step = lambda line: None,
) -> Gallery:
    """All figures, or those named, that can be drawn.

    Raises:
        ValueError, ImportError: as `draw`; the result lists figures whose runs are missing.
    """
    gallery = Gallery([], {})
    for name in FIGURES if names is None else names:
        try:
            gallery.pictures.append(draw(name, ledger, data_dir))
        except NothingToDrawError as reason:
            gallery.left_out[name] = str(reason)
        progress(f"{name}{': left out' if name in gallery.left_out else ''}")
    return gallery


def save_figures(
    ledger: Ledger,
    out: Path,
    *,
    names: Iterable[str] | None = None,
    formats: Iterable[str] = FORMATS,
    data_dir: DataDir = None,
    progress: Step = lambda line: None,
) -> tuple[list[Path], dict[str, str]]:
    """Save figures, by default all that can be drawn, to a folder, which is made where it is missing.

    Returns:
        The files, and why figures were left out, by name.
    """
    chosen = tuple(formats)
    gallery = draw_all(ledger, data_dir, names, progress)
    return [path for picture in gallery.pictures for path in picture.save(out, chosen)], gallery.left_out
