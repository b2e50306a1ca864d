"""The eigenbasis of a shift with corner 1 or -1, real vectors in it by one FFT."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Roots:
    """Of Z_f of size n: its eigenvalues, the n-th roots of f, and their eigenvectors v_p = root^-p / sqrt(n).

    Real vectors need `half` of the roots, one of each conjugate pair; `weight` is how many each stands for.
    """

    def __init__(self, n: int, f: float) -> None:
        turn = math.pi / n if f < 0 else 0.0
        steps = torch.arange(n, dtype=torch.float64)
        self.n, self.angles = n, 2 * math.pi / n * steps + turn
        self.values, self._twist = _unit(self.angles), _unit(-turn * steps)
        self.half = n // 2 + 1 if f > 0 else (n + 1) // 2
        index = torch.arange(self.half)
        paired = (n - index) % n != index if f > 0 else n - 1 - index != index
        self.weight = 1 + paired.to(torch.float64)

    def analyse(self, x: Tensor) -> Tensor:
        """x V: products of rows with the eigenvectors."""
        return torch.fft.fft(x * self._twist, norm="ortho")

    def combine(self, y: Tensor) -> Tensor:
        """y V^T: rows of eigenvectors with these coefficients."""
        return torch.fft.fft(y, norm="ortho") * self._twist

    def real_rows(self, y: Tensor) -> Tensor:
        """The real rows x with conj(x V) = y at half of the roots."""
        steps = torch.arange(self.n, dtype=torch.float64)
        vectors = _unit(-self.angles[: self.half, None] * steps) * self.n**-0.5
        return ((self.weight * y) @ vectors).real


def _unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)
