"""What calibration data say of a model: second moments of inputs and of sensitivities, in constant memory.

The moments are larger than the weights: with a checkpoint they lie in its files, where they are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .metric import Metric
from .outputs import LOGITS, call, counted, distance, kept, main_output
from .pieces import Pieces
from .progress import CALIBRATING
from .targets import RECURRENT, Site, Unit
from .workers import Workers

SHARE = 0.45  # of the time, at most
HELD, EVERY = 4, 4  # one batch in four is held out to compare plans on, four at most
_ENOUGH = 8  # rows for each entry of a vector that are all taken; after that, as many as a product costs
_WEIGHTED = 64  # batches whose rows' weights are kept
_INPUTS = {"q_proj": 0, "k_proj": 1, "v_proj": 2}
_ARGUMENTS = ("query", "key", "value")
_KEY = "calibration"
_WIDE = torch.zeros((), dtype=torch.float64)


@dataclass
class Moments:
    """Sums over the rows that a weight has seen.

    Attributes:
        inputs: of w x x^T, with w = |g|^2 where gradients g are known and 1 elsewhere.
        counted: of w, over the rows that `inputs` has.
        outputs: of g g^T.
        rows: how many there were.
        total: of w over all rows; for weights whose outputs are not seen, of the squared weight gradient.
    """

    inputs: Tensor | None = None
    counted: float = 0.0
    outputs: Tensor | None = None
    rows: int = 0
    total: float = 0.0


class Held(NamedTuple):
    """A batch that was held out: its place in the loader, the output's name, and the original's output."""

    place: int
    batch: Any
    name: str
    output: Tensor


@dataclass
class Calibration:
    """What the data say.

    Attributes:
        metrics: what errors of the units count by, by their names.
        held: batches that were held out.
        batches: how many there were in all.
        weights: by a batch's place and a number of rows, how much each row counts, summed over the units that
            have so many: 0 for padding, say. Of the first batches, where gradients are known.
    """

    metrics: dict[str, Metric] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    batches: int = 0
    weights: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def distance(self, model: nn.Module, weights: Mapping[str, Tensor]) -> float:
        """The distance of the outputs on the held batches, with these parameters in place of its own."""
        over = size = 0.0
        with evaluating(model), torch.no_grad():
            for _, batch, name, theirs in self.held:
                output = called(model, weights, batch)
                one, scale = distance(name, kept(batch, main_output(output, name)[1]), theirs)
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
    known = _recalled(pieces, units, loader)
    if known is not None:
        return known
    found = Calibration()
    total = _total(loader, batches)
    report(CALIBRATING, 0, total)
    watch = _Watch(units, torch.Generator().manual_seed(workers.seed), pieces)
    with evaluating(model), _gradients(units), watch.hooked(units):
        last: Any = None
        for i, batch in enumerate(islice(loader, batches)):
            last = batch
            if i % EVERY == EVERY - 1 and len(found.held) < HELD:
                found.held.append(_hold(i, model, batch, output, pieces))
            else:
                watch.place = i
                watch.see(model, batch, output)
            found.batches += 1
            report(CALIBRATING, i + 1, total)
            if batches is None and workers.clock.past(SHARE):
                break
        if not found.batches:
            raise ValueError("compress_: the loader gave no batch (a generator gives its batches once).")
        if not found.held:
            found.held.append(_hold(found.batches - 1, model, last, output, pieces))
    for name, seen in watch.moments.items():
        if any(not t.isfinite().all() for t in (seen.inputs, seen.outputs) if t is not None):
            raise ValueError(f"compress_: the inputs of {name} on the loader's batches are not all finite.")
    found.metrics = {unit.name: watch.metric(unit) for unit in units}
    found.weights = watch.weights
    _keep(pieces, units, found)
    return found


def _file(units: Sequence[Unit], name: str, what: str) -> str:
    """The name of the file with a unit's moments; the unit's own may have any characters."""
    return f"{what}-{[unit.name for unit in units].index(name)}"


def _keep(pieces: Pieces, units: Sequence[Unit], found: Calibration) -> None:
    metrics = {
        name: {"scale": metric.scale, "inputs": _length(metric.inputs), "outputs": _length(metric.outputs)}
        for name, metric in found.metrics.items()
    }
    held = [
        {
            "place": one.place,
            "name": one.name,
            "shape": one.output.shape,
            "wide": one.output.dtype == _WIDE.dtype,
        }
        for one in found.held
    ]
    files = [
        _file(units, name, what)
        for name, entry in metrics.items()
        for what in ("inputs", "outputs")
        if entry[what] is not None
    ]
    files += [f"held-{one.place}" for one in found.held]
    weights = {f"{place} {rows}": weight for (place, rows), weight in found.weights.items()}
    value = {"metrics": metrics, "held": held, "batches": found.batches}
    pieces.put(_KEY, value, weights, written=files)


def _recalled(pieces: Pieces, units: Sequence[Unit], loader: Iterable[Any]) -> Calibration | None:
    piece = pieces.get(_KEY)
    if piece is None:
        return None
    metrics = {}
    for name, entry in piece.value["metrics"].items():
        parts = {
            what: pieces.zeros(_file(units, name, what), (entry[what],) * 2, _WIDE, again=True)
            for what in ("inputs", "outputs")
            if entry[what] is not None
        }
        metrics[name] = Metric(**parts, scale=entry["scale"])
    places = {entry["place"]: entry for entry in piece.value["held"]}
    held = []
    for i, batch in enumerate(islice(loader, max(places) + 1)):
        if i in places:
            entry = places[i]
            kind = _WIDE if entry["wide"] else _WIDE.float()
            output = pieces.zeros(f"held-{i}", entry["shape"], kind, again=True)
            held.append(Held(i, batch, entry["name"], output))
    places_of = {name: name.split() for name in piece.tensors}
    weights = {(int(a), int(b)): piece.tensors[name] for name, (a, b) in places_of.items()}
    return Calibration(metrics, held, piece.value["batches"], weights)


def _length(moments: Tensor | None) -> int | None:
    return None if moments is None else len(moments)


def _total(loader: Iterable[Any], batches: int | None) -> int:
    try:
        length: int = len(loader)  # type: ignore[arg-type]
    except TypeError:
        return batches or 0
    return length if batches is None else min(length, batches)


def _hold(place: int, model: nn.Module, batch: Any, output: str | None, pieces: Pieces) -> Held:
    with torch.no_grad():
        name, value = main_output(call(model, batch), output)
        value = kept(batch, value)
        return Held(place, batch, name, pieces.zeros(f"held-{place}", value.shape, value).copy_(value))


class _Watch:
    """The hooks that collect moments, and the runs of the model that they see."""

    def __init__(self, units: Sequence[Unit], generator: torch.Generator, pieces: Pieces) -> None:
        self.units, self.generator, self.pieces = units, generator, pieces
        self.moments: dict[str, Moments] = {}
        self.sensitive = False  # whether gradients were seen
        self.differentiable: bool | None = None  # None: not tried yet
        self.seeing = False  # not while a held batch runs
        self.place = 0  # of the batch
        self.weights: dict[tuple[int, int], Tensor] = {}
        self.probes: list[Tensor] = []
        self.parameters: dict[str, list[tuple[nn.Parameter, int | None]]] = {}

    def see(self, model: nn.Module, batch: Any, output: str | None) -> None:
        """One batch. A model whose outputs have no derivatives is seen by its inputs alone."""
        self.seeing = True
        if self.differentiable is None:
            self.sensitive = self.differentiable = self._differentiate(model, batch, output)
            if not self.differentiable:
                self.moments.clear()
        elif self.differentiable:
            self._differentiate(model, batch, output)
        if not self.differentiable:
            with torch.no_grad():
                call(model, batch)
        self.seeing = False

    def _differentiate(self, model: nn.Module, batch: Any, output: str | None) -> bool:
        self.probes = []
        owned = [(key, p, third) for key, row in self.parameters.items() for p, third in row]
        with torch.enable_grad():
            name, y = main_output(call(model, batch), output)
            if not y.requires_grad:
                return False
            wanted = [*self.probes, *(p for _, p, _ in owned)]
            if not wanted:
                return True
            found = torch.autograd.grad(y, wanted, self._direction(name, y, batch), allow_unused=True)
        for (key, _, third), g in zip(owned, found[len(self.probes) :], strict=True):
            if g is not None:
                g = g if third is None else g.chunk(3)[third]
                self.moments.setdefault(key, Moments()).total += float(g.double().square().sum())
        return True

    @torch.no_grad()
    def _direction(self, name: str, y: Tensor, batch: Any) -> Tensor:
        """A random vector v: the second moments of J^T v are J^T J, with J of the output or its softmax."""
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
    def hooked(self, units: Sequence[Unit]) -> Iterator[None]:
        handles = []
        try:
            for unit in units:
                for site, part in unit.places:
                    if site.kind in ("linear", "conv1d", "conv2d"):
                        handles.append(
                            site.module.register_forward_hook(self._output(unit.name, site), with_kwargs=True)
                        )
                        continue
                    self.parameters.setdefault(unit.name, []).extend(_owned(site, part))
                    if part in _INPUTS:
                        look = self._input(unit.name, part)
                        handles.append(site.module.register_forward_pre_hook(look, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _input(self, name: str, part: str) -> Callable[..., None]:
        place = _INPUTS[part]

        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = args[place] if len(args) > place else kwargs.get(_ARGUMENTS[place])
            if self.seeing and isinstance(x, Tensor):
                self._add_inputs(name, x.detach().reshape(-1, x.shape[-1]), None, x.shape[-1])

        return look

    def _output(self, name: str, site: Site) -> Callable[..., Any]:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Any) -> Any:
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
                if x._version == version:  # else the input was overwritten since
                    g = g.movedim(-3, -1) if isinstance(module, nn.Conv2d) else g
                    self._add(name, X, g.detach().reshape(-1, g.shape[-1]))

            made.register_hook(back)
            self.probes.append(probe)
            return made

        return look

    @torch.no_grad()
    def _add(self, name: str, X: Tensor, g: Tensor) -> None:
        """Rows of inputs with their gradients."""
        g = g.float() if g.dtype != torch.float64 else g
        weight = g.square().sum(-1)
        (m, n), seen = (g.shape[1], X.shape[1]), self.moments.setdefault(name, Moments())
        rows = self._rows(len(g), seen.rows, m, n / m)
        part = g[rows] if rows is not None else g
        seen.outputs = self._added(name, "outputs", seen.outputs, part.mT @ part)
        seen.total += float(weight.double().sum())
        if self.place < _WEIGHTED and weight.any():
            mean, key = weight / weight.mean(), (self.place, len(weight))
            self.weights[key] = self.weights[key] + mean if key in self.weights else mean
        self._add_inputs(name, X, weight, m)

    @torch.no_grad()
    def _add_inputs(self, name: str, X: Tensor, weight: Tensor | None, m: int) -> None:
        n, seen = X.shape[1], self.moments.setdefault(name, Moments())
        rows = self._rows(len(X), seen.rows, n, m / n)
        seen.rows += len(X)
        if rows is not None:
            X, weight = X[rows], None if weight is None else weight[rows]
        X = X.float() if X.dtype != torch.float64 else X
        seen.counted += float(len(X) if weight is None else weight.double().sum())
        gram = X.mT @ X if weight is None else (X * weight.to(X).unsqueeze(-1)).mT @ X
        seen.inputs = self._added(name, "inputs", seen.inputs, gram)

    def _added(self, name: str, what: str, moments: Tensor | None, gram: Tensor) -> Tensor:
        if moments is None:
            file = _file(self.units, name, what)
            moments = self.pieces.zeros(file, gram.shape, _WIDE.to(gram.device))
        return moments.add_(gram.to(moments.device))

    def metric(self, unit: Unit) -> Metric:
        """What errors of a unit count by; its moments are used up."""
        found, (m, n) = self.moments.pop(unit.name, Moments()), unit.matrices[0].shape
        mean = 0.0 if found.inputs is None else float(found.inputs.diagonal().mean())
        C = ridged_(found.inputs, found.rows)
        if not self.sensitive:
            return Metric(C).relative(unit.size, unit.matrices)
        if found.outputs is None or found.inputs is None:
            return Metric(C, None, found.total / (m * n))
        # The sum over rows of |g|^2 |D x|^2, were g the same in all directions: C and S have means of 1.
        scale = found.total * mean / max(found.counted, 1e-300) / m
        return Metric(C, ridged_(found.outputs, found.rows, 1e-3), scale)

    def _rows(self, rows: int, seen: int, length: int, ratio: float) -> Tensor | None:
        """Which rows to take: all at first, then so many that a Gram matrix costs what a product does."""
        if seen < _ENOUGH * length or ratio >= 1:
            return None
        return torch.randperm(rows, generator=self.generator)[: max(1, int(ratio * rows))]


def _owned(site: Site, part: str) -> list[tuple[nn.Parameter, int | None]]:
    """The parameters that hold a part whose outputs are not seen, and which third of a joint one it is."""
    owned, joint = site.module._parameters, site.module._parameters.get("in_proj_weight")
    found: list[tuple[nn.Parameter | None, int | None]]
    if part == "out_proj":
        found = [(site.owners[1]._parameters["weight"], None)]
    elif site.kind in RECURRENT:
        found = [(owned[part], None)]
    else:
        found = [(owned[f"{part}_weight"], None) if joint is None else (joint, _INPUTS[part])]
    return [(p, third) for p, third in found if p is not None]


def ridged_(gram: Tensor | None, rows: int | None, least: float = 1e-6) -> Tensor | None:
    """Moments of mean diagonal 1, in place, lifted a little: more where few rows were seen (None: all)."""
    if gram is None:
        return None
    gram = gram.to("cpu", torch.float64)
    mean = float(gram.diagonal().mean())
    if not mean > 0:
        return None
    lift = least + (0.0 if rows is None else 1e-2 * min(1.0, len(gram) / max(rows, 1)))
    gram.div_(mean).diagonal().add_(lift)
    return gram


def input_rows(module: nn.Module, x: Tensor) -> Tensor:
    """The vectors that a layer multiplies, (rows, in_features)."""
    if isinstance(module, nn.Conv2d):
        x = x[..., :: module.stride[0], :: module.stride[1]].movedim(-3, -1)
    return x.reshape(-1, x.shape[-1])


def called(model: nn.Module, weights: Mapping[str, Tensor], batch: Any) -> Any:
    """The output with other parameters; the model itself is never changed."""
    if isinstance(batch, Mapping):
        return functional_call(model, dict(weights), (), dict(batch))
    return functional_call(model, dict(weights), (batch[0] if isinstance(batch, tuple | list) else batch,))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


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
