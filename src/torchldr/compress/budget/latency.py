"""How long the layers take that a weight could become, measured here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...timing import minimum_seconds
from ..candidates import Weight
from ..layers import empty_recurrent, quiet_linear
from ..structure import Structure
from ..targets import Unit

REPEATS, SECONDS = 10, 0.02


class Stopwatch:
    """Milliseconds of one inference of a weight's layer with each of some structures.

    The shortest of several calls, the structures taking turns; weights of one shape are timed once. A
    weight that the model has in several places counts as often.

    Args:
        batch: vectors at a time.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self._known: dict[tuple[Any, ...], float] = {}

    def __call__(self, weight: Weight, structures: Sequence[Structure]) -> list[float]:
        W = weight.matrices[0]
        module = weight.places[0][0].module if isinstance(weight, Unit) else None
        recurrent = module if isinstance(module, nn.LSTM | nn.GRU) else None
        alike = (W.shape, W.dtype, W.device, None if recurrent is None else repr(recurrent))
        new = [s for s in dict.fromkeys(structures) if (alike, s) not in self._known]
        calls = {repr(s): self._call(s, W, recurrent) for s in new}
        seconds = minimum_seconds(calls, REPEATS, SECONDS) if calls else {}
        self._known.update({(alike, s): 1e3 * seconds[repr(s)] for s in new})
        return [len(weight.names) * self._known[alike, s] for s in structures]

    def _call(self, structure: Structure, W: Tensor, recurrent: nn.RNNBase | None) -> Callable[[], object]:
        m, n = W.shape
        cls = structure.cls
        made: nn.Module
        if structure.is_dense:
            with torch.random.fork_rng(devices=[]):
                made = copy.deepcopy(recurrent) or nn.Linear(n, m, False, dtype=W.dtype)
        elif recurrent is not None:
            made = empty_recurrent(recurrent, cls, structure.rank, structure.options)
        else:
            made = quiet_linear(m, n, cls, rank=structure.rank, dtype=W.dtype, **structure.options)
        made.to(W.device).eval()
        shape = (self.batch, n) if recurrent is None else (1, self.batch, n)
        if recurrent is not None and recurrent.batch_first:
            shape = (self.batch, 1, n)
        x = torch.ones(shape, dtype=W.dtype, device=W.device)

        @torch.inference_mode()
        def call() -> None:
            made(x)
            if x.is_cuda:
                torch.cuda.synchronize()

        return call
