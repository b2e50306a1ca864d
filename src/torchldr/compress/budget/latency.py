"""How long the layers take that a weight could become, measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...nn import MatrixStack
from ...timing import minimum_seconds
from ..candidates import Weight
from ..layers import quiet_linear
from ..structure import Structure

REPEATS, SECONDS = 10, 0.02


class Stopwatch:
    """Milliseconds of one inference of a weight's layer with each of some structures.

    The shortest of several calls, the structures taking turns; weights of one shape are timed once. A
    weight that the model has in several places counts as often.

    Args:
        batch: vectors at a time.
        repeats, seconds: as for `minimum_seconds`.
    """

    def __init__(self, batch: int, repeats: int = REPEATS, seconds: float = SECONDS) -> None:
        self.batch, self.repeats, self.seconds = batch, repeats, seconds
        self._known: dict[tuple[Any, ...], float] = {}

    def __call__(self, weight: Weight, structures: Sequence[Structure]) -> list[float]:
        W, gates = weight.matrices[0], len(weight.matrices)
        alike = (W.shape, W.dtype, W.device, gates)
        new = [s for s in dict.fromkeys(structures) if (alike, s) not in self._known]
        calls = {repr(s): self._call(s, W, gates) for s in new}
        with torch.inference_mode():  # entered once: each entry takes as long as a small product
            seconds = minimum_seconds(calls, self.repeats, self.seconds) if calls else {}
        self._known.update({(alike, s): 1e3 * seconds[repr(s)] for s in new})
        return [len(weight.names) * self._known[alike, s] for s in structures]

    def _call(self, structure: Structure, W: Tensor, gates: int) -> Callable[[], object]:
        m, n = W.shape
        made: nn.Module
        with torch.random.fork_rng(devices=[]):
            if structure.is_dense:
                made = nn.Linear(n, gates * m, False, dtype=W.dtype)
            elif gates > 1:
                made = _Gates(
                    (gates,), n, m, structure=structure.cls, rank=structure.rank, options=structure.options,
                    layer=None, dtype=W.dtype,
                )  # fmt: skip
            else:
                made = quiet_linear(
                    m, n, structure.cls, rank=structure.rank, dtype=W.dtype, **structure.options
                )
        made.to(W.device).eval()
        x = torch.ones(self.batch, n, dtype=W.dtype, device=W.device)

        def call() -> None:
            made(x)
            if x.is_cuda:
                torch.cuda.synchronize()

        return call


class _Gates(MatrixStack):
    """The input products of one step of a recurrent layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix().multiply(x)
