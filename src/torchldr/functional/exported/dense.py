"""Products by a few operations, or by a dense matrix: a constant, or one that the graph makes at load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


class FormulaProduct(nn.Module):
    """function(x, **parts), in the words of `form`: parts are constants, modules that it calls, and sizes."""

    def __init__(self, form: str, function: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.form, self.function, self.sizes = form, function, dict[str, Any]()
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part.detach().clone())
            elif isinstance(part, nn.Module):
                self.add_module(name, part)
            else:
                self.sizes[name] = part

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **self._buffers, **self._modules, **self.sizes)


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


def made_at_load(product: nn.Module, in_features: int, dtype: torch.dtype) -> FormulaProduct:
    """x M^T with M^T = the product of all unit vectors, made in the graph."""
    ones = torch.ones(in_features, 1, dtype=dtype)
    return FormulaProduct("made by its fast product when loaded", _by_units, product=product, ones=ones)


def _by_units(x: Tensor, product: nn.Module, ones: Tensor) -> Tensor:
    n = ones.shape[0]
    units = pad(ones, (0, n)).reshape(1, n * (n + 1))[:, : n * n].reshape(n, n)
    return x @ product(units)
