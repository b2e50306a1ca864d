"""Calibration: second moments of a model's inputs and sensitivities over some batches, in constant memory."""

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
from .moments import MomentHooks, ridged_
from .outputs import LOGITS, called, copied, distance, kept, main_output
from .report import FITTED
from .session import Session
from .targets import RECURRENT, Unit, dense_parameters

CALIBRATING = "calibrating"  # the stage
SHARE = 0.45  # of a time limit, at most
HELD, EVERY = 4, 4  # one batch in four is held out to compare plans on, four at most
_BYTES = 1 << 28  # that the batches take which are kept for a second fit


class Held(NamedTuple):
    """A batch that was held out, the output's name, and the original's output."""

    batch: Any
    name: str
    output: Tensor


class Seen(NamedTuple):
    """A batch that was not held out, and how much its rows count.

    `weights` maps a number of rows to the importance of each row (0 for padding, say), summed over the units
    whose inputs have that many rows. It is empty if the output has no derivatives.
    """

    batch: Any
    weights: dict[int, Tensor]


@dataclass
class Calibration:
    """Results of a calibration."""

    metrics: dict[str, Metric] = field(default_factory=dict)  # metrics of errors, by units' names
    held: list[Held] = field(default_factory=list)  # batches that were held out
    seen: list[Seen] = field(default_factory=list)  # the first of the others
    notes: list[str] = field(default_factory=list)  # what was skipped

    def distance(
        self, model: nn.Module, units: Sequence[Unit], made: Sequence[Sequence[Projection]]
    ) -> float:
        """The distance of the outputs on the held batches, with projections in place of its weights."""
        weights, over, size = dense_parameters(units, made), 0.0, 0.0
        with evaluating(model), torch.no_grad():
            for batch, name, theirs in self.held:
                output = kept(batch, main_output(called(model, weights, batch), name)[1])
                one, scale = distance(name, output, theirs)
                over, size = over + one, size + scale
        ratio = over / size if size > 0 else 0.0
        return ratio if self.held[0].name == LOGITS else ratio**0.5


def calibrate(
    model: nn.Module,
    units: Sequence[Unit],
    loader: Iterable[Any],
    batches: int | None,
    output: str | None,
    session: Session,
) -> Calibration:
    """See a model at work on some batches, in `eval()`; modes and `requires_grad` are put back.

    Gradients are taken of random combinations of the output, so that their second moments are those of the
    output's derivatives. For logits they are gradients of the log-likelihood of labels drawn from the model.
    Without a number of batches, `MomentHooks.enough` decides when to stop; for `output` see `main_output`.
    """
    report, found = session.report, Calibration()
    total = length_hint(loader, batches or 0)
    total = total if batches is None else min(total, batches)
    report(CALIBRATING, 0, total)
    hooks = MomentHooks(units, torch.Generator().manual_seed(session.seed))
    with evaluating(model), _gradients(units), hooks.hooked():
        room, batch, stream = _BYTES, None, islice(loader, batches)
        for i, batch in enumerate(stream):
            if i % EVERY == EVERY - 1 and len(found.held) < HELD:
                found.held.append(_hold(batch, model, output))
            else:
                one = Seen(copied(batch), hooks.see(model, batch, output))
                room -= sum(t.nbytes for t in pytree.tree_leaves(tuple(one)) if _is_strided(t))
                if not found.seen or room >= 0:
                    found.seen.append(one)
            report(CALIBRATING, i + 1, total)
            if batches is not None or i + 1 == total:
                continue
            if session.past(SHARE):
                of = f" of {total}" if total else ""
                found.notes.append(f"time limit: only {i + 1}{of} batches were used")
                break
            if hooks.enough():
                break
        if not found.seen:
            raise ValueError("compress_: the loader gave no batch (a generator gives its batches once).")
        if not found.held:
            spare = [*islice(stream, 1)]  # where few were enough
            found.notes += [] if spare else [FITTED]
            found.held.append(_hold(spare[0] if spare else batch, model, output))
    for name, seen in hooks.moments.items():
        if any(not t.isfinite().all() for t in (seen.inputs, seen.outputs) if t is not None):
            raise ValueError(f"compress_: the inputs of {name} on the loader's batches are not all finite.")
    found.metrics = {unit.name: hooks.metric(unit) for unit in units}
    return found


def given_metrics(
    units: Sequence[Unit], activations: Mapping[str, Tensor], seen: Mapping[str, Metric]
) -> dict[str, Metric]:
    """The metrics of the weights' errors by name: from a loader, or from the given activations.

    Raises:
        ValueError: for activations that belong to no weight or do not fit it.
    """
    who, metrics = "compress_", dict(seen)
    for name, X in activations.items():
        unit = next((unit for unit in units if name in unit.names), None)
        if unit is None:
            raise ValueError(f"{who}: activations for {name!r}, which is not a weight that can be replaced.")
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


def _is_strided(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided


def _hold(batch: Any, model: nn.Module, output: str | None) -> Held:
    batch = copied(batch)
    with torch.no_grad():
        name, value = main_output(called(model, {}, batch), output)
    return Held(batch, name, kept(batch, value).clone())


@contextmanager
def _gradients(units: Sequence[Unit]) -> Iterator[None]:
    """Let every replaceable weight require a gradient, because torch's fast paths would bypass the layers."""
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
