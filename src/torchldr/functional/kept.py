"""Products with a constant matrix by compiled code, differentiable in the vectors.

The gradient of M x in x is M^T, which the same code multiplies by: what a class prepares for M it can prepare
for M^T. That is done in the first product that will be asked for a gradient and not in its backward: by then
the tensors of M may have been edited. Any number of derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Product = Callable[..., Tensor]


class KeptProduct:
    """M x for rows of x, given what prepares products with M and with M^T that have no gradient.

    Args:
        prepare: from whether it is M^T to a product of rows (b, n) to (b, m).
    """

    def __init__(self, prepare: Callable[[bool], Product]) -> None:
        self._prepare = prepare
        self._products: dict[bool, Product] = {False: prepare(False)}

    def run(self, x: Tensor, transposed: bool) -> Tensor:
        return self._products[transposed](x)

    def __call__(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            if True not in self._products:
                self._products[True] = self._prepare(True)
            return _Linear.apply(x, self, False)
        return self._products[False](x)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, product: KeptProduct, transposed: bool) -> Tensor:
        ctx.product, ctx.transposed = product, transposed
        return product.run(x.detach(), transposed)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return _Linear.apply(dy, ctx.product, not ctx.transposed), None, None
