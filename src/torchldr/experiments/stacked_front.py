"""What stands in front of the hidden layer where convolutions are replaced, with a replica axis.

A grid of channels is as many square layers: its matrices join the replicas, (R, out, in) as one axis, so
the product of the class serves for both (see `stacked`), and the sum over the channels that come in is
left.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from ..matrices import LDRSubdiagonal
from ..nn import StructuredChannels
from .models import ReplacedConvolution
from .stacked import Tensors, form, stacked_product
from .stacked_stage import stage


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
        self.replicas, self.pool, self.gain = replicas, model.pool, model.front_gain
        self.how = "convolution"
        layer = model.front
        if isinstance(layer, nn.Conv2d):
            self.prefix = "front."
            return
        if not isinstance(layer, StructuredChannels):
            raise TypeError(f"Front: cannot stack a first layer of {type(layer).__name__}.")
        matrices: Any = layer.grid if layer.grid is not None else layer.wide
        self.channels = layer.in_channels
        self.prefix = "front.grid." if layer.grid is not None else "front.wide."
        options = dict(matrices.options)
        if matrices.structure is LDRSubdiagonal and options["product"] == "auto":
            options["product"] = "convolution"
        m, n = matrices.out_features, matrices.in_features
        self.size = n
        self._shared = frozenset(
            name.removeprefix(self.prefix) for name in shared if name.startswith(self.prefix)
        )
        self.how = form(matrices.structure, device, (m, n), options)
        self._product = stacked_product(matrices.structure, m, n, options, self._shared, how=self.how)

    def __call__(self, tensors: Tensors, x: Tensor) -> Tensor:
        """The hidden layer's input: images (b, c, h, w) to (R, b, n)."""
        R = self.replicas
        if self.how == "convolution":
            weight = tensors["front.weight"]
            if self.pool:
                return stage(x.unsqueeze(0), weight, weight.new_zeros(weight.shape[:2])).flatten(2)
            y = relu(conv2d(x, weight.flatten(0, 1), padding=2))
            return y.unflatten(1, (R, -1)).flatten(2).transpose(0, 1)
        own = {
            name.removeprefix(self.prefix): t for name, t in tensors.items() if name.startswith(self.prefix)
        }
        if self.prefix == "front.wide.":
            return self._finished(self._product(own, x.flatten(1)), tensors)
        c = self.channels
        stacked = {name: t if name in self._shared else t.flatten(0, 2) for name, t in own.items()}
        rows = x.flatten(2).transpose(0, 1).expand(R, c, c, -1, -1)  # (R, out, in, b, n)
        y = self._product(stacked, rows.reshape(R * c * c, -1, self.size))
        return self._finished(y.view(R, c, c, -1, self.size).sum(2).transpose(1, 2).flatten(2), tensors)

    def _finished(self, y: Tensor, tensors: Tensors) -> Tensor:
        y = y if self.gain == 1 else self.gain * y
        return relu(y + tensors["front_bias"].unsqueeze(1) if "front_bias" in tensors else y)
