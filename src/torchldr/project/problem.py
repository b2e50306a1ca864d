"""The target of a projection, and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..core.matrix import StructuredMatrix
from ..progress import Report, silent

Tensors = dict[str, Tensor]

_LARGE = 256 * 256


@dataclass
class Problem:
    """Minimise |(W - M) R^T|_F over the members M of a class, all in float64 on the CPU.

    `root` is R, with R^T R the second moments of the activations, or None for the identity. W and R are
    scaled to mean squares of 1, so that typical parameters are near 1.
    """

    W: Tensor  # (m, n)
    root: Tensor | None  # (q, n)
    cls: type[StructuredMatrix]
    options: dict[str, Any]
    constants: Tensors
    seed: int = 0
    effort: float = 1.0
    exact: float = 1e-10  # a relative residual that counts as exact
    report: Report = silent
    known: dict[Any, Any] = field(default_factory=dict)  # cached results by class and rank

    def __post_init__(self) -> None:
        self.moments = None if self.root is None else self.root.mT @ self.root
        self.target = self.weighted(self.W)
        self.norm_squared = max(self.target.square().sum().item(), torch.finfo(torch.float64).tiny)

    @property
    def shape(self) -> tuple[int, int]:
        m, n = self.W.shape
        return m, n

    @property
    def large(self) -> bool:
        """Whether to do less work: then 1024 x 1024 takes about a minute with fixed operators."""
        return self.W.numel() > _LARGE

    def generator(self, *key: int) -> torch.Generator:
        """A separate generator for every use, so that results do not depend on the order of calls."""
        seed = self.seed
        for part in key:
            seed = (seed * 1_000_003 + part + 1) % (1 << 62)
        return torch.Generator().manual_seed(seed)

    def key(self, rank: int) -> tuple[Any, ...]:
        """The key of a result in `known`."""
        return self.cls, rank, tuple(sorted(self.options.items()))

    def done(self, loss: float) -> bool:
        """Whether this loss is zero up to rounding: W is a member."""
        return loss <= self.exact**2

    def steps(self, usual: int) -> int:
        """The number of steps, given the `usual` number for an effort of 1."""
        return max(1, round(self.effort * usual))

    def weighted(self, M: Tensor) -> Tensor:
        """M R^T, on which the loss is measured."""
        return M if self.root is None else M @ self.root.mT

    def loss(self, M: Tensor) -> Tensor:
        """|(W - M) R^T|_F^2 / |W R^T|_F^2."""
        return (self.target - self.weighted(M)).square().sum() / self.norm_squared

    def dense(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The matrix with these parameters, by the class's own product."""
        m, n = self.shape
        M = self.cls.unchecked(m, n, {**self.constants, **tensors}, self.options)
        return M._matmul(torch.eye(n, dtype=torch.float64)).mT

    def for_class(self, cls: type[StructuredMatrix], **options: Any) -> Problem:
        """The same problem for another class."""
        m, n = self.shape
        options = cls.check_options(options)
        fixed = cls.constants(m, n, 1, dtype=torch.float64, generator=self.generator(), **options)
        return replace(self, cls=cls, options=options, constants=fixed)

    def without_activations(self) -> Problem:
        """The same problem without weights, with its own results."""
        return replace(self, root=None, known={})
