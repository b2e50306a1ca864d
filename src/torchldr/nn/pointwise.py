"""StructuredPointwise: a structured matrix in place of a 1 x 1 convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from .computed import ComputedWeight
from .tensors import in_format_of


class StructuredPointwise(ComputedWeight):
    """A 1 x 1 convolution whose channels are mixed by a structured matrix.

    Args:
        linear: the matrix and the bias, from in_channels to out_channels.
        stride: (rows, columns), as in nn.Conv2d.

    Shape:
        Input (..., in_channels, height, width), output (..., out_channels, height', width') as nn.Conv2d.

    Examples:
        >>> import torch
        >>> from torchldr import StructuredLinear
        >>> layer = StructuredPointwise(StructuredLinear(64, 32, structure="low_rank", rank=2))
        >>> layer(torch.randn(5, 64, 7, 7)).shape
        torch.Size([5, 32, 7, 7])
    """

    kernel_size = (1, 1)

    def __init__(self, linear: nn.Module, stride: Sequence[int] = (1, 1)) -> None:
        super().__init__()
        self.linear, self.stride = linear, (int(stride[0]), int(stride[1]))

    @property
    def weight(self) -> Tensor:
        return self.linear.weight[..., None, None]  # type: ignore[index]

    @weight.setter
    def weight(self, value: Tensor) -> None:
        self._check_weight_is_learned()

    @property
    def bias(self) -> nn.Parameter | None:
        bias: Any = self.linear.bias  # not among the parameters where it is computed
        return bias

    def forward(self, input: Tensor) -> Tensor:
        down, right = self.stride
        pixels = input[..., ::down, ::right].movedim(-3, -1)
        # nn.Conv2d's result can be viewed as (batch, -1), and models do so.
        return in_format_of(self.linear(pixels).movedim(-1, -3), input)

    def extra_repr(self) -> str:
        return f"stride={self.stride}"
