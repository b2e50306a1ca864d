"""Time one case: a structured layer against its dense counterpart, in turn in one run.

    inference    frozen layers; one vector: torch.mv; a batch: nn.functional.linear; with the product "auto",
                 whose promise is about layers, nn.Linear
    training     forward and backward, gradients of input and parameters: nn.Linear

Subdiagonals are 1 + 0.001 N(0, 1), near where training starts. Layers have no bias.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from torchldr.nn import StructuredLinear, freeze
from torchldr.timing import minimum_seconds, replay_seconds

from .grid import INFERENCE, TRAINING, Case
from .paper_values import acceleration

Call = Callable[[], object]
SPREAD = 0.001  # of the subdiagonals around 1


class Setting(NamedTuple):
    """How cases are timed: the device, the layer's product, the clock, and what a dense side may take.

    `dense_bytes` is the largest dense side, `dense_work` the most multiplications of one dense call: above
    either it is measured at half the size, or a quarter, .., and extrapolated by n^2.
    """

    device: str = "cpu"
    product: str = "fast"
    repeats: int = 20
    seconds: float = 0.2
    dense_bytes: float = float("inf")
    dense_work: float = float("inf")


def structured_layer(
    structure: str, n: int, rank: int | None, device: str = "cpu", **options: Any
) -> StructuredLinear:
    """An n x n layer without bias, its subdiagonals near one."""
    layer = StructuredLinear(n, n, bias=False, structure=structure, rank=rank, device=device, **options)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith("subdiagonal"):
                parameter.normal_(1, SPREAD)
    return layer


def measure(case: Case, setting: Setting) -> dict[str, Any]:
    """One row of the result: times in ms, their ratio, the paper's, and the path that was taken."""
    n = case.n
    while n > 1 and not _fits(case._replace(n=n), setting):
        n //= 2
    ours, path = structured_side(case, setting)
    dense = dense_side(case._replace(n=n), setting)
    if n == case.n:
        seconds = time_calls({"dense": dense, "ours": ours}, setting)
    else:  # the smaller dense matrix may be freed before ours is timed
        seconds = time_calls({"dense": dense}, setting)
        seconds |= time_calls({"ours": ours}, setting)
        seconds["dense"] *= (case.n / n) ** 2
    return as_row(case, seconds["dense"], seconds["ours"], path, extrapolated=n != case.n)


def as_row(case: Case, dense: float, ours: float, path: str, *, extrapolated: bool = False) -> dict[str, Any]:
    """A row of a result, from seconds; with the paper's ratio where it has one: single vectors."""
    known = case.what == INFERENCE and case.batch == 1
    return {
        **case._asdict(),
        "dense_ms": dense * 1e3,
        "ours_ms": ours * 1e3,
        "ratio": dense / ours,
        "paper": acceleration(case.structure, case.n, case.rank) if known else None,
        "path": path,
        "extrapolated": extrapolated,
    }


def structured_side(case: Case, setting: Setting) -> tuple[Call, str]:
    """A call of our side, and the path that it takes."""
    layer = structured_layer(case.structure, case.n, case.rank, setting.device)
    if case.what == TRAINING:
        return _step(layer, case, setting), layer.products(case.batch).taken
    layer.product = setting.product
    x = _input(case, setting)
    served = freeze(layer, x)
    call = torch.no_grad()(partial(served, x))
    call()
    return call, served.report[0].product  # type: ignore[index, union-attr]


def dense_side(case: Case, setting: Setting) -> Call:
    """A call of the dense side."""
    n, device = case.n, setting.device
    if case.what == TRAINING or setting.product == "auto":
        dense = nn.Linear(n, n, bias=False, device="meta").to_empty(device=device)
        nn.init.constant_(dense.weight, n**-0.5)  # drawing 2^30 numbers takes longer than timing them
        if case.what == TRAINING:
            return _step(dense, case, setting)
        return torch.no_grad()(partial(dense.eval(), _input(case, setting)))
    W, x = torch.full((n, n), n**-0.5, device=device), _input(case, setting)
    return torch.no_grad()(partial(torch.mv, W, x) if x.ndim == 1 else partial(linear, x, W))


def _input(case: Case, setting: Setting) -> Tensor:
    single = case.batch == 1 and case.what == INFERENCE
    return torch.randn((case.n,) if single else (case.batch, case.n), device=setting.device)


def _step(layer: nn.Module, case: Case, setting: Setting) -> Call:
    x = _input(case, setting).requires_grad_()
    wanted = [x, *layer.parameters()]
    towards = torch.randn_like(x)
    return lambda: torch.autograd.grad(layer(x), wanted, towards)


def _fits(case: Case, setting: Setting) -> bool:
    copies = 3 if case.what == TRAINING else 1  # the weight, its gradient, and room to move
    return 4 * copies * case.n**2 <= setting.dense_bytes and case.batch * case.n**2 <= setting.dense_work


def available_bytes(device: str) -> float:
    """How much memory is free for a benchmark."""
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 8.0 * 2**30  # not Linux: a guess for today's laptops
    return next(1024.0 * int(line.split()[1]) for line in text.splitlines() if "MemAvailable" in line)


# Clocks.


def time_calls(calls: dict[str, Call], setting: Setting) -> dict[str, float]:
    """The shortest time of each, in seconds a call."""
    if setting.device == "cuda":
        return {name: replay_seconds(call, setting.repeats) for name, call in calls.items()}
    return minimum_seconds(calls, setting.repeats, setting.seconds)
