"""What stands in front of the hidden layer where convolutions are replaced, with a replica axis."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from ..images import ReplacedConvolution
from .layer import StackedLayer, Tensors
from .stage import stage


class Front:
    """The first layer of all replicas.

    Args:
        model: one of the replicas.

    Attributes:
        layer: the structured one; None for convolutions.
    """

    def __init__(self, model: ReplacedConvolution) -> None:
        self._pool, self._gain = model.pool, model.front_gain
        convolution = isinstance(model.front, nn.Conv2d)
        self.layer = None if convolution else StackedLayer(model.front, "front")

    def __call__(self, tensors: Tensors, x: Tensor) -> Tensor:
        """The hidden layer's input: images (b, c, h, w) to (R, b, n)."""
        if self.layer is None:
            return self._convolution(tensors, x)
        y = self.layer(tensors, x.flatten(1))
        y = y if self._gain == 1 else self._gain * y
        return relu(y + tensors["front_bias"].unsqueeze(1) if "front_bias" in tensors else y)

    def _convolution(self, tensors: Tensors, x: Tensor) -> Tensor:
        weight, bias = tensors["front.weight"], tensors.get("front.bias")
        if self._pool:
            bias = weight.new_zeros(weight.shape[:2]) if bias is None else bias
            return stage(x.unsqueeze(0), weight, bias).flatten(2)
        y = conv2d(x, weight.flatten(0, 1), None if bias is None else bias.flatten(), padding=2)
        return relu(y).unflatten(1, weight.shape[:2]).flatten(2).transpose(0, 1)
