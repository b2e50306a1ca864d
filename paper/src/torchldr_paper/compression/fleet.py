"""One hidden layer compressed in many ways, all fine-tuned side by side on the same images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

from torchldr.compress import OPERATOR_RATE
from torchldr.matrices import get_structure

from ..models.network import logits_of, with_bias
from ..trainer.batches import Feed, generator
from ..trainer.graphs import tf32
from .methods import PRUNED, Method
from .starts import Stack
from .training import Adam, Trainer

_PROBE = 1e-3
RELATIVE = 20.0  # times the learning rate: what a step may change of a matrix


@torch.no_grad()
def even_rates(stack: Stack, rate: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Learning rates at which a step changes the matrices of every class by the same share.

    Adam's steps are as large as the rate, whatever the tensor. But the same step that moves a matrix of low
    rank by a hundredth of its norm moves a Toeplitz-like one many times as far: more entries add up, and
    cancel. So the effect of a small random step is measured, tensor by tensor, and the rates are made such
    that a step of Adam's with random signs moves each matrix by RELATIVE * rate of its norm. Operators take
    OPERATOR_RATE * rate: their products over long diagonals are not seen by small steps. Rates are (S,) for S
    matrices, and by name (S, 1, ...).
    """
    source = generator(seed, "rates")
    M = stack.dense()
    rates = {}
    for name, t in stack.learned.items():
        ones = [1] * (t.ndim - 1)
        if name in stack.operators:
            rates[name] = OPERATOR_RATE * rate.to(t).view(-1, *ones)
            continue
        flat = t.flatten(1)
        size = (flat.square().sum(1) / (flat != 0).sum(1).clamp(min=1)).sqrt()  # of what is not filled up
        signs = torch.randint(0, 2, t.shape[1:], generator=source).to(t).mul(2).sub(1)
        step = _PROBE * size.view(-1, *ones) * signs * (t != 0)
        moved = stack.dense({**stack.learned, name: t + step}) - M
        share = moved.norm(dim=(1, 2)) / M.norm(dim=(1, 2)).clamp(min=1e-30)
        even = RELATIVE * _PROBE * size / share.clamp(min=1e-3 * _PROBE)
        rates[name] = (rate.to(t) * even).view(-1, *ones)
    return rates


@dataclass(frozen=True)
class Member:
    """A model of the fleet: what its hidden layer is, where it starts and how fast it learns."""

    method: Method
    start: str
    rate: float


@dataclass(frozen=True)
class Distilled:
    """How the teacher counts: (1 - logits) CE + logits T^2 KL + layer |h - h'|^2 / |h'|^2."""

    logits: float = 0.5
    layer: float = 0.1
    temperature: float = 2.0


@dataclass(frozen=True)
class Examples:
    """Inputs of the hidden layer and labels, with what the teacher says of the training ones."""

    x: Tensor  # (N, n)
    y: Tensor  # (N,)
    train: Tensor  # rows of these
    validation: Tensor
    hidden: Tensor  # the teacher's outputs of the layer (N, m)
    logits: Tensor  # and its own, (N, classes)
    test_x: Tensor
    test_y: Tensor


class Fleet:
    """Models that differ in their hidden layer, one matrix of `stacks` each, from weights to accuracies.

    `head` has the dense model's other parameters: "logits.weight", "logits.bias" and, where the layer has
    one, "hidden.bias". Stacks and examples are on the device. `table`, an `ImageTable`, has epochs, batch,
    seed and what the teacher counts.
    """

    def __init__(
        self,
        table: Any,
        members: Sequence[Member],
        stacks: Sequence[Stack],
        head: Mapping[str, Tensor],
        examples: Examples,
    ) -> None:
        order = sorted(range(len(members)), key=lambda i: _group_key(stacks[i]))
        self.members = [members[i] for i in order]
        self.groups = _grouped([stacks[i] for i in order])
        self.examples, self.batch, self.distilled = examples, table.batch, table.distilled
        R, device = len(members), examples.x.device
        self.feed = Feed(examples.train, self.batch, table.seed)
        lrs = torch.tensor([member.rate for member in self.members])
        tensors: dict[str, Tensor] = {}
        rates: dict[str, Tensor | float] = {}
        rows: dict[str, slice] = {}
        for g, (place, stack) in enumerate(self.groups):
            even = even_rates(stack, lrs[place], table.seed)
            for name, t in stack.learned.items():
                key = f"{g}.{name}"
                tensors[key], rows[key] = t.detach().clone().requires_grad_(), place
                rates[key] = even[name]
        for name, t in head.items():
            tensors[name] = t.detach().to(device).repeat(R, *[1] * t.ndim).requires_grad_()
            rates[name], rows[name] = lrs.view(-1, *[1] * t.ndim), slice(0, R)
        self.steps = len(examples.train) // self.batch
        if not self.steps:
            raise ValueError(f"Fleet: {len(examples.train)} images are fewer than a batch of {self.batch}.")
        self.adam = Adam(tensors, rates, table.epochs * self.steps, rows=rows, models=R)
        self.trainer = Trainer(self.adam, self._losses, [self.feed.position])

    def _outputs(self, tensors: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden layer's outputs (R, b, m) and the logits (R, b, classes)."""
        hidden = torch.cat([stack.matrix(own).matmul(x) for stack, own in self._own(tensors)])
        return with_bias(tensors, hidden), logits_of(tensors, hidden)

    def _own(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Stack, dict[str, Tensor]]]:
        """Each group with what its matrices learn."""
        for g, (_, stack) in enumerate(self.groups):
            yield stack, {name: tensors[f"{g}.{name}"] for name in stack.learned}

    def _losses(self, tensors: Mapping[str, Tensor]) -> Tensor:
        data, how, T = self.examples, self.distilled, self.distilled.temperature
        rows = self.feed.take(self.batch)
        y, told = data.y.index_select(0, rows), data.logits.index_select(0, rows)
        hidden, logits = self._outputs(tensors, data.x.index_select(0, rows))
        R = len(logits)
        task = cross_entropy(logits.flatten(0, 1), y.repeat(R), reduction="none").view(R, -1).mean(1)
        soft = (told / T).softmax(-1)
        apart = (soft * (soft.clamp(min=1e-12).log() - (logits / T).log_softmax(-1))).sum(-1).mean(-1)
        loss = (1 - how.logits) * task + how.logits * T * T * apart
        if how.layer:
            wanted = data.hidden.index_select(0, rows)
            loss = loss + how.layer * (hidden - wanted).square().mean((1, 2)) / wanted.square().mean()
        return loss

    def train_epoch(self, epoch: int) -> None:
        self.feed.begin(epoch)
        self.trainer.run(self.steps)

    @torch.no_grad()
    def accuracies(self) -> tuple[list[float], list[float]]:
        """In percent, on validation and test; nan for a model that is not finite any more."""
        data = self.examples
        with tf32(data.x.device):
            weights = torch.cat([stack.dense(own) for stack, own in self._own(self.adam.tensors)])
            validation = self._score(weights, data.x, data.y, data.validation)
            test = self._score(weights, data.test_x, data.test_y, None)
        return validation.tolist(), test.tolist()

    def _score(self, weights: Tensor, x: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        tensors, R = self.adam.tensors, len(weights)
        count = len(x) if rows is None else len(rows)
        right = torch.zeros(R, dtype=torch.float64, device=x.device)
        size = max(1, (1 << (28 if x.is_cuda else 23)) // (R * weights.shape[1]))
        for start in range(0, count, size):
            part = slice(start, start + size) if rows is None else rows[start : start + size]
            logits = logits_of(tensors, x[part] @ weights.mT)
            right += (logits.argmax(-1) == y[part]).sum(-1)
            right[~logits.isfinite().flatten(1).all(1)] = torch.nan
        return 100 * right / count


def _group_key(stack: Stack) -> tuple[str, int]:
    """Matrices that are made together: of one class, and of one size where filling up would be dear."""
    if stack.name == "block_circulant":
        return stack.name, stack.learned["column"].shape[-1]
    return stack.name, stack.learned["G"].shape[1] if stack.name == "ldr_td" else 0


def _grouped(stacks: Sequence[Stack]) -> list[tuple[slice, Stack]]:
    groups, start = [], 0
    for _, same in groupby(stacks, _group_key):
        own = list(same)
        groups.append((slice(start, start + len(own)), joined(own)))
        start += len(own)
    return groups


def joined(stacks: Sequence[Stack]) -> Stack:
    """One stack of several; generators of smaller rank are filled up with zeros, which stay zeros."""
    first = stacks[0]
    learned = {}
    for name in first.learned:
        tensors = [stack.learned[name] for stack in stacks]
        if name in ("G", "H"):
            largest = max(t.shape[1] for t in tensors)
            tensors = [pad(t, (0, 0, 0, largest - t.shape[1])) for t in tensors]
        learned[name] = torch.cat(tensors)
    constants = dict(first.constants)
    for name in constants:
        if first.name == PRUNED or name in get_structure(first.name).drawn:
            constants[name] = torch.cat([stack.constants[name] for stack in stacks])
    return Stack(first.name, first.shape, learned, constants)
