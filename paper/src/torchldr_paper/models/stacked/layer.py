"""A structured layer of all replicas: rows in, rows out.

A grid of channels is as many layers: its matrices join the replicas, (R, out, in) as one axis, so the
product of the class serves for both (see `stacked`), and the sum over the channels that come in is left.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchldr.matrices import LDRSubdiagonal
from torchldr.nn import MatrixStack, StructuredChannels, StructuredLinear

from ..images import CroppedLinear
from .products import Tensors, form, stacked_product, subdiagonal_range


class StackedLayer:
    """A `StructuredLinear` or `StructuredChannels` with a replica axis, without its bias.

    Args:
        layer: that of one of the replicas.
        name: what it is called in the network.
        replicas: how many there are.
        shared: the names of the network's tensors without a replica axis.
        device: where to compute.

    Attributes:
        structure: the class of its matrices.
        options: all their options. Square LDR-SD multiplies by the single convolution, without looking at
            the range of its operators: `reach` is for that.
        how: the form of the product, see `stacked`.
    """

    def __init__(
        self,
        layer: nn.Module,
        name: str,
        replicas: int,
        shared: frozenset[str],
        device: torch.device,
    ) -> None:
        matrices: StructuredLinear | MatrixStack
        grid: tuple[int, int] | None = None
        prefix = f"{name}."
        if not isinstance(layer, StructuredLinear | StructuredChannels):
            raise TypeError(f"StackedLayer: cannot stack {name!r}, a {type(layer).__name__}.")
        if isinstance(layer, StructuredLinear):
            matrices = layer
        elif layer.grid is not None:
            matrices, grid, prefix = layer.grid, (layer.out_channels, layer.in_channels), f"{name}.grid."
        elif layer.wide is not None:
            matrices, prefix = layer.wide, f"{name}.wide."
        self._prefix, self._grid, self._replicas, self._device = prefix, grid, replicas, device
        self._units = layer.units if isinstance(layer, CroppedLinear) else None
        self._shape = matrices.out_features, matrices.in_features
        self._shared = frozenset(n.removeprefix(prefix) for n in shared if n.startswith(prefix))
        self.structure = matrices.structure
        self.options: dict[str, Any] = dict(matrices.options)
        square = self._shape[0] == self._shape[1]
        if self.structure is LDRSubdiagonal and square and self.options["product"] == "auto":
            self.options["product"] = "convolution"
        self._prepare()

    def make_exact(self) -> None:
        """Multiply by a route that is right for every operator, where it was the convolution."""
        if self.options.get("product") == "convolution":
            self.options["product"] = "exact"
            self._prepare()

    def _prepare(self) -> None:
        self.how = form(self.structure, self._device, self._shape, self.options)
        self._product = stacked_product(
            self.structure, *self._shape, self.options, self._shared, how=self.how
        )

    def tensors(self, network: Tensors) -> dict[str, Tensor]:
        """The layer's tensors by the names of its class, one matrix an entry of the first axis."""
        own = {
            name.removeprefix(self._prefix): tensor
            for name, tensor in network.items()
            if name.startswith(self._prefix) and not name.endswith(".bias")
        }
        if self._grid is None:
            return own
        return {name: t if name in self._shared else t.flatten(0, 2) for name, t in own.items()}

    def __call__(self, network: Tensors, x: Tensor) -> Tensor:
        """Rows (b, n) common to all replicas, or (R, b, n), to (R, b, m)."""
        tensors = self.tensors(network)
        if self._grid is None:
            return self._product(tensors, x)[..., : self._units]
        (out, into), (m, n), R = self._grid, self._shape, self._replicas
        rows = x.unflatten(-1, (into, n)).transpose(-3, -2)  # (in, b, n), with replicas or without
        rows = rows.unsqueeze(-4).expand(R, out, -1, -1, -1)
        y = self._product(tensors, rows.reshape(R * out * into, -1, n))
        return y.view(R, out, into, -1, m).sum(2).transpose(1, 2).flatten(2)

    def transposed(self, network: Tensors, dtype: torch.dtype) -> Tensor:
        """The transposed dense matrices, (R, n, m), by one product with the identity."""
        unit = torch.eye(self._shape[1], dtype=dtype, device=self._device)
        M = self._product(self.tensors(network), unit)
        if self._grid is None:
            return M[..., : self._units]
        return M.unflatten(0, (self._replicas, *self._grid)).movedim(1, 3).flatten(3).flatten(1, 2)

    def reach(self, network: Tensors) -> Tensor | None:
        """Decimal digits that the single convolution loses, (R,); None where it is not what multiplies."""
        if self.how != "native" or self.options.get("product") != "convolution":
            return None
        return subdiagonal_range(self.tensors(network)).view(self._replicas, -1).amax(-1)
