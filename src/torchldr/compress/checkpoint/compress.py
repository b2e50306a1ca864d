"""`compress_weights`: the matrices of a checkpoint, without the code of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ...matrices import StructuredMatrix
from ...progress import Report
from ..candidates import CANDIDATES
from ..progress import Clock, check_effort, shown
from ..report import CompressionReport, describe
from ..selection import Spec, check_count, check_spec, chosen, measured
from ..structure import Structure
from ..workers import Workers, project_all
from .files import Source, check_finite, find_tensors, open_tensors

_WHO = "compress_weights"
EFFORT = 10.0  # minutes, for a budget


def compress_weights(
    source: Source,
    spec: Spec,
    *,
    skip: Sequence[str] = (),
    min_features: int = 32,
    structures: Sequence[str] = CANDIDATES,
    effort: float | None = None,
    seed: int = 0,
    jobs: int = 1,
    progress: bool | Report | None = None,
) -> tuple[dict[str, Tensor | StructuredMatrix], CompressionReport]:
    """Project the matrices of a checkpoint on structured ones; everything else stays as it is.

    A matrix is a tensor with two axes, taken as a layer's weight (out_features, in_features). An embedding
    looks the same: `skip` it where it should stay.

    Args:
        source: the path of a .safetensors file, of a folder of them (shards), or a mapping of names to
            tensors (a state_dict).
        spec: a budget, a Structure for all, or a mapping of names and patterns to structures, as for
            `compress_`. A weight is called by its name, or by that without ".weight".
        skip: names and patterns of matrices to leave alone.
        min_features: matrices with fewer rows or columns are left alone.
        structures: names of the classes that a budget may choose from.
        effort: minutes that it may take, by default 10 for a budget and no limit for a plan.
        seed: of the projections.
        jobs: how many processes project; with more than one, a script needs the usual
            `if __name__ == "__main__":`.
        progress: as for `compress_`.

    Returns:
        The tensors by name, structured matrices where they were replaced, and what was done.

    Examples:
        >>> import torch
        >>> weights = {"0.weight": torch.randn(64, 64), "0.bias": torch.zeros(64)}
        >>> made, report = compress_weights(weights, 0.25, structures=["low_rank"])
        >>> made["0.weight"]
        LowRank(64, 64, rank=8, dtype=torch.float32)
    """
    check_spec(_WHO, spec)
    check_count(_WHO, min_features=min_features)
    tensors = open_tensors(_WHO, source)
    weights, left = find_tensors(_WHO, tensors, skip, min_features)
    if not weights:
        raise ValueError(
            f"{_WHO}: no tensor can be replaced: none has two axes of {min_features} or more, or all are "
            "skipped."
        )
    check_finite(_WHO, weights)
    planned = isinstance(spec, Structure | Mapping)
    clock = Clock((None if planned else EFFORT) if effort is None else check_effort(_WHO, effort))
    with shown(progress, clock) as report, Workers(jobs, clock=clock, report=report, seed=seed) as workers:
        found = chosen(_WHO, spec, weights, left, structures, {}, workers)
        made = project_all(workers, weights, found.structures, {})
    vectors, latencies = measured(weights, found, spec)
    parts = zip(weights, found.structures, made, latencies, strict=True)
    rows = [describe(weight, structure, some, *times) for weight, structure, some, times in parts]
    replaced = {weight.name: p.matrix for weight, some in zip(weights, made, strict=True) for p in some}
    whole = {name: replaced.get(name, tensors[name]) for name in tensors}
    before = sum(tensors[name].numel() for name in tensors if tensors[name].is_floating_point())
    saved = sum(row.parameters_before - row.parameters_after for row in rows)
    return whole, CompressionReport(
        tuple(rows), {**left, **found.stays}, before, before - saved, None, found.notes, vectors
    )
