"""The paper's networks for images, with any structured class for the layers that are compressed.

    shl   pixels -> hidden (structured, no bias) -> ReLU -> logits
    cnn   two stages of 5x5 convolution, ReLU and 2x2 max-pooling (6 and 16 channels)
          -> hidden (structured, with bias) -> ReLU -> logits

The hidden layer is square, 784 or 1024 on the paper's images. Baselines are the dense layer, fewer
hidden units (RHU), and a dense layer pruned by magnitude and trained again.

Where convolutions are replaced, a first layer stands in front of a hidden layer of 512 units, both without
bias unless a run has one:

    conv3, conv3_pool, conv4_pool   3 or 4 channels of 5x5 convolutions -> ReLU (-> 2x2 max-pooling)
    channels                        a structured matrix for every pair of channels -> ReLU
    wide                            one structured matrix for all channels, of as many times the rank -> ReLU
    channels_square, wide_square    the same, the hidden layer the first rows of a square matrix
    channels_blocks, wide_blocks    the same, the hidden layer a row of square matrices of 512, as the
                                    authors' code has it; both have as many parameters as the paper counts
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, max_pool2d, relu

from torchldr.nn import StructuredChannels, StructuredLinear

from ..protocol import CONVOLUTIONS, REPLACEMENTS, Run

CHANNELS = (6, 16)
REPLACED_UNITS = 512  # hidden units behind convolutions and what replaces them
_SCALED = ("G", "H", "weight", "column", "S")  # the tensors that `init_std` draws


class PrunedLinear(nn.Linear):
    """nn.Linear of which only some weights are left: y = x (mask * weight)^T + b.

    Attributes:
        mask: 1 for a weight that is kept and 0 for one that is pruned, shape of `weight`. A buffer, so
            it moves and is saved with the layer. The fleet fills it by `magnitude_mask`.
    """

    mask: Tensor

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)
        self.register_buffer("mask", torch.ones_like(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight * self.mask, self.bias)


def magnitude_mask(weight: Tensor, keep: int) -> Tensor:
    """1 at the `keep` entries of largest magnitude of each matrix of (..., m, n), 0 elsewhere."""
    flat = weight.flatten(-2)
    chosen = flat.abs().topk(keep, dim=-1, sorted=False).indices
    return torch.zeros_like(flat).scatter_(-1, chosen, 1.0).view_as(weight)


class SingleHiddenLayer(nn.Module):
    """The paper's single-hidden-layer network.

    Args:
        hidden: the hidden layer, pixels to hidden units.
        logits: the output layer.
        gain: what the hidden layer's outputs are multiplied by.

    Shape:
        Input (b, ...) of images or rows, output (b, classes).
    """

    def __init__(self, hidden: nn.Module, logits: nn.Linear, gain: float = 1.0) -> None:
        super().__init__()
        self.hidden, self.logits, self.gain = hidden, logits, gain

    def features(self, x: Tensor) -> Tensor:
        """What the hidden layer sees, (b, pixels)."""
        return x.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(relu(self.gain * self.hidden(self.features(x))))


class ConvNet(SingleHiddenLayer):
    """The paper's LeNet-like network: two convolutions in front of the same two layers.

    Shape:
        Input (b, channels, height, width), output (b, classes).
    """

    def __init__(self, channels: int, hidden: nn.Module, logits: nn.Linear) -> None:
        super().__init__(hidden, logits)
        self.conv1 = nn.Conv2d(channels, CHANNELS[0], 5, padding=2)
        self.conv2 = nn.Conv2d(CHANNELS[0], CHANNELS[1], 5, padding=2)

    def features(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2):
            x = max_pool2d(relu(conv(x)), 2)
        return x.flatten(1)


class CroppedLinear(StructuredLinear):
    """The first rows of a square structured matrix, y = (x M^T)[:units], without bias."""

    def __init__(self, in_features: int, units: int, **options: Any) -> None:
        super().__init__(in_features, in_features, False, **options)
        self.units = units

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., : self.units]


class BlockedLinear(nn.Module):
    """A row of square structured matrices side by side, y = sum_i M_i x_i + b; b starts at 0.

    `in_features` is a multiple of `units`, the size of the matrices.
    """

    bias: nn.Parameter | None

    def __init__(self, in_features: int, units: int, bias: bool = False, **options: Any) -> None:
        super().__init__()
        assert in_features % units == 0
        self.blocks = StructuredChannels(in_features // units, 1, units, bias=False, **options)
        self.register_parameter("bias", nn.Parameter(torch.zeros(units)) if bias else None)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw all parameters anew, in place."""
        self.blocks.reset_parameters(generator)
        if self.bias is not None:
            self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(x.unflatten(-1, (self.blocks.in_channels, -1))).squeeze(-2)
        return y if self.bias is None else y + self.bias


class ReplacedConvolution(SingleHiddenLayer):
    """One layer of convolution channels, or of what replaces them, in front of the hidden layer.

    Args:
        front: from (b, channels, height, width) to the same with other channels.
        pool: whether 2x2 max-pooling follows.
        hidden, logits: as in `SingleHiddenLayer`.
        biases: where given, so many biases are added to what comes out of the front, one a pixel and channel.
        front_gain: what comes out of the front is multiplied by it before.
    """

    def __init__(
        self,
        front: nn.Conv2d | StructuredChannels,
        pool: bool,
        hidden: nn.Module,
        logits: nn.Linear,
        biases: int | None = None,
        front_gain: float = 1.0,
    ) -> None:
        super().__init__(hidden, logits)
        self.front, self.pool, self.front_gain = front, pool, front_gain
        self.front_bias = None if biases is None else nn.Parameter(torch.zeros(biases))

    def features(self, x: Tensor) -> Tensor:
        x = self.front(x)
        x = x if self.front_gain == 1 else self.front_gain * x
        if self.front_bias is not None:
            x = x + self.front_bias.view_as(x[0])
        x = relu(x)
        return (max_pool2d(x, 2) if self.pool else x).flatten(1)


def hidden_input(model: str, image_shape: tuple[int, int, int]) -> int:
    """How many numbers the hidden layer receives: 784 and 1024 for the paper's images."""
    channels, height, width = image_shape
    if model == "shl":
        return channels * height * width
    if height < 4 or width < 4:
        raise ValueError(f"cnn: two 2x2 poolings need images of at least 4 x 4, got {height} x {width}.")
    return CHANNELS[1] * (height // 2 // 2) * (width // 2 // 2)


def build_model(
    run: Run, image_shape: tuple[int, int, int], outputs: int, generator: torch.Generator | None = None
) -> SingleHiddenLayer:
    """The network of a run, freshly initialised.

    Args:
        run: what to build.
        image_shape: (channels, height, width).
        outputs: number of classes to tell apart.
        generator: where the initial weights come from; the same one gives the same network.

    Returns:
        The network on the CPU, in the protocol's dtype.
    """
    replaced = run.model in CONVOLUTIONS or run.model in REPLACEMENTS
    model = (_build_replaced if replaced else _build_plain)(run, image_shape, outputs)
    _initialise_(model, run, generator)
    return model.to(getattr(torch, run.protocol.dtype))


def _build_plain(run: Run, image_shape: tuple[int, int, int], outputs: int) -> SingleHiddenLayer:
    size = hidden_input(run.model, image_shape)
    units, bias = run.hidden or size, run.model == "cnn"
    hidden: nn.Module
    if run.keep is not None:
        if run.keep > size * units:
            raise ValueError(f"Run: keep must be at most {size * units}, all hidden weights, got {run.keep}.")
        hidden = PrunedLinear(size, units, bias)
    else:
        hidden = StructuredLinear(
            size, units, bias, structure=run.structure, rank=run.rank, init=run.init, **dict(run.options)
        )
    logits = nn.Linear(units, outputs)
    if run.model == "cnn":
        return ConvNet(image_shape[0], hidden, logits)
    return SingleHiddenLayer(hidden, logits, run.gain or 1.0)


def _build_replaced(run: Run, image_shape: tuple[int, int, int], outputs: int) -> ReplacedConvolution:
    channels, height, width = image_shape
    units, bias = run.hidden or REPLACED_UNITS, bool(run.bias)
    if run.keep is not None:
        raise ValueError(f"Run: keep prunes the hidden layer of shl and cnn, got model={run.model!r}.")
    common: dict[str, Any] = {"structure": run.structure, "init": run.init, **dict(run.options)}
    logits = nn.Linear(units, outputs)
    if run.model in CONVOLUTIONS:
        out, pool = int(run.model[4]), run.model.endswith("_pool")
        front: nn.Conv2d | StructuredChannels = nn.Conv2d(channels, out, 5, padding=2, bias=bias)
        size = out * (height // 2) * (width // 2) if pool else out * height * width
        hidden: nn.Module = StructuredLinear(size, units, bias, rank=run.rank, **common)
        return ReplacedConvolution(front, pool, hidden, logits)
    size = channels * height * width
    first, _, cut = run.model.partition("_")
    form = "wide" if first == "wide" else "grid"
    given = f"got {units}" + (" units, the default" if run.hidden is None else "")
    if cut == "square" and units > size:
        raise ValueError(
            f"Run: hidden must be at most {size}, the size of an image, {given}: the hidden layer of "
            f"{run.model!r} is cut out of a square one."
        )
    if cut == "blocks" and size % units:
        raise ValueError(
            f"Run: hidden must divide {size}, the size of an image, {given}: the hidden layer of "
            f"{run.model!r} is a row of square ones."
        )
    rank = run.rank if form == "grid" or run.rank is None else channels * run.rank
    front = StructuredChannels(
        channels, channels, (height, width), bias=False, form=form, rank=rank, **common
    )
    match cut:
        case "square":
            hidden = CroppedLinear(size, units, rank=run.rank, **common)
        case "blocks":
            hidden = BlockedLinear(size, units, bias, rank=run.rank, **common)
        case _:
            hidden = StructuredLinear(size, units, bias, rank=run.rank, **common)
    return ReplacedConvolution(front, False, hidden, logits, size if bias else None, run.gain or 1.0)


@torch.no_grad()
def _initialise_(model: SingleHiddenLayer, run: Run, generator: torch.Generator | None) -> None:
    """Draw all weights anew from the generator: torch's own starts, and those of the structure."""
    for layer in model.children():
        if isinstance(layer, StructuredLinear | StructuredChannels | BlockedLinear):
            layer.reset_parameters(generator)
        elif isinstance(layer, nn.Linear | nn.Conv2d):
            bound = layer.weight[0].numel() ** -0.5
            for tensor in (layer.weight, layer.bias):
                if tensor is not None:
                    tensor.uniform_(-bound, bound, generator=generator)
    hidden, std = model.hidden, run.init_std
    front = model.front if isinstance(model, ReplacedConvolution) else None
    if run.bias and run.model in REPLACEMENTS:
        for bias in (model.get_parameter("front_bias"), hidden.get_parameter("bias")):
            bias.zero_()
    if std is None and run.init == "paper" and isinstance(hidden, PrunedLinear):
        std = hidden.in_features**-0.5  # as the dense class starts
    if std is not None:
        for layer in (front, hidden) if isinstance(front, StructuredChannels) else (hidden,):
            for parameter in _scaled(layer):
                parameter.normal_(0, std, generator=generator)
    if isinstance(model, ReplacedConvolution) and model.front_gain != 1:  # the start is that without a gain
        scaled = _scaled(model.front)
        for parameter in scaled:
            parameter.mul_(model.front_gain ** (-1 / len(scaled)))
    if run.output_std is not None:
        model.logits.weight.normal_(0, run.output_std, generator=generator)
        model.logits.bias.zero_()


def _scaled(layer: nn.Module) -> list[nn.Parameter]:
    """The parameters that carry a structured layer's scale."""
    return [p for name, p in layer.named_parameters() if name.split(".")[-1] in _SCALED]


def is_operator(name: str) -> bool:
    """Whether a parameter of this name belongs to an operator of LDR-SD, which `Run.fixed` leaves alone."""
    return name.split(".")[-1].startswith(("subdiagonal_", "corner_"))


def is_penalised(name: str) -> bool:
    """Whether `Run.l1` counts a parameter of this name."""
    return name.startswith("front.") and name.endswith((".G", ".H"))


def count_parameters(model: SingleHiddenLayer, keep: int | None = None, *, fixed: bool = False) -> int:
    """Parameters of the hidden and the output layer, as the paper's tables count them.

    Convolutions are not counted, nor weights that are pruned down to `keep`. Where convolutions are
    replaced it is the other way around: the first layer counts, the output layer and biases do not. Operators
    that are `fixed` do not count.
    """
    layers: tuple[nn.Module, ...] = (model.hidden, model.logits)
    biases = True
    if isinstance(model, ReplacedConvolution):
        layers, biases = (model.front, model.hidden), False
    named = (pair for layer in layers for pair in layer.named_parameters())
    count = sum(
        p.numel()
        for name, p in named
        if not (fixed and is_operator(name)) and (biases or not name.endswith("bias"))
    )
    if keep is not None and isinstance(model.hidden, PrunedLinear):
        count -= model.hidden.weight.numel() - keep
    return count
