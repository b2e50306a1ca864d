"""StructuredChannels: a grid of structured matrices in place of a convolution."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ...core.checks import as_int, check_choices, check_flags, checked_int
from ...core.choice import Products
from ...core.owned import owned
from ...core.products import autocasts, check_like
from ...matrices import StructuredMatrix, get_structure
from ..computed import ComputedWeight
from ..linear import StructuredLinear
from ..parameters import INITS, Multiplying, describe
from ..tensors import in_format_of
from .stack import MatrixStack

FORMS = ("grid", "wide")


class StructuredChannels(ComputedWeight, Multiplying):
    """Map channels to channels by structured matrices on the flattened pixels of each.

    y_o = sum_i M_oi x_i + b_o. In a convolution the M_oi are sparse Toeplitz matrices; here each of the
    `out_channels` x `in_channels` matrices is a member of a structured class. With `form="wide"` the whole
    block matrix is one structured matrix instead, from in_channels * n to out_channels * n' entries.

    Args:
        in_channels, out_channels: as in nn.Conv2d.
        features: entries of an input channel, n, or its shape, such as (32, 32).
        out_features: the same for an output channel; None means as the input.
        bias: whether to learn a bias for each output channel.
        structure: name of a structured class (`torchldr.structures()` lists them), or the class.
        rank: rank of the class's generators; None means 1, or nothing for a class without a rank.
        form: "grid" for a matrix for every pair of channels, "wide" for one matrix in all.
        init: "linear" gives outputs the variance of nn.Linear's; "paper" is the authors' start.
        device, dtype: of the parameters.
        **options: the structure's own options.

    Shape:
        Input (..., in_channels, *features), output (..., out_channels, *out_features), where an int
        stands for one axis.

    Attributes:
        grid: with `form="grid"` the `MatrixStack` of parameters, each with the axes (out_channels,
            in_channels) in front, such as `grid.G` (out_channels, in_channels, r, n').
        wide: with `form="wide"` a `StructuredLinear` without bias.
        bias: (out_channels), or None.
        weight: the dense block matrix (out_channels * n', in_channels * n), computed when asked for.
        product: how the matrices multiply: "fast" by their class's own product, "dense" by the dense block
            matrix, "auto" by the faster one; `products(x)` explains it.

    Examples:
        >>> layer = StructuredChannels(3, 3, (32, 32), structure="ldr_sd", rank=16, bias=False)
        >>> layer(torch.randn(8, 3, 32, 32)).shape
        torch.Size([8, 3, 32, 32])
        >>> sum(p.numel() for p in layer.parameters())
        313344
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        features: int | tuple[int, ...],
        out_features: int | tuple[int, ...] | None = None,
        bias: bool = True,
        *,
        structure: str | type[StructuredMatrix] = "ldr_sd",
        rank: int | None = None,
        form: str = "grid",
        init: str = "linear",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        who = "StructuredChannels"
        in_channels = checked_int(who, "in_channels", in_channels)
        out_channels = checked_int(who, "out_channels", out_channels)
        check_choices(who, form=(form, FORMS), init=(init, INITS))
        check_flags(who, bias=bias)
        self.in_channels, self.out_channels, self.form, self.init = in_channels, out_channels, form, init
        self.features = _shape(who, "features", features)
        out = features if out_features is None else out_features
        self.out_features = _shape(who, "out_features", out)
        self.grid: MatrixStack | None = None
        self.wide: StructuredLinear | None = None
        n, m = math.prod(self.features), math.prod(self.out_features)
        common: dict[str, Any] = {"structure": structure, "rank": rank, "device": device, "dtype": dtype}
        if form == "grid":
            common |= {"options": options, "layer": StructuredChannels}
            self.grid = MatrixStack((out_channels, in_channels), n, m, **common)
        else:
            get_structure(structure).check_options(options, StructuredChannels)
            self.wide = StructuredLinear(
                in_channels * n, out_channels * m, False, init=init, **common, **options
            )
        empty = torch.empty(out_channels, device=device, dtype=dtype)
        self.register_parameter("bias", nn.Parameter(empty) if bias else None)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all parameters anew, in place."""
        if self.grid is not None:
            self.grid.reset_parameters(generator, init=self.init, gain=self.in_channels**-0.5)
        if self.wide is not None:
            self.wide.reset_parameters(generator)
        if self.bias is not None:
            bound = (self.in_channels * math.prod(self.features)) ** -0.5
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)

    def matrix(self, *index: int) -> StructuredMatrix:
        """`matrix(o, i)` leads from channel i to channel o; the wide form has one matrix, `matrix()`."""
        if len(index) != (2 if self.grid is not None else 0):
            wanted = "matrix(out_channel, in_channel)" if self.grid is not None else "matrix()"
            raise TypeError(f"StructuredChannels: the form {self.form!r} has {wanted}, got {index}.")
        return self.grid.matrix()[index] if self.grid is not None else self._wide().matrix()

    @property
    def weight(self) -> Tensor:
        """The dense block matrix, shape (out_channels * n', in_channels * n), differentiable.

        Computed at each access. Writing into it (`copy_`, `nn.init.zeros_`) does not change the layer.
        """
        if self.grid is None:
            return self._wide().weight
        return _as_block_matrix(self.grid.dense())

    @weight.setter
    def weight(self, value: Tensor) -> None:
        self._check_weight_is_learned()

    def products(self, x: Tensor | int = 64) -> Products:
        """Both products of one matrix for these inputs, or for so many, in words, and which is taken."""
        if isinstance(x, Tensor):
            x = x.numel() // (self.in_channels * math.prod(self.features))
        return self._wide().products(x) if self.grid is None else self.grid.matrix().products(as_int(x))

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        x = owned(input)
        lead, axes = x.shape[: x.ndim - 1 - len(self.features)], len(self.features)
        flat = x.flatten(-axes) if axes > 1 else x
        y = self._multiply(flat.reshape(-1, self.in_channels, flat.shape[-1]))
        if self.bias is not None:
            y = y + self.bias.to(y.dtype).unsqueeze(-1)
        return in_format_of(y.reshape(*lead, self.out_channels, *self.out_features), x)

    def _multiply(self, x: Tensor) -> Tensor:
        """(b, in_channels, n) to (b, out_channels, n')."""
        shape = (x.shape[0], self.out_channels, math.prod(self.out_features))
        if self.grid is None:
            return self._wide()(x.flatten(1)).reshape(shape)
        matrix = self.grid.matrix()
        taken = self.product if self.product != "auto" else matrix.product_for(x[:, 0])
        if taken == "dense":
            return linear(x.flatten(1), _as_block_matrix(_dense_like(matrix, x))).reshape(shape)
        y = matrix.multiply(x.transpose(0, 1), product="fast")  # (out_channels, in_channels, b, n')
        return y.sum(1).transpose(0, 1)

    def _wide(self) -> StructuredLinear:
        assert self.wide is not None
        return self.wide

    def _check(self, x: Tensor) -> None:
        who, some = "StructuredChannels", next(self.parameters())
        if not isinstance(x, Tensor):
            raise TypeError(f"{who}: expected a tensor, got {type(x).__name__}.")
        wanted = (self.in_channels, *self.features)
        if x.ndim < len(wanted) or x.shape[-len(wanted) :] != wanted:
            raise ValueError(f"{who}: the last axes must be {wanted}, got shape {tuple(x.shape)}.")
        check_like(who, x, some)

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, features={_short(self.features)}"]
        parts += [f"out_features={_short(self.out_features)}", f"bias={self.bias is not None}"]
        if self.grid is not None:
            parts.append(describe(self.grid))
        parts += [f"form={self.form!r}"]
        parts += [f"init={self.init!r}"] if self.init != "linear" else []
        parts += [f"product={self.product!r}"] if self.product != "auto" else []
        return ", ".join(parts)


def _dense_like(matrix: StructuredMatrix, x: Tensor) -> Tensor:
    """The dense matrices in the dtype that x multiplies in."""
    if matrix.dtype == torch.float64 or not autocasts(x.device.type):
        return matrix.materialize()
    with torch.autocast(x.device.type, enabled=False):
        return matrix.dense_in(torch.get_autocast_dtype(x.device.type))


def _as_block_matrix(grid: Tensor) -> Tensor:
    """(out_channels, in_channels, n', n) to (out_channels * n', in_channels * n)."""
    return grid.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def _shape(who: str, name: str, features: int | tuple[int, ...]) -> tuple[int, ...]:
    shape = tuple(map(as_int, features if isinstance(features, tuple) else (features,)))
    if not shape or any(not isinstance(size, int) or isinstance(size, bool) for size in shape):
        raise TypeError(f"{who}: {name} must be an int or a tuple of ints, got {features!r}.")
    if min(shape) < 1:
        raise ValueError(f"{who}: {name} must be at least 1, got {features!r}.")
    return shape


def _short(shape: tuple[int, ...]) -> str:
    return str(shape[0] if len(shape) == 1 else shape)
