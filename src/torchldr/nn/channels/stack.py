"""MatrixStack: structured matrices of one class and shape, held together."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from ...core.owned import owned
from ...matrices import StructuredMatrix
from ..parameters import StructuredParameters, describe
from ..tensors import let_prune

_MEASURED = 1 << 24  # entries of all matrices up to which the initial scale is measured


class MatrixStack(StructuredParameters):
    """A grid of structured matrices (out_features, in_features) whose parameters share tensors.

    Every parameter of the class has the grid's axes in front: `G` of a stack of four matrices has shape
    (4, r, m). Layers that need several matrices at once (the gates of an LSTM, a grid of channels) are
    made of it; products and dense weights are computed for all of them together.

    Args:
        leading: shape of the grid, such as (4,) or (3, 3).
        in_features, out_features: shape of each matrix.
        structure: name of a structured class, or the class.
        rank: rank of the class's generators; None means 1, or nothing for a class without a rank.
        options: the structure's own options.
        device, dtype: of the parameters.
        layer: the layer that owns the arguments, for error messages.

    Attributes:
        G, H, ...: the structure's parameters by the names of its class, shape (*leading, ...).
    """

    def matrix(self) -> StructuredMatrix:
        """The stack as a matrix with leading axes, sharing this module's parameters."""
        let_prune(self)
        matrix = super().matrix()
        return matrix.with_tensors({name: owned(t) for name, t in matrix.tensors.items()})

    def dense(self) -> Tensor:
        """The dense matrices, shape (*leading, out_features, in_features); differentiable."""
        return self.matrix().materialize()

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @torch.no_grad()
    def reset_parameters(
        self, generator: torch.Generator | None = None, *, init: str = "linear", gain: float = 1.0
    ) -> None:
        """Draw every matrix anew, in place, and refill the constants.

        Args:
            generator: source of random numbers.
            init: "linear" gives each matrix the mean square of nn.Linear's weight, 1 / (3 in_features);
                "paper" is the authors' start.
            gain: with "linear", a factor of each matrix.
        """
        self._fill_constants(generator, drawn=True)
        structure, size = self.structure, (self.out_features, self.in_features)
        start = structure.init_paper_ if init == "paper" else structure.init_
        matrix = self.matrix()
        for index in itertools.product(*map(range, self.leading)):
            start(matrix[index].tensors, *size, generator, **self.options)
        if init != "paper":
            self._rescale(gain)

    def _rescale(self, gain: float) -> None:
        """Apply the gain, and make the expected scale of `init_` exact if that is cheap."""
        parts = [self.get_parameter(name) for name in self.structure.scaled]
        scale = torch.full(self.leading, gain, dtype=torch.float64, device=parts[0].device)
        if math.prod((*self.leading, self.out_features, self.in_features)) <= _MEASURED and not scale.is_meta:
            squares = self.matrix().materialize().double().square().mean((-2, -1))
            scale /= (3 * self.in_features * squares).sqrt()
        for p in parts:
            root = scale ** (1 / len(parts))
            p.mul_(root.reshape(self.leading + (1,) * (p.ndim - root.ndim)).to(p.dtype))

    def extra_repr(self) -> str:
        grid = " x ".join(map(str, self.leading))
        return f"{grid} of in_features={self.in_features}, out_features={self.out_features}, {describe(self)}"
