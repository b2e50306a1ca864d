"""The error of a compressed weight, measured by its effect on the model's outputs.

For a layer y = W x an error D = W - M moves the model's output by J D x, with J the derivative of the output
with respect to y. Its mean square over the calibration data is close to

    trace(S D C D^T),    C = E[x x^T],    S = E[J^T J],

where each x is weighted by the size of its J, so that inputs without effect, such as padding, drop out.
C is n x n and S is m x m. The nearest matrix of low rank in this metric is an eigenvalue problem of
size min(m, n).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core.contract import RankFit
from ..matrices import Projection, StructuredMatrix
from ..project import from_dense
from .structure import Structure


@dataclass
class Metric:
    """scale * trace(S D C D^T), in float64; None stands for the identity."""

    inputs: Tensor | None = None  # C (n, n), positive definite
    outputs: Tensor | None = None  # S (m, m), positive definite
    scale: float = 1.0  # of the whole

    @cached_property
    def root(self) -> Tensor | None:
        """R (n, n) with R^T R = C."""
        return None if self.inputs is None else torch.linalg.cholesky(self.inputs).mT

    @cached_property
    def left(self) -> Tensor | None:
        """L (m, m) with L^T L = S."""
        return None if self.outputs is None else torch.linalg.cholesky(self.outputs).mT

    def fit(self, W: Tensor, structure: Structure) -> RankFit | None:
        """The nearest members of a class at every rank in this metric, without its scale, or None."""
        W = widened(W)
        here = self.on(W.device)
        return structure.cls.all_ranks(W, here.left, here.root)

    def error(self, D: Tensor) -> float:
        """The metric of an error D (m, n)."""
        D = widened(D)
        here = self.on(D.device)
        right = D if here.inputs is None else D @ here.inputs
        left = D if here.outputs is None else here.outputs @ D
        return self.scale * float((left * right).sum())

    def on(self, device: torch.device) -> Metric:
        """The same on a device."""
        C, S = (None if t is None else t.to(device) for t in (self.inputs, self.outputs))
        return self if C is self.inputs and S is self.outputs else Metric(C, S, self.scale)

    def relative(self, size: int, matrices: Sequence[Tensor]) -> Metric:
        """The same with a scale that makes the weight itself count as its number of entries."""
        whole = sum(Metric(self.inputs, self.outputs).error(W) for W in matrices)
        return Metric(self.inputs, self.outputs, size / whole if whole > 0 else 1.0)


def widened(W: Tensor) -> Tensor:
    """In float64: on its own CUDA device, else on the CPU, because other devices lack float64."""
    return W.detach().to(W.device if W.is_cuda else "cpu", torch.float64)


PLAIN = Metric()
QUICK = 0.1  # of the usual effort of a projection


class TimeUpError(Exception):
    """A projection ran out of time."""


def project(
    W: Tensor,
    structure: Structure,
    metric: Metric,
    seed: int,
    effort: float = 1.0,
    deadline: float | None = None,
    quick: bool = True,
) -> Projection:
    """The nearest member of a class that we find, in a metric.

    Classes with `all_ranks` are solved in the metric itself, others in its inputs' part. Past the deadline
    (by `time.monotonic()`) the projection stops; with `quick` a quick one takes its place.

    Raises:
        TimeUpError: past the deadline without `quick`.
    """
    fit = None if metric.outputs is None else metric.fit(W, structure)
    if fit is None:

        def watch(stage: str, done: int, total: int | None) -> None:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeUpError

        settings = {"activations": metric.root, "seed": seed, **structure.options}
        try:
            watch("", 0, 0)
            return from_dense(W, structure.name, structure.rank, effort=effort, progress=watch, **settings)
        except TimeUpError:
            if not quick:
                raise
            return from_dense(W, structure.name, structure.rank, effort=QUICK * effort, **settings)
    tensors, (m, n) = fit.tensors(structure.rank or 1), W.shape
    M = structure.cls.unchecked(m, n, tensors, structure.cls.check_options(structure.options)).to(W.dtype)
    return measured(W, M, metric)


def measured(W: Tensor, M: StructuredMatrix, metric: Metric) -> Projection:
    """The projection of W with this matrix, and its errors."""
    wide = widened(W)
    rest, inputs = wide - M.to(wide.device, wide.dtype).to_dense(), Metric(metric.on(wide.device).inputs)
    weighted = (
        (inputs.error(rest) / max(inputs.error(wide), 1e-300)) ** 0.5 if metric.inputs is not None else None
    )
    residual = float(rest.norm()) / (float(wide.norm()) or 1.0)
    return Projection(M.to(W.device), residual, weighted)
