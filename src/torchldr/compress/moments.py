"""Second moments of a model's inputs and gradients, layer by layer, added up by hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..core.products import without_autocast
from .metric import Metric, widened
from .outputs import LOGITS, called, counted, main_output
from .targets import Part, Unit

ENOUGH = 256  # rows for each entry of a vector; more would change little
WORK = 4e12  # multiply-adds after which no further batch runs: about a minute on two cores
CALL = 10**7  # the overhead of calling a layer, in multiply-adds
_PASSES = 5  # the cost of a row with its second moments, in products
_ALL = 8  # all rows are taken up to this many for each entry of a vector; then as many as a product costs
_INPUTS = {"q_proj": 0, "k_proj": 1, "v_proj": 2}
_ARGUMENTS = ("query", "key", "value")


@dataclass
class Moments:
    """Sums over the input rows of a weight."""

    inputs: Tensor | None = None  # sum of w x x^T, with w = |g|^2 for gradients g, or 1 without them
    counted: float = 0.0  # sum of w over the rows in `inputs`
    outputs: Tensor | None = None  # sum of g g^T
    rows: int = 0  # number of rows
    total: float = 0.0  # sum of w over all rows; for hidden outputs, of the squared weight gradient


class MomentHooks:
    """Hooks that collect moments while the model runs."""

    def __init__(self, units: Sequence[Unit], generator: torch.Generator) -> None:
        self.units, self.generator = units, generator
        self.moments: dict[str, Moments] = {}
        self.batches = 0  # seen
        self.differentiable: bool | None = None  # whether the output has gradients; None: not tried yet
        self.seeing = False  # off while a held-out batch runs
        self.weights: dict[int, Tensor] = {}  # importance of the batch's rows
        self.probes: list[Tensor] = []
        self.parameters: dict[str, list[Part]] = {}  # weights whose outputs no hook sees

    def see(self, model: nn.Module, batch: Any, output: str | None) -> dict[int, Tensor]:
        """Run one batch; return the importance of its rows. Without derivatives only inputs are collected."""
        self.seeing, self.weights = True, {}
        self.batches += 1
        first = self.differentiable is None
        known = self._differentiate(model, batch, output) if first or self.differentiable else False
        if first:
            self.differentiable = known
            if not known:
                self.moments.clear()
        if not self.differentiable:
            with torch.no_grad():
                called(model, {}, batch)
        self.seeing = False
        return self.weights

    def _differentiate(self, model: nn.Module, batch: Any, output: str | None) -> bool:
        self.probes = []
        owned = [(key, part) for key, parts in self.parameters.items() for part in parts]
        with torch.enable_grad():
            name, y = main_output(called(model, {}, batch), output)
            if not y.requires_grad:
                return False
            wanted = [*self.probes, *(part.parameter for _, part in owned)]
            if not wanted:
                return True
            found = torch.autograd.grad(y, wanted, self._direction(name, y, batch), allow_unused=True)
        for (key, part), g in zip(owned, found[len(self.probes) :], strict=True):
            if g is not None:
                g = g if part.third is None else g.chunk(3)[part.third]
                self.moments.setdefault(key, Moments()).total += float(widened(g).square().sum())
        return True

    @torch.no_grad()
    def _direction(self, name: str, y: Tensor, batch: Any) -> Tensor:
        """A random v such that J^T v has the second moments J^T J, for J of the output or its softmax."""
        if name == LOGITS:
            p = y.detach().float().softmax(-1)
            drawn = torch.rand(p.shape[:-1], generator=self.generator).to(p.device).unsqueeze(-1)
            label = (p.cumsum(-1) < drawn).sum(-1, keepdim=True).clamp(max=p.shape[-1] - 1)
            v = p.scatter_add(-1, label, -torch.ones_like(p[..., :1]))
        else:
            v = torch.randn(y.shape, generator=self.generator).to(y.device)
        mask = counted(batch, y)
        if mask is not None:
            v = v * mask.to(v).reshape(*mask.shape, *[1] * (v.ndim - 2))
        return v.to(y.dtype)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        with ExitStack() as hooks:  # gone at the end
            for name, part in ((unit.name, part) for unit in self.units for part in unit.places):
                if part.name == "":  # a layer with one weight
                    see = partial(self._see_output, name)
                    hooks.enter_context(part.module.register_forward_hook(see, with_kwargs=True))
                    continue
                self.parameters.setdefault(name, []).append(part)
                if part.name in _INPUTS:
                    look = partial(self._see_input, name, _INPUTS[part.name])
                    hooks.enter_context(part.module.register_forward_pre_hook(look, with_kwargs=True))
            yield

    def _see_input(
        self, name: str, place: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        x = args[place] if len(args) > place else kwargs.get(_ARGUMENTS[place])
        if self.seeing and isinstance(x, Tensor):
            self._add_inputs(name, x.detach().reshape(-1, x.shape[-1]), None, x.shape[-1])

    def _see_output(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any
    ) -> Any:
        x = args[0] if args else next(iter(kwargs.values()), None)
        if not (self.seeing and isinstance(x, Tensor) and isinstance(y, Tensor)):
            return None
        X = input_rows(module, x.detach())
        if not torch.is_grad_enabled():
            self._add_inputs(name, X, None, y.shape[-1])
            return None
        version = x._version
        probe = torch.zeros((), dtype=y.dtype, device=y.device, requires_grad=True)
        made = y + probe

        def back(g: Tensor) -> None:
            if x._version == version:  # otherwise the input has been overwritten
                g = g.movedim(-3, -1) if isinstance(module, nn.Conv2d) else g
                self._add(name, X, g.detach().reshape(-1, g.shape[-1]))

        made.register_hook(back)
        self.probes.append(probe)
        return made

    @torch.no_grad()
    def _add(self, name: str, X: Tensor, g: Tensor) -> None:
        """Add rows of inputs with their gradients."""
        g = g.float() if g.dtype != torch.float64 else g
        weight = g.square().sum(-1)
        (m, n), seen = (g.shape[1], X.shape[1]), self.moments.setdefault(name, Moments())
        rows = self._rows(len(g), seen.rows, m, n / m)
        part = g[rows] if rows is not None else g
        seen.outputs = _added(seen.outputs, moments_of(part, part))
        seen.total += float(widened(weight).sum())
        if weight.any():
            mean, before = weight / weight.mean(), self.weights.get(len(weight))
            self.weights[len(weight)] = mean if before is None else before + mean.to(before.device)
        self._add_inputs(name, X, weight, m)

    @torch.no_grad()
    def _add_inputs(self, name: str, X: Tensor, weight: Tensor | None, m: int) -> None:
        n, seen = X.shape[1], self.moments.setdefault(name, Moments())
        rows = self._rows(len(X), seen.rows, n, m / n)
        seen.rows += len(X)
        if rows is not None:
            X, weight = X[rows], None if weight is None else weight[rows]
        X = X.float() if X.dtype != torch.float64 else X
        seen.counted += float(len(X) if weight is None else widened(weight).sum())
        weighted = X if weight is None else X * weight.to(X).unsqueeze(-1)
        seen.inputs = _added(seen.inputs, moments_of(weighted, X))

    def enough(self) -> bool:
        """Whether half of the weights have had `ENOUGH` rows for each entry of a vector, or `WORK` is done.

        It uses counts only, so that the same data give the same result on any machine.
        """
        known = [(unit, self.moments[unit.name].rows) for unit in self.units if unit.name in self.moments]
        work = sum(_PASSES * rows * unit.size + CALL * self.batches for unit, rows in known)
        seen = sorted(rows / max(unit.matrices[0].shape) for unit, rows in known if rows)
        return bool(seen) and (seen[len(seen) // 2] >= ENOUGH or work >= WORK)

    def metric(self, unit: Unit) -> Metric:
        """The metric of a unit's errors. This consumes its moments."""
        found, (m, n) = self.moments.pop(unit.name, Moments()), unit.matrices[0].shape
        mean = 0.0 if found.inputs is None else float(found.inputs.diagonal().mean())
        C, S = ridged_(found.inputs, found.rows), ridged_(found.outputs, found.rows, 1e-3)
        C, S = (None if t is None else t.cpu() for t in (C, S))  # together they are larger than the model
        if not self.differentiable:
            if found.rows == 0 and unit.places[0].name == "":
                return Metric(scale=0.0)  # its module was never called
            return Metric(C).relative(unit.size, unit.matrices)
        if found.outputs is None or found.inputs is None:
            return Metric(C, None, found.total / (m * n))
        # The sum over rows of |g|^2 |D x|^2, were g the same in all directions: C and S have means of 1.
        scale = found.total * mean / max(found.counted, 1e-300) / m
        return Metric(C, S, scale)

    def _rows(self, rows: int, seen: int, length: int, ratio: float) -> Tensor | None:
        """The rows to take: all at first, later so few that a Gram matrix costs as much as a product."""
        if seen < _ALL * length or ratio >= 1:
            return None
        return torch.randperm(rows, generator=self.generator)[: max(1, int(ratio * rows))]


def ridged_(gram: Tensor | None, rows: int | None, least: float = 1e-6) -> Tensor | None:
    """Scale moments to mean diagonal 1 and add a ridge, larger for few rows (None: all). In place."""
    if gram is None:
        return None
    gram = widened(gram)
    mean = float(gram.diagonal().mean())
    if not mean > 0:
        return None
    lift = least + (0.0 if rows is None else 1e-2 * min(1.0, len(gram) / max(rows, 1)))
    gram.div_(mean).diagonal().add_(lift)
    return gram


def _added(moments: Tensor | None, gram: Tensor) -> Tensor:
    """Moments in float64 plus a Gram matrix."""
    return widened(gram) if moments is None else moments.add_(gram.to(moments.device))


def moments_of(X: Tensor, Y: Tensor) -> Tensor:
    """X^T Y, in full precision even under autocast."""
    with without_autocast(X.device.type):
        return X.mT @ Y


def input_rows(module: nn.Module, x: Tensor) -> Tensor:
    """The input vectors of a layer, (rows, in_features)."""
    if isinstance(module, nn.Conv2d):
        x = x[..., :: module.stride[0], :: module.stride[1]].movedim(-3, -1)
    return x.reshape(-1, x.shape[-1])
