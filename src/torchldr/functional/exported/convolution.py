"""Toeplitz products and products of polynomials, with constant spectra."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from . import transforms
from .transforms import Array, Transform


class Convolution(nn.Module):
    """y_i = sum_j c_ij x_j for polynomials modulo X^{2N} + 1 with constant c_ij.

    Args:
        transform: of this ring, for inputs and outputs of the wanted lengths.
        coefficients: c (i, j, 2N), float64.

    Shape:
        Input (b, j, taken), output (b, i, given).
    """

    spectra: Tensor

    def __init__(self, transform: Transform, coefficients: Array) -> None:
        super().__init__()
        self.transform = transform
        constants = np.ascontiguousarray(transform.spectra(coefficients))
        self.register_buffer("spectra", torch.from_numpy(constants).to(transform.dtype))

    def forward(self, x: Tensor) -> Tensor:
        values = self.transform.contract(self.transform.analyse(x), self.spectra)
        return self.transform.synthesise(values)


def toeplitz(
    kind: str,
    symbol: Array,
    first: int,
    taken: int,
    given: int,
    dtype: torch.dtype,
    *,
    least: int | None = None,
    period: int | None = None,
) -> Convolution:
    """y_a = sum_q t_{a - q} x_q, summed over j too.

    Args:
        kind: "fft" or "matmul".
        symbol: t_first, t_{first + 1}, .., shape (i, j, ..); zero outside.
        first: the lowest index, -(taken - 1) at least.
        taken, given: lengths of x and y.
        dtype: of the constants.
        least: length of the ring, if less than taken + given - 1 will do.
        period: where t_{l + period} = -t_l, a ring of this length does too.
    """
    count = symbol.shape[0] * symbol.shape[1]
    least = taken + given - 1 if least is None else least
    made = [transforms.make(kind, least, taken, given, dtype, count)]
    if period is not None and transforms.is_exact(kind, period):
        made.append(transforms.make_exact(kind, period, taken, given, dtype))
    choices = [Convolution(t, wrapped(symbol, first, 2 * t.points)) for t in made]
    return min(choices, key=numbers)


def wrapped(symbol: Array, first: int, length: int) -> Array:
    """The polynomial sum_l t_l X^l, l from `first`, modulo X^length + 1."""
    places = np.arange(first, first + symbol.shape[-1])
    signs = np.where((places // length) % 2 == 0, 1.0, -1.0)
    made = np.zeros((*symbol.shape[:-1], length))
    made[..., places % length] = symbol * signs
    return made


def numbers(module: nn.Module) -> int:
    """How many numbers a product keeps; what is shared counts once."""
    return sum(buffer.numel() for buffer in {id(b): b for b in module.buffers()}.values())
