"""The page: what the ledger holds, and the runs behind its numbers, put into a template."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined  # torch requires it
from markupsafe import Markup

from torchldr import __version__
from torchldr.whole_file import whole_file

from ..figures import Gallery, Picture, draw_all
from ..figures.datasets import DataDir
from ..figures.names import dataset_title, model_title, source_title
from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..trainer.selection import peak
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
    """Write the report, one HTML file that loads nothing from elsewhere, and return its path.

    Its folder is made where it is missing. `progress` is called with a line when a figure is done; without
    matplotlib the page says what to install. Where it cannot be written, what was there before stays.
    """
    path = Path(out)
    if path.is_dir():
        path /= "report.html"
    try:
        gallery = draw_all(ledger, data_dir, names=None if figures else (), progress=progress)
    except ImportError as error:
        gallery = Gallery([], {"figures": str(error)})
    page = render(ledger, gallery)
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
        dataset_title=dataset_title,
        model_title=model_title,
        datasets=_titles(dataset_title, (row["dataset"] for section in shown for row in section.rows)),
        models=_titles(model_title, (row["model"] for section in shown for row in section.rows)),
        charts=sorted(charts, key=lambda picture: FIRST.index(picture.name)),
        pictures=[picture for picture in gallery.pictures if picture.name not in FIRST],
        left_out=gallery.left_out,
        image=_image,
        version=__version__,
    )


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


CURVES = ("train", "validation", "test")


def packed_runs(ledger: Ledger) -> str:
    """Every run of the ledger as JSON, compressed, in letters that can stand anywhere: the page unpacks it.

    One run may have been trained on official data and on a stand-in, so that the source is part of its key.
    """
    runs = {f"{record.source}/{record.hash}": run_json(record) for record in ledger}
    compact = json.dumps(runs, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(compact.encode(), mtime=0)).decode()


def run_json(record: Record) -> dict[str, Any]:
    """What a panel shows of a run: all but the metrics of the replicas that were not chosen."""
    result, best = record.result, record.best
    curves = {}
    if best is not None:
        known = {name: rows for name, rows in result["metrics"].items() if name in CURVES}
        curves = {name: [_short(row[best.replica]) for row in rows] for name, rows in known.items()}
    return {
        "label": record.run.label,
        "hash": record.hash,
        "config": record.run.config(),
        "data": {**record.data, "source": source_title(record.source)},
        "parameters": result["parameters"],
        "seconds": result["seconds"],
        "best": result["best"],
        "mean": result["mean"],
        "curves": curves,
        "replicas": _replicas(record),
        "notes": result.get("notes") or {},
        "machine": dict(record.machine),
        "time": record.time,
    }


def _replicas(record: Record) -> list[dict[str, Any]]:
    """Each replica: its rate and trial, its best validation (accuracy, or perplexity), the test there."""
    validation, test = (record.result["metrics"].get(name, ()) for name in ("validation", "test"))
    rows = []
    for i, replica in enumerate(record.run.protocol.replicas):
        found = peak(validation, [i], least=record.run.model == "lstm")  # a perplexity is best at its lowest
        rows.append(
            {
                "lr": replica.lr,
                "trial": replica.trial,
                "validation": None if found is None else _short(validation[found[0]][i]),
                "test": None if found is None or found[0] >= len(test) else _short(test[found[0]][i]),
                "diverged": record.result["diverged"][i],
            }
        )
    return rows


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
