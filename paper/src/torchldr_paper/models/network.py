"""One network with a replica axis: the parameters of all replicas in one matrix, and its forward pass.

Row i of `flat` (R, length) holds all parameters of replica i, one after the other. A step of the
optimiser is then two operations however many parameters a network has, a replica is a row to copy,
freeze or save, and its learning rate a number beside the row. `parts` gives the parameters back as
views (R, ...); their gradients come back by one concatenation. The matrices of a structured layer have the
replicas as their leading axis, (R,), and a grid of channels the grid's as well, (R, out, in): torchldr
multiplies all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, relu

from torchldr.matrices import StructuredMatrix
from torchldr.nn import MatrixStack, StructuredChannels, StructuredLinear

from . import images
from .stage import stage

Tensors = Mapping[str, Tensor]


class StackedLayer:
    """A `StructuredLinear` or `StructuredChannels` of one replica, with a replica axis and no bias."""

    def __init__(self, layer: nn.Module, name: str) -> None:
        matrices: StructuredLinear | MatrixStack
        self._grid: tuple[int, int] | None = None
        prefix = f"{name}."
        if not isinstance(layer, StructuredLinear | StructuredChannels):
            raise TypeError(f"StackedLayer: cannot stack {name!r}, a {type(layer).__name__}.")
        if isinstance(layer, StructuredLinear):
            matrices = layer
        elif layer.grid is not None:
            matrices, prefix = layer.grid, f"{name}.grid."
            self._grid = layer.out_channels, layer.in_channels
        elif layer.wide is not None:
            matrices, prefix = layer.wide, f"{name}.wide."
        self._prefix = prefix
        self._units = layer.units if isinstance(layer, images.CroppedLinear) else None
        self.structure, self._like = matrices.structure, matrices.matrix()

    def matrix(self, network: Tensors) -> StructuredMatrix:
        """The matrices of all replicas, from the network's tensors by name."""
        own = {
            name.removeprefix(self._prefix): tensor
            for name, tensor in network.items()
            if name.startswith(self._prefix) and not name.endswith(".bias")
        }
        return self._like.with_tensors(own)

    def __call__(self, network: Tensors, x: Tensor) -> Tensor:
        """Rows (b, n) common to all replicas, or (R, b, n), to (R, b, m)."""
        M = self.matrix(network)
        if self._grid is None:
            return M.matmul(x)[..., : self._units]
        # Channels (in, b, n), with replicas or without.
        channels = x.unflatten(-1, (self._grid[1], -1)).transpose(-3, -2)
        y = M.matmul(channels.unsqueeze(-4))  # (R, out, in, b, m)
        return y.sum(2).transpose(1, 2).flatten(2)

    def transposed(self, network: Tensors) -> Tensor:
        """The transposed dense matrices, (R, n, m)."""
        W = self.matrix(network).materialize()
        if self._grid is None:
            return W.mT[..., : self._units]
        return W.movedim(1, 2).transpose(-1, -2).transpose(2, 3).flatten(3).flatten(1, 2)


ALIGNMENT = 64  # numbers: parameters and rows begin at multiples of it, as vector loads like


class Layout:
    """Where each parameter of a network lies in a row of `flat`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        self.sizes: list[int] = []  # of parameters and of the gaps behind them, alternating
        for shape in self.shapes.values():
            self.sizes += [shape.numel(), -shape.numel() % ALIGNMENT]
        self.length = sum(self.sizes)

    def pack(self, models: Sequence[torch.nn.Module]) -> Tensor:
        """The parameters of the replicas, shape (R, length), gaps 0."""
        flat = torch.zeros(len(models), self.length, dtype=next(models[0].parameters()).dtype)
        for row, model in zip(flat, models, strict=True):
            for part, parameter in zip(row.split(self.sizes)[::2], model.parameters(), strict=True):
                part.copy_(parameter.detach().flatten())
        return flat

    def parts(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of `flat` by name, (R, ...) from (R, length) or (...) from one row."""
        pieces = flat.split(self.sizes, -1)[::2]
        return {
            name: piece.unflatten(-1, shape) if shape else piece.squeeze(-1)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }


def with_bias(parts: Tensors, hidden: Tensor) -> Tensor:
    """The hidden layers' outputs, (R, b, m), with their biases where they have any."""
    return hidden + parts["hidden.bias"].unsqueeze(1) if "hidden.bias" in parts else hidden


def logits_of(parts: Tensors, hidden: Tensor) -> Tensor:
    """What the output layers make of the hidden layers' outputs before their biases."""
    weight, bias = parts["logits.weight"], parts["logits.bias"]
    return torch.baddbmm(bias.unsqueeze(1), relu(with_bias(parts, hidden)), weight.mT)


class StackedNetwork:
    """The networks of a run as one function of (flat, x).

    Args:
        models: the replicas, freshly initialised, on the CPU.
        device: where to compute.
        fixed: whether the operators of LDR-SD get no gradient, see `Run.fixed`.

    Attributes:
        layout: of the parameters.
        drawn: what each replica holds besides parameters, drawn constants and pruning masks, with a replica
            axis.
        buffers: these and the computed constants, which all share.
    """

    def __init__(
        self, models: Sequence[images.SingleHiddenLayer], device: torch.device, *, fixed: bool = False
    ) -> None:
        self._model = model = models[0]
        self._fixed, self.layout, self.device, self.replicas = fixed, Layout(model), device, len(models)
        persistent = set(model.state_dict())
        named = dict(model.named_buffers())
        self.drawn = {
            name: torch.stack([m.get_buffer(name) for m in models]).to(device)
            for name in named
            if name in persistent
        }
        self.buffers = {name: buffer.to(device) for name, buffer in named.items()} | self.drawn
        self._front: StackedLayer | None = None
        if isinstance(model, images.ReplacedConvolution) and isinstance(model.front, StructuredChannels):
            self._front = StackedLayer(model.front, "front")
        hidden, name = model.hidden, "hidden"
        if isinstance(hidden, images.BlockedLinear):
            hidden, name = hidden.blocks, "hidden.blocks"
        pruned = isinstance(hidden, images.PrunedLinear)
        self._layer = None if pruned else StackedLayer(hidden, name)

    def logits(self, flat: Tensor, x: Tensor) -> Tensor:
        """Logits of a batch for every replica: (R, length) and (b, ...) to (R, b, classes)."""
        parts = self.layout.parts(flat)
        if self._fixed:
            parts = {
                name: part.detach() if images.is_operator(name) else part for name, part in parts.items()
            }
        return logits_of(parts, self._hidden(parts, self._features(parts, x)))

    def _features(self, parts: Tensors, x: Tensor) -> Tensor:
        """What the hidden layer sees: rows (b, n) common to all replicas, or (R, b, n)."""
        if isinstance(self._model, images.ReplacedConvolution):
            return self._first_layer(self._model, parts, x)
        if not isinstance(self._model, images.ConvNet):
            return x
        x = x.unsqueeze(0)
        for name in ("conv1", "conv2"):
            x = stage(x, parts[f"{name}.weight"], parts[f"{name}.bias"])
        return x.flatten(2)

    def _first_layer(self, model: images.ReplacedConvolution, parts: Tensors, x: Tensor) -> Tensor:
        """Convolutions or what replaces them: images (b, c, h, w) to (R, b, n)."""
        if self._front is not None:
            y = self._front({**parts, **self.buffers}, x.flatten(1))
            y = y if model.front_gain == 1 else model.front_gain * y
            return relu(y + parts["front_bias"].unsqueeze(1) if "front_bias" in parts else y)
        weight, bias = parts["front.weight"], parts.get("front.bias")
        if model.pool:
            bias = weight.new_zeros(weight.shape[:2]) if bias is None else bias
            return stage(x.unsqueeze(0), weight, bias).flatten(2)
        y = conv2d(x, weight.flatten(0, 1), None if bias is None else bias.flatten(), padding=2)
        return relu(y).unflatten(1, weight.shape[:2]).flatten(2).transpose(0, 1)

    def _hidden(self, parts: Tensors, x: Tensor) -> Tensor:
        if self._layer is None:
            return torch.matmul(x, (parts["hidden.weight"] * self.buffers["hidden.mask"]).mT)
        y = self._layer({**parts, **self.buffers}, x)
        return y if self._model.gain == 1 else self._model.gain * y

    # Evaluation.

    @torch.no_grad()
    def score(self, flat: Tensor, x: Tensor, y: Tensor, rows: Tensor | None = None) -> Tensor:
        """How many images (or those in `rows`) each replica classifies rightly, and the sum of its losses.

        Shape (2, R), float64.

        The hidden layers' matrices are computed once and multiplied as dense ones, except where their own
        product is no dearer.
        """
        parts = self.layout.parts(flat)
        weight = self._materialized(parts)
        total = torch.zeros(2, self.replicas, dtype=torch.float64, device=self.device)
        # Images at a time: on a GPU some gigabyte of activations, on a CPU what a cache holds.
        several = isinstance(self._model, images.ConvNet | images.ReplacedConvolution)
        per_image = math.prod(x.shape[1:]) * (8 if several else 1) * self.replicas
        size = max(1, (1 << (28 if self.device.type == "cuda" else 22)) // per_image)
        count = len(x) if rows is None else len(rows)
        for start in range(0, count, size):
            part = slice(start, start + size) if rows is None else rows[start : start + size]
            features = self._features(parts, x[part])
            hidden = self._hidden(parts, features) if weight is None else torch.matmul(features, weight)
            logits, labels = logits_of(parts, hidden), y[part].expand(self.replicas, -1)
            total[0] += (logits.argmax(-1) == labels).sum(-1)
            total[1] -= logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).sum((1, 2))
        return total

    def _materialized(self, parts: Tensors) -> Tensor | None:
        """M^T of every replica, (R, n, m), or None to multiply by the structure's own product."""
        if self._layer is None:
            return (parts["hidden.weight"] * self.buffers["hidden.mask"]).mT
        if self._layer.structure.name in ("dense", "low_rank"):
            return None
        return self._model.gain * self._layer.transposed({**parts, **self.buffers})
