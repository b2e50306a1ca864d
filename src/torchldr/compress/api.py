"""`compress_` and `materialize_`: a whole model in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..matrices import Projection, StructuredMatrix
from ..matrices.projection.progress import reporting
from .activations import collect_roots
from .attention import StructuredAttention, split_attention
from .budget import Budget
from .budget_choose import Spec, check_count, check_spec, chosen
from .choose import CANDIDATES, Report
from .dense import dense_modules
from .layers import StructuredPointwise, keep_state, linear_from, recurrent_from, replace_modules, tie
from .report import CompressionReport, describe
from .sites import FilterFn, Site, Unit, find_units
from .structure import Structure
from .tensors import check_finite
from .tensors_workers import Workers, project


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
    batches: int = 8,
    effort: float = 1.0,
    seed: int = 0,
    progress: bool | Report | None = None,
) -> CompressionReport:
    """Replace the dense layers of a trained model by structured ones, in place.

    Every new weight is the projection of the old one (`torchldr.from_dense`). Nothing in the model is
    changed before all projections are done, so an error leaves it as it was.

    Args:
        model: any module that contains nn.Linear, 1 x 1 nn.Conv2d, nn.MultiheadAttention, nn.LSTM or
            nn.GRU (their input weights), or Hugging Face's Conv1D. Subclasses of these stay.
        spec: a budget, shared out by residual: a fraction in (0, 1) of the parameters of these weights
            (biases not counted), their number as an int of at least 1, `Bytes` or `Latency`; a Structure
            for all; or a mapping of names and patterns (`*`, `?`, `[..]`) to structures. An exact name
            decides before a pattern, a longer pattern before a shorter, a later entry before an earlier.
        budget: the budget, by name; then no `spec`.
        filter_fn: called with (module, name); False leaves a layer alone.
        min_features: layers with fewer inputs or outputs are left alone.
        structures: names of the classes that a budget may choose from.
        activations: inputs (..., in_features) by the name of a weight; errors count by them.
        loader: batches to collect activations from: a mapping is passed as keywords, of a tuple or list
            the first entry, anything else as it is.
        batches: how many of them, at most.
        effort, seed: of the projections.
        progress: True for a bar on stderr, or a function that is called with (stage, done, total).

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
    if not isinstance(model, nn.Module):
        raise TypeError(f"compress_: model must be an nn.Module, got {type(model).__name__}.")
    check_spec("compress_", spec)
    check_count("compress_", min_features=min_features, batches=batches)
    units, left = find_units(model, filter_fn, min_features)
    check_finite("compress_", units, "the weight of ")
    before = _count(model)
    with reporting(progress) as report, Workers(1) as workers:
        roots = find_roots("compress_", model, units, activations, loader, batches)
        found = chosen("compress_", spec, units, left, structures, roots, seed, workers, report)
        arguments = [
            (workers.parcel(unit, roots.get(unit.name)), structure, seed, effort)
            for unit, structure in zip(units, found.structures, strict=True)
        ]
        made = workers.run([f"projecting {unit.name}" for unit in units], project, arguments, report)
    done = list(zip(units, found.structures, made, strict=True))
    _install(model, done)
    left |= found.stays
    rows = [describe(*row, *latency) for row, latency in zip(done, found.latencies, strict=True)]
    return CompressionReport(tuple(rows), left, before, _count(model))


def materialize_(model: nn.Module) -> nn.Module:
    """Put dense layers back where structured ones stand, in place: the same function, torch's own layers.

    StructuredLinear becomes nn.Linear (also where a Hugging Face Conv1D once stood), and what `compress_`
    put for convolutions, attention and recurrent layers becomes torch's. Weights that were tied stay so.

    Returns:
        The model.
    """
    replaced = dense_modules(model)
    for old, new in replaced.values():
        keep_state(old, new)
    replace_modules(model, {key: new for key, (_, new) in replaced.items()})
    return model


# The parts of compress_, in the order of their use.


def find_roots(
    who: str,
    model: nn.Module,
    units: Sequence[Unit],
    activations: Mapping[str, Tensor] | None,
    loader: Iterable[Any] | None,
    batches: int,
) -> dict[str, Tensor]:
    """R with R^T R = X^T X for the inputs X of the weights, by their names, from a loader or as given."""
    roots = {} if loader is None else collect_roots(model, units, loader, batches)
    for name, X in (activations or {}).items():
        unit = next((unit for unit in units if name in unit.names), None)
        if unit is None:
            raise ValueError(f"{who}: activations for {name!r}, which is no weight that can be replaced.")
        wanted = unit.matrices[0].shape[1]
        if X.shape[-1] != wanted:
            raise ValueError(
                f"{who}: the activations of {name} must have {wanted} entries in their last axis, "
                f"got shape {tuple(X.shape)}."
            )
        if unit.kind in ("lstm", "gru"):
            raise ValueError(f"{who}: activations of {name} cannot be used, it is recurrent.")
        if not X.isfinite().all() or not X.any():
            raise ValueError(f"{who}: the activations of {name} must be finite and not all zero.")
        roots[unit.name] = X.detach().reshape(-1, wanted).to("cpu", torch.float64)
    return roots


def _install(model: nn.Module, done: Sequence[tuple[Unit, Structure, list[Projection]]]) -> None:
    """Build every replacement, then put them in."""
    parts: dict[int, tuple[Site, dict[str, nn.Module]]] = {}
    for unit, _, found in done:
        leader: nn.Module | None = None
        for site, part in unit.places if found else []:
            made = _make(site, part, [projection.matrix for projection in found])
            if leader is not None:
                tie(made, leader)
            leader = leader or made
            parts.setdefault(id(site.module), (site, {}))[1][part] = made
    replacements = {key: _assemble(site, layers) for key, (site, layers) in parts.items()}
    for key, (site, _) in parts.items():
        keep_state(site.module, replacements[key])
    replace_modules(model, replacements)


def _make(site: Site, part: str, matrices: list[StructuredMatrix]) -> nn.Module:
    module = site.module
    if isinstance(module, nn.LSTM | nn.GRU):
        return recurrent_from(module, matrices)
    if isinstance(module, nn.MultiheadAttention):
        dense = split_attention(module)[part]
        return linear_from(matrices[0], dense._parameters["bias"], learned=dense.weight.requires_grad)
    weight = module._parameters["weight"]
    learned = weight is not None and weight.requires_grad
    return linear_from(matrices[0], module._parameters.get("bias"), learned=learned)


def _assemble(site: Site, layers: dict[str, nn.Module]) -> nn.Module:
    """The replacement of a module from the layers for its parts."""
    module = site.module
    if isinstance(module, nn.MultiheadAttention):
        return StructuredAttention(module, {**split_attention(module), **layers})
    if isinstance(module, nn.Conv2d):
        return StructuredPointwise(layers[""], module.stride)
    return layers[""]


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
