"""The page: what it says, section by section, put into its template."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from string import Template

from torchldr import __version__

from ..figures import Gallery, Picture, draw_all
from ..figures.datasets import DataDir
from ..figures.names import dataset_title, model_title
from ..ledger.ledger import Ledger
from ..ledger.whole_file import write_whole
from .markup import Html, element, join, packed, text
from .runs import runs_json
from .sections import Section, headline, sections, summary

QUICK_START = "torchldr paper rectangles --quick"
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
    write_whole(path, page.encode())
    return path


def render(ledger: Ledger, gallery: Gallery) -> str:
    """The text of the page."""
    shown, front = sections(ledger), headline(ledger)
    charts = sorted((p for p in gallery.pictures if p.name in FIRST), key=lambda p: FIRST.index(p.name))
    rest = Gallery([picture for picture in gallery.pictures if picture.name not in FIRST], gallery.left_out)
    return Template(_file("page.html")).substitute(
        style=_file("page.css"),
        script=_file("page.js"),
        runs=packed(runs_json(ledger)),
        summary=summary(ledger),
        empty=_empty(ledger),
        problems=_problems(ledger),
        dataset_options=_options(
            {row["dataset"]: dataset_title(row["dataset"]) for s in shown for row in s.rows}
        ),
        model_options=_options({row["model"]: model_title(row["model"]) for s in shown for row in s.rows}),
        contents=join([_entry(section) for section in ([front] if front else []) + shown]),
        tables=join([section.html() for section in shown]),
        charts=join([_figure(picture) for picture in charts]),
        headline=Html("") if front is None else front.html(),
        figures=_figures(rest),
        version=text(__version__),
    )


def _gallery(ledger: Ledger, data_dir: DataDir, progress: Callable[[str], None]) -> Gallery:
    try:
        return draw_all(ledger, data_dir, progress=progress)
    except ImportError as error:
        return Gallery([], {"figures": str(error)})


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _empty(ledger: Ledger) -> Html:
    if len(ledger):
        return Html("")
    return element(
        "section",
        element("h2", text("The ledger is empty")),
        element("p", text(f"No finished run was found in {ledger.path}. To make a first table, run")),
        element("pre", element("code", text(f"{QUICK_START}\ntorchldr report"))),
        element("p", text("Without --quick it is the paper's protocol. All tables: torchldr paper list.")),
        class_="notice",
        id="empty",
    )


def _problems(ledger: Ledger) -> Html:
    if not ledger.problems:
        return Html("")
    lines = join([element("li", text(problem)) for problem in ledger.problems])
    count = len(ledger.problems)
    what = f"{count} {'line' if count == 1 else 'lines'} of the ledger could not be read"
    heading = element("summary", text(what))
    return element("details", heading, element("ul", lines), class_="notice")


def _options(titles: dict[str, str]) -> Html:
    ordered = sorted(titles.items(), key=lambda pair: pair[1].lower())
    return join([element("option", text(title), value=value) for value, title in ordered])


def _entry(section: Section) -> Html:
    """A line of the table of contents."""
    link = element("a", text(section.title), href=f"#{section.id}")
    return element("li", link, element("span", text(f" {section.progress}"), class_=f"state {section.state}"))


def _figures(gallery: Gallery) -> Html:
    parts = [_figure(picture) for picture in gallery.pictures]
    if gallery.left_out:
        lines = (element("li", text(f"{name}: {why}")) for name, why in gallery.left_out.items())
        left = element("ul", join(lines), class_="left-out")
        parts.append(
            element("details", element("summary", text("Figures that could not be drawn yet")), left)
        )
    return join(parts) if parts else element("p", text("No figures were asked for."))


def _figure(picture: Picture) -> Html:
    source = f"data:image/png;base64,{base64.b64encode(_small(picture)).decode()}"
    # An image has no closing tag.
    image = Html(f'<img src="{source}" alt="{text(picture.title)}" decoding="async">')
    return element(
        "figure",
        element("h3", text(picture.title)),
        element("div", image, class_="scroll paper", tabindex=0, role="region", aria_label=picture.title),
        element("figcaption", text(picture.caption)),
        id=f"figure-{picture.name}",
        data_datasets=_words(picture.datasets),
        data_models=_words(picture.models),
    )


def _small(picture: Picture) -> bytes:
    """A PNG of few colours: a page with all figures stays small enough to be sent."""
    from PIL import Image  # comes with matplotlib

    drawn = Image.open(io.BytesIO(picture.encode("png", dpi=128 if picture.vector else 100)))
    stream = io.BytesIO()
    drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _words(names: Iterable[str]) -> str | None:
    return " ".join(names) or None
