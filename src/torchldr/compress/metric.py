"""The distance of a weight from what it becomes, counted by what the model's outputs make of it.

For a layer y = W x an error D = W - M moves the model's output by J D x, with J the derivative of the output
by y. Over calibration data the mean square of that is close to

    trace(S D C D^T),    C = E[x x^T],    S = E[J^T J],

where x counts by the size of its J (inputs that the output does not depend on, such as padding, drop out).
Both are small: n x n and m x m. The nearest matrix of low rank in this metric is an eigenvalue problem of
size min(m, n).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..matrices import Projection, get_structure
from ..project import from_dense
from .structure import Structure


@dataclass
class Metric:
    """scale * trace(S D C D^T), in float64 on the CPU; None stands for the identity.

    Attributes:
        inputs: C (n, n), positive definite.
        outputs: S (m, m), positive definite.
        scale: of the whole.
    """

    inputs: Tensor | None = None
    outputs: Tensor | None = None
    scale: float = 1.0

    @cached_property
    def root(self) -> Tensor | None:
        """R (n, n) with R^T R = C."""
        return None if self.inputs is None else torch.linalg.cholesky(self.inputs).mT

    @cached_property
    def left(self) -> Tensor | None:
        """L (m, m) with L^T L = S."""
        return None if self.outputs is None else torch.linalg.cholesky(self.outputs).mT

    def error(self, D: Tensor) -> float:
        """Of an error D (m, n)."""
        D = D.detach().to("cpu", torch.float64)
        right = D if self.inputs is None else D @ self.inputs
        left = D if self.outputs is None else self.outputs @ D
        return self.scale * float((left * right).sum())

    def relative(self, size: int, matrices: Sequence[Tensor]) -> Metric:
        """The same with a scale under which the weight itself counts by its number of entries."""
        whole = sum(Metric(self.inputs, self.outputs).error(W) for W in matrices)
        return Metric(self.inputs, self.outputs, size / whole if whole > 0 else 1.0)


PLAIN = Metric()
QUICK = 0.1  # of the usual effort of a projection


class LowRankFit:
    """All nearest matrices of low rank to one weight in a metric, from one decomposition.

    Args:
        W: the weight (m, n).
        metric: what errors count by.
    """

    def __init__(self, W: Tensor, metric: Metric = PLAIN) -> None:
        self.W, self.metric = W.detach().to("cpu", torch.float64), metric
        T = self.W if metric.left is None else metric.left @ self.W
        T = T if metric.root is None else T @ metric.root.mT
        self.wide = T.shape[0] <= T.shape[1]
        if metric.left is None and metric.root is None:
            # Without a metric residuals may be as small as rounding errors, and squares would hide them.
            U, s, V = torch.linalg.svd(T, full_matrices=False)
            squares, self.vectors = s.square(), U if self.wide else V.mT
        else:
            values, vectors = torch.linalg.eigh(T @ T.mT if self.wide else T.mT @ T)
            squares, self.vectors = values.clamp(min=0).flip(0), vectors.flip(1)
        tails = squares.flip(0).cumsum(0).flip(0)
        self.tails = metric.scale * torch.cat([tails, tails.new_zeros(1)])

    def error(self, rank: int) -> float:
        """Of the nearest matrix of a rank; `error(0)` is that of zero."""
        return float(self.tails[min(rank, len(self.tails) - 1)])

    def tensors(self, rank: int) -> dict[str, Tensor]:
        """G (r, m) and H (r, n) with M = G^T H the nearest matrix of this rank."""
        V, left, root = self.vectors[:, :rank], self.metric.left, self.metric.root
        if self.wide:  # M = L^-1 U U^T L W
            seen = self.W if left is None else left @ self.W
            G, H = V if left is None else torch.linalg.solve_triangular(left, V, upper=True), V.mT @ seen
        else:  # M = W R^T V V^T R^-T
            seen = self.W if root is None else self.W @ root.mT
            G, H = seen @ V, V.mT
            H = H if root is None else torch.linalg.solve_triangular(root.mT, H, upper=False, left=False)
        G = G.mT
        a, b = G.norm(dim=1, keepdim=True), H.norm(dim=1, keepdim=True)
        ratio = torch.where(a * b > 0, (b / a).sqrt(), 1.0)
        return {"G": G * ratio, "H": H / ratio}


class TimeUpError(Exception):
    """A projection was given up."""


def project(
    W: Tensor,
    structure: Structure,
    metric: Metric,
    seed: int,
    effort: float = 1.0,
    deadline: float | None = None,
    quick: bool = True,
) -> Projection:
    """The nearest member of a class that we find.

    Low rank is solved in the metric itself, other classes by the inputs' part of it.

    Args:
        W, structure, metric: what to project, on what, and what errors count by.
        seed, effort: of `from_dense`.
        deadline: by `time.time()`; past it a projection is given up,
        quick: for a quick one, or else for good.

    Raises:
        TimeUpError: where it was given up for good.
    """
    if structure.name != "low_rank" or metric.outputs is None:

        def watch(stage: str, done: int, total: int) -> None:
            if deadline is not None and time.time() > deadline:
                raise TimeUpError

        settings = {"activations": metric.root, "seed": seed, **structure.options}
        try:
            watch("", 0, 0)
            return from_dense(W, structure.name, structure.rank, effort=effort, progress=watch, **settings)
        except TimeUpError:
            if not quick:
                raise
            return from_dense(W, structure.name, structure.rank, effort=QUICK * effort, **settings)
    tensors = LowRankFit(W, metric).tensors(structure.rank or 1)
    m, n = W.shape
    M = get_structure("low_rank").unchecked(m, n, tensors, {}).to(W.dtype)
    wide = W.detach().to("cpu", torch.float64)
    rest, inputs = wide - M.to(torch.float64).to_dense(), Metric(metric.inputs)
    weighted = (
        (inputs.error(rest) / max(inputs.error(wide), 1e-300)) ** 0.5 if metric.inputs is not None else None
    )
    residual = float(rest.norm()) / (float(wide.norm()) or 1.0)
    return Projection(M.to(W.device), residual, weighted)
