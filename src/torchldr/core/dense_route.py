"""Routes that many classes have: their own product, that of a few factors, and by way of the dense matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from . import costs
from .products import Matrix, Product, autocasts
from .routes import Call, Route

LARGEST = 1 << 26  # entries of a dense matrix: 256 MiB in float32
DROPPED = 1 << 28  # of one that a GPU makes for one product, and drops again
_CHUNK = 1 << 24  # numbers of one intermediate while the dense matrix is made


class TypedProduct:
    """Multiply by a matrix in its own dtype or that of autocast, and add a bias; `product` takes rows."""

    def __init__(self, M: Matrix) -> None:
        self.product, self._dtype = M.prepared(), M.dtype

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return _typed(self.product, self._dtype, x, bias)


class DenseProduct(TypedProduct):
    """Multiply by a dense matrix or a stack of them."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self._alone, self._double = weight.ndim == 2, weight.dtype == torch.float64

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self._double:
            x = _widened(x, torch.float64)
        if self._alone:
            return linear(x, self.weight, bias)
        y = x @ self.weight.mT
        return y if bias is None else y + bias


def _always(M: Matrix, call: Call) -> None:
    """It serves."""


def own_route(name: str, seconds: Callable[[Matrix, Call], float]) -> Route:
    """The product that a class writes itself, `_matmul`, `_rmatmul` and `prepare`; it serves every call."""

    def apply(M: Matrix, x: Tensor, transposed: bool) -> Tensor:
        return M._rmatmul(x) if transposed else M._matmul(x)

    return Route(name, _always, seconds, apply, lambda M: M.prepared(), by_sizes=True)


def multiply_by_factors(M: Matrix, x: Tensor, transposed: bool, bias: Tensor | None = None) -> Tensor:
    """The class's own product, which is made of matrix products and so in the dtype of x."""
    product = M._rmatmul if transposed else M._matmul
    return product(x) if M.leading else _typed(product, M.dtype, x, bias)


def _typed(product: Product, dtype: torch.dtype, x: Tensor, bias: Tensor | None) -> Tensor:
    """A product for rows of x by a matrix of this dtype, and a bias."""
    rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    y = product(_widened(rows, dtype))
    if bias is not None:
        y = y + (bias if bias.dtype is y.dtype else bias.to(y.dtype))
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], y.shape[-1])


def _widened(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x for a matrix of this dtype: autocast, which converts the others, leaves float64 alone."""
    return x.double() if dtype == torch.float64 and x.dtype is not dtype else x


def factors_route(name: str, seconds: Callable[[Matrix, Call], float], *, live: bool = False) -> Route:
    """The product that a class writes itself, of a few matrix products; it serves every call and dtype."""
    return Route(
        name, _always, seconds, multiply_by_factors, TypedProduct, any_dtype=True, live=live, by_sizes=True
    )


def dense_route(seconds: Callable[[Matrix, Call], float]) -> Route:
    """Make the dense matrix, then multiply; `seconds` are those of making it."""

    def cost(M: Matrix, call: Call) -> float:
        m, n = M.shape
        product = costs.backward(call, costs.gemm(call, call.batch, m, n))
        return product if call.kept else product + seconds(M, call)

    return Route(
        "dense", too_large, cost, multiply_by_dense, prepare_dense,
        holds_dense=True, any_dtype=True, by_sizes=True,
    )  # fmt: skip


def by_columns(own: Route) -> Route:
    """The dense matrix by the class's own product with all unit vectors."""

    def seconds(M: Matrix, call: Call) -> float:
        return own.seconds(M, call._replace(batch=M.shape[1], kept=False))

    return dense_route(seconds)


def too_large(M: Matrix, call: Call) -> str | None:
    entries, dropped = M.shape.numel(), not call.kept and call.device == "cuda"
    most = DROPPED if dropped else LARGEST
    return f"its {entries:,} entries are more than {most:,}" if entries > most else None


def multiply_by_dense(M: Matrix, x: Tensor, transposed: bool, bias: Tensor | None = None) -> Tensor:
    device = x.device.type
    if autocasts(device):
        dtype = M.dtype if M.dtype == torch.float64 else torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            W = M.dense_in(dtype)
    else:
        W = M.dense_in(x.dtype)
    return DenseProduct(W.mT if transposed else W)(x, bias)


def prepare_dense(M: Matrix) -> DenseProduct:
    return DenseProduct(M.dense_weight())


def weight_by_columns(M: Matrix) -> Tensor:
    """The dense matrix (m, n), made some columns at a time so that intermediates stay small."""
    m, n = M.shape
    product, weight = M.prepared(), torch.empty(m, n, dtype=M.dtype, device=M.device)
    step = max(1, _CHUNK // ((m + n) * (M.rank or 1)))
    for j in range(0, n, step):
        unit = torch.zeros(min(step, n - j), n, dtype=M.dtype, device=M.device)
        unit.diagonal(j).fill_(1)
        weight[:, j : j + step] = product(unit).mT
    return weight
