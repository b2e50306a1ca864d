"""Circulant matrices, and grids of them, in an ONNX graph."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...core.rules import rule
from ...functional.exported.convolution import Convolution, numbers, toeplitz
from . import Circulant

_SMALL_BLOCK = 64  # circulant blocks up to here may take the DFT matrix itself


class CirculantProduct(nn.Module):
    """A grid of circulant blocks (rows, columns, b), cropped to m x n, by convolutions of long blocks."""

    form = "convolutions"

    def __init__(self, kind: str, column: Tensor, m: int, n: int, dtype: torch.dtype) -> None:
        super().__init__()
        values = column.detach().double().cpu().numpy()
        self.m, self.n = m, n
        self.rows, self.columns, self.block = rows, columns, block = values.shape
        taken, given = (n if columns == 1 else block), (m if rows == 1 else block)
        symbol = values[..., np.arange(1 - taken, given) % block]
        self.toeplitz: Convolution = toeplitz(kind, symbol, 1 - taken, taken, given, dtype)

    def forward(self, x: Tensor) -> Tensor:
        if self.columns > 1:
            x = pad(x, (0, self.columns * self.block - self.n))
            x = x.reshape(-1, self.columns, self.block)
        else:
            x = x.unsqueeze(1)
        y = self.toeplitz(x)
        return y.squeeze(1) if self.rows == 1 else y.flatten(1)[:, : self.m]


class SmallCirculantProduct(nn.Module):
    """A grid of short circulant blocks: the DFT of every block, and a matrix product for every frequency.

    The DFT is its matrix, or the operator where the kind asks for it and b is a power of two.
    """

    analysis: Tensor
    synthesis: Tensor
    spectra: Tensor

    def __init__(self, kind: str, column: Tensor, m: int, n: int, dtype: torch.dtype) -> None:
        super().__init__()
        values = column.detach().double().cpu().numpy()
        self.m, self.n = m, n
        self.rows, self.columns, self.block = rows, columns, b = values.shape
        self.operator = kind == "fft" and b & (b - 1) == 0
        self.form = "DFTs of the blocks" if self.operator else "DFT matrices of the blocks"
        self.frequencies = F = b // 2 + 1
        spectra = np.fft.rfft(values).transpose(2, 1, 0)  # (f, columns, rows)
        weights = np.where((np.arange(F) == 0) | (2 * np.arange(F) == b), 1.0, 2.0) / b
        if self.operator:
            spectra = spectra * (weights * b)[:, None, None]
        else:
            turns = np.exp(-2j * math.pi / b * (np.outer(np.arange(b), np.arange(F)) % b))
            both = np.stack((turns, 1j * turns), 1)  # j, copy, f
            analysis = np.stack((both.real, both.imag), 2)  # j, copy, parts, f
            self.register_buffer("analysis", torch.from_numpy(analysis.reshape(b, 4 * F)).to(dtype))
            back = np.stack((turns.real, turns.imag)) * weights  # parts, j, f; the conjugate's real part
            synthesis = back.transpose(0, 2, 1).reshape(2 * F, b)
            self.register_buffer("synthesis", torch.from_numpy(synthesis).to(dtype))
        stacked = np.stack((spectra.real, spectra.imag), 1).reshape(F, 2 * columns, rows)
        self.register_buffer("spectra", torch.from_numpy(stacked).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        b, F, rows, columns = self.block, self.frequencies, self.rows, self.columns
        blocks = pad(x, (0, columns * b - self.n)).reshape(-1, columns, b)
        if self.operator:
            z = torch.view_as_complex(pad(blocks.unsqueeze(-1), (0, 1)))
            values = torch.view_as_real(torch.fft.fft(z))[:, :, :F]  # (B, columns, f, parts)
            turned = torch.stack((-values[..., 1], values[..., 0]), -1)
            values = torch.stack((values, turned), 1).permute(3, 0, 4, 1, 2)  # f, B, parts, copy, columns
        else:
            values = (blocks @ self.analysis).reshape(-1, columns, 2, 2, F).permute(4, 0, 3, 2, 1)
        y = values.reshape(F, -1, 2 * columns) @ self.spectra  # (f, (B, parts), rows)
        y = y.reshape(F, -1, 2, rows)
        if self.operator:
            z = torch.view_as_complex(pad(y.permute(1, 3, 0, 2), (0, 0, 0, b - F)).contiguous())
            y = torch.view_as_real(torch.fft.ifft(z))[..., 0]
        else:
            y = y.permute(1, 3, 2, 0).reshape(-1, rows, 2 * F) @ self.synthesis
        return y.reshape(-1, rows * b)[:, : self.m]


def circulant_product(kind: str, column: Tensor, m: int, n: int, dtype: torch.dtype) -> nn.Module:
    """The product of a grid of circulant blocks (rows, columns, b), by the smaller of both forms."""
    long = CirculantProduct(kind, column, m, n, dtype)
    if column.shape[-1] > _SMALL_BLOCK:
        return long
    return min(SmallCirculantProduct(kind, column, m, n, dtype), long, key=numbers)


@rule("onnx", Circulant)
def product(mode: str, M: Circulant) -> nn.Module:
    return circulant_product(mode, M.column[None, None], M.out_features, M.in_features, M.dtype)
