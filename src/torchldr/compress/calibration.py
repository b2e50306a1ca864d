"""What calibration data say of a model: second moments of inputs and of sensitivities, in constant memory.

The moments are larger than the weights: with a checkpoint they lie in its files, where they are added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from ..nn.tune import evaluating
from .metric import Metric
from .outputs import LOGITS, distance, kept, main_output
from .pieces import DTYPES, Pieces
from .progress import CALIBRATING
from .targets import Unit
from .watch import WIDE, Watch, moments_file
from .workers import Workers

SHARE = 0.45  # of the time, at most
HELD, EVERY = 4, 4  # one batch in four is held out to compare plans on, four at most
SEEN, _BYTES = 32, 1 << 28  # batches that are kept for a second fit, at most, and the memory that they take
_KEY = "calibration with batches"  # without them its form was another


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
    """What the data say.

    Attributes:
        metrics: what errors of the units count by, by their names.
        held: batches that were held out.
        seen: the first of the others.
    """

    metrics: dict[str, Metric] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    def distance(self, model: nn.Module, weights: Mapping[str, Tensor]) -> float:
        """The distance of the outputs on the held batches, with these parameters in place of its own."""
        over = size = 0.0
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
    the model draws itself), so that their second moments are those of the output's derivatives.

    Args:
        batches: at most so many; None for as many as `SHARE` of the time allows.
        output: the name of the entry of the output that counts, see `main_output`.
        workers: know the time, the seed, and where it is kept and may be found.
    """
    pieces, report = workers.pieces, workers.report
    known = _recalled(pieces, units)
    if known is not None:
        return known
    found = Calibration()
    total = _total(loader, batches)
    report(CALIBRATING, 0, total)
    watch = Watch(units, torch.Generator().manual_seed(workers.seed), pieces)
    with evaluating(model), _gradients(units), watch.hooked(units):
        last: tuple[int, Any] | None = None
        room = _BYTES
        for last in enumerate(islice(loader, batches)):
            i, batch = last
            if i % EVERY == EVERY - 1 and len(found.held) < HELD:
                found.held.append(_hold(i, batch, model, output, pieces))
            else:
                one = Seen(i, _copied(batch), watch.see(model, batch, output))
                room -= sum(t.nbytes for t in pytree.tree_leaves(one[1:]) if _is_strided(t))
                if not found.seen or (len(found.seen) < SEEN and room >= 0):
                    found.seen.append(one)
            report(CALIBRATING, i + 1, total)
            if batches is None and workers.clock.past(SHARE):
                break
        if last is None:
            raise ValueError("compress_: the loader gave no batch (a generator gives its batches once).")
        if not found.held:
            found.held.append(_hold(*last, model, output, pieces))
    for name, seen in watch.moments.items():
        if any(not t.isfinite().all() for t in (seen.inputs, seen.outputs) if t is not None):
            raise ValueError(f"compress_: the inputs of {name} on the loader's batches are not all finite.")
    found.metrics = {unit.name: watch.metric(unit) for unit in units}
    _keep(pieces, units, found)
    return found


def _keep(pieces: Pieces, units: Sequence[Unit], found: Calibration) -> None:
    """Keep what was found, batches too: a loader may give others next time."""
    metrics = {
        name: {"scale": metric.scale, "inputs": _length(metric.inputs), "outputs": _length(metric.outputs)}
        for name, metric in found.metrics.items()
    }
    held = [[one.place, one.name, one.output.shape, one.output.dtype == WIDE.dtype] for one in found.held]
    files = [
        moments_file(units, name, what)
        for name, entry in metrics.items()
        for what in ("inputs", "outputs")
        if entry[what] is not None
    ]
    files += [f"held-{one.place}" for one in found.held]
    others: dict[int, dict[str, Any]] = {}
    tensors = {f"{one.place} rows {rows}": t for one in found.seen for rows, t in one.weights.items()}
    both: list[Held | Seen] = [*found.held, *found.seen]
    for one in both:
        named = one.batch if isinstance(one.batch, dict) else {"": one.batch[0]}
        others[one.place] = {key: x for key, x in named.items() if not isinstance(x, Tensor)}
        tensors |= {f"{one.place} of {key}": x for key, x in named.items() if isinstance(x, Tensor)}
    values = [*tensors.values(), *(x for some in others.values() for x in some.values())]
    if all(map(_fits_files, values)):  # else it is found anew
        places = [one.place for one in found.seen]
        home = _home(units)
        devices = {name: None if t.device == home else str(t.device) for name, t in tensors.items()}
        value = {
            "metrics": metrics, "held": held, "seen": places, "others": [*others.items()], "devices": devices,
        }  # fmt: skip
        pieces.put(_KEY, value, tensors, written=files)


def _recalled(pieces: Pieces, units: Sequence[Unit]) -> Calibration | None:
    piece = pieces.get(_KEY)
    if piece is None:
        return None
    found = Calibration()
    for name, entry in piece.value["metrics"].items():
        parts = {
            what: pieces.zeros(moments_file(units, name, what), (entry[what],) * 2, WIDE, again=True)
            for what in ("inputs", "outputs")
            if entry[what] is not None
        }
        found.metrics[name] = Metric(**parts, scale=entry["scale"])
    named: dict[int, dict[str, Any]] = dict(piece.value["others"])
    weights: dict[int, dict[int, Tensor]] = {place: {} for place in named}
    for name, t in piece.tensors.items():
        place, what, key = name.split(" ", 2)
        t = t.to(piece.value["devices"][name] or _home(units))
        if what == "of":
            named[int(place)][key] = t
        else:
            weights[int(place)][int(key)] = t
    batches = {place: (some[""],) if [*some] == [""] else some for place, some in named.items()}
    for place, name, shape, wide in piece.value["held"]:
        output = pieces.zeros(f"held-{place}", shape, WIDE if wide else WIDE.float(), again=True)
        found.held.append(Held(place, batches[place], name, output))
    found.seen = [Seen(place, batches[place], weights[place]) for place in piece.value["seen"]]
    return found


def _home(units: Sequence[Unit]) -> torch.device:
    """Where the model lies; it may be elsewhere when a run goes on."""
    return units[0].matrices[0].device if units else torch.device("cpu")


def _is_strided(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided


def _fits_files(x: Any) -> bool:
    """Whether a checkpoint can hold an entry of a batch."""
    if isinstance(x, Tensor):
        return _is_strided(x) and x.dtype in DTYPES
    return x is None or isinstance(x, bool | int | float | str)


def _length(moments: Tensor | None) -> int | None:
    return None if moments is None else len(moments)


def _total(loader: Iterable[Any], batches: int | None) -> int:
    try:
        length: int = len(loader)  # type: ignore[arg-type]
    except TypeError:
        return batches or 0
    return length if batches is None else min(length, batches)


def _hold(place: int, batch: Any, model: nn.Module, output: str | None, pieces: Pieces) -> Held:
    batch = _copied(batch)
    with torch.no_grad():
        name, value = main_output(called(model, {}, batch), output)
        value = kept(batch, value)
        output_ = pieces.zeros(f"held-{place}", value.shape, value).copy_(value)
    return Held(place, batch, name, output_)


def _copied(batch: Any) -> dict[str, Any] | tuple[Any]:
    """What the model takes of a batch, as it is now: a loader may use its memory again."""
    taken = (
        dict(batch)
        if isinstance(batch, Mapping)
        else (batch[0] if isinstance(batch, tuple | list) else batch,)
    )
    copied: dict[str, Any] | tuple[Any] = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), taken)
    return copied


def called(model: nn.Module, weights: Mapping[str, Tensor], batch: Any) -> Any:
    """The output with other parameters; neither the model nor the batch is changed, if it works in place."""
    given = _copied(batch)
    args, kwargs = ((), given) if isinstance(given, dict) else (given, {})
    return functional_call(model, dict(weights), args, kwargs)


@contextmanager
def _gradients(units: Sequence[Unit]) -> Iterator[None]:
    """Let every weight that may be replaced require a gradient: torch's fast paths would hide the layers."""
    frozen = {
        id(p): p
        for unit in units
        for site, _ in unit.places
        for owner in site.owners
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
