"""Draw the pictures of docs/tridiagonal.md: docs/tridiagonal/NAME.png.

python scripts/tridiagonal_pictures.py [NAME ...]

ports    a line of cells cut into blocks with two ports each, and the tree of joins
bound    the error of a column against its proven bound, by oversampling
reach    the oversampling that operators of a given backward share need
memory   how the series of blocks end: the tails by level
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
from torch import Tensor

from torchldr.functional import port_choice
from torchldr.functional.port import port_rmatmul
from torchldr.functional.port_certificate import observed_columns
from torchldr.functional.reference import krylov_of_ring_reference

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "tridiagonal"
TIMES = ROOT / "results" / "bench" / "port_speed.json"
BLUE, RED, GREY = "#2b6cb0", "#c53030", "#718096"
SHARES = 0.02, 0.1, 0.2, 0.3, 0.4  # of what goes back, the rest goes on


def drift(n: int, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Subdiagonal 1 - share, superdiagonal share, no corners: nothing is lost but at the ends."""
    lower, zeros = torch.full((n,), 1 - share, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    upper = 1 - lower
    lower[0] = upper[-1] = 0
    return lower, zeros, upper


def start(n: int) -> Tensor:
    return torch.randn(1, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / n**0.5


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
    """Columns of the product's matrix against A^t v, n = 256."""
    n, candidates = 256, (2, 4, 8, 16, 32)
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    axes = figure.add_subplot()
    v, units = start(n), torch.eye(n, dtype=torch.float64)
    for i, share in enumerate(SHARES):
        ring = drift(n, share)
        exact = krylov_of_ring_reference(*ring, v[0], n)
        size = float(exact.norm() / n**0.5)
        errors, bounds = [], []
        for c in candidates:
            got, certificate = observed_columns(*ring, v, units, n, oversampling=c)
            errors.append(float((got[:, 0] - exact).norm(dim=0).max()) / size)
            bounds.append(float(certificate.truncation[0]) / size)
        colour = f"C{i}"
        axes.loglog(candidates, errors, "o-", color=colour, label=f"superdiagonal {share}")
        axes.loglog(candidates, [max(b, 1e-25) for b in bounds], "--", color=colour)
    axes.axhline(2.2e-16, color=GREY, lw=0.8)
    axes.text(2, 4e-18, "rounding unit of float64", fontsize=7, color=GREY)
    axes.set_xticks(candidates, [str(c) for c in candidates])
    axes.minorticks_off()
    axes.set_ylim(1e-25, 1e3)
    axes.set_xlabel("oversampling c")
    axes.set_ylabel("error of a column / size of a column")
    axes.set_title("largest error (points) and its proven bound (dashed)", fontsize=9)
    axes.legend(fontsize=7)
    return figure


def reach() -> Figure:
    """The least oversampling whose bound meets the tolerance, by the share that goes back."""
    n = 512
    shares = [0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]
    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for dtype, colour, marker in ((torch.float32, BLUE, "o"), (torch.float64, RED, "s")):
        found = []
        for share in shares:
            choice = port_choice.choose_port(*drift(n, share), start(n), n, dtype)
            found.append(choice.trial.oversampling if choice.accepted else None)
        inside = [(s, c) for s, c in zip(shares, found, strict=True) if c]
        outside = [s for s, c in zip(shares, found, strict=True) if not c]
        axes.semilogy(*zip(*inside, strict=True), marker + "-", color=colour, label=str(dtype)[6:])
        axes.semilogy(outside, [64] * len(outside), "x", color=colour)
    axes.text(0.02, 50, "x: no c up to 32 is accepted, the stencil is taken", fontsize=7, color=GREY)
    axes.set_yticks([2, 4, 8, 16, 32], ["2", "4", "8", "16", "32"])
    axes.minorticks_off()
    axes.set_ylim(1.5, 90)
    axes.set_xlabel("superdiagonal; the subdiagonal is 1 minus it")
    axes.set_ylabel("oversampling c")
    axes.legend(fontsize=8, loc="center left")
    return figure


def memory() -> Figure:
    """The largest tail of each level, n = 2048, c = 4."""
    n = 2048
    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for i, share in enumerate((*SHARES, 0.5)):
        ring = drift(n, share)
        certificate = observed_columns(*ring, start(n), start(n), n, oversampling=4)[1]
        tails = certificate.tails.clamp(min=1e-18).tolist()
        blocks = [32 << level for level in range(len(tails))]
        axes.loglog(blocks, tails, "o-", color=f"C{i}", label=f"superdiagonal {share}")
    axes.set_xticks(blocks, [str(b) for b in blocks])
    axes.minorticks_off()
    axes.set_xlabel("indices in a block")
    axes.set_ylabel("share of the last quarter")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def stepped(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, u: Tensor, k: int) -> Tensor:
    """u^T A^t v, t < k, a step at a time."""
    x, heard = V[0], []
    for _ in range(k):
        heard.append(u[0] @ x)
        x = lower * x.roll(1) + diagonal * x + upper * x.roll(-1)
    return torch.stack(heard)


def stability() -> Figure:
    """Near shifts, divided by their row sum and by their growth; c as chosen; five of each size."""
    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    sizes, seeds = [256, 512, 1024, 2048, 4096, 8192], 5
    squares: dict[str, list[float]] = {}
    for n in sizes:
        here: dict[str, float] = {}
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(seed)
            lower, diagonal, upper = 2 * torch.rand(3, n, generator=generator, dtype=torch.float64) - 1
            ring = torch.stack((1 + 0.05 * lower, 0.1 * diagonal, 0.1 * upper))
            ring[0, 0] = ring[2, -1] = 0
            v, u = start(n), torch.randn(1, n, generator=generator)
            growth = port_choice.growth_rate(ring[0], ring[1], ring[2], v, n).exp()
            for name, scale in (("row sum", ring.abs().sum(0).max()), ("growth", growth)):
                a, d, b = (ring / scale).float()
                A = a, d, b, v.float()
                exact = stepped(a.double(), d.double(), b.double(), v.double(), u.double(), n)
                c = port_choice.choose_port(*A, n, log_scale=0.0).trial.oversampling
                results = {"port": port_rmatmul(*A, u, n, oversampling=c)[0, 0], "stencil": stepped(*A, u, n)}
                for kind, got in results.items():
                    key = f"{kind}, divided by the {name}"
                    here[key] = here.get(key, 0) + float((got - exact).norm() / exact.norm()) ** 2 / seeds
        for key, square in here.items():
            squares.setdefault(key, []).append(square**0.5)
    for name, errors in squares.items():
        style = "o-" if name.endswith("sum") else "s--"
        axes.loglog(sizes, errors, style, color=BLUE if name.startswith("port") else GREY, label=name)
    axes.axhline(1.2e-7, color=GREY, lw=0.8)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.set_xlabel("n")
    axes.set_ylabel("relative error")
    axes.legend(fontsize=7)
    return figure


def timing() -> Figure | None:
    if not TIMES.exists():
        return None
    rows = json.loads(TIMES.read_text())["rows"]
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    tables = {"rmatmul": ("one product, training", "stencil"), "layer": ("a layer, inference", "dense")}
    for place, (table, (title, other)) in enumerate(tables.items()):
        axes = figure.add_subplot(1, 2, place + 1)
        of = [row for row in rows if row["table"] == table]
        for i, c in enumerate(sorted({row["c"] for row in of})):
            mine = [row for row in of if row["c"] == c]
            axes.loglog(
                [row["n"] for row in mine],
                [row["port_ms"] for row in mine],
                "o-",
                color=f"C{i}",
                label=f"port, c = {c}",
            )
        slow = {row["n"]: row for row in of if f"{other}_ms" in row}
        times = [row[f"{other}_ms"] for row in slow.values()]
        axes.loglog(list(slow), times, "-", color=GREY, label=other)
        for n, row in slow.items():
            face = "white" if row.get("dense_extrapolated") else GREY
            axes.loglog([n], [row[f"{other}_ms"]], "s", color=GREY, markerfacecolor=face)
        sizes = sorted({row["n"] for row in of})
        axes.set_xticks(sizes, [f"$2^{{{n.bit_length() - 1}}}$" for n in sizes])
        axes.minorticks_off()
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("n")
        axes.set_ylabel("ms")
        axes.legend(fontsize=7)
    return figure


PICTURES: dict[str, Callable[[], Figure | None]] = {
    "ports": ports,
    "bound": bound,
    "reach": reach,
    "memory": memory,
    "stability": stability,
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
