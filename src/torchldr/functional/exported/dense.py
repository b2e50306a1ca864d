"""Products by a few operations, or by a dense matrix: a constant, or one that the graph makes at load."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


class FormulaProduct(nn.Module):
    """function(x, **constants), in the words of `form`."""

    def __init__(self, form: str, function: Callable[..., Tensor], **constants: Tensor) -> None:
        super().__init__()
        self.form, self.function = form, function
        for name, value in constants.items():
            self.register_buffer(name, value.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **self._buffers)


class DenseWeight(nn.Module):
    """x W^T."""

    form = "dense"
    weight: Tensor

    def __init__(self, weight: Tensor, form: str = "dense") -> None:
        super().__init__()
        self.form = form
        self.register_buffer("weight", weight.detach().clone().contiguous())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


class MadeAtLoad(nn.Module):
    """x M^T with M^T = the product of all unit vectors, made in the graph."""

    form = "made by its fast product when loaded"
    ones: Tensor

    def __init__(self, product: nn.Module, in_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.product = product
        self.register_buffer("ones", torch.ones(in_features, 1, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        n = self.ones.shape[0]
        units = pad(self.ones, (0, n)).reshape(1, n * (n + 1))[:, : n * n].reshape(n, n)
        return x @ self.product(units)
