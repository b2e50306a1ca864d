"""Block-circulant matrices: a grid of circulant blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core import costs
from ...core.dense_route import dense_route, own_route
from ...core.matrix import StructuredMatrix, normal_
from ...core.products import Product
from ...core.routes import Call
from ...functional.fft import conjugate, leading
from ...functional.ring import Ring, ring
from ..circulant import circulants, gather_seconds


def _block_size(M: Any) -> int:
    return M.options["block_size"] or min(8, max(M.shape))


def _block_seconds(M: Any, call: Call) -> float:
    (m, n), b, size = M.shape, call.batch, _block_size(M)
    seconds = costs.ffts(call, b * n / size, size) + costs.ffts(call, b * m / size, size)
    # A product of complex numbers is four of real ones and reads its weights slowly; short transforms take as
    # long as some more passes.
    seconds += costs.gemm(call._replace(dtype=torch.float32), 4 * b, m, -(-n // size))
    seconds += costs.passes(call, m * n / size / 2, 1) + costs.passes(call, 4 * b * (m + n), 2)
    if not call.kept:
        seconds += costs.ffts(call, m * n / size**2, size) + costs.passes(call, m * n / size, 2)
    return costs.backward(call, seconds)


class BlockCirculant(StructuredMatrix, name="block_circulant"):
    """Block-circulant: a grid of circulant blocks of b x b, the last ones cropped.

    Parameters: `column` (ceil(m/b), ceil(n/b), b), the first column of every block. Cost: (m + n) / b
    real FFTs of length b and m n / b complex multiplications a vector.

    Options:
        block_size: b, from 1 (dense) to max(m, n) (one circulant); by default 8, or max(m, n) if that
            is smaller. It need not divide m or n.

    Reference: Ding et al., "CirCNN", 2017.
    """

    ROUTES = own_route("fft", _block_seconds), dense_route(gather_seconds)
    projection_work = 0
    compresses = True

    ranked = False
    scaled = ("column",)

    @classmethod
    def from_columns(cls, columns: Tensor) -> BlockCirculant:
        """The matrix whose block (p, q) is circulant with first column columns[p, q], shape (k, l, b)."""
        if not isinstance(columns, Tensor) or columns.ndim != 3 or 0 in columns.shape:
            got = tuple(columns.shape) if isinstance(columns, Tensor) else type(columns).__name__
            raise ValueError(f"BlockCirculant: columns must have shape (k, l, b), none 0, got {got}.")
        k, l, b = columns.shape  # noqa: E741
        return cls(k * b, l * b, column=columns, block_size=b)

    @classmethod
    def parameter_shapes(
        cls, out_features: int, in_features: int, rank: int, *, block_size: int | None = None
    ) -> dict[str, tuple[int, ...]]:
        largest = max(out_features, in_features)
        b = min(8, largest) if block_size is None else block_size
        if not isinstance(b, int) or isinstance(b, bool):
            raise TypeError(f"{cls.__name__}: block_size must be an int, got {b!r}.")
        if not 1 <= b <= largest:
            raise ValueError(
                f"{cls.__name__}: block_size must be between 1 and {largest} (the larger of "
                f"out_features={out_features} and in_features={in_features}), got {b}."
            )
        return {"column": (-(-out_features // b), -(-in_features // b), b)}

    @classmethod
    def init_(
        cls,
        tensors: Mapping[str, Tensor],
        out_features: int,
        in_features: int,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        normal_(tensors["column"], (3 * in_features) ** -0.5, generator)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        b = options.get("block_size") or min(8, max(m, n))
        rows, columns = -(-m // b), -(-n // b)
        # Half a spectrum of complex products, each four real ones.
        return (rows + columns) * costs.fft_multiply_adds(b) + 4 * rows * columns * (b // 2 + 1)

    @classmethod
    def variants(cls, out_features: int, in_features: int) -> list[dict[str, Any]]:
        largest = min(out_features, in_features)
        return [{"block_size": 2**i} for i in range(1, 12) if 2**i <= largest]

    def factors(self) -> list[tuple[Tensor, ...]]:
        (m, n), i = self.shape, torch.arange(self.column.shape[-1], device=self.device)
        grid = self.column[..., (i.unsqueeze(1) - i) % len(i)]  # (rows, columns, b, b)
        return [(grid.transpose(1, 2).flatten(2).flatten(0, 1)[:m, :n],)]

    def _ring(self) -> Ring:
        b = self.column.shape[-1]
        return ring(b, b, 1)

    def _materialize(self) -> Tensor:
        return self.dense_in(self.dtype)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        if self.leading:
            return super().dense_in(dtype)
        grid = circulants(self.column, dtype)  # (rows, columns, b, b)
        return grid.transpose(1, 2).flatten(2).flatten(0, 1)[: self.out_features, : self.in_features]

    def _matmul(self, x: Tensor) -> Tensor:
        return self.prepare()(x)

    def prepare(self) -> Product:
        of, (m, n) = self._ring(), self.shape
        spectra = of.analyse(self.column).permute(2, 1, 0).contiguous()  # (f, columns, rows)

        def product(x: Tensor) -> Tensor:
            blocks = pad(x, (0, -n % of.m)).unflatten(-1, (-1, of.m))
            y = torch.bmm(of.analyse(blocks).permute(2, 0, 1), spectra).permute(1, 2, 0)
            return leading(of.synthesise(y).flatten(-2), m)

        return product

    def _rmatmul(self, y: Tensor) -> Tensor:
        of, (m, n) = self._ring(), self.shape
        spectra = conjugate(of.analyse(self.column)).permute(2, 0, 1)  # (f, rows, columns)
        blocks = pad(y, (0, -m % of.m)).unflatten(-1, (-1, of.m))
        x = torch.bmm(of.unfold(blocks).permute(2, 0, 1), spectra).permute(1, 2, 0)
        x = of.fold(x).flatten(-2)[..., :n]
        return x.clone(memory_format=torch.contiguous_format)  # not a part of a larger one
