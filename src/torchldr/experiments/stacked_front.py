"""What stands in front of the hidden layer where convolutions are replaced, with a replica axis.

A grid of structured matrices is as many layers: they join the replicas, (R, out, in) as one axis, so the
product of the class serves for both (see `stacked`), and the sum over what comes in is left.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, relu

from ..matrices import LDRSubdiagonal
from ..nn import StructuredChannels
from .models import ReplacedConvolution
from .stacked import Tensors, form, stacked_product


class ChannelsProduct:
    """The product of a `StructuredChannels` for all replicas, either of its forms.

    Args:
        layer: that of one of the replicas.
        prefix: of its tensors' names.
        replicas: how many there are.
        shared: the names of tensors without a replica axis.
        device: where to compute.

    Attributes:
        how: the form of the structured product, see `stacked`.
    """

    def __init__(
        self,
        layer: StructuredChannels,
        prefix: str,
        replicas: int,
        shared: frozenset[str],
        device: torch.device,
    ) -> None:
        matrices = layer.grid if layer.grid is not None else layer.wide
        assert matrices is not None
        self.replicas, self._grid = replicas, layer.grid is not None
        self._prefix = f"{prefix}{'grid' if self._grid else 'wide'}."
        self._channels = layer.out_channels, layer.in_channels
        options = dict(matrices.options)
        if matrices.structure is LDRSubdiagonal and options["product"] == "auto":
            options["product"] = "convolution"
        shape = matrices.out_features, matrices.in_features
        self._shared = frozenset(
            name.removeprefix(self._prefix) for name in shared if name.startswith(self._prefix)
        )
        self.how = form(matrices.structure, device, shape, options)
        self._product = stacked_product(matrices.structure, *shape, options, self._shared, how=self.how)

    def __call__(self, tensors: Tensors, x: Tensor) -> Tensor:
        """Rows (b, n), common to all replicas, or (R, b, n), to (R, b, m)."""
        own = {
            name.removeprefix(self._prefix): t for name, t in tensors.items() if name.startswith(self._prefix)
        }
        if not self._grid:
            return self._product(own, x)
        R, (out, into) = self.replicas, self._channels
        stacked = {name: t if name in self._shared else t.flatten(0, 2) for name, t in own.items()}
        parts = x.unflatten(-1, (into, -1)).movedim(-2, -3)  # (in, b, n) or (R, in, b, n)
        parts = (parts if x.ndim == 3 else parts.unsqueeze(0)).unsqueeze(1)
        y = self._product(stacked, parts.expand(R, out, -1, -1, -1).flatten(0, 2))
        return y.unflatten(0, (R, out, into)).sum(2).transpose(1, 2).flatten(2)


class Front:
    """The first layer of all replicas.

    Args:
        model: one of the replicas.
        replicas: how many there are.
        shared: the names of tensors without a replica axis.
        device: where to compute.

    Attributes:
        how: the form of the structured product, see `stacked`; "convolution" for convolutions.
    """

    def __init__(
        self, model: ReplacedConvolution, replicas: int, shared: frozenset[str], device: torch.device
    ) -> None:
        self.replicas, self.pool = replicas, model.pool
        self.how = "convolution"
        self._product: ChannelsProduct | None = None
        layer = model.front
        if isinstance(layer, StructuredChannels):
            self._product = ChannelsProduct(layer, "front.", replicas, shared, device)
            self.how = self._product.how
        elif not isinstance(layer, nn.Conv2d):
            raise TypeError(f"Front: cannot stack a first layer of {type(layer).__name__}.")

    def __call__(self, tensors: Tensors, x: Tensor) -> Tensor:
        """The hidden layer's input: images (b, c, h, w) to (R, b, n)."""
        if self._product is not None:
            return relu(self._product(tensors, x.flatten(1)))
        y = relu(conv2d(x, tensors["front.weight"].flatten(0, 1), padding=2))
        y = max_pool2d(y, 2) if self.pool else y
        return y.unflatten(1, (self.replicas, -1)).flatten(2).transpose(0, 1)
