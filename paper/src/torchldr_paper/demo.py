"""`torchldr demo`: fit one matrix with every structured class and compare the results.

The target is a handful of shifts whose gains vary along the input and the output, T = D_1 S D_2 with
S a Toeplitz matrix of few diagonals and D_1, D_2 random diagonals. Every class with a rank or a block
size gets the largest model within the same budget of parameters, is fitted to T by the same short runs
of Adam, the better learning rate of two counting, and is then timed against a dense layer.
"""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchldr.matrices import StructuredMatrix, structures
from torchldr.nn import StructuredLinear, freeze
from torchldr.pictures import SIGNED, bare, new_figure
from torchldr.timing import minimum_seconds

SIZE = 256
LARGE = 4096
BUDGET = 4096  # a sixteenth of the dense matrix
SHIFTS = 6
BATCH = 32
RATES = (0.01, 0.03)

TITLE = f"{SIZE} x {SIZE} matrix of {SHIFTS} shifts with varying gains, within {BUDGET:,} parameters"
NOTE = f"""\
error: |M - T| / |T| after training, in the Frobenius norm. 0 is a perfect fit;
       1 is no better than M = 0.
speed: time of nn.Linear over that of the fast product, for one vector in
       inference on one thread; above 1 is faster than dense. Both sizes have
       the same rank. At {SIZE}, layers with product="auto" use the dense matrix.
The target is an LDR-SD matrix of rank 2, so LDR-TD contains it too. No class
with fixed operators contains it at these ranks. It shows what learned operators
add where they fit, not that they win on every matrix."""


@dataclass(frozen=True)
class Demo:
    """What a run of the demo found: the target, the fitted matrices by name, and the table's rows."""

    target: Tensor
    fitted: dict[str, Tensor]
    rows: list[dict[str, Any]]


def shifts_with_gains(n: int, shifts: int, generator: torch.Generator) -> Tensor:
    """A matrix of `shifts` random shifts with varying gains, shape (n, n), of Frobenius norm sqrt(n).

    T[i, j] = p_i q_j sum_s gain_s [i - j = shift_s], with p and q random walks in logarithm.
    """
    places = torch.randperm(n // 2, generator=generator)[:shifts] - n // 4
    gains = torch.randn(shifts, generator=generator)
    T = torch.zeros(n, n)
    for place, gain in zip(places.tolist(), gains.tolist(), strict=True):
        T += gain * torch.ones(n - abs(place)).diag(-place)
    T = _walk(n, generator).unsqueeze(1) * T * _walk(n, generator)
    return T * (n**0.5 / T.norm())


def _walk(n: int, generator: torch.Generator) -> Tensor:
    """exp of a random walk that ends where it began."""
    steps = 0.1 * torch.randn(n, generator=generator)
    return (steps - steps.mean()).cumsum(0).exp()


def largest_within(cls: type[StructuredMatrix], n: int, budget: int) -> dict[str, Any]:
    """The rank and options, or block size, nearest to the budget from below; nothing for a fixed size."""

    def count(**options: Any) -> int:
        shapes = cls.check_shapes(n, n, options.pop("rank", None), cls.check_options(options))
        return sum(torch.Size(shape).numel() for shape in shapes.values())

    if cls.ranked:
        made = [{**options, "rank": r} for options in cls.variants(n, n)[::-1] for r in range(1, n + 1)]
        fitting = [options for options in made if count(**options) <= budget]
        return max(fitting, key=lambda options: count(**options), default={"rank": 1})
    if "block_size" in cls.default_options():
        return {"block_size": next(b for b in range(1, n + 1) if count(block_size=b) <= budget)}
    return {}


def fit(
    layer: StructuredLinear, target: Tensor, steps: int, rate: float, generator: torch.Generator
) -> tuple[Tensor, float]:
    """Train the layer on random vectors: its matrix and |M - T| / |T| in the end, inf if it diverged."""
    optimiser = torch.optim.Adam(layer.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        x = torch.randn(BATCH, target.shape[1], generator=generator)
        loss = (layer(x) - x @ target.mT).square().sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    M = layer.weight.detach()
    error = float((M - target).norm() / target.norm())
    return M, error if math.isfinite(error) else math.inf


@torch.no_grad()
def speed(cls: type[StructuredMatrix], n: int, options: dict[str, Any]) -> float:
    """Time of nn.Linear over that of this class, for one vector of size n: minima, the two in turn."""
    x = torch.randn(1, n)
    layer = StructuredLinear(n, n, bias=False, structure=cls, **options)
    layer.product = "fast"
    ours = freeze(layer)
    dense = torch.nn.Linear(n, n, bias=False).eval()
    found = minimum_seconds({"dense": lambda: dense(x), "ours": lambda: ours(x)}, seconds=0.1)
    return found["dense"] / found["ours"]


def run(steps: int = 300, seed: int = 0, progress: Callable[[str], None] = lambda message: None) -> Demo:
    """The target, what every registered class makes of it by Adam, and the table, best fit first."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for matrices of this size more threads only wait for each other
    try:
        target = shifts_with_gains(SIZE, SHIFTS, torch.Generator().manual_seed(seed))
        fitted: dict[str, Tensor] = {}
        rows = []
        for name, cls in structures().items():
            start = time.perf_counter()
            fitted[name], row = _fit_class(cls, target, steps, seed)
            rows.append(row)
            progress(f"{name}: error {row['error']:.3f}, {time.perf_counter() - start:.1f} s")
    finally:
        torch.set_num_threads(threads)
    return Demo(target, fitted, sorted(rows, key=lambda row: row["error"]))


def _fit_class(
    cls: type[StructuredMatrix], target: Tensor, steps: int, seed: int
) -> tuple[Tensor, dict[str, Any]]:
    """The fitted matrix and the table's row of one class."""
    options = largest_within(cls, SIZE, BUDGET)
    tries = []
    for rate in RATES:
        generator = torch.Generator().manual_seed(seed)
        layer = StructuredLinear(SIZE, SIZE, bias=False, structure=cls, **options)
        layer.reset_parameters(generator)
        tries.append((*fit(layer, target, steps, rate, generator), rate))
    M, error, rate = min(tries, key=lambda found: found[1])
    return M, {
        "structure": cls.name,
        "rank": options.get("rank"),
        "parameters": sum(p.numel() for p in layer.parameters()),
        "error": error,
        "learning_rate": rate,
        f"speed_n={SIZE}": speed(cls, SIZE, options),
        f"speed_n={LARGE}": speed(cls, LARGE, options),
    }


def save_picture(demo: Demo, path: Path) -> bool:
    """Save the target and the fitted matrices as one picture; False where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    panels = [(f"target\n{SHIFTS} shifts with varying gains", demo.target)]
    for row in demo.rows:
        name, count, error = row["structure"], row["parameters"], row["error"]
        panels.append((f"{name}\n{count:,} parameters, error {error:.2f}", demo.fitted[name]))
    rows, columns = -(-len(panels) // 5), 5
    figure, axes = new_figure(12, 2.65 * rows, rows, columns)
    limit = float(demo.target.abs().max()) / 4  # saturates the strongest entries to show the rest
    for ax, (title, M) in zip(axes.flat, panels, strict=False):
        ax.imshow(M.numpy(), cmap=SIGNED, vmin=-limit, vmax=limit, interpolation="antialiased")
        ax.set_title(title, fontsize=9)
        bare(ax)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return True
