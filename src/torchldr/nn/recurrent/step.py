"""One step of a recurrent layer as a module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..tensors import let_prune
from .inputs import take


class RecurrentStep(nn.Module):
    """One step of a forward recurrent layer, for decoding and export.

    Args:
        layer: a StructuredLSTM or StructuredGRU, which still owns the parameters.

    Shape:
        Input (batch, input_size) and the state of the layer, (num_layers, batch, size) for each part;
        output (batch, size) and the next state. It uses the plain update equations, so an exported program
        does not need this package.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        if layer.bidirectional:
            raise ValueError("RecurrentStep: a bidirectional layer needs whole sequences, not one step.")
        self.layer = layer

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        layer = self.layer
        if not isinstance(x, Tensor) or x.ndim != 2:
            came = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"RecurrentStep: the input must have shape (batch, input_size), got {came}.")
        let_prune(layer)
        some = next(layer.parameters())
        given = take("RecurrentStep", x.unsqueeze(0), layer.input_size, some, batch_first=False)
        dense = {name: layer._takes_dense(name) for name in layer._stacks()}
        output, state = layer._run_steps(given, layer._start(given, hx), dense)
        return output.squeeze(0), state if len(state) > 1 else state[0]
