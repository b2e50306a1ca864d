"""A structured layer of all replicas: rows in, rows out.

Its matrices have the replicas as their leading axis, (R,), and a grid of channels the grid's as well,
(R, out, in): torchldr multiplies all of them together.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from torchldr.matrices import StructuredMatrix
from torchldr.nn import MatrixStack, StructuredChannels, StructuredLinear

from ..images import CroppedLinear

Tensors = Mapping[str, Tensor]


class StackedLayer:
    """A `StructuredLinear` or `StructuredChannels` with a replica axis, without its bias.

    Args:
        layer: that of one of the replicas.
        name: what it is called in the network.

    Attributes:
        structure: the class of its matrices.
    """

    def __init__(self, layer: nn.Module, name: str) -> None:
        matrices: StructuredLinear | MatrixStack
        self._grid: tuple[int, int] | None = None
        prefix = f"{name}."
        if not isinstance(layer, StructuredLinear | StructuredChannels):
            raise TypeError(f"StackedLayer: cannot stack {name!r}, a {type(layer).__name__}.")
        if isinstance(layer, StructuredLinear):
            matrices = layer
        elif layer.grid is not None:
            matrices, prefix = layer.grid, f"{name}.grid."
            self._grid = layer.out_channels, layer.in_channels
        elif layer.wide is not None:
            matrices, prefix = layer.wide, f"{name}.wide."
        self._prefix = prefix
        self._units = layer.units if isinstance(layer, CroppedLinear) else None
        self._shape = matrices.out_features, matrices.in_features
        self.structure, self._options = matrices.structure, dict(matrices.options)

    def matrix(self, network: Tensors) -> StructuredMatrix:
        """The matrices of all replicas, from the network's tensors by name."""
        own = {
            name.removeprefix(self._prefix): tensor
            for name, tensor in network.items()
            if name.startswith(self._prefix) and not name.endswith(".bias")
        }
        return self.structure.unchecked(*self._shape, own, self._options)

    def __call__(self, network: Tensors, x: Tensor) -> Tensor:
        """Rows (b, n) common to all replicas, or (R, b, n), to (R, b, m)."""
        M = self.matrix(network)
        if self._grid is None:
            return M.matmul(x)[..., : self._units]
        channels = x.unflatten(-1, (self._grid[1], -1)).transpose(
            -3, -2
        )  # (in, b, n), with replicas or without
        y = M.matmul(channels.unsqueeze(-4))  # (R, out, in, b, m)
        return y.sum(2).transpose(1, 2).flatten(2)

    def transposed(self, network: Tensors) -> Tensor:
        """The transposed dense matrices, (R, n, m)."""
        W = self.matrix(network).materialize()
        if self._grid is None:
            return W.mT[..., : self._units]
        return W.movedim(1, 2).transpose(-1, -2).transpose(2, 3).flatten(3).flatten(1, 2)
