"""`compress_` and `materialize_`: a whole model in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..matrices import Projection, StructuredMatrix, from_dense
from ..matrices.projection.progress import reporting
from .activations import collect_roots
from .attention import StructuredAttention, split_attention
from .choose import CANDIDATES, Report, choose
from .costs import multiply_adds
from .dense import dense_modules
from .layers import StructuredPointwise, keep_state, linear_from, recurrent_from, replace_modules, tie
from .report import CompressionReport, LayerReport
from .sites import FilterFn, Site, Unit, find_units
from .structure import Structure, check_plan, matching

Spec = float | int | Structure | Mapping[str, Structure]


def compress_(
    model: nn.Module,
    spec: Spec | None = None,
    *,
    budget: float | int | None = None,
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
        spec: a fraction in (0, 1) of the parameters of these weights (biases not counted), or their number
            as an int of at least 1, shared out by residual; a Structure for all; or a mapping of names and
            patterns (`*`, `?`, `[..]`) to structures. An exact name decides before a pattern, a longer
            pattern before a shorter, a later entry before an earlier.
        budget: the fraction or number, by name; then no `spec`.
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
    _check(model, spec, min_features, batches)
    units, left = find_units(model, filter_fn, min_features)
    _check_finite(units)
    before = _count(model)
    with reporting(progress) as report:
        roots = _roots(model, units, activations, loader, batches)
        chosen = _chosen(spec, units, left, structures, roots, seed, report)
        done: list[tuple[Unit, Structure, list[Projection]]] = []
        for i, (unit, structure) in enumerate(zip(units, chosen, strict=True)):
            report(f"projecting {unit.name}", i, len(units))
            done.append((unit, structure, _project(unit, structure, roots.get(unit.name), seed, effort)))
    _install(model, done)
    for unit, structure, _ in done:
        if structure.name == "dense" and not isinstance(spec, float | int):
            left[unit.name] = "stays dense by the plan"
    rows = [_describe(unit, structure, found) for unit, structure, found in done]
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


def _check(model: nn.Module, spec: Spec, min_features: int, batches: int) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"compress_: model must be an nn.Module, got {type(model).__name__}.")
    for key, value in (("min_features", min_features), ("batches", batches)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"compress_: {key} must be an int of at least 1, got {value!r}.")
    if isinstance(spec, Structure):
        return
    if isinstance(spec, Mapping):
        check_plan(spec)
    elif isinstance(spec, bool) or not isinstance(spec, float | int):
        raise TypeError(
            "compress_: spec must be a fraction, a number of parameters, a torchldr.Structure or a mapping "
            f"of names to structures, got {spec!r}."
        )
    elif isinstance(spec, float) and not 0 < spec < 1:
        raise ValueError(f"compress_: a budget as a fraction must lie between 0 and 1, got {spec}.")
    elif isinstance(spec, int) and spec < 1:
        raise ValueError(f"compress_: a budget in parameters must be at least 1, got {spec}.")


def _check_finite(units: Sequence[Unit]) -> None:
    for unit in units:
        for W in unit.matrices:
            if W.is_meta:
                raise ValueError(
                    f"compress_: the weight of {unit.name} is on the meta device: load it first."
                )
            if not W.isfinite().all():
                raise ValueError(f"compress_: the weight of {unit.name} has entries that are not finite.")


def _roots(
    model: nn.Module,
    units: Sequence[Unit],
    activations: Mapping[str, Tensor] | None,
    loader: Iterable[Any] | None,
    batches: int,
) -> dict[str, Tensor]:
    roots = {} if loader is None else collect_roots(model, units, loader, batches)
    for name, X in (activations or {}).items():
        unit = next((unit for unit in units if name in unit.names), None)
        if unit is None:
            raise ValueError(f"compress_: activations for {name!r}, which is no weight that can be replaced.")
        wanted = unit.matrices[0].shape[1]
        if X.shape[-1] != wanted:
            raise ValueError(
                f"compress_: the activations of {name} must have {wanted} entries in their last axis, "
                f"got shape {tuple(X.shape)}."
            )
        if unit.kind in ("lstm", "gru"):
            raise ValueError(f"compress_: activations of {name} cannot be used, it is recurrent.")
        if not X.isfinite().all() or not X.any():
            raise ValueError(f"compress_: the activations of {name} must be finite and not all zero.")
        roots[unit.name] = X.detach().reshape(-1, wanted).to("cpu", torch.float64)
    return roots


def _chosen(
    spec: Spec,
    units: Sequence[Unit],
    left: Mapping[str, str],
    structures: Sequence[str],
    roots: Mapping[str, Tensor],
    seed: int,
    report: Report,
) -> list[Structure]:
    """The structure of every unit, checked against its shapes."""
    if isinstance(spec, float | int):
        whole = sum(unit.size for unit in units)
        budget = int(spec * whole) if isinstance(spec, float) else spec
        return choose(units, budget, structures, roots, seed, report) if units else []
    if isinstance(spec, Structure):
        chosen = [spec] * len(units)
    else:
        keys = [matching(spec, unit.aliases) for unit in units]
        chosen = [Structure("dense") if key is None else spec[key] for key in keys]
        for key in spec:
            if not any(matching({key: spec[key]}, unit.aliases) for unit in units):
                why = f" ({key} {left[key]})" if key in left else ""
                raise ValueError(f"compress_: {key!r} matches no layer that can be replaced{why}.")
    for unit, structure in zip(units, chosen, strict=True):
        for W in unit.matrices:
            try:
                structure.parameters(*W.shape)
            except (TypeError, ValueError) as error:
                raise type(error)(f"compress_: {unit.name}: {error}") from None
    return chosen


def _project(
    unit: Unit, structure: Structure, root: Tensor | None, seed: int, effort: float
) -> list[Projection]:
    if structure.name == "dense":
        return []
    settings: dict[str, Any] = {"activations": root, "seed": seed, "effort": effort, **structure.options}
    return [from_dense(W, structure.name, structure.rank, **settings) for W in unit.matrices]


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


def _describe(unit: Unit, structure: Structure, found: Sequence[Projection]) -> LayerReport:
    matrices = unit.matrices
    width = matrices[0].element_size()
    after = [structure.parameters(*W.shape) for W in matrices]
    operations = [
        multiply_adds(structure.name, W.shape[0], W.shape[1], structure.rank, structure.options)
        for W in matrices
    ]
    known = [count for count in operations if count is not None]
    squares = [float(W.to("cpu", torch.float64).square().sum()) for W in matrices]
    lost = sum(p.residual**2 * square for p, square in zip(found, squares, strict=False))  # none where dense
    return LayerReport(
        name=unit.name,
        kind=unit.kind,
        structure=structure.name,
        rank=structure.rank,
        options=structure.options,
        shape=(matrices[0].shape[0], matrices[0].shape[1]),
        matrices=len(matrices),
        parameters_before=unit.size,
        parameters_after=sum(after),
        bytes_before=unit.size * width,
        bytes_after=sum(after) * width,
        multiply_adds_before=unit.size,
        multiply_adds_after=sum(known) if len(known) == len(operations) else None,
        residual=(lost / (sum(squares) or 1.0)) ** 0.5,
        weighted_residual=found[0].weighted_residual if found else None,
        tied=tuple(unit.names[1:]),
    )


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
