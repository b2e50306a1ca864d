"""Draw the pictures of docs/tridiagonal.md: docs/tridiagonal/NAME.png.

python scripts/tridiagonal_pictures.py [NAME ...]

ports    a line of cells cut into blocks with two ports each, and the tree of joins
bound    the largest error of accepted products that a search over inputs finds, against their bounds
reach    the share of near shifts that are accepted, by size and spread
timing   port product, stencil and dense layer, from results/bench/port_speed.json (left out where absent)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from torchldr.functional.port.acceptance import judge, profile, tolerance
from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.functional.tridiagonal import Operator

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "tridiagonal"
TIMES = ROOT / "results" / "bench" / "port_speed.json"
BLUE, RED, GREY = "#2b6cb0", "#c53030", "#718096"
SPREADS, SIZES, SEEDS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3), (512, 1024, 2048, 4096), 3


def near_shifts(n: int, spread: float, seed: int) -> tuple[Operator, Operator]:
    """Two operators: subdiagonal 1 + spread z / 2, the others spread z, corners 0, z normal."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(2):
        lower, diagonal, upper, V = torch.randn(4, n, generator=generator, dtype=torch.float64)
        lower, diagonal, upper = 1 + spread / 2 * lower, spread * diagonal, spread * upper
        lower[0] = upper[-1] = 0
        found.append((lower, diagonal, upper, V.unsqueeze(0)))
    return found[0], found[1]


def ports() -> Figure:
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for block in range(4):
        left = block * 4.4
        axes.add_patch(
            FancyBboxPatch(
                (left, 0), 3.6, 1.1, boxstyle="round,pad=0.08", facecolor="#ebf4ff", edgecolor=BLUE
            )
        )
        for cell in range(6):
            port = cell in (0, 5)
            axes.plot(left + 0.3 + 0.6 * cell, 0.5, "o", color=BLUE if port else "#bee3f8", markersize=9)
        axes.text(left + 0.3, 0.85, "L", ha="center", fontsize=8, color=BLUE)
        axes.text(left + 3.3, 0.85, "R", ha="center", fontsize=8, color=BLUE)
        axes.text(left + 1.8, -0.5, f"block {block}", ha="center", fontsize=8)
        if block < 3:
            _arrow(axes, (left + 3.45, 0.62), (left + 4.55, 0.62), RED, 0.35)
            _arrow(axes, (left + 4.55, 0.38), (left + 3.45, 0.38), GREY, 0.35)
            axes.text(left + 4.0, 1.02, "z s", ha="center", fontsize=8, color=RED)
            axes.text(left + 4.0, -0.12, "z p", ha="center", fontsize=8, color=GREY)
    for left, right, height in ((0, 8.0, 2.2), (8.8, 16.8, 2.2), (0, 16.8, 3.4)):
        axes.add_patch(
            FancyBboxPatch(
                (left, height),
                right - left,
                0.5,
                boxstyle="round,pad=0.08",
                facecolor="#f7fafc",
                edgecolor=BLUE,
            )
        )
        axes.plot([left + 0.2, right - 0.2], [height + 0.25] * 2, "o", color=BLUE, markersize=7)
    text = "2m cells, two ports, series of 2cm coefficients"
    axes.text(4.0, 2.45, text, ha="center", va="center", fontsize=8)
    axes.text(12.8, 2.45, text, ha="center", va="center", fontsize=8)
    axes.text(
        8.4, 3.65, "the whole line; the corners close it to a ring", ha="center", va="center", fontsize=8
    )
    for low, high, up in ((1.8, 4.0, 2.1), (6.2, 4.0, 2.1), (10.6, 12.8, 2.1), (15.0, 12.8, 2.1)):
        axes.plot([low, high], [1.25, up], color=GREY, lw=0.8)
    for low in (4.0, 12.8):
        axes.plot([low, 8.4], [2.8, 3.3], color=GREY, lw=0.8)
    axes.set_xlim(-0.5, 17.3)
    axes.set_ylim(-0.9, 4.2)
    axes.axis("off")
    return figure


def _arrow(
    axes: Axes, tail: tuple[float, float], head: tuple[float, float], colour: str, bend: float
) -> None:
    style = {"arrowstyle": "->", "color": colour, "lw": 1.4, "connectionstyle": f"arc3,rad={-bend}"}
    axes.annotate("", xy=head, xytext=tail, arrowprops=style)


def bound() -> Figure:
    """Near shifts of 256 cells: unit vectors, and what the error amplifies most."""
    n = 256
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for i, spread in enumerate(SPREADS):
        points = [_worst(*near_shifts(n, spread, seed)) for seed in range(8)]
        bounds, errors = zip(*[point or (float("nan"),) * 2 for point in points], strict=True)
        axes.loglog(bounds, errors, "o", color=f"C{i}", markersize=4, label=f"spread {spread}")
    ends = axes.get_xlim()
    axes.loglog(ends, ends, color=GREY, lw=0.8)
    axes.axvline(tolerance(n), color=RED, lw=0.8)
    axes.set_xlabel("bound")
    axes.set_ylabel("largest error found / max |factors||x|")
    axes.legend(fontsize=7)
    return figure


def _worst(A: Operator, C: Operator) -> tuple[float, float] | None:
    """The bound of a product and the largest error found, None if it is refused."""
    verdict, n = judge(A, C), len(A[0])
    if verdict.ports is None:
        return None
    left, right = (krylov_of_ring_reference(a, b, c, V[0], n) for a, b, c, V in (A, C))
    M, S, sizes = left @ right.mT, left.abs() @ right.abs().mT, profile(A, C, n)[2]
    units = torch.eye(n, dtype=torch.float64)
    error = verdict.ports.of_scaled(units * sizes).mT - M
    inputs = torch.cat((units, torch.linalg.svd(error / sizes)[2][:8] / sizes))
    off = (verdict.ports.of_scaled(inputs * sizes) - inputs @ M.mT).abs().amax(-1)
    return verdict.bound, float((off / (inputs.abs() @ S.mT).amax(-1)).max())


def reach() -> Figure:
    """The share of operators with normal entries that are accepted."""
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    shares = torch.zeros(len(SIZES), len(SPREADS))
    for i, n in enumerate(SIZES):
        for j, spread in enumerate(SPREADS):
            accepted = [judge(*near_shifts(n, spread, seed)).ports is not None for seed in range(SEEDS)]
            shares[i, j] = sum(accepted) / SEEDS
            axes.text(j, i, f"{shares[i, j]:.0%}", ha="center", va="center", fontsize=8)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.5, aspect="auto", origin="lower")
    axes.set_xticks(range(len(SPREADS)), [str(spread) for spread in SPREADS])
    axes.set_yticks(range(len(SIZES)), [str(n) for n in SIZES])
    axes.set_xlabel("spread of the diagonals (normal; half of it for the subdiagonal)")
    axes.set_ylabel("n")
    return figure


def timing() -> Figure | None:
    """By the median seed, without corners."""
    if not TIMES.exists():
        return None
    rows = [row for row in json.loads(TIMES.read_text())["rows"] if row["corners"] == 0]
    figure = Figure(figsize=(5.5, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for i, kind in enumerate(dict.fromkeys(row["kind"] for row in rows)):
        of = [row for row in rows if row["kind"] == kind and "port_ms" in row]
        axes.loglog(
            [r["n"] for r in of], [r["port_ms"] for r in of], "o-", color=f"C{i}", label=f"port, {kind}"
        )
    for name, style in (("stencil", "s-"), ("dense", "^--")):
        of = [row for row in rows if row["kind"] == "uniform" and row[f"{name}_ms"]]
        axes.loglog([r["n"] for r in of], [r[f"{name}_ms"] for r in of], style, color=GREY, label=name)
    sizes = sorted({row["n"] for row in rows})
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.set_xlabel("n")
    axes.set_ylabel("ms")
    axes.legend(fontsize=7)
    return figure


PICTURES: dict[str, Callable[[], Figure | None]] = {
    "ports": ports,
    "bound": bound,
    "reach": reach,
    "timing": timing,
}


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or PICTURES:
        figure = PICTURES[name]()
        if figure is None:
            print(f"{name}: left out, {TIMES.relative_to(ROOT)} is absent")
            continue
        path = FOLDER / f"{name}.png"
        figure.savefig(path, dpi=110, metadata={"Software": None})  # the same bytes from every version
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
