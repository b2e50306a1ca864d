"""Time the routes of a model's layers on this machine, and keep the fastest."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.checks import check_model
from ..timing import minimum_seconds
from .linear import StructuredLinear


class Tuned(NamedTuple):
    """What was found for one layer and one input."""

    layer: str
    structure: str
    shape: tuple[int, int]
    batch: int
    route: str  # the fastest
    seconds: dict[str, float]  # of every route that serves
    chosen: str  # what the layer took before


class TuneReport(list[Tuned]):
    """One row for each layer, printed as a table."""

    def __repr__(self) -> str:
        lines = []
        for row in self:
            by_time = sorted(row.seconds, key=lambda name: row.seconds[name])
            times = ", ".join(f"{name} {row.seconds[name] * 1e6:.0f} us" for name in by_time)
            before = "as before" if row.route == row.chosen else f"instead of {row.chosen}"
            what = f"{row.structure} {row.shape[0]} x {row.shape[1]}, batch {row.batch}"
            lines.append(f"{row.layer or '(model)'}: {what}: {row.route}, {before} ({times})")
        return "\n".join(lines) or "no structured layer was called"


@torch.no_grad()
def tune(
    model: nn.Module, x: Tensor | tuple[Any, ...], *, seconds: float = 0.02, quiet: bool = False
) -> TuneReport:
    """Time every route of each `StructuredLinear` in inference, and let the layers take the fastest.

    Args:
        model: a module; its mode is left as it is.
        x: an input of the model, or a tuple of its arguments: each layer is timed with what reaches it.
        seconds: how long to time each route of a layer.
        quiet: True does not print the report to stderr.

    Returns:
        What was found, a row for each layer. It is kept on the layers, for batches of that size and in
        `eval()`, until `layer.untune()`; nothing is written to disk. A state_dict does not hold it.

    Where a layer is called several times, its last input counts.

    >>> model = nn.Sequential(StructuredLinear(128, 128), nn.ReLU())
    >>> report = tune(model, torch.randn(4, 128), seconds=0.001, quiet=True)
    >>> report[0].route in report[0].seconds
    True
    """
    check_model("tune", model)
    inputs = _inputs(model, x if isinstance(x, tuple) else (x,))
    report = TuneReport(_tuned(name, layer, given, seconds) for name, (layer, given) in inputs.items())
    if not quiet:
        print(report, file=sys.stderr)
    return report


def _inputs(model: nn.Module, arguments: tuple[Any, ...]) -> dict[str, tuple[StructuredLinear, Tensor]]:
    """What reaches each layer when the model is called."""
    found: dict[str, tuple[StructuredLinear, Tensor]] = {}

    def keep(name: str, layer: StructuredLinear, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        x = given[0] if given else named["x"]
        if not x.is_nested:  # these have one route
            found[name] = layer, x.detach()

    with ExitStack() as hooks, evaluating(model):
        for name, layer in model.named_modules():
            if isinstance(layer, StructuredLinear):
                hook = layer.register_forward_pre_hook(partial(keep, name), with_kwargs=True)
                hooks.enter_context(hook)
        model(*arguments)
    return found


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In `eval()` while this lasts; then every module is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _tuned(name: str, layer: StructuredLinear, x: Tensor, seconds: float) -> Tuned:
    route = layer.route
    layer.untune()
    timed: dict[str, float] = {}
    with evaluating(layer):
        table = layer.routes(x)
        try:
            for row in table:
                if row.why_not is None:
                    layer.route = row.route
                    calls = {row.route: _finished(layer, x)}
                    timed |= minimum_seconds(calls, repeats=3, seconds=seconds)
        finally:
            layer.route = route
    best = min(timed, key=lambda name: timed[name])
    layer.keep_tuned(table.call, best)
    shape = layer.out_features, layer.in_features
    return Tuned(name, layer.structure.name, shape, table.call.batch, best, timed, table.chosen)


def _finished(layer: StructuredLinear, x: Tensor) -> Callable[[], object]:
    def call() -> None:
        layer(x)
        if x.is_cuda:
            torch.cuda.synchronize(x.device)

    return call
