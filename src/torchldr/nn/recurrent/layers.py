"""StructuredLSTM and StructuredGRU: structured matrices in the gates of torch's recurrent layers."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from ...core.structures import unstructured
from ...functional.recurrence import Product, State, gru_step, lstm_step
from ...matrices import StructuredMatrix
from .base import Settings, StructuredRecurrent, arguments_of
from .inputs import Given


class StructuredLSTM(StructuredRecurrent):
    """nn.LSTM whose gates have a structured matrix each.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout: as in nn.LSTM.
        bidirectional, proj_size, device, dtype: as in nn.LSTM.
        structure: name of a structured class (`torchldr.structures()` lists them), or the class.
        rank: rank of the class's generators; None means 1, or nothing for a class without a rank.
        which: which matrices are structured: "input" those that multiply the input (W_ii, W_if, W_ig,
            W_io, the paper's choice), "hidden" those that multiply the state (W_hi, ...), or "both".
        init: "linear" gives all weights the variance of nn.LSTM's; "paper" is the authors' start of the
            structured matrices, the others as before.
        **options: the structure's own options.

    Shape:
        Input, output and states as in nn.LSTM: (steps, batch, input_size), with `batch_first` (batch,
        steps, input_size), without a batch (steps, input_size), or a PackedSequence.

    Attributes:
        weight_ih_l[k], weight_hh_l[k]: the matrices of layer k, with `_reverse` after the name for the
            other direction. A structured one is a `MatrixStack` with the parameters of its class, such
            as `weight_ih_l0.G`, each with an axis for the gates i, f, g, o in front. The others are
            parameters as in nn.LSTM.
        bias_ih_l[k], bias_hh_l[k], weight_hr_l[k]: parameters, as in nn.LSTM.
        product: "dense" makes dense matrices once a call, "fast" multiplies by each class's own product,
            "auto" makes them where they are not too large.

    With dense weights torch's own recurrence runs on them. With fast products the input products of all
    steps are computed before the recurrence.

    Examples:
        >>> lstm = StructuredLSTM(128, 128, structure="ldr_sd", rank=1)
        >>> output, (h, c) = lstm(torch.randn(35, 20, 128))
        >>> output.shape, h.shape
        (torch.Size([35, 20, 128]), torch.Size([1, 20, 128]))
        >>> sum(p.numel() for p in lstm.weight_ih_l0.parameters())
        2048
    """

    gates, state_names, torch_class = "ifgo", ("h_0", "c_0"), nn.LSTM

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        structure: str | type[StructuredMatrix] = "ldr_sd",
        rank: int | None = None,
        which: str = "input",
        init: str = "linear",
        **options: Any,
    ) -> None:
        layout = (num_layers, bias, batch_first, dropout, bidirectional, device, dtype)
        structured = {"structure": structure, "rank": rank, "which": which, "init": init, **options}
        super().__init__(input_size, hidden_size, *layout, proj_size=proj_size, **structured)

    def _torch(self, given: Given, state: State, settings: Settings) -> tuple[Tensor, ...]:
        if given.batch_sizes is None:
            return torch.lstm(given.data, state, *settings, False)
        return torch.lstm(given.data, given.batch_sizes, state, *settings)

    def _step(self, x: Tensor, state: State, hidden: Product, suffix: str) -> State:
        return lstm_step(x, state, hidden, getattr(self, f"weight_hr{suffix}") if self.proj_size else None)

    @classmethod
    def from_torch(cls, lstm: nn.LSTM) -> Self:
        """A layer with `structure="dense"` and the weights of an nn.LSTM: the same numbers."""
        return _from_torch(cls, lstm)


class StructuredGRU(StructuredRecurrent):
    """nn.GRU whose gates have a structured matrix each.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, device, dtype:
            as in nn.GRU.
        structure, rank, which, init, **options: as in `StructuredLSTM`; the matrices are W_ir, W_iz,
            W_in and W_hr, W_hz, W_hn.

    Shape and attributes as in `StructuredLSTM`, with the gates r, z, n.

    Examples:
        >>> gru = StructuredGRU(64, 32, structure="toeplitz_like", rank=2, which="both")
        >>> output, h = gru(torch.randn(7, 3, 64))
        >>> output.shape, h.shape
        (torch.Size([7, 3, 32]), torch.Size([1, 3, 32]))
    """

    gates, state_names, torch_class = "rzn", ("h_0",), nn.GRU

    def _torch(self, given: Given, state: State, settings: Settings) -> tuple[Tensor, ...]:
        if given.batch_sizes is None:
            return torch.gru(given.data, state[0], *settings, False)
        return torch.gru(given.data, given.batch_sizes, state[0], *settings)

    def _step(self, x: Tensor, state: State, hidden: Product, suffix: str) -> State:
        return gru_step(x, state, hidden)

    @classmethod
    def from_torch(cls, gru: nn.GRU) -> Self:
        """A layer with `structure="dense"` and the weights of an nn.GRU: the same numbers."""
        return _from_torch(cls, gru)


def _from_torch(cls: Any, layer: nn.RNNBase) -> Any:
    if not isinstance(layer, cls.torch_class):
        wanted, came = cls.torch_class.__name__, type(layer).__name__
        raise TypeError(f"{cls.__name__}.from_torch: expected an nn.{wanted}, got {came}.")
    some = next(layer.parameters())
    like = {"device": some.device, "dtype": some.dtype, "structure": unstructured(), "which": "both"}
    ours = cls(**arguments_of(layer), **like)
    return ours.load_dense_weights(layer).train(layer.training)
