"""An LSTM and a GPT on WikiText-2: trained dense, compressed in every way, each fine-tuned by itself.

A method's matrices of one shape are a stack, made dense by one call a step; everything else is the model's
own. All methods take the same number of steps on the same words at the same rate, from their projections, and
where to stop is told by the validation text, looked at after each quarter of the steps: the text is short,
the dense models have learned nearly all that it teaches, and further steps make them worse. A step keeps a
GPU busy by itself, so nothing is captured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..data import load_corpus
from ..trainer.graphs import tf32
from .fleet import even_rates
from .loop import TableRun, Trained, finite
from .methods import FACTORS, Method
from .starts import Stack, descend, projected_start, residuals
from .tables import Row
from .texts import GPTModel, LSTMModel, perplexity
from .training import Adam, Trainer

_LOOKS = 4  # at the validation text


@dataclass(frozen=True)
class LanguageTable:
    """What a table of language models depends on."""

    name: str  # "lstm" or "gpt"
    width: int  # of the model
    length: int  # words of a stretch
    batch: int  # stretches a step
    layers: int  # of the GPT
    dense_steps: int  # of the dense model's training, as dense_rate and decay
    steps: int  # of fine-tuning, as rate
    dense_rate: float = 0.001
    decay: float = 0.05
    rate: float = 0.0003
    descent: int = 40  # steps of the projections
    train_limit: int | None = None  # words at most
    test_limit: int | None = None
    factors: tuple[int, ...] = (10, 2, 5, 20)  # in the order in which they are run
    seed: int = 0

    def begin(self, results: Path, device: torch.device, data_dir: str | None) -> LanguageRun:
        """The table under way."""
        return LanguageRun(self, results, device, data_dir)

    def quick(self) -> LanguageTable:
        """A small version for a laptop."""
        return replace(
            self,
            width=48,
            length=16,
            batch=4,
            layers=2,
            dense_steps=6,
            steps=2,
            descent=2,
            train_limit=4000,
            test_limit=600,
            factors=(10,),
        )


LANGUAGE_TABLES = {
    "lstm": LanguageTable("lstm", 256, 64, 64, 1, dense_steps=3000, steps=240, dense_rate=0.002, decay=0.0),
    "gpt": LanguageTable("gpt", 384, 256, 32, 6, dense_steps=1530, steps=160),
}
assert set(FACTORS) == {*LANGUAGE_TABLES["gpt"].factors}


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout, which takes torch's own random numbers, by this seed."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class LanguageRun(TableRun):
    """A table of language models under way."""

    table: LanguageTable
    metric = "perplexity"

    def __init__(
        self, table: LanguageTable, results: Path, device: torch.device, data_dir: str | None
    ) -> None:
        super().__init__(table, results, device)
        corpus = load_corpus("wikitext2", data_dir)
        self.source = corpus.source
        train, valid, test = (torch.from_numpy(part) for part in (corpus.train, corpus.valid, corpus.test))
        words = corpus.words
        if table.train_limit is not None:
            # A small vocabulary for a small text: what it has, and one word for all others.
            train, most = train[: table.train_limit], table.test_limit
            valid, test = valid[:most], test[:most]
            words = int(train.max()) + 2
            valid, test = (part.clamp(max=words - 1) for part in (valid, test))
        self.train, self.valid, self.test = (part.to(device) for part in (train, valid, test))
        self.model: GPTModel | LSTMModel
        if table.name == "gpt":
            sizes = {"width": table.width, "layers": table.layers, "heads": 6}
            self.model = GPTModel(words, sizes, table.length, table.batch)
        else:
            self.model = LSTMModel(words, table.width, table.length, table.batch)
        known = self.load_or_train(self._train_dense)
        self.tensors = {name: t.to(device) for name, t in known["tensors"].items()}
        self.dense = known["test"]
        self.weights = [(group.shape, len(group.names) * group.parts) for group in self.model.groups]
        compressed = {name for group in self.model.groups for name in group.names}
        self.others = sum(t.numel() for name, t in known["tensors"].items() if name not in compressed)

    def _train_dense(self) -> Trained:
        table = self.table
        start = self.model.initial(table.seed)
        tensors = {name: t.to(self.device).clone().requires_grad_() for name, t in start.items()}
        decayed = [name for name, t in tensors.items() if t.ndim > 1]
        rates = dict.fromkeys(tensors, table.dense_rate)
        adam = Adam(tensors, rates, table.dense_steps, decay=table.decay, decayed=decayed)
        read, state = self.model.reader(self.train, table.dense_steps, table.seed)
        with _seeded(table.seed, self.device):
            Trainer(adam, lambda now: read(now).unsqueeze(0), state, graphs=False).run(table.dense_steps)
        facts = {
            "validation": perplexity(self._loss(tensors, self.valid)),
            "test": perplexity(self._loss(tensors, self.test)),
        }
        return {name: t.detach() for name, t in tensors.items()}, facts

    def _loss(self, tensors: Mapping[str, Tensor], text: Tensor) -> float:
        with tf32(self.device):
            return self.model.loss(tensors, text)

    def groups(self, chosen: list[Method]) -> list[list[Method]]:
        """Each by itself, by factor as the table orders them."""
        order = {factor: place for place, factor in enumerate((None, 1, *self.table.factors))}
        return [[method] for method in sorted(chosen, key=lambda method: order[method.factor])]

    def rows(self, chosen: list[Method]) -> list[Row]:
        return [self.compressed(method) for method in chosen]

    def compressed(self, method: Method) -> Row:
        """A row: this method's projection, before and after fine-tuning."""
        begun, table = time.perf_counter(), self.table
        stacks: list[Stack] = []
        lost, whole = 0.0, 0.0
        for group in self.model.groups:
            W = group.take(self.tensors)
            start = projected_start(method, W.cpu(), table.seed).to(self.device)
            stacks.append(descend(start, W, table.descent))
            squares = W.square().sum((1, 2))
            lost += float((residuals(stacks[-1], W).square() * squares).sum())
            whole += float(squares.sum())
        replaced = {name for group in self.model.groups for name in group.names}
        tensors = {k: t.clone().requires_grad_() for k, t in self.tensors.items() if k not in replaced}
        rates: dict[str, Tensor | float] = dict.fromkeys(tensors, table.rate)
        for g, stack in enumerate(stacks):
            each = torch.full((len(next(iter(stack.learned.values()))),), table.rate)
            even = even_rates(stack, each, table.seed)
            for name, t in stack.learned.items():
                tensors[f"{g}:{name}"] = t.detach().clone().requires_grad_()
                rates[f"{g}:{name}"] = even[name]

        def assembled(now: Mapping[str, Tensor]) -> dict[str, Tensor]:
            made = {name: t for name, t in now.items() if ":" not in name}
            for g, (group, stack) in enumerate(zip(self.model.groups, stacks, strict=True)):
                own = {name: now[f"{g}:{name}"] for name in stack.learned}
                made |= group.put(stack.dense(own))
            return made

        @torch.no_grad()
        def score(text: Tensor) -> float:
            return perplexity(self._loss(assembled(tensors), text))

        before = after = score(self.test)
        best, stopped = score(self.valid), 0
        read, state = self.model.reader(self.train, table.steps, table.seed + 1)
        adam = Adam(tensors, rates, table.steps)
        trainer = Trainer(adam, lambda now: read(assembled(now)).unsqueeze(0), state, graphs=False)
        done = 0
        with _seeded(table.seed + 1, self.device):
            for quarter in range(1, _LOOKS + 1):
                ahead = table.steps * quarter // _LOOKS
                trainer.run(ahead - done)
                done, found = ahead, score(self.valid)
                if found < best or not math.isfinite(best):
                    best, stopped, after = found, done, score(self.test)
        return {
            **self.facts(method),
            "before": finite(before),
            "after": finite(after),
            "validation": finite(best),
            "stopped": stopped,
            "start": "projection",
            "rate": table.rate,
            "residual": math.sqrt(lost / whole),
            "seconds": round(time.perf_counter() - begun, 3),
        }
