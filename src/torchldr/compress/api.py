"""`compress_`: a whole model, in place."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.pretrained import check_unclaimed
from ..matrices import Projection
from ..progress import Report, silent
from .budget import Budget
from .calibration import Calibration, calibrate, given_metrics
from .candidates import CANDIDATES, check_finite, exact
from .errors import DEADLINE, project_all
from .outputs import LOGITS
from .refit import Refit
from .replacing import REPLACED, install
from .report import CompressionReport, described
from .selection import Choices, Spec, check_room, check_spec, chosen
from .session import Session, check_count, check_time
from .structure import Structure
from .targets import FilterFn, Unit, check_unwrapped, find_units

CHECKING = "checking"  # the stage
DOUBTFUL = 0.1  # a residual above which a compression without data is not to be trusted
IDLE = "no batch reached it, or the output did not depend on it"


def compress_(
    model: nn.Module,
    spec: Spec | None = None,
    *,
    budget: Budget | None = None,
    filter_fn: FilterFn | None = None,
    min_features: int = 32,
    structures: Sequence[str] = CANDIDATES,
    activations: Mapping[str, Tensor] | None = None,
    loader: Iterable[Any] | None = None,
    batches: int | None = None,
    output: str | None = None,
    recurrent: bool = False,
    time_limit: float | None = None,
    seed: int = 0,
    progress: Report | None = None,
) -> CompressionReport:
    """Replace the dense layers of a trained model by structured ones, in place.

    Give a `loader` with a few hundred or more of the model's usual inputs. Errors then count by their effect
    on the model's outputs, and the report has the measured distance of the outputs. The same model, data and
    seed give the same result on any machine, up to rounding. The model changes only at the very end, so an
    error or an interrupt leaves it as it was.

    Args:
        model: any module that contains nn.Linear, 1 x 1 nn.Conv2d, nn.MultiheadAttention, nn.LSTM or
            nn.GRU (their input weights), or Hugging Face's Conv1D. Subclasses of these stay dense.
        spec: a budget, shared out by error: a fraction in (0, 1) of the parameters of these weights
            (biases not counted), their number as an int of at least 1, `Bytes` or `Latency`; a Structure
            for all; or a mapping of names and patterns (`*`, `?`, `[..]`) to structures. An exact name wins
            over a pattern, a longer pattern over a shorter one, a later entry over an earlier one.
        budget: the budget as a keyword, instead of `spec`.
        filter_fn: called with (module, name); False leaves a layer alone.
        min_features: layers with fewer inputs or outputs are left alone.
        structures: names of the classes that a budget may choose from.
        activations: inputs (..., in_features) by the name of a weight, to weight its errors.
        loader: batches of inputs. A mapping is passed as keywords; of a tuple or list the first entry is the
            input; anything else is the input itself. One batch in four, at most four, is held out to compare
            plans. Up to 256 MiB of the others are kept to fit the weights a second time.
        batches: at most how many to take. By default all, up to a limit on the work (counted, not timed) or
            until more would change little.
        output: which entry of the model's output counts. By default its logits, sentence embeddings or
            hidden states, else its first tensor.
        recurrent: also replace the weights that multiply the state of an LSTM or GRU. They are often the
            larger half, but their errors grow from step to step: give a loader and check `distance`.
        time_limit: limit in seconds. A short one skips batches and candidates and takes quick projections.
            With None the clock has no effect.
        seed: random seed of the projections and random directions.
        progress: called with (stage, done, total); `print` will do.

    Returns:
        What was done, weight by weight.

    Examples:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        >>> report = compress_(model, Structure("toeplitz_like", rank=2))
        >>> [(layer.name, layer.parameters_before, layer.parameters_after) for layer in report.layers]
        [('0', 4096, 256)]
        >>> report.left
        {'2': 'has 10 features, fewer than min_features=32'}
    """
    if (spec is None) == (budget is None):
        raise TypeError("compress_: give one of spec (a budget, a Structure or a mapping) and budget.")
    spec = budget if spec is None else spec
    assert spec is not None
    check_unwrapped("compress_", model)
    check_unclaimed("compress_", model)
    check_spec("compress_", spec)
    check_count("compress_", min_features=min_features, batches=1 if batches is None else batches)
    check_time("compress_", time_limit)
    planned = isinstance(spec, Structure | Mapping)
    units, left = find_units(model, filter_fn, min_features, recurrent)
    check_finite("compress_", units, "the weight of ")
    check_room("compress_", spec, units, structures)
    before = _count(model)
    session = Session(seed, time_limit, progress or silent)
    with torch.inference_mode(False):  # inference tensors have no derivatives, now or in later training
        data = None if loader is None else calibrate(model, units, loader, batches, output, session)
        session.metrics = given_metrics(units, activations or {}, {} if data is None else data.metrics)
        if data is not None and not planned:
            idle = [unit for unit in units if session.metrics[unit.name].scale == 0]
            left |= {unit.name: IDLE for unit in idle}
            units = [unit for unit in units if unit.name not in left]
        found = chosen("compress_", spec, units, left, structures, session)
        made = project_all(session, units, found.structures)
        distance, notes = None, []
        if data is not None and units:
            notes += data.notes
            found, made, distance = _compared(model, units, found, made, data, session)
            better = Refit(model, units, found.structures, data, session).fitted(made)
            other = distance if better is None else data.distance(model, units, better)
            if better is not None and other < distance:
                made, distance = better, other
                notes.append("weights were fitted again in the order in which they run")
            if found.structures in found.uniform:
                notes.append("every weight has the same share, which gave better outputs on held-out batches")
        install(model, zip(units, found.structures, made, strict=True), copy=True)
    left |= found.stays
    vectors, rows = described(units, found.structures, made, found.stopwatch)
    notes = [*found.notes, *notes]
    logits = data is not None and bool(data.held) and data.held[0].name == LOGITS
    result = CompressionReport(
        rows, left, before, _count(model), distance, tuple(notes), vectors, logits, _elsewhere(model, units)
    )
    _warn(result, known=loader is not None or bool(activations), planned=planned)
    return result


def _compared(
    model: nn.Module,
    units: Sequence[Unit],
    found: Choices,
    made: list[list[Projection]],
    data: Calibration,
    session: Session,
) -> tuple[Choices, list[list[Projection]], float]:
    """The plan, or one class for all weights if that measures better; and the outputs' distance.

    A single class is tried if its projections are found at once: shared out by error, and with the same share
    for every weight. Plans with smaller errors come first.
    """

    def off(some: Sequence[list[Projection]], step: int) -> float:
        session.report(CHECKING, step, 1 + len(rivals))
        return data.distance(model, units, some)

    plans = [plan for plan in (*found.alone, *found.uniform) if plan != found.structures]
    rivals = [plan for plan in plans if all(exact(s.name) for s in plan)]
    distance = off(made, 0)
    for i, plan in enumerate(rivals):
        if i and session.past(DEADLINE):
            left = ", ".join(rival[0].name for rival in rivals[i:])
            found = replace(
                found, notes=(*found.notes, f"time limit: plans with one class were skipped: {left}")
            )
            break
        rival = project_all(session, units, plan)
        other = off(rival, i + 1)
        if other < distance:
            found, made, distance = replace(found, structures=plan), rival, other
    return found, made, distance


def _warn(report: CompressionReport, *, known: bool, planned: bool) -> None:
    if not report.layers:
        reasons = [f"{name} {reason}" for name, reason in list(report.left.items())[:3]]
        why = "; ".join(reasons) or "the model has no layer that can be replaced"
        warnings.warn(f"compress_: nothing was replaced: {why}.", stacklevel=3)
    elif not known and not planned and report.residual > DOUBTFUL:
        warnings.warn(
            f"compress_: the new weights are off by {report.residual:.0%} of the old ones. "
            "How much the model's outputs change is unknown: give loader= (batches of inputs), so that "
            "errors count by their effect on the outputs, or fine-tune.",
            stacklevel=3,
        )


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _elsewhere(model: nn.Module, units: Sequence[Unit]) -> tuple[str, int] | None:
    """The kind of module that holds most of the parameters which could not be replaced, and their bytes."""
    taken = {id(part.parameter) for unit in units for part in unit.places}
    found: Counter[str] = Counter()
    for module in model.modules():
        if not isinstance(module, REPLACED):
            for p in module.parameters(recurse=False):
                if id(p) not in taken:
                    taken.add(id(p))
                    found[type(module).__name__] += p.nbytes
    return found.most_common(1)[0] if found else None
