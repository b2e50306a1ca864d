"""Draw the gallery: docs/gallery.md and a picture for every class and transform, in docs/gallery/.

python scripts/gallery.py [--folder DOCS]

Each picture shows a matrix, its displacement, the singular values of both, and where it stands in the
diagram of which class contains which. Ranks in the table are measured on the matrices that are drawn.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from gallery_entries import ENTRIES, HEIGHT, REGIONS, WIDTH, Entry, N
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image
from torch import Tensor

import torchldr
from torchldr.algebra import convert
from torchldr.matrices import LinearMap

DOCS = Path(__file__).resolve().parents[1] / "docs"
INK, QUIET, ACCENT, GREY = "#1a1a1a", "#666666", "#D55E00", "#9a9a9a"


class Measured(NamedTuple):
    """A matrix and its displacement, with what is stated and found of its rank."""

    matrix: Tensor
    displacement: Tensor
    formula: str
    stated: int | None
    found: int


def measure(M: LinearMap) -> Measured:
    """Displace a matrix by the operators that are known for it, or by shifts."""
    W = M.to_dense()
    try:
        (A, B, form), stated = torchldr.algebra.known_displacement(M)
        formula = "$M - A\\,M\\,B$" if form == "stein" else "$A\\,M - M\\,B$"
    except TypeError:
        A, B, form, stated = (
            torchldr.operators.Shift(N, 1.0),
            torchldr.operators.Shift(N, -1.0),
            "sylvester",
            None,
        )
        formula = "$Z_1 M - M Z_{-1}$"
    D = torchldr.algebra.displacement(W, A, B, form=form)
    values = torch.linalg.svdvals(D)
    scale = float(torch.linalg.svdvals(W)[0]) * (1 + float(torch.linalg.matrix_norm(A.to_dense(), 2)))
    return Measured(W, D, formula, stated, int((values > 1e-11 * scale).sum()))


def heat_map(axes: Axes, M: Tensor, limit: float, title: str) -> None:
    M = M.real if M.is_complex() else M
    axes.imshow(M.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    axes.set_title(title, fontsize=9.5, color=INK)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#cccccc")
        spine.set_linewidth(0.6)


def spectra(axes: Axes, measured: Measured) -> None:
    """Singular values of matrix and displacement, as parts of the largest of the matrix."""
    top = float(torch.linalg.svdvals(measured.matrix)[0])
    floor = 1e-8
    looks = (
        (measured.matrix, GREY, "o", 4.8, "$M$"),
        (measured.displacement, ACCENT, "D", 3.3, "displacement"),
    )
    for M, colour, marker, size, label in looks:
        values = torch.linalg.svdvals(M) / top
        values[values <= floor] = torch.nan  # nothing to draw, but in the legend
        place = range(1, len(values) + 1)
        axes.plot(
            place, values.numpy(), marker, color=colour, markersize=size, markeredgewidth=0, label=label
        )
    axes.set_yscale("log")
    axes.set_ylim(floor, 30)
    axes.set_xlim(0.2, len(measured.matrix) + 0.8)
    axes.set_yticks([1e-8, 1e-4, 1])
    axes.minorticks_off()
    axes.tick_params(labelsize=7, colors=QUIET, length=2)
    axes.set_title(f"singular values: rank {measured.found}", fontsize=9.5, color=INK)
    axes.set_box_aspect(1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bbbbbb")


def diagram(axes: Axes, chosen: str | None = None, labels: bool = False) -> None:
    """Which class contains which: nested boxes; one may be marked."""
    axes.set_xlim(-1, WIDTH + 1)
    axes.set_ylim(-1, HEIGHT + 1)
    axes.set_aspect("equal")
    axes.axis("off")
    for name, region in REGIONS.items():
        here = name == chosen
        box = FancyBboxPatch(
            (region.x, region.y), region.width, region.height, boxstyle="round,pad=0,rounding_size=1.6",
            facecolor=ACCENT if here else region.colour, edgecolor=ACCENT if here else "#8a8a8a",
            linewidth=0.9 if labels else 0.5,
        )  # fmt: skip
        axes.add_patch(box)
        if labels:
            flat = region.height < 10
            y = region.y + (region.height / 2 if flat else region.height - 2.6)
            axes.text(
                region.x + 1.6, y, region.title, fontsize=10.5, fontweight="bold", color=INK, va="center"
            )
            axes.text(
                region.x + region.width - 1.6,
                y,
                region.cost,
                fontsize=8.5,
                color="#444444",
                va="center",
                ha="right",
            )


def save(figure: Figure, path: Path) -> Path:
    """A PNG of 128 colours, which is half the size and looks the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    figure.savefig(stream, dpi=110, metadata={"Software": None})  # the same bytes from every version
    image = Image.open(stream).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def draw_entry(entry: Entry, measured: Measured, folder: Path) -> Path:
    width, height, panel = 8.9, 2.4, 1.92  # inches; places by hand, which is quicker than a layout engine
    figure = Figure(figsize=(width, height))
    places = ((0.06, panel), (0.12 + panel, panel), (0.62 + 2 * panel, panel), (0.72 + 3 * panel, 2.36))
    axes = [figure.add_axes((x / width, 0.2 / height, w / width, panel / height)) for x, w in places]
    size = (measured.matrix.real if measured.matrix.is_complex() else measured.matrix).abs()
    limit = float(size.flatten().quantile(0.98))  # a few large entries would leave the rest pale
    heat_map(axes[0], measured.matrix, limit, entry.title)
    heat_map(axes[1], measured.displacement, limit, measured.formula)
    spectra(axes[2], measured)
    diagram(axes[3], entry.region)
    for each in axes:
        each.set_anchor("N")  # titles on one line
    figure.legend(*axes[2].get_legend_handles_labels(), loc="lower right", ncols=2, fontsize=8, frameon=False)
    axes[3].set_title(REGIONS[entry.region].title, fontsize=9.5, color=INK)
    return save(figure, folder / f"{entry.name}.png")


def draw_diagram(folder: Path) -> Path:
    figure = Figure(figsize=(8.4, 5.15), layout="constrained")
    diagram(figure.subplots(), labels=True)
    return save(figure, folder / "containment.png")


def draw_learned(folder: Path, n: int = 48, steps: int = 100) -> Path:
    """The operators of a layer that was fitted to a filter whose gain changes along the signal."""
    torch.manual_seed(0)
    t = torch.arange(n, dtype=torch.float64)
    gain = torch.exp(0.9 * torch.sin(2 * torch.pi * t / n))
    taps = torch.cos(0.5 * t) * torch.exp(-t / 12)
    target = gain.unsqueeze(-1) * torchldr.Toeplitz(taps, 0.4 * taps).to_dense() / gain.roll(n // 4)
    layer = torchldr.StructuredLinear(n, n, False, structure="ldr_sd", rank=2, dtype=torch.float64)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=steps, line_search_fn="strong_wolfe")
    everything = torch.eye(n, dtype=torch.float64)

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = (layer(everything) - target.mT).square().sum() / target.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return save(torchldr.algebra.learned_operators(layer).picture(), folder / "learned_operators.png")


def as_ldr_td(M: LinearMap) -> str:
    try:
        return str(convert(M, "ldr_td").rank)
    except TypeError:
        return "-"


def page(measured: dict[str, Measured], matrices: dict[str, LinearMap]) -> Iterator[str]:
    """The lines of gallery.md."""
    yield from HEAD.splitlines()
    for entry in ENTRIES:
        found = measured[entry.name]
        stated = "-" if found.stated is None else str(found.stated)
        link, region = f"[{entry.title}](#{anchor(entry.title)})", REGIONS[entry.region].title
        yield f"| {link} | {region} | {stated} | {found.found} | {as_ldr_td(matrices[entry.name])} |"
    yield from MIDDLE.splitlines()
    for entry in ENTRIES:
        yield from (
            "",
            f"## {entry.title}",
            "",
            entry.sentence,
            "",
            f"![{entry.title}](gallery/{entry.name}.png)",
        )


def anchor(title: str) -> str:
    return "".join(c for c in title.lower() if c.isalnum() or c in "_- ").replace(" ", "-")


HEAD = f"""# Gallery

See every structured class and transform of the library at {N} x {N}: the matrix, its displacement, the
singular values of both, and where it stands. `python scripts/gallery.py` draws the pictures and writes
this page.

## Which class contains which

![Nested boxes: LDR-TD contains LDR-SD, which contains Toeplitz-like matrices](gallery/containment.png)

After the paper's figure, with storage and cost of a product up to constants. A box inside of another is
contained in it: its matrices have low displacement rank by operators of the outer box. Costs are those of the
best algorithms known; what ours take is on [each class's page](classes/index.md).

## Ranks

*Stated* is what the paper's proposition on expressiveness says of the displacement rank, or what is known
where that is less; *found* counts the singular values of the displacement above 1e-11 of its terms. *As
LDR-TD* is the rank of the exact Krylov form that [`convert`](equivariance.md#exact-members-of-ldr-td)
gives, where one is known.

| matrix | in | stated | found | as LDR-TD |
|---|---|---|---|---|"""

MIDDLE = """
In the pictures red is positive, blue negative and white zero. The displacement has the colours of its matrix:
where it is white, moving rows and moving columns agree. The orange box is the smallest of the diagram that
contains the matrix. The operators are those of [the table of families](equivariance.md#matrices-by-name)."""


def main(docs: Path = DOCS) -> list[Path]:
    """Draw everything into a folder: the paths of what was written."""
    matrices = {entry.name: entry.make() for entry in ENTRIES}
    measured = {name: measure(M) for name, M in matrices.items()}
    folder = docs / "gallery"
    written = [draw_diagram(folder)]
    written += [draw_entry(entry, measured[entry.name], folder) for entry in ENTRIES]
    written.append(draw_learned(folder))
    text = docs / "gallery.md"
    text.write_text("\n".join(page(measured, matrices)) + "\n")
    return [*written, text]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=DOCS, help="where to write; docs/ by default")
    for path in main(parser.parse_args().folder):
        print(path)
