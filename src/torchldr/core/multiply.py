"""How a structured matrix multiplies: by its class's own product or by the dense matrix."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..torch_private import are_plain, is_exporting
from . import stacks
from .checks import check_choices
from .choice import PRODUCTS, UNKNOWN_ROWS, Products, Row, Use
from .contract import Contract
from .owned import owned
from .products import allows_tf32, autocasts, check_input, run_product


class Multiplies(Contract):
    """The products of a matrix with `tensors`."""

    tensors: dict[str, Tensor]
    leading: torch.Size
    options: dict[str, Any]

    @property
    def rank(self) -> int | None:
        raise NotImplementedError

    def promoted(self) -> Self:
        """The same matrix in the dtype of its own product, float32 or wider."""
        raise NotImplementedError

    def matmul(self, x: Tensor, *, product: str = "auto") -> Tensor:
        """Multiply vectors: (..., in_features) to (..., out_features).

        With leading axes, vectors (..., b, in_features) give (..., b, out_features), and the axes in front
        broadcast as in `torch.matmul`.

        Args:
            x: vectors.
            product: "fast" for the class's own product, "dense" for the dense matrix, "auto" for the faster
                one by a rule of sizes; `products` explains it.

        FFTs and sums run in float32 or wider; the result has the dtype of `x` (under autocast that of
        autocast). A wrong size, dtype or device is an error.
        """
        check_choices(f"{type(self).__name__}.matmul", product=(product, PRODUCTS))
        check_input(self, x, self.in_features, "in_features")
        return self.multiply(x, product=product)

    def rmatmul(self, y: Tensor, *, product: str = "auto") -> Tensor:
        """Multiply by the transposed matrix: (..., out_features) to (..., in_features)."""
        check_choices(f"{type(self).__name__}.rmatmul", product=(product, PRODUCTS))
        check_input(self, y, self.out_features, "out_features")
        return self.multiply(y, transposed=True, product=product)

    def multiply(
        self, x: Tensor, *, transposed: bool = False, product: str = "auto", bias: Tensor | None = None
    ) -> Tensor:
        """`matmul` or `rmatmul` of a checked input, plus a bias."""
        if (product if product != "auto" else self.product_for(x)) == "dense":
            return self._by_dense(x, transposed, bias)
        return self._by_own(x, transposed, bias)

    def product_for(self, x: Tensor) -> str:
        """The choice of "auto" for these vectors."""
        if not are_plain((x,)):
            return "dense"
        if is_exporting():  # other runtimes get the class's plain form
            return "fast"
        rows = UNKNOWN_ROWS if torch.compiler.is_compiling() else x.numel() // x.shape[-1]
        return self._taken(self._use(rows, x.device.type))

    def products(self, batch: int = 1, *, frozen: bool = False) -> Products:
        """Both products for a number of rows, in words: their costs, the choice, and the reason.

        Args:
            batch: rows.
            frozen: for a matrix that is a constant, as in a frozen layer.

        >>> from torchldr import ToeplitzLike
        >>> ToeplitzLike.random(256, 256, rank=2).products(batch=64).taken
        'dense'
        """
        use = self._use(batch, self.device.type, frozen=frozen)
        taken, (m, n) = self._taken(use), self.shape[-2:]
        made = "" if frozen else f"make the {m} x {n} matrix{self._made_in_words()}, then "
        rows = [("dense", f"{made}{m * n:,} multiply-adds a row")]
        if self.structured:
            rows.insert(0, ("fast", self.fast_in_words()))
        return Products(
            [Row(name, cost, name == taken, "" if name == taken else _why(use, name)) for name, cost in rows]
        )

    def _use(self, rows: int, device: str, *, frozen: bool = False) -> Use:
        dtype = self.dtype
        if dtype != torch.float64 and autocasts(device):
            dtype = torch.get_autocast_dtype(device)
        tf32, matrices = allows_tf32(device, dtype), math.prod(self.leading)
        sizes = self.out_features, self.in_features, self.rank or 1
        return Use(*sizes, rows, device, dtype, frozen, tf32, self.options, matrices)

    def _taken(self, use: Use) -> str:
        if not self.structured:
            return "dense"
        return "fast" if use.too_large or self.fast_pays(use) else "dense"

    def _by_dense(self, x: Tensor, transposed: bool, bias: Tensor | None) -> Tensor:
        """The product by the dense matrix, in the dtype of x or of autocast."""
        device, dtype = x.device.type, x.dtype
        if autocasts(device):
            dtype = self.dtype if self.dtype == torch.float64 else torch.get_autocast_dtype(device)
            with torch.autocast(device, enabled=False):
                W = self.dense_in(dtype)
        else:
            W = self.dense_in(dtype)
        W = W.mT if transposed else W
        x = x.to(W.dtype) if W.dtype == torch.float64 else x  # autocast leaves float64 alone
        if not self.leading:
            return linear(x, W, bias)
        y = (x.unsqueeze(-2) @ W.mT).squeeze(-2) if x.ndim == 1 else x @ W.mT
        return y if bias is None else y + bias

    def _by_own(self, x: Tensor, transposed: bool, bias: Tensor | None) -> Tensor:
        """The class's own product, in float32 or wider, or in the dtype of x if that is as accurate."""
        if self.leading:
            y = stacks.multiply(self, x, transposed=transposed)
            return y if bias is None else y + bias
        as_it_is = self.own_dtype and (x.is_cuda or self.dtype.itemsize >= 4)
        if x.is_cuda and x.dtype == self.dtype and not autocasts("cuda"):
            as_it_is = as_it_is or self._reads(x)
        M = self if as_it_is else self.promoted()
        product = M._rmatmul if transposed else M._matmul
        if not as_it_is:
            return run_product(product, owned(x), self.dtype, bias)
        rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        y = product(rows.to(self.dtype) if self.dtype == torch.float64 else rows)
        y = y if bias is None else y + bias.to(y.dtype)
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], y.shape[-1])


def _why(use: Use, name: str) -> str:
    """Why a product is not taken."""
    if name == "dense" and use.too_large:
        return "the matrix is too large to be made"
    rows = f"{use.rows} row{'s' * (use.rows != 1)}"
    return f"slower for {rows} in {str(use.dtype).removeprefix('torch.')} on {use.device}"
