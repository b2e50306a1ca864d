"""The language models as functions of their tensors, and which of their weights are compressed.

    lstm    words' vectors -> one layer of LSTM -> decoder tied to the vectors; the gates' eight matrices
    gpt     examples/gpt.py; the matrices of its attentions and of its hidden layers

Both have the same methods: `initial` draws the tensors, `reader` gives the loss on the next words of a text,
which it takes by a counter on the device, and the tensors that this changes, `loss` is that of a whole text.
"""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, dropout

from ..language.text import columns
from ..trainer.batches import generator

Read = Callable[[Mapping[str, Tensor]], Tensor]
GPT_FILE = Path(__file__).resolve().parents[4] / "examples" / "gpt.py"


@dataclass(frozen=True)
class Group:
    """Matrices of one shape: the tensors that hold them, each `parts` of them one below the other."""

    shape: tuple[int, int]
    names: tuple[str, ...]
    parts: int = 1

    def take(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The matrices, (S, m, n)."""
        return torch.cat([tensors[name].unflatten(0, (self.parts, -1)) for name in self.names])

    def put(self, matrices: Tensor) -> dict[str, Tensor]:
        """The tensors that hold these matrices."""
        each = matrices.split(self.parts)
        return {name: part.flatten(0, 1) for name, part in zip(self.names, each, strict=True)}


class GPTModel:
    """The model of examples/gpt.py, with other arguments in `sizes`, on random stretches of the text."""

    def __init__(self, words: int, sizes: Mapping[str, int], length: int, batch: int) -> None:
        self.words, self.sizes, self.length, self.batch = words, dict(sizes), length, batch
        self.module: nn.Module = self._made(0)
        found: dict[tuple[int, int], list[str]] = {}
        for name, layer in self.module.named_modules():
            if isinstance(layer, nn.Linear) and name != "head":
                found.setdefault((layer.out_features, layer.in_features), []).append(f"{name}.weight")
        self.groups = [Group(shape, tuple(names)) for shape, names in found.items()]

    def _made(self, seed: int) -> nn.Module:
        if not GPT_FILE.is_file():
            raise FileNotFoundError(
                f"gpt: the model is examples/gpt.py of the repository, which is not at {GPT_FILE}; run this "
                "from a checkout."
            )
        example = runpy.run_path(str(GPT_FILE))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made: nn.Module = example["GPT"](self.words, length=self.length, **self.sizes)
        return made

    def initial(self, seed: int) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self._made(seed).named_parameters()}

    def reader(self, text: Tensor, steps: int, seed: int) -> tuple[Read, list[Tensor]]:
        source = generator(seed, "stretches")
        starts = torch.randint(len(text) - self.length, (steps, self.batch, 1), generator=source)
        starts = starts.to(text.device)
        place = torch.zeros(1, dtype=torch.int64, device=text.device)
        offsets = torch.arange(self.length + 1, device=text.device)
        self.module.to(text.device).train()

        def loss(tensors: Mapping[str, Tensor]) -> Tensor:
            rows = text[starts.index_select(0, place.clamp(max=steps - 1)).squeeze(0) + offsets]
            place.add_(1)
            return self._loss(tensors, rows[:, :-1], rows[:, 1:])

        return loss, [place]

    def _loss(self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        with _bf16(x.device):
            logits = functional_call(self.module, dict(tensors), (x,), tie_weights=True)
            return cross_entropy(logits.flatten(0, 1), y.flatten())

    @torch.no_grad()
    def loss(self, tensors: Mapping[str, Tensor], text: Tensor) -> float:
        self.module.to(text.device).eval()
        rows = (len(text) - 1) // self.length
        x, y = (text[i : i + rows * self.length].view(rows, self.length) for i in (0, 1))
        total = torch.zeros((), dtype=torch.float64, device=text.device)
        for part in range(0, rows, self.batch):
            piece = slice(part, part + self.batch)
            total += self._loss(tensors, x[piece], y[piece]) * len(x[piece])
        self.module.train()
        return float(total) / rows


class LSTMModel:
    """One layer of LSTM between words' vectors and a decoder tied to them; the state goes on.

    A step takes `length` words of each of `batch` columns, with dropout `drop` of vectors and outputs.
    """

    def __init__(self, words: int, hidden: int, length: int, batch: int, drop: float = 0.2) -> None:
        self.words, self.hidden, self.length, self.batch, self.drop = words, hidden, length, batch, drop
        self.groups = [Group((hidden, hidden), ("weight_ih", "weight_hh"), 4)]

    def initial(self, seed: int) -> dict[str, Tensor]:
        n, source = self.hidden, generator(seed, "lstm")
        words = -(-self.words // 64) * 64

        def uniform(bound: float, *shape: int) -> Tensor:
            return torch.empty(shape).uniform_(-bound, bound, generator=source)

        bound = n**-0.5
        return {
            "embedding": uniform(0.1, words, n),
            "decoder_bias": torch.zeros(words),
            "weight_ih": uniform(bound, 4 * n, n),
            "weight_hh": uniform(bound, 4 * n, n),
            "bias_ih": uniform(bound, 4 * n),
            "bias_hh": uniform(bound, 4 * n),
        }

    def reader(self, text: Tensor, steps: int, seed: int) -> tuple[Read, list[Tensor]]:
        data = columns(text.cpu().numpy(), self.batch).to(text.device)
        state = torch.zeros(2, 1, self.batch, self.hidden, device=text.device)
        place = torch.zeros((), dtype=torch.int64, device=text.device)
        offsets = torch.arange(self.length + 1, device=text.device)
        last = len(data) - self.length - 1
        if last < 0:
            raise ValueError(
                f"lstm: {len(text)} words are too few for {self.batch} columns of {self.length}."
            )

        def loss(tensors: Mapping[str, Tensor]) -> Tensor:
            block = data.index_select(0, place + offsets)
            h, c = state.clone()
            value, h, c = self._run(tensors, block[:-1], block[1:], h, c, self.drop)
            with torch.no_grad():
                # The text begins anew, with a state of zeros, where less than a step of it is left.
                goes_on = (place + self.length <= last).to(state.dtype)
                state.copy_(torch.stack((h.detach(), c.detach())).mul(goes_on))
                place.add_(self.length).mul_(goes_on.to(place.dtype))
            return value

        return loss, [state, place]

    def _run(
        self, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor, h: Tensor, c: Tensor, drop: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        vectors = dropout(tensors["embedding"][x], drop, training=drop > 0)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        weights = [tensors[name].contiguous() for name in names]
        out, h, c = torch.lstm(vectors, (h, c), weights, True, 1, 0.0, torch.is_grad_enabled(), False, False)
        out = dropout(out, drop, training=drop > 0).flatten(0, 1)
        with _bf16(x.device):
            logits = torch.addmm(tensors["decoder_bias"], out, tensors["embedding"].mT)
            return cross_entropy(logits, y.flatten()), h, c

    @torch.no_grad()
    def loss(self, tensors: Mapping[str, Tensor], text: Tensor) -> float:
        data = columns(text.cpu().numpy(), self.batch).to(text.device)
        h, c = torch.zeros(2, 1, self.batch, self.hidden, device=text.device)
        total = torch.zeros((), dtype=torch.float64, device=text.device)
        for start in range(0, len(data) - 1, self.length):
            block = data[start : start + self.length + 1]
            value, h, c = self._run(tensors, block[:-1], block[1:], h, c, 0.0)
            total += value * (len(block) - 1)
        return float(total) / (len(data) - 1)


def _bf16(device: torch.device) -> Any:
    """Products in bfloat16 on a GPU; without a cache, which a captured step must not keep."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)


def perplexity(loss: float) -> float:
    """exp of a loss; infinite where that is no number."""
    return math.exp(loss) if loss < 100 else math.inf
