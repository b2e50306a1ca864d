"""A second fit of the weights, in the order in which they run, to the inputs from compressed layers.

A plan counts errors one weight at a time. In the compressed model a weight W gets inputs x' instead of x.
This fit replaces W by the M that minimises

    E |W ((1 - b) x' + b x) - M x'|^2

in the metric S of its outputs. The solution is the projection of W ((1 - b) I + b D C^-1) in the metric of C,
with C = E[x' x'^T] and D = E[x x'^T]. With b = 0 M reproduces W on the new inputs. With b = 1 it also
corrects the errors of all layers before it, as far as x' predicts x. A value between the two brings the
outputs closest to the original's on held-out batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..matrices import Projection
from ..nn.evaluating import evaluating
from .calibration import Calibration, Seen
from .candidates import exact
from .metric import Metric, measured, project, widened
from .moments import CALL, input_rows, moments_of, ridged_
from .outputs import called
from .session import Session
from .structure import Structure
from .targets import Unit, dense_parameters

FITTING = "fitting in order"  # the stage
SHARE = 0.5  # b
WORK = 3e12  # multiply-adds for all batches and stages, about a minute on two cores
ROWS, STAGES = 8, 4  # the least: rows for each entry of the longest input, and stages
_DEADLINE = 0.95  # of a time limit
_KINDS = ("linear", "conv1d", "conv2d")  # whose inputs are seen

Made = list[list[Projection]]


@dataclass
class Refit:
    """The second fit of a model: its original weights, their structures, and its calibration."""

    model: nn.Module
    units: Sequence[Unit]
    structures: Sequence[Structure]
    data: Calibration
    session: Session

    def fitted(self, made: Made) -> Made | None:
        """Other projections of the same structures, or None if there is no time or nothing to fit."""
        wanted = {
            i
            for i, unit in enumerate(self.units)
            if made[i] and unit.kind in _KINDS and exact(self.structures[i].name)
        }
        if not wanted or not self.data.seen:
            return None
        order, cost = self._order(wanted)
        batches, stages = self._affordable(len(order), cost)
        made, took = list(made), 0.0
        for stage in range(stages):
            begun, limit = self.session.spent, self.session.time_limit
            if limit is not None and begun + 1.5 * took > _DEADLINE * limit:  # each runs more of the model
                return made if stage else None
            self.session.report(FITTING, stage, stages)
            part = order[len(order) * stage // stages : len(order) * (stage + 1) // stages]
            new = dict(self._stage([i for group in part for i in group], made, batches))
            for i, projection in new.items():
                made[i] = [projection]
            took = self.session.spent - begun
        return made if stages else None

    def _order(self, wanted: set[int]) -> tuple[list[list[int]], Cost]:
        """The weights in the order in which they run, grouped by common inputs; and the cost of a batch."""
        seen = self.data.seen[0]
        order: list[tuple[int, Tensor]] = []
        shapes: dict[int, torch.Size] = {}

        def look(i: int, module: nn.Module, x: Tensor) -> None:
            order.append((i, x))
            shapes[i] = input_rows(module, x).shape

        self._run({}, seen.batch, wanted, look)
        if not order:  # the model uses their weights without calling them
            return [], Cost(0, 0, 1)
        groups: list[list[int]] = []
        before = None
        for i, x in order:
            if any(i in group for group in groups):
                continue  # runs more than once
            if x is before:
                groups[-1].append(i)
            else:
                groups.append([i])
            before = x
        count, n = max(shapes.values(), key=lambda shape: shape[1])
        weight = seen.weights.get(count)
        rows = count if weight is None else int(weight.count_nonzero())
        run = sum(CALL + shape[0] * self.units[i].size for i, shape in shapes.items())
        sums = 2 * sum(shape[0] * shape[1] ** 2 for shape in shapes.values())
        return groups, Cost(run, sums, rows / n)

    def _affordable(self, groups: int, cost: Cost) -> tuple[int, int]:
        """The number of batches and of stages. On average a stage runs half of each model.

        There is no second fit where the batches have fewer rows than the least, which fits them and not the
        model, nor where the work does not allow the least, unless a time limit decides.
        """
        most, least = len(self.data.seen), math.ceil(ROWS / max(cost.rows, 1e-9))
        if least > most:
            return 0, 0
        for batches in range(most, least - 1, -1):
            stages = min(groups, int((WORK / batches - cost.sums) / max(cost.run, 1)))
            if stages >= min(groups, STAGES):
                return batches, stages
        return (0, 0) if self.session.time_limit is None else (least, min(groups, STAGES))

    def _stage(self, part: Sequence[int], made: Made, batches: int) -> Iterator[tuple[int, Projection]]:
        """New projections of some weights, for the inputs that the current model gives them."""
        weights = dense_parameters(self.units, made)
        pairs = _Pairs(part)
        for seen in self.data.seen[:batches]:
            pairs.begin(seen)
            self._run(weights, seen.batch, set(part), pairs.keep)
            self._run({}, seen.batch, set(part), pairs.add)
            pairs.end()
        for i, moments in pairs.moments.items():
            projection = None if i in pairs.unpaired else self._projected(i, moments)
            if projection is not None:
                yield i, projection

    def _run(
        self, weights: Mapping[str, Tensor], batch: Any, wanted: set[int], look: Callable[..., None]
    ) -> None:
        """Run the model with other weights until `look` has seen the inputs of all wanted units."""
        left = set(wanted)

        def hook(i: int) -> Callable[..., None]:
            def see(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
                x = args[0] if args else next(iter(kwargs.values()), None)
                if isinstance(x, Tensor):
                    look(i, module, x)
                    left.discard(i)
                if not left:
                    raise _EnoughError

            return see

        with ExitStack() as hooks, evaluating(self.model), torch.no_grad(), suppress(_EnoughError):
            for i in wanted:
                for part in self.units[i].places:
                    hooks.enter_context(part.module.register_forward_pre_hook(hook(i), with_kwargs=True))
            called(self.model, weights, batch)

    def _projected(self, i: int, moments: Moments) -> Projection | None:
        (W,), old = self.units[i].matrices, self.data.metrics[self.units[i].name]
        C, D, rows = moments
        mean, first = float(C.diagonal().mean()), float(C[0, 0])
        if not (D.isfinite().all() and C.isfinite().all()) or (lifted := ridged_(C, rows)) is None:
            return None
        D.div_(mean).diagonal().add_(float(lifted[0, 0]) - first / mean)  # lifted as C is
        T = torch.linalg.solve(lifted, D.mT).mT.mul_(SHARE)
        T.diagonal().add_(1 - SHARE)
        target = widened(W).to(T.device) @ T
        M = project(target, self.structures[i], Metric(lifted, old.outputs), self.session.seed).matrix
        return measured(W, M.to(W.dtype), old)


class Cost(NamedTuple):
    """The cost of a batch in multiply-adds: to run the model, and to add up the moments of all weights.

    `rows` is its number of rows that count, for each entry of the longest input.
    """

    run: int
    sums: int
    rows: float


class Moments(NamedTuple):
    """C and D of a weight, summed over `rows` rows."""

    C: Tensor
    D: Tensor
    rows: int


class _Pairs:
    """Sums over pairs of inputs of some weights: in the compressed and in the original model."""

    def __init__(self, part: Sequence[int]) -> None:
        self._part = part
        self._weights: dict[int, Tensor] = {}
        self._inputs: dict[int, list[Tensor]] = {}
        self.moments: dict[int, Moments] = {}
        self.unpaired: set[int] = set()  # which rows come depends on values, as for experts

    def begin(self, seen: Seen) -> None:
        self._weights, self._inputs = seen.weights, {i: [] for i in self._part}

    def keep(self, i: int, module: nn.Module, x: Tensor) -> None:
        """Keep the inputs in the compressed model."""
        self._inputs[i].append(input_rows(module, x).clone())

    def add(self, i: int, module: nn.Module, x: Tensor) -> None:
        """Pair them with the inputs in the original model."""
        X = input_rows(module, x)
        Y = self._inputs[i].pop(0) if self._inputs[i] else X[:0]
        if X.shape != Y.shape:
            self.unpaired.add(i)
            return
        X, Y = (t if t.dtype == torch.float64 else t.float() for t in (X, Y))  # sums need the digits
        weight, weighted = self._weights.get(len(Y)), Y
        if weight is not None:
            weight = weight.to(Y)
            if not weight.all():
                counted = weight != 0
                X, Y, weight = X[counted], Y[counted], weight[counted]
            weighted = Y * weight.unsqueeze(-1)
        count, n = Y.shape
        if i not in self.moments:
            C, D = (widened(Y[:0]).new_zeros(n, n) for _ in "CD")
            self.moments[i] = Moments(C, D, 0)
        C, D, rows = self.moments[i]
        C.add_(moments_of(Y, weighted).to(C))
        D.add_(moments_of(X, weighted).to(D))
        self.moments[i] = Moments(C, D, rows + count)

    def end(self) -> None:
        self.unpaired |= {i for i, left in self._inputs.items() if left}


class _EnoughError(Exception):
    """All wanted inputs were seen."""
