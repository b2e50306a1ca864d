"""Convolution filters as matrices: Toeplitz in one dimension, blocks of them over channels of images.

A filter that slides over a flattened image is a Toeplitz matrix, as the paper's footnote has it: its taps
lie on the diagonals a w + b. But at the image's left and right border it reads the neighbouring row. Three
ways to treat the border, and what the displacement of k x l channels then is:

    flat        reads on in the flattened image. Toeplitz blocks: with Z_1, Z_{-1} at most k + l, where the
                paper's corollary says 2 k l + 2 k + 2 l
    zeros       torch's conv2d with padding. Toeplitz blocks of Toeplitz blocks: with moves of the image
                by a row, or by a pixel, at most (k + l) min(h, w); no bound without h and w is known
    circular    a torus: commutes with moves of the image, rank 0
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from ...algebra.known import Operators
from ...core.checks import check_choices, checked_vector
from ...functional.fft import fast_length
from ...operators import BlockDiagonal, Operator, Shift
from .base import ClassicalMatrix
from .families import Toeplitz

BORDERS = ("flat", "zeros", "circular")
MODES = ("full", "same", "valid")


def convolution1d(taps: Tensor, n: int, mode: str = "full") -> Toeplitz:
    """The matrix that convolves signals of length n with a filter, as numpy.convolve.

    Args:
        taps: the filter, shape (f,).
        n: length of the signals.
        mode: "full" gives n + f - 1 outputs, "same" max(n, f), "valid" those without a border.

    Returns:
        A Toeplitz matrix of displacement rank at most 2.
    """
    taps = checked_vector(taps, "convolution1d", "taps")
    check_choices("convolution1d", mode=(mode, MODES))
    if n < 1:
        raise ValueError(f"convolution1d: n must be at least 1, got {n}.")
    f = taps.shape[0]
    size = {"full": n + f - 1, "same": max(n, f), "valid": max(n, f) - min(n, f) + 1}[mode]
    start = {"full": 0, "same": (min(n, f) - 1) // 2, "valid": min(n, f) - 1}[mode]
    entries = pad(taps, (n - 1, n - 1))[start : start + size + n - 1]  # of the diagonals -(n - 1) and on
    return Toeplitz(entries[n - 1 :], entries[:n].flip(0))


class Convolution2d(ClassicalMatrix):
    """A layer of convolution filters as a matrix on flattened images: (cout h w) x (cin h w).

    y[o, p] = sum over channels c and taps of weight[o, c, u, v] x[c, p + (u, v) - centre], as torch's
    conv2d, which does not flip its filters.

    Args:
        weight: shape (cout, cin, kh, kw), kh and kw odd.
        height, width: of the images.
        border: "zeros" as conv2d with padding, "circular", or "flat": the taps read on in the flattened
            image, past its left and right border into the row above or below.

    Cost: that of conv2d; "flat" takes cin + cout FFTs of length near 2 h w.
    """

    made_of = ("weight",)

    def __init__(self, weight: Tensor, height: int, width: int, border: str = "zeros") -> None:
        if not isinstance(weight, Tensor) or weight.ndim != 4:
            got = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
            raise ValueError(f"Convolution2d: weight must have shape (cout, cin, kh, kw), got {got}.")
        if not weight.is_floating_point():
            raise TypeError(f"Convolution2d: weight must be real floating point, got {weight.dtype}.")
        kh, kw = weight.shape[2:]
        if not kh % 2 or not kw % 2 or kh > height or kw > width:
            raise ValueError(
                f"Convolution2d: filters must have odd sides within the {height} x {width} image, "
                f"got {kh} x {kw}."
            )
        check_choices("Convolution2d", border=(border, BORDERS))
        self.weight, self.height, self.width, self.border = weight, height, width, border
        self.out_features = weight.shape[0] * height * width
        self.in_features = weight.shape[1] * height * width

    def support(self) -> tuple[Sequence[int], Sequence[int]]:
        size, (k, l) = self.height * self.width, self.weight.shape[:2]  # noqa: E741
        if self.border == "circular":
            return (), ()
        if self.border == "flat":
            return range(0, k * size, size), range(size - 1, l * size, size)
        step, stop = (1, self.width) if self.width <= self.height else (self.width, size)  # the first line
        edge = range(0, stop, step)
        rows, columns = ([c * size + p for c in range(count) for p in edge] for count in (k, l))
        return rows, columns

    def operators(self) -> Operators:
        """Z_1 and Z_{-1} for "flat"; else the move of every channel by a row, or by a pixel if h < w."""
        k, l = self.weight.shape[:2]  # noqa: E741
        if self.border == "flat":
            A: Operator = Shift(self.out_features, 1.0, dtype=self.dtype)
            return Operators(A, Shift(self.in_features, -1.0, dtype=self.dtype))
        if self.border == "circular":
            return Operators(self._move(k, 1.0), self._move(l, 1.0))
        return Operators(self._move(k, 0.0), self._move(l, 0.0).T, "stein")

    def _move(self, channels: int, f: float) -> Operator:
        """The image of each channel moved along its longer side: all entries of h (or w) lines at once."""
        h, w = self.height, self.width
        if w <= h:  # down by a row: the w-th power of the shift by one pixel
            return BlockDiagonal([Shift(h * w, f, dtype=self.dtype) ** w] * channels)
        return BlockDiagonal([Shift(w, f, dtype=self.dtype)] * (h * channels))

    def to_dense(self) -> Tensor:
        h, w = self.height, self.width
        k, l, kh, kw = self.weight.shape  # noqa: E741
        M = self.weight.new_zeros(k, l, h * w, h * w)
        place = torch.arange(h * w, device=self.device)
        row, column = place // w, place % w
        for u in range(kh):
            for v in range(kw):
                down, right = u - kh // 2, v - kw // 2
                flat = place + down * w + right
                if self.border == "circular":
                    inside = torch.ones_like(place, dtype=torch.bool)
                    flat = (row + down) % h * w + (column + right) % w
                elif self.border == "flat":
                    inside = (flat >= 0) & (flat < h * w)
                else:
                    inside = (
                        (row + down >= 0) & (row + down < h) & (column + right >= 0) & (column + right < w)
                    )
                taps = torch.zeros(h * w, h * w, dtype=self.dtype, device=self.device)
                taps[place[inside], flat[inside]] = 1
                M = M + self.weight[:, :, u, v, None, None] * taps
        return M.transpose(1, 2).reshape(self.out_features, self.in_features)

    def _matmul(self, x: Tensor) -> Tensor:
        if x.is_complex():
            return torch.complex(self._matmul(x.real), self._matmul(x.imag))
        weight = self.weight.to(x.dtype)
        images = x.unflatten(-1, (-1, self.height, self.width))
        if self.border == "flat":
            return self._flat(x, weight)
        kh, kw = weight.shape[2:]
        sides = (kw // 2, kw // 2, kh // 2, kh // 2)
        mode = "circular" if self.border == "circular" else "constant"
        return conv2d(pad(images, sides, mode), weight).flatten(1)

    def _rmatmul(self, y: Tensor) -> Tensor:
        # The transpose is the convolution with the filters turned around and channels changing places.
        turned = self.weight.flip(-2, -1).transpose(0, 1)
        return Convolution2d(turned, self.height, self.width, self.border)._matmul(y)

    def _flat(self, x: Tensor, weight: Tensor) -> Tensor:
        size, (kh, kw) = self.height * self.width, weight.shape[2:]
        reach = kh // 2 * self.width + kw // 2  # the furthest tap, before and behind
        kernel = pad(weight, (0, self.width - kw)).flatten(2)[..., : 2 * reach + 1].flip(-1)
        length = fast_length(size + 2 * reach)
        spectrum = torch.fft.rfft(x.unflatten(-1, (-1, size)), length)
        y = torch.einsum("bcf,ocf->bof", spectrum, torch.fft.rfft(kernel, length))
        return torch.fft.irfft(y, length)[..., reach : reach + size].flatten(1)
