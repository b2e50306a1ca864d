"""Circulant matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core import costs
from ...core.contract import Random, Weights
from ...core.dense_route import dense_route, own_route
from ...core.matrix import StructuredMatrix, normal_
from ...core.products import Product, autocasts, without_autocast
from ...core.routes import Call, Route, untraced
from ...functional import circulant_blocks, cyclic_rows, scan, stein_scan
from ...functional._twin import applied
from ...functional.constants import kept
from ...functional.fft import conjugate, is_fast_length, leading
from ...functional.ring import ring


def _fft_seconds(M: Any, call: Call) -> float:
    size = max(M.shape)
    seconds = 2 * costs.ffts(call, call.batch, size) + costs.copies(call, call.batch * size, 2, 12)
    return costs.backward(call, seconds if call.kept else seconds + costs.ffts(call, 1, size))


def gather_seconds(M: Any, call: Call) -> float:
    m, n = M.shape
    return costs.backward(call, costs.passes(call, m * n, 2 if call.device == "cuda" else 4))


def blocks_route(grid: Callable[[Any], tuple[int, int, int]]) -> Route:
    """All blocks in one compiled function; `grid` tells the rows and columns of blocks, and their size."""

    def reason(M: Any, call: Call) -> str | None:
        dtype = torch.promote_types(call.dtype, torch.float32)
        return untraced(call) or circulant_blocks.why_not(grid(M)[-1], call.device, dtype)

    def cost(M: Any, call: Call) -> float:
        p, q, size = grid(M)
        transforms = call.batch * (p + q) + (0 if call.kept else p * q)
        between = costs.wide(call) * costs.machine(call).entry * call.batch * p * q * size
        return costs.backward(call, costs.compiled_ffts(call, transforms, size // 2, 1) + between)

    def apply(M: Any, x: Tensor, transposed: bool) -> Tensor:
        M = M.T if transposed else M
        return circulant_blocks.product(M.tensors["column"], x, M.out_features)

    def prepare(M: Any) -> Product:
        return circulant_blocks.kept(M.column, M.out_features, M.in_features)

    return Route("compiled", reason, cost, apply, prepare, by_sizes=True)


def rows_route(grid: Callable[[Any], tuple[int, int, int]], seconds: Callable[[Any, Call], float]) -> Route:
    """The FFTs of torch, some rows at a time and with a gradient of its own: for training.

    `seconds` are those of the class's own product.
    """

    def reason(M: Any, call: Call) -> str | None:
        if call.kept:
            return "for training"
        size = grid(M)[-1]
        if not is_fast_length(size):
            return f"blocks of {size} entries need longer FFTs"
        return untraced(call)

    def cost(M: Any, call: Call) -> float:
        between = costs.copies(call, call.batch * max(M.shape), 0, 3 if call.dtype.itemsize >= 4 else 9)
        once = seconds(M, call._replace(needs_grad=False))
        return costs.started(call, 26) + between + costs.backward(call, once)

    def apply(M: Any, x: Tensor, transposed: bool, bias: Tensor | None = None) -> Tensor:
        M = M.T if transposed else M
        device, dtype = x.device.type, x.dtype
        if autocasts(device) and M.dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
        with without_autocast(device):
            rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
            y = cyclic_rows.product(M.tensors["column"], rows, M.out_features, dtype)
            y = y if bias is None else (y + bias).to(dtype)
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], M.out_features)

    return Route("rows", reason, cost, apply, any_dtype=True, by_sizes=True)


def circulants(column: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """(..., b) to (..., b, b): the circulant matrix with that first column."""
    return applied(_Circulants, column, dtype or column.dtype)


_LONG = 128  # rows from which a GPU sums along diagonals


@kept(64)
def _around(b: int, device: torch.device) -> Tensor:
    """b - 1 down to 0, and from b - 1 to 1: a column from its end, nearly twice."""
    return (b - 1 - torch.arange(2 * b - 1, device=device)) % b


def _made_rows(b: int, device: torch.device) -> Tensor:
    """(k + j) mod b."""
    i = torch.arange(b, device=device)
    return (i.unsqueeze(1) + i) % b


_rows = kept(64)(_made_rows)


class _Circulants(torch.autograd.Function):
    """Every row is a part of the column, reversed and twice in a row; gradients are sums along diagonals."""

    @staticmethod
    def forward(column: Tensor, dtype: torch.dtype) -> Tensor:
        b = column.shape[-1]
        return column.to(dtype).index_select(-1, _around(b, column.device)).unfold(-1, b, 1).flip(-2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        ctx.given, ctx.dtype = inputs[0].dtype, inputs[1]

    @staticmethod
    def backward(ctx: Any, D: Tensor) -> tuple[Tensor, None]:
        return applied(_Diagonals, D).to(ctx.given), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: Any) -> Tensor:
        return circulants(tangent, ctx.dtype)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], column: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
        return circulants(column.movedim(in_dims[0], 0), dtype), 0


class _Diagonals(torch.autograd.Function):
    """sum_j D[(k + j) mod b, j], the adjoint of `circulants`, in float32 or wider."""

    @staticmethod
    def forward(D: Tensor) -> Tensor:
        b, wide = D.shape[-1], torch.promote_types(D.dtype, torch.float32)
        if b >= _LONG and stein_scan.serves(D):
            return scan.diagonal_sums(D).index_select(-1, _around(b, D.device)[b - 1 :])
        rows = (_rows if b < _LONG else _made_rows)(b, D.device)
        return D.gather(-2, rows.expand_as(D)).sum(-1, dtype=wide)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return circulants(d, ctx.dtype)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return applied(_Diagonals, tangent)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], D: Tensor) -> tuple[Tensor, int]:
        return applied(_Diagonals, D.movedim(in_dims[0], 0)), 0


class Circulant(StructuredMatrix, name="circulant"):
    """Circulant: the leading m x n part of the circulant matrix with this first column.

    M[i, j] = column[(i - j) mod N], N = max(m, n). Parameters: `column` (N). Cost: two real FFTs a
    vector, of length N where that is a product of 2, 3, 5 and 7 (else padded).

    Reference: Cheng et al., "An exploration of parameter redundancy in deep networks with circulant
    projections", 2015.
    """

    look = "#888888", "X"
    fuses = True
    at_once = ("_materialize",)

    ROUTES = (
        own_route("fft", _fft_seconds),
        dense_route(gather_seconds),
        blocks_route(lambda M: (1, 1, max(M.shape))),
        rows_route(lambda M: (1, 1, max(M.shape)), _fft_seconds),
    )
    projection_work = 0

    ranked = False
    scaled = ("column",)

    @classmethod
    def from_column(cls, column: Tensor) -> Circulant:
        """The whole circulant matrix with this first column, shape (n,)."""
        if not isinstance(column, Tensor) or column.ndim != 1 or not len(column):
            got = tuple(column.shape) if isinstance(column, Tensor) else type(column).__name__
            raise ValueError(f"Circulant: column must be a vector of at least one entry, got {got}.")
        return cls(len(column), len(column), column=column)

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"column": (max(out_features, in_features),)}

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        normal_(tensors["column"], (3 * in_features) ** -0.5, generator)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        return 2 * costs.fft_multiply_adds(max(m, n)) + 2 * max(m, n)

    def factors(self) -> list[tuple[Tensor, ...]]:
        m, n = self.shape
        i = torch.arange(len(self.column), device=self.device)
        return [(self.column[(i.unsqueeze(1) - i) % len(i)][:m, :n],)]

    def _materialize(self) -> Tensor:
        return self.dense_in(self.dtype)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        return circulants(self.column, dtype)[..., : self.out_features, : self.in_features]

    def _matmul(self, x: Tensor) -> Tensor:
        return self.prepare()(x)

    def prepare(self) -> Product:
        m, n = self.shape
        of = ring(max(m, n), n, 1)
        spectrum = of.analyse(self.column)
        return lambda x: leading(of.synthesise(of.analyse(x) * spectrum), m)

    def _rmatmul(self, y: Tensor) -> Tensor:
        m, n = self.shape
        of = ring(max(m, n), n, 1)
        x = of.fold(of.unfold(pad(y, (0, of.m - m))) * conjugate(of.analyse(self.column)))
        return x.clone(memory_format=torch.contiguous_format)  # not a part of a larger one
