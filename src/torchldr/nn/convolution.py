"""A convolution is a structured matrix.

On flattened signals or images a layer of filters is a matrix M whose entry from pixel q of an input channel
to pixel p of an output channel is the tap at q - (stride p - padding), if there is one: it depends on
q - stride p alone. So moving the output by one line and the input by `stride` lines along an axis leaves it
as it is, except where a line enters:

    M - A M C^T = 0 outside the outputs of line 0 and the inputs of the first `stride` lines,

a displacement whose rank grows with the length of a line and with the channels, not with the filters and
not with the number of lines. In one dimension with one channel that is a Toeplitz matrix, of rank 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv2d, conv_transpose1d, conv_transpose2d, pad

from ..algebra.known import Operators
from ..core.checks import check_int
from ..matrices.classical.base import ClassicalMatrix
from ..operators import BlockDiagonal, Operator, Shift

_CONVOLVE = {1: conv1d, 2: conv2d}
_TRANSPOSE = {1: conv_transpose1d, 2: conv_transpose2d}
_DEFINITION = {1: "oiu,yuh->oyih", 2: "oiuv,yuh,xvw->oyxihw"}


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
        offset: what the layer adds, its bias for every pixel, (cout h' w'), or None: it is no part of the
            matrix, and the layer computes `M.matmul(x) + M.offset`.
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
        shift = Shift(size[axis] * line, f, dtype=self.dtype, device=self.device)
        return BlockDiagonal([shift ** (line * count) if line * count > 1 else shift] * blocks)

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.in_size)), " x ".join(map(str, self.out_size))
        parts = [f"{self.in_channels} x ({sizes[0]}) to {self.out_channels} x ({sizes[1]})"]
        parts += [f"kernel={tuple(a.kernel for a in self.axes)}"]
        parts += ["circular"] if self.circular else []
        parts += [f"displacement_rank<={self.displacement_rank_bound}"]
        return f"ConvolutionMatrix({', '.join(parts)})"


def conv_to_matrix(conv: nn.Conv1d | nn.Conv2d, height: int, width: int | None = None) -> ConvolutionMatrix:
    """The matrix of a convolution layer on flattened signals or images.

    Args:
        conv: an nn.Conv1d or nn.Conv2d with any kernel, stride, padding, dilation and groups; its
            `padding_mode` must be "zeros" or "circular".
        height: of the images, or the length of signals.
        width: of the images; None means as the height. Signals have none.

    Returns:
        M with `conv(x).flatten(1) = M.matmul(x.flatten(1)) + M.offset`. It shares the filters of the layer.
        `M.displacement_rank()` is its displacement rank by the moves that `M.operators()` gives,
        `torchldr.algebra.convert(M, "toeplitz_like")` the same matrix by its generators with respect to Z_1
        and Z_{-1}.

    Examples:
        >>> M = conv_to_matrix(nn.Conv2d(3, 3, 5, padding=2, bias=False), 32)
        >>> M.shape, M.displacement_rank()
        (torch.Size([3072, 3072]), 192)
        >>> conv_to_matrix(nn.Conv1d(1, 1, 5, padding=2), 64).displacement_rank()
        2
    """
    who = "conv_to_matrix"
    if not isinstance(conv, nn.Conv1d | nn.Conv2d):
        raise TypeError(f"{who}: expected an nn.Conv1d or nn.Conv2d, got {type(conv).__name__}.")
    if conv.padding_mode not in ("zeros", "circular"):
        raise ValueError(
            f"{who}: padding_mode must be 'zeros' or 'circular', got {conv.padding_mode!r}: with others the "
            "matrix is not the same along its diagonals."
        )
    if isinstance(conv, nn.Conv1d):
        if width is not None:
            raise ValueError(f"{who}: the signals of an nn.Conv1d have no width, got width={width}.")
        sizes: tuple[int, ...] = (height,)
    else:
        sizes = (height, height if width is None else width)
    for name, size in zip(("height", "width"), sizes, strict=False):
        if not isinstance(size, int):
            raise TypeError(
                f"{who}: {name} must be an int, got {size!r}; a width comes as an argument of its own."
            )
        check_int(who, name, size)
    axes = [
        Axis(size, kernel, stride, dilation, before, after)
        for size, kernel, stride, dilation, (before, after) in zip(
            sizes, conv.kernel_size, conv.stride, conv.dilation, _padding(conv), strict=True
        )
    ]
    for axis in axes:
        if axis.padded <= axis.reach:
            raise ValueError(
                f"{who}: filters that reach over {axis.reach + 1} entries do not fit into {axis.size} "
                f"entries with padding {axis.before} and {axis.after}."
            )
        if conv.padding_mode == "circular" and max(axis.before, axis.after) > axis.size:
            raise ValueError(
                f"{who}: circular padding of {max(axis.before, axis.after)} goes more than once around "
                f"{axis.size} entries."
            )
    circular = conv.padding_mode == "circular"
    return ConvolutionMatrix(conv.weight, axes, groups=conv.groups, circular=circular, bias=conv.bias)


def _padding(conv: nn.Conv1d | nn.Conv2d) -> list[tuple[int, int]]:
    """Before and behind each axis, as the layer pads."""
    if conv.padding == "valid":
        return [(0, 0)] * len(conv.kernel_size)
    if conv.padding == "same":  # an odd one goes behind
        reaches = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        return [(reach // 2, reach - reach // 2) for reach in reaches]
    return [(p, p) for p in cast(tuple[int, ...], conv.padding)]
