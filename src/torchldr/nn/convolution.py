"""The matrix of a convolution layer."""

from __future__ import annotations

from typing import cast

from torch import nn

from ..core.checks import as_int, checked_int
from ..matrices.classical.convolution import Axis, ConvolutionMatrix


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
    sizes = tuple(map(as_int, sizes))
    for name, size in zip(("height", "width"), sizes, strict=False):
        if not isinstance(size, int):
            raise TypeError(
                f"{who}: {name} must be an int, got {size!r}; a width comes as an argument of its own."
            )
        checked_int(who, name, size)
    parts = zip(sizes, conv.kernel_size, conv.stride, conv.dilation, _padding(conv), strict=True)
    axes = [Axis(size, kernel, stride, dilation, *around) for size, kernel, stride, dilation, around in parts]
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
