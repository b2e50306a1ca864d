"""Convolution filters as matrices: Toeplitz in one dimension, blocks of them over channels of images.

On flattened signals or images a layer of filters is a matrix M whose entry from pixel q of an input channel
to pixel p of an output channel is the tap at q - (stride p - padding), if there is one: it depends on
q - stride p alone. So moving the output by one line and the input by `stride` lines along an axis leaves it
as it is, except where a line enters:

    M - A M C^T = 0 outside the outputs of line 0 and the inputs of the first `stride` lines,

a displacement whose rank grows with the length of a line and with the channels, not with the filters and
not with the number of lines. In one dimension with one channel that is a Toeplitz matrix, of rank 2.

Flat on an image, as the paper's footnote has it, a filter is Toeplitz too: its taps lie on the diagonals
a w + b. But at the image's left and right border it reads the neighbouring row. Three ways to treat the
border, and what the displacement of k x l channels then is:

    flat        reads on in the flattened image. Toeplitz blocks: with Z_1, Z_{-1} at most k + l, where the
                paper's corollary says 2 k l + 2 k + 2 l
    zeros       torch's conv2d with padding. Toeplitz blocks of Toeplitz blocks: with moves of the image
                by a row, or by a pixel, at most (k + l) min(h, w); no bound without h and w is known
    circular    a torus: commutes with moves of the image, rank 0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv2d, conv_transpose1d, conv_transpose2d, pad

from ...algebra.known import Operators
from ...algebra.members import opposite_shifts, shift
from ...core.checks import check_choices, checked_int, checked_vector
from ...functional.fft import fast_length
from ...operators import BlockDiagonal, Operator
from .base import ClassicalMatrix
from .families import Toeplitz

BORDERS = ("flat", "zeros", "circular")
MODES = ("full", "same", "valid")
_CONVOLVE = {1: conv1d, 2: conv2d}
_TRANSPOSE = {1: conv_transpose1d, 2: conv_transpose2d}
_DEFINITION = {1: "oiu,yuh->oyih", 2: "oiuv,yuh,xvw->oyxihw"}


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
    n = checked_int("convolution1d", "n", n)
    f = taps.shape[0]
    size = {"full": n + f - 1, "same": max(n, f), "valid": max(n, f) - min(n, f) + 1}[mode]
    start = {"full": 0, "same": (min(n, f) - 1) // 2, "valid": min(n, f) - 1}[mode]
    entries = pad(taps, (n - 1, n - 1))[start : start + size + n - 1]  # of the diagonals -(n - 1) and on
    return Toeplitz(entries[n - 1 :], entries[:n].flip(0))


class Axis(NamedTuple):
    """How filters move along one axis."""

    size: int  # of the input
    kernel: int
    stride: int
    dilation: int
    before: int  # padding
    after: int

    @property
    def padded(self) -> int:
        return self.before + self.size + self.after

    @property
    def reach(self) -> int:
        """Distance from the first tap to the last."""
        return self.dilation * (self.kernel - 1)

    @property
    def out(self) -> int:
        return (self.padded - self.reach - 1) // self.stride + 1

    def places(self, device: torch.device) -> Tensor:
        """The input place of each output and tap, (out, kernel), negative or too large in the padding."""
        p, u = torch.arange(self.out, device=device), torch.arange(self.kernel, device=device)
        return p.unsqueeze(1) * self.stride - self.before + u * self.dilation


class ConvolutionMatrix(ClassicalMatrix):
    """The matrix of a convolution on flattened channels, (cout h' w') x (cin h w).

    Made by `conv_to_matrix`. Products are the convolution itself and its transpose; they are differentiable
    in the filters, which are those of the layer.

    Attributes:
        weight: the filters, (cout, cin / groups, *kernel).
        offset: the bias of the layer for every pixel, (cout h' w'), or None. It is not part of the matrix:
            the layer computes `M.matmul(x) + M.offset`.
        in_size, out_size: of a channel, such as (32, 32).
    """

    made_of = ("weight",)

    def __init__(
        self,
        weight: Tensor,
        axes: Sequence[Axis],
        *,
        groups: int = 1,
        circular: bool = False,
        bias: Tensor | None = None,
    ) -> None:
        self.weight, self.axes, self.groups, self.circular = weight, tuple(axes), groups, circular
        self.in_size = tuple(axis.size for axis in axes)
        self.out_size = tuple(axis.out for axis in axes)
        self.out_channels, self.in_channels = weight.shape[0], weight.shape[1] * groups
        self.out_features = self.out_channels * math.prod(self.out_size)
        self.in_features = self.in_channels * math.prod(self.in_size)
        self.offset = None if bias is None else bias.repeat_interleave(math.prod(self.out_size))

    # Products.

    def to_dense(self) -> Tensor:
        """Entry by entry: the tap at q - (stride p - padding), or 0."""
        weight = self.weight
        if self.groups > 1:  # filters of a group see its channels alone
            blocks = weight.unflatten(0, (self.groups, -1))
            eye = torch.eye(self.groups, dtype=self.dtype, device=self.device)
            weight = torch.einsum("gh,goi...->gohi...", eye, blocks).flatten(2, 3).flatten(0, 1)
        selections = [self._selection(axis) for axis in self.axes]
        M = torch.einsum(_DEFINITION[len(self.axes)], weight, *selections)
        return M.reshape(self.out_features, self.in_features)

    def _selection(self, axis: Axis) -> Tensor:
        """1 where a tap of an output reads an input: (out, kernel, size)."""
        places = axis.places(self.device).unsqueeze(-1)
        inputs = torch.arange(axis.size, device=self.device)
        return ((places % axis.size if self.circular else places) == inputs).to(self.dtype)

    def _matmul(self, x: Tensor) -> Tensor:
        x = x.unflatten(-1, (self.in_channels, *self.in_size))
        sides = [side for axis in reversed(self.axes) for side in (axis.before, axis.after)]
        x = pad(x, sides, "circular" if self.circular else "constant") if any(sides) else x
        stride, dilation = [a.stride for a in self.axes], [a.dilation for a in self.axes]
        convolve = _CONVOLVE[len(self.axes)]
        y = convolve(x, self.weight.to(x.dtype), None, stride, 0, dilation, self.groups)
        return y.flatten(1)

    def _rmatmul(self, y: Tensor) -> Tensor:
        y = y.unflatten(-1, (self.out_channels, *self.out_size))
        stride, dilation = [a.stride for a in self.axes], [a.dilation for a in self.axes]
        convolve = _TRANSPOSE[len(self.axes)]
        x = convolve(y, self.weight.to(y.dtype), None, stride, 0, 0, self.groups, dilation)
        for dim, axis in enumerate(self.axes, start=2):  # what was padded comes off, or around
            if self.circular:
                places = (torch.arange(x.shape[dim], device=x.device) - axis.before) % axis.size
                zero = x.new_zeros([axis.size if d == dim else size for d, size in enumerate(x.shape)])
                x = zero.index_add(dim, places, x)
            else:
                missing = max(0, axis.before + axis.size - x.shape[dim])  # inputs that no output reads
                x = pad(x, [0, 0] * (x.ndim - 1 - dim) + [0, missing])
                x = x.narrow(dim, axis.before, axis.size)
        return x.flatten(1)

    # Displacement.

    def operators(self) -> Operators:
        """The moves of all output channels by a line, and of all input channels by `stride` lines.

        Along the axis that gives the smaller rank; cyclic where the convolution is.
        """
        axis = self._axis()
        f = 1.0 if self._commutes(axis) else 0.0
        A = self._move(self.out_channels, self.out_size, axis, 1, f)
        C = self._move(self.in_channels, self.in_size, axis, self.axes[axis].stride, f)
        return Operators(A, C.T, "stein")

    def support(self) -> tuple[Sequence[int], Sequence[int]]:
        rows, columns = self._border(self._axis())
        return rows.tolist(), columns.tolist()

    def _axis(self) -> int:
        """Along which the displacement has the smaller rank."""
        return min(range(len(self.axes)), key=lambda axis: sum(map(len, self._border(axis))))

    def _commutes(self, axis: int) -> bool:
        """Whether moving around the ring changes nothing."""
        a = self.axes[axis]
        return self.circular and a.out * a.stride == a.size

    def _border(self, axis: int) -> tuple[Tensor, Tensor]:
        """The rows and columns of M that make up its displacement.

        Outputs of line 0, unless all that they read are inputs of the first lines; and inputs of the first
        lines, unless no other output reads them.
        """
        a, none = self.axes[axis], torch.empty(0, dtype=torch.long, device=self.device)
        if self._commutes(axis):
            return none, none
        rows = self._lines(self.out_channels, self.out_size, axis, 1)
        columns = self._lines(self.in_channels, self.in_size, axis, a.stride)
        places = a.places(self.device)
        if self.circular:
            places = places % a.size
        within = (places >= 0) & (places < a.size)
        if not bool(((places >= a.stride) & within)[:1].any()):
            return none, columns
        if not bool(((places < a.stride) & within)[1:].any()):
            return rows, none
        return rows, columns

    def _lines(self, channels: int, size: tuple[int, ...], axis: int, count: int) -> Tensor:
        """The flat indices of the first lines across an axis, in all channels."""
        index = torch.arange(channels * math.prod(size), device=self.device).reshape(channels, *size)
        return index.narrow(axis + 1, 0, min(count, size[axis])).flatten()

    def _move(self, channels: int, size: tuple[int, ...], axis: int, count: int, f: float) -> Operator:
        """Every channel moved by `count` lines along an axis."""
        line = math.prod(size[axis + 1 :])  # entries between neighbours along the axis
        blocks = channels * math.prod(size[:axis])
        by_one = shift(size[axis] * line, f, self)
        return BlockDiagonal([by_one ** (line * count) if line * count > 1 else by_one] * blocks)

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.in_size)), " x ".join(map(str, self.out_size))
        parts = [f"{self.in_channels} x ({sizes[0]}) to {self.out_channels} x ({sizes[1]})"]
        parts += [f"kernel={tuple(a.kernel for a in self.axes)}"]
        parts += ["circular"] if self.circular else []
        parts += [f"displacement_rank<={self.displacement_rank_bound}"]
        return f"{type(self).__name__}({', '.join(parts)})"


class Convolution2d(ConvolutionMatrix):
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
        axes = [Axis(size, k, 1, 1, k // 2, k // 2) for size, k in ((height, kh), (width, kw))]
        super().__init__(weight, axes, circular=border == "circular")
        self.height, self.width, self.border = height, width, border

    def support(self) -> tuple[Sequence[int], Sequence[int]]:
        if self.border != "flat":
            return super().support()
        size = self.height * self.width
        return range(0, self.out_features, size), range(size - 1, self.in_features, size)

    def operators(self) -> Operators:
        """Z_1 and Z_{-1} for "flat"; else the move of every channel by a row, or by a pixel."""
        if self.border == "flat":
            return opposite_shifts(self)
        A, B, form = super().operators()
        # On a torus moves are permutations: M = A M C^T is A M = M C.
        return Operators(A, B.T) if self.border == "circular" else Operators(A, B, form)

    def to_dense(self) -> Tensor:
        if self.border != "flat":
            return super().to_dense()
        kernel, size = self._kernel(), self.height * self.width
        place = torch.arange(size, device=self.device)
        far = place - place.unsqueeze(-1) + kernel.shape[-1] // 2
        inside = (far >= 0) & (far < kernel.shape[-1])
        M = kernel[..., far.clamp(0, kernel.shape[-1] - 1)] * inside
        return M.transpose(1, 2).reshape(self.out_features, self.in_features)

    def _matmul(self, x: Tensor) -> Tensor:
        return self._flat(x, self._kernel()) if self.border == "flat" else super()._matmul(x)

    def _rmatmul(self, y: Tensor) -> Tensor:
        if self.border == "flat":  # filters turned around, channels changing places
            return self._flat(y, self._kernel().flip(-1).transpose(0, 1))
        return super()._rmatmul(y)

    def _kernel(self) -> Tensor:
        """The taps by their places in the flattened image, (cout, cin, from the first tap to the last)."""
        kh, kw = self.weight.shape[2:]
        reach = kh // 2 * self.width + kw // 2  # the furthest tap, before and behind
        return pad(self.weight, (0, self.width - kw)).flatten(2)[..., : 2 * reach + 1]

    def _flat(self, x: Tensor, kernel: Tensor) -> Tensor:
        if x.is_complex():
            return torch.complex(self._flat(x.real, kernel), self._flat(x.imag, kernel))
        size, reach = self.height * self.width, kernel.shape[-1] // 2
        length = fast_length(size + 2 * reach)
        spectrum = torch.fft.rfft(x.unflatten(-1, (-1, size)), length)
        y = torch.einsum("bcf,ocf->bof", spectrum, torch.fft.rfft(kernel.flip(-1).to(x.dtype), length))
        return torch.fft.irfft(y, length)[..., reach : reach + size].flatten(1)
