"""A copy of a model whose structured layers are plain modules: constants and well-known operations."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..core.stacks import unbound
from ..functional.exported.convolution import numbers
from ..functional.exported.dense import DenseWeight
from ..matrices import StructuredMatrix
from ..nn import StructuredChannels, StructuredLinear
from ..nn.freeze import thawed
from ..nn.recurrent.base import StructuredRecurrent
from ..nn.replace import plain_linear, replace_modules
from ..nn.tensors import runs_as_made
from .forms import product_module
from .recurrent import run_in_loops_

DOMAIN, OPERATOR = "torchldr", "Product"  # of the node that stands for a product
Held = list[tuple[nn.Module, int]]  # products that stand aside, and their in_features


class ExportedLayer(NamedTuple):
    """What became of one structured matrix, or of the matrices of one layer."""

    name: str
    structure: str
    out_features: int
    in_features: int
    form: str
    numbers: int  # kept as constants

    def __str__(self) -> str:
        shape = f"{self.out_features} x {self.in_features}"
        return f"{self.name or 'the model'}: {self.structure}, {shape}: {self.form}, {self.numbers:,} numbers"


class FlatLinear(nn.Module):
    """y = product(x) + bias with any leading axes."""

    def __init__(self, product: nn.Module, bias: Tensor | None, out_features: int) -> None:
        super().__init__()
        self.product, self.out_features = product, out_features
        self.register_buffer("bias", None if bias is None else bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x if x.ndim == 2 else x.reshape(-1, x.shape[-1]))
        y = y if self.bias is None else y + self.bias
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], self.out_features)


class StackedProduct(nn.Module):
    """The products of several matrices with the same vectors, side by side: (b, n) to (b, matrices * m)."""

    def __init__(self, products: list[nn.Module]) -> None:
        super().__init__()
        self.products = nn.ModuleList(products)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([product(x) for product in self.products], -1)


class ChannelProducts(nn.Module):
    """StructuredChannels with a product for every pair of channels, or one for all of them."""

    bias: Tensor | None

    def __init__(self, layer: StructuredChannels, products: list[list[nn.Module]]) -> None:
        super().__init__()
        self.products = nn.ModuleList(nn.ModuleList(row) for row in products)
        self.parts = len(products[0])
        self.axes = len(layer.features)
        self.out_channels, self.out_features = layer.out_channels, layer.out_features
        self.register_buffer(
            "bias", None if layer.bias is None else layer.bias.detach().unsqueeze(-1).clone()
        )

    def forward(self, x: Tensor) -> Tensor:
        lead, channels = x.shape[: -1 - self.axes], x.shape[-1 - self.axes :]
        x = x.reshape(-1, self.parts, channels.numel() // self.parts)
        rows = []
        for row in self.products:
            parts = [product(x[:, i]) for i, product in enumerate(cast(nn.ModuleList, row))]
            rows.append(torch.stack(parts).sum(0) if len(parts) > 1 else parts[0])
        y = torch.stack(rows, 1).reshape(-1, self.out_channels, math.prod(self.out_features))
        y = y if self.bias is None else y + self.bias
        return y.reshape(*lead, self.out_channels, *self.out_features)


class Placeholder(nn.Module):
    """A product as the exporter sees it: one node, replaced by `graph.expand`."""

    def __init__(self, index: int, out_features: int) -> None:
        super().__init__()
        self.index, self.out_features = index, out_features

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.out_features)
        return torch.onnx.ops.symbolic(
            f"{DOMAIN}::{OPERATOR}", (x,), {"index": self.index}, dtype=x.dtype, shape=shape, version=1
        )


class _Maker:
    """Replacements in one mode, and what was done."""

    def __init__(self, mode: str, plan: str, held: Held | None) -> None:
        self.mode, self.plan, self.held = mode, plan, held
        self.rows: list[ExportedLayer] = []

    def product(self, matrix: StructuredMatrix) -> nn.Module:
        return product_module(matrix, self.mode, self.plan, grow=self.held is not None)

    def shown(self, product: nn.Module, matrix: StructuredMatrix) -> nn.Module:
        """What the exporter sees of a product: the product itself, or a placeholder for it."""
        if self.held is None or isinstance(product, DenseWeight):
            return product
        self.held.append((product, matrix.in_features))
        return Placeholder(len(self.held) - 1, matrix.out_features)

    def note(
        self, name: str, structure: type[StructuredMatrix], shape: Any, made: Sequence[nn.Module]
    ) -> None:
        forms = " or ".join(dict.fromkeys(str(part.form) for part in made))
        count = sum(numbers(part) for part in made)
        self.rows.append(ExportedLayer(name, structure.name, int(shape[0]), int(shape[1]), forms, count))

    def linear(self, name: str, layer: StructuredLinear) -> nn.Module:
        matrix = layer.matrix()
        product = self.product(matrix)
        self.note(name, layer.structure, matrix.shape, [product])
        if not isinstance(product, DenseWeight):
            return FlatLinear(self.shown(product, matrix), layer.bias, layer.out_features)
        return plain_linear(product.weight, layer.bias, learned=False)

    def channels(self, name: str, layer: StructuredChannels) -> nn.Module:
        grid = layer.grid
        assert grid is not None
        matrices = unbound(grid.matrix())
        products = [self.product(matrix) for matrix in matrices]
        self.note(name, grid.structure, matrices[0].shape, products)
        if all(isinstance(product, DenseWeight) for product in products):
            return ChannelProducts(layer, [[DenseWeight(layer.weight)]])
        shown, n = list(map(self.shown, products, matrices)), layer.in_channels
        return ChannelProducts(layer, [shown[i : i + n] for i in range(0, len(shown), n)])

    def recurrent_(self, name: str, layer: StructuredRecurrent) -> None:
        """Let a layer multiply by products that are modules, in place."""
        _keep_a_parameter_(layer)
        for part, stack in layer._stacks().items():
            matrices = list(stack.matrix())
            products = [self.product(matrix) for matrix in matrices]
            self.note(f"{name}.{part}".lstrip("."), stack.structure, matrices[0].shape, products)
            dense = [product.weight for product in products if isinstance(product, DenseWeight)]
            layer._modules[part] = (
                DenseWeight(torch.cat(dense))
                if len(dense) == len(products)
                else StackedProduct(list(map(self.shown, products, matrices)))
            )
        run_in_loops_(layer, onnx=self.held is not None)


def _keep_a_parameter_(layer: nn.Module) -> None:
    """One without numbers where others become constants: the layer asks its first one for its dtype."""
    like = next(layer.parameters())
    layer.register_parameter("_like", nn.Parameter(like.new_empty(0), requires_grad=False))


@torch.no_grad()
def exportable(
    model: nn.Module, mode: str, plan: str = "auto", held: Held | None = None
) -> tuple[nn.Module, list[ExportedLayer]]:
    """A copy of a model, on the CPU and in `eval()`, that exporters take, and what became of its layers.

    Structured layers become plain modules, in the places of the originals; a layer that is used twice
    becomes one module.

    Args:
        model: any module.
        mode, plan: see `forms.product_module`.
        held: where to keep products that the exporter sees as placeholders, by the index of these; None
            shows it the products themselves, and then no graph computes a matrix from its parameters.
    """
    model = copy.deepcopy(thawed(model)).cpu().eval()
    made: dict[nn.Module, nn.Module] = {}
    maker = _Maker(mode, plan, held)
    for name, module in list(model.named_modules()):
        if isinstance(module, StructuredLinear | StructuredChannels) and not runs_as_made(module):
            continue
        if isinstance(module, StructuredLinear):
            made[module] = maker.linear(name, module)
        elif isinstance(module, StructuredChannels) and module.grid is not None:
            made[module] = maker.channels(name, module)
        elif isinstance(module, StructuredChannels):
            _keep_a_parameter_(module)  # its one matrix is a StructuredLinear
        elif isinstance(module, StructuredRecurrent):
            maker.recurrent_(name, module)
    replace_modules(model, made)
    return made.get(model, model).eval().requires_grad_(False), maker.rows


def check_weights(who: str, model: nn.Module, *dtypes: torch.dtype) -> None:
    """Errors for weights in other dtypes than these, which products run in, and for weights that
    pruning computes and torch cannot copy."""
    for path, module in model.named_modules():
        for leaf, value in vars(module).items():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                shown = f"{path}.{leaf}".removeprefix(".")
                raise ValueError(
                    f"{who}: {shown} is no parameter but computed, as by torch.nn.utils.prune: its `remove`, "
                    "or that of torch.nn.utils.weight_norm, makes it one."
                )
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype not in dtypes:
            known = " and ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise TypeError(
                f"{who}: {name} has dtype {tensor.dtype}, only {known} are exported; convert the model with "
                "model.float()."
            )
