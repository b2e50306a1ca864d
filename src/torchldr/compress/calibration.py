"""What calibration data say of a model: second moments of inputs and of sensitivities, in constant memory.

The moments are larger than the weights: with a checkpoint they lie in its files, where they are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from operator import length_hint
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..matrices import Projection
from ..nn.evaluating import evaluating
from .metric import Metric
from .outputs import LOGITS, called, copied, distance, kept, main_output
from .pieces import Pieces
from .progress import CALIBRATING
from .report import FITTED
from .targets import RECURRENT, Unit, dense_parameters
from .watch import Watch, ridged_
from .workers import Workers

SHARE = 0.45  # of the time, at most
HELD, EVERY = 4, 4  # one batch in four is held out to compare plans on, four at most
SEEN, _BYTES = 32, 1 << 28  # batches that are kept for a second fit, at most, and the memory that they take
_KEY = "calibration, its moments, batches and notes"  # named anew where its form is another


class Held(NamedTuple):
    """A batch that was held out: its place in the loader, the output's name, and the original's output."""

    place: int
    batch: Any
    name: str
    output: Tensor


class Seen(NamedTuple):
    """A batch that was not held out: its place in the loader, and how much its rows count.

    Weights are those of the rows of a weight's inputs, by how many these are, summed over the units that have
    so many: 0 for padding, say. None are known where the output has no derivatives.
    """

    place: int
    batch: Any
    weights: dict[int, Tensor]


@dataclass
class Calibration:
    """What the data say."""

    metrics: dict[str, Metric] = field(default_factory=dict)  # by the units' names: what errors count by
    held: list[Held] = field(default_factory=list)  # batches that were held out
    seen: list[Seen] = field(default_factory=list)  # the first of the others
    notes: list[str] = field(default_factory=list)  # what was not looked at

    def distance(
        self, model: nn.Module, units: Sequence[Unit], made: Sequence[Sequence[Projection]], pieces: Pieces
    ) -> float:
        """The distance of the outputs on the held batches, with projections in place of its weights."""
        weights, over, size = dense_parameters(units, made, pieces), 0.0, 0.0
        with evaluating(model), torch.no_grad():
            for _, batch, name, theirs in self.held:
                output = kept(batch, main_output(called(model, weights, batch), name)[1])
                one, scale = distance(name, output, theirs.to(output.device))  # which may lie in a file
                over, size = over + one, size + scale
        ratio = over / size if size > 0 else 0.0
        return ratio if self.held[0].name == LOGITS else ratio**0.5


def calibrate(
    model: nn.Module,
    units: Sequence[Unit],
    loader: Iterable[Any],
    batches: int | None,
    output: str | None,
    workers: Workers,
) -> Calibration:
    """See a model at work on some batches, in `eval()`; modes and `requires_grad` are put back.

    Gradients are those of random combinations of the output (of logits, of the log-likelihood of labels that
    the model draws itself), so that their second moments are those of the output's derivatives. Without a
    number of batches they are as many as `SHARE` of the time allows; for `output` see `main_output`.
    """
    pieces, report = workers.pieces, workers.report
    known = _recalled(pieces, units)
    if known is not None:
        return known
    found = Calibration()
    total = length_hint(loader, batches or 0)
    total = total if batches is None else min(total, batches)
    report(CALIBRATING, 0, total)
    watch = Watch(units, torch.Generator().manual_seed(workers.seed), pieces)
    with evaluating(model), _gradients(units), watch.hooked():
        last: tuple[int, Any] | None = None
        room, stream = _BYTES, enumerate(islice(loader, batches))
        for last in stream:
            i, batch = last
            if i % EVERY == EVERY - 1 and len(found.held) < HELD:
                found.held.append(_hold(i, batch, model, output, pieces))
            else:
                one = Seen(i, copied(batch), watch.see(model, batch, output))
                room -= sum(t.nbytes for t in pytree.tree_leaves(one[1:]) if _is_strided(t))
                if not found.seen or (len(found.seen) < SEEN and room >= 0):
                    found.seen.append(one)
            report(CALIBRATING, i + 1, total)
            if batches is None and workers.clock.past(SHARE) and i + 1 != total:
                of = f" of {total}" if total else ""
                found.notes.append(f"{i + 1}{of} batches were looked at for want of time")
                break
        if last is None:
            raise ValueError("compress_: the loader gave no batch (a generator gives its batches once).")
        if not found.held:
            spare = next(stream, None)  # where time was short
            found.notes += [FITTED] * (spare is None)
            found.held.append(_hold(*(spare or last), model, output, pieces))
    for name, seen in watch.moments.items():
        if any(not t.isfinite().all() for t in (seen.inputs, seen.outputs) if t is not None):
            raise ValueError(f"compress_: the inputs of {name} on the loader's batches are not all finite.")
    found.metrics = {unit.name: watch.metric(unit) for unit in units}
    _keep(pieces, units, found)
    return found


def given_metrics(
    units: Sequence[Unit], activations: Mapping[str, Tensor], seen: Mapping[str, Metric]
) -> dict[str, Metric]:
    """What errors of the weights count by, by their names: what a loader showed, or activations as given.

    Raises:
        ValueError: for activations of no weight, or that do not fit it.
    """
    who, metrics = "compress_", dict(seen)
    for name, X in activations.items():
        unit = next((unit for unit in units if name in unit.names), None)
        if unit is None:
            raise ValueError(f"{who}: activations for {name!r}, which is no weight that can be replaced.")
        wanted = unit.matrices[0].shape[1]
        if X.shape[-1] != wanted:
            raise ValueError(
                f"{who}: the activations of {name} must have {wanted} entries in their last axis, "
                f"got shape {tuple(X.shape)}."
            )
        if unit.kind in RECURRENT:
            raise ValueError(f"{who}: activations of {name} cannot be used, it is recurrent.")
        if not X.isfinite().all() or not X.any():
            raise ValueError(f"{who}: the activations of {name} must be finite and not all zero.")
        rows = X.detach().reshape(-1, wanted).to("cpu", torch.float64)
        old = metrics.get(unit.name)
        inputs = ridged_(rows.mT @ rows, None, 1e-9)
        new = Metric(inputs) if old is None else Metric(inputs, old.outputs, old.scale)
        metrics[unit.name] = new.relative(unit.size, unit.matrices) if old is None else new
    return metrics


def _keep(pieces: Pieces, units: Sequence[Unit], found: Calibration) -> None:
    """Keep what was found, batches too: a loader may give others next time."""
    home, fits = _home(units), list[bool]()

    def placed(named: Mapping[Any, Any]) -> dict[Any, Any]:
        """What a checkpoint can hold, tensors with their device, where that is not the model's."""
        kinds = bool | int | float | str | None
        fits.extend(_is_strided(x) or isinstance(x, kinds) for x in named.values())
        where = {key: x.device for key, x in named.items() if isinstance(x, Tensor)}
        own = {key: [named[key], None if device == home else str(device)] for key, device in where.items()}
        return {**named, **own}

    value = {
        "metrics": {name: [m.inputs, m.outputs, m.scale] for name, m in found.metrics.items()},
        "held": [[place, placed(batch), name, y] for place, batch, name, y in found.held],
        "seen": [[place, placed(batch), placed(weights)] for place, batch, weights in found.seen],
        "notes": found.notes,
    }
    if all(fits):
        pieces.put(_KEY, value)  # else it is found anew


def _recalled(pieces: Pieces, units: Sequence[Unit]) -> Calibration | None:
    value, home = pieces.get(_KEY), _home(units)
    if value is None:
        return None

    def moved(named: Mapping[str, Any]) -> dict[str, Any]:
        return {key: x[0].to(x[1] or home) if isinstance(x, list) else x for key, x in named.items()}

    found = Calibration({name: Metric(*parts) for name, parts in value["metrics"].items()})
    found.held = [Held(place, moved(batch), name, y) for place, batch, name, y in value["held"]]
    for place, batch, weights in value["seen"]:
        found.seen.append(Seen(place, moved(batch), {int(rows): x for rows, x in moved(weights).items()}))
    found.notes = value["notes"]
    return found


def _home(units: Sequence[Unit]) -> torch.device:
    """Where the model lies; it may be elsewhere when a run goes on."""
    return units[0].matrices[0].device if units else torch.device("cpu")


def _is_strided(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided


def _hold(place: int, batch: Any, model: nn.Module, output: str | None, pieces: Pieces) -> Held:
    batch = copied(batch)
    with torch.no_grad():
        name, value = main_output(called(model, {}, batch), output)
        value = kept(batch, value)
        output_ = pieces.zeros(f"held-{place}", value.shape, value).copy_(value)
    return Held(place, batch, name, output_)


@contextmanager
def _gradients(units: Sequence[Unit]) -> Iterator[None]:
    """Let every weight that may be replaced require a gradient: torch's fast paths would hide the layers."""
    frozen = {
        id(p): p
        for unit in units
        for part in unit.places
        for owner in part.owners
        for p in owner._parameters.values()
        if p is not None and not p.requires_grad and p.is_floating_point()
    }
    try:
        for p in frozen.values():
            p.requires_grad_(True)
        yield
    finally:
        for p in frozen.values():
            p.requires_grad_(False)
