"""Adam for many models at once, with a rate and a clipping of its own for each, and steps as CUDA graphs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..trainer.graphs import StepGraphs, tf32

_log = logging.getLogger("torchldr_paper")

Losses = Callable[[Mapping[str, Tensor]], Tensor]
BETAS, EPSILON = (0.9, 0.99), 1e-8


class Adam:
    """Adam over named tensors, without a value read on the host.

    Args:
        tensors: what is learned, by name.
        rates: learning rates by name, numbers or tensors that broadcast against the tensor's own.
        total: steps in all; the rate rises over the first twentieth and falls to 0 by a cosine.
        rows: which models a tensor belongs to, as a slice of their numbers: its first axis counts them.
            None where there is one model.
        models: how many there are.
        clip: largest norm of a model's gradient; None for no limit.
        decay: of the tensors named in `decayed`.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        rates: Mapping[str, Tensor | float],
        total: int,
        *,
        rows: Mapping[str, slice] | None = None,
        models: int = 1,
        clip: float | None = 1.0,
        decay: float = 0.0,
        decayed: Sequence[str] = (),
    ) -> None:
        self.tensors, self.rows, self.models, self.clip = dict(tensors), rows, models, clip
        self.decay, self.decayed = decay, frozenset(decayed)
        some = next(iter(self.tensors.values()))
        self.device = some.device
        self.rates = {
            name: torch.as_tensor(rate, dtype=some.dtype).to(self.device) for name, rate in rates.items()
        }
        self.first = [torch.zeros_like(t, requires_grad=False) for t in self.tensors.values()]
        self.second = [torch.zeros_like(t, requires_grad=False) for t in self.tensors.values()]
        self.count = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.table = _table(total).to(self.device, some.dtype)

    def state(self) -> list[Tensor]:
        """What a step changes."""
        return [*self.tensors.values(), *self.first, *self.second, self.count]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        grads = list(gradients)
        if self.clip is not None:
            self._clip(grads)
        factor, correction, root = self.table.index_select(1, self.count.clamp(max=self.table.shape[1] - 1))
        beta, gamma = BETAS
        torch._foreach_lerp_(self.first, grads, 1 - beta)
        torch._foreach_mul_(self.second, gamma)
        torch._foreach_addcmul_(self.second, grads, grads, 1 - gamma)
        below = torch._foreach_sqrt(self.second)
        torch._foreach_mul_(below, root.squeeze(0))
        torch._foreach_add_(below, EPSILON)
        steps = torch._foreach_div(self.first, below)
        for (name, p), step in zip(self.tensors.items(), steps, strict=True):
            rate = self.rates[name] * factor.squeeze(0)
            if name in self.decayed:
                p.mul_(1 - self.decay * rate)
            p.addcmul_(step, -rate * correction.squeeze(0))
        self.count.add_(1)

    def _clip(self, grads: list[Tensor]) -> None:
        assert self.clip is not None
        if self.rows is None:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            torch._foreach_mul_(grads, (self.clip / (norm + 1e-6)).clamp(max=1))
            return
        squares = grads[0].new_zeros(self.models)
        for name, g in zip(self.tensors, grads, strict=True):
            squares[self.rows[name]] += g.flatten(1).square().sum(1) if g.ndim > 1 else g.square()
        scale = (self.clip / (squares.sqrt() + 1e-6)).clamp(max=1)
        for i, name in enumerate(self.tensors):
            part = scale[self.rows[name]]
            grads[i] = grads[i] * part.view(-1, *[1] * (grads[i].ndim - 1))


def _table(total: int) -> Tensor:
    """Factor of the rate, and Adam's two corrections, by step: (3, total)."""
    warmup = max(1, total // 20)
    t = torch.arange(total, dtype=torch.float64)
    rise = (t + 1) / warmup
    fall = 0.5 * (1 + torch.cos(math.pi * (t - warmup) / max(1, total - warmup)))
    factor = torch.where(t < warmup, rise, fall)
    beta, gamma = BETAS
    return torch.stack((factor, 1 / (1 - beta ** (t + 1)), (1 - gamma ** (t + 1)).rsqrt()))


class Trainer:
    """Steps of Adam on losses of many models, captured as CUDA graphs on a GPU.

    Args:
        adam: the optimizer and what it learns.
        losses: of the tensors to the models' losses on the next examples; it moves on by itself.
        state: the tensors that `losses` changes.
        graphs: whether to capture steps on a GPU.
    """

    def __init__(
        self, adam: Adam, losses: Losses, state: Sequence[Tensor] = (), *, graphs: bool = True
    ) -> None:
        self.adam, self.losses = adam, losses
        captured = graphs and adam.device.type == "cuda"
        self._replay = StepGraphs(self._step, [*adam.state(), *state]).replay if captured else self._step

    def _step(self, graph: int) -> None:
        tensors = self.adam.tensors
        with torch.enable_grad():
            gradients = torch.autograd.grad(self.losses(tensors).sum(), list(tensors.values()))
        self.adam.step(gradients)

    def run(self, steps: int) -> None:
        with tf32(self.adam.device):
            for _ in range(steps):
                try:
                    self._replay(0)  # there is one graph, since all steps are alike
                except RuntimeError as error:
                    if self._replay == self._step:
                        raise
                    # A library that cannot be captured: nothing was changed, and it runs as it is written.
                    _log.warning("a step could not be captured as a CUDA graph and runs without (%s)", error)
                    self._replay = self._step
                    self._step(0)
