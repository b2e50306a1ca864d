"""The page: what the ledger holds, put into its template."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined  # torch requires it
from markupsafe import Markup

from torchldr import __version__
from torchldr.whole_file import whole_file

from ..figures import Gallery, Picture, draw_all
from ..figures.datasets import DataDir
from ..figures.names import dataset_title, model_title
from ..ledger.ledger import Ledger
from .runs import packed_runs
from .sections import facts, headline, sections

FIRST = ("accuracy_parameters_shl", "accuracy_rank", "perplexity_parameters")  # the charts that open the page


def report(
    ledger: Ledger,
    out: str | os.PathLike[str] = Path("out/report.html"),
    *,
    figures: bool = True,
    data_dir: DataDir = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the report: one HTML file that loads nothing from elsewhere.

    Args:
        ledger: what to report.
        out: the file; its folder is made where it is missing.
        figures: whether to draw the figures; without matplotlib the page says what to install.
        data_dir: a data folder, for the examples of datasets.
        progress: called with a line when a figure is done.

    Returns:
        The path of the file.

    Raises:
        OSError: where it cannot be written, naming the file; what was there before stays.
    """
    path = Path(out)
    if path.is_dir():
        path /= "report.html"
    page = render(ledger, _gallery(ledger, data_dir, progress) if figures else Gallery([], {}))
    with whole_file(path) as stream:
        stream.write(page.encode())
    return path


def render(ledger: Ledger, gallery: Gallery) -> str:
    """The text of the page."""
    loader = PackageLoader(__package__, ".")
    pages = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )

    def as_it_is(name: str) -> Markup:
        return Markup(loader.get_source(pages, name)[0])

    shown = sections(ledger)
    charts = [picture for picture in gallery.pictures if picture.name in FIRST]
    return pages.get_template("page.html").render(
        style=as_it_is("page.css"),
        script=as_it_is("page.js"),
        runs=packed_runs(ledger),
        ledger=ledger,
        facts=facts(ledger),
        devices=sorted({str(record.machine.get("device")) for record in ledger}),
        headline=headline(ledger),
        sections=shown,
        datasets=_titles(dataset_title, (row["dataset"] for section in shown for row in section.rows)),
        models=_titles(model_title, (row["model"] for section in shown for row in section.rows)),
        charts=sorted(charts, key=lambda picture: FIRST.index(picture.name)),
        pictures=[picture for picture in gallery.pictures if picture.name not in FIRST],
        left_out=gallery.left_out,
        image=_image,
        version=__version__,
    )


def _gallery(ledger: Ledger, data_dir: DataDir, progress: Callable[[str], None]) -> Gallery:
    try:
        return draw_all(ledger, data_dir, progress=progress)
    except ImportError as error:
        return Gallery([], {"figures": str(error)})


def _titles(title: Callable[[str], str], names: Iterable[str]) -> list[tuple[str, str]]:
    """Titles and names, by title."""
    return sorted(((title(name), name) for name in dict.fromkeys(names)), key=lambda pair: pair[0].lower())


def _image(picture: Picture) -> str:
    """A PNG of few colours, as an address: a page with all figures stays small enough to be sent."""
    from PIL import Image  # comes with matplotlib

    drawn = Image.open(io.BytesIO(picture.encode("png", dpi=128 if picture.vector else 100)))
    stream = io.BytesIO()
    drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
