"""The SHL and the CNN of the paper: the hidden layer compressed in every way, then fine-tuned.

Pixels, or the features behind the CNN's convolutions, are the hidden layer's inputs: the convolutions are
not compressed and stay as they are, so they are computed once. Every method is tried from two starts, its
projection and the class's own, each with its learning rate; start and epoch are chosen by validation. All
models see the same images in the same order and learn from the dense model too. That one is trained at a few
learning rates, the best by validation kept in a file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from ..data import load, load_npz
from ..models.images import ConvNet, SingleHiddenLayer, hidden_input
from ..protocol import Protocol, Run
from ..trainer.batches import Feed, Images, Split
from ..trainer.graphs import tf32
from .fleet import Distilled, Examples, Fleet, Member, joined
from .loop import TableRun, Trained
from .methods import FACTORS, Method
from .starts import Stack, descend, fresh_start, projected_start, residuals
from .tables import Row
from .training import Adam, Trainer


def image_model(kind: str, image_shape: tuple[int, int, int], outputs: int, seed: int) -> SingleHiddenLayer:
    """The paper's network with plain layers, freshly drawn."""
    size = hidden_input(kind, image_shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden, logits = nn.Linear(size, size, bias=kind == "cnn"), nn.Linear(size, outputs)
        if kind == "cnn":
            return ConvNet(image_shape[0], hidden, logits)
        return SingleHiddenLayer(hidden, logits)


def train_image_model(
    table: ImageTable, model: SingleHiddenLayer, images: Images, train: Tensor, validation: Tensor
) -> Trained:
    """Train at each rate by Adam; the weights of the best epoch of all by validation, and what they come to.

    `train` and `validation` are rows of the training images.
    """
    batch, epochs = table.dense_batch, table.dense_epochs
    x, y, test = images.train_x, images.train_y, (images.test_x, images.test_y)
    start = {name: p.detach().to(x.device) for name, p in model.named_parameters()}
    best: Trained | None = None
    for rate in table.dense_rates:
        tensors = {name: p.clone().requires_grad_() for name, p in start.items()}
        feed = Feed(train, batch, table.seed)

        def losses(now: Mapping[str, Tensor], feed: Feed = feed) -> Tensor:
            rows = feed.take(batch)
            logits = functional_call(model, dict(now), (x.index_select(0, rows),))
            return cross_entropy(logits, y.index_select(0, rows)).unsqueeze(0)

        steps = len(train) // batch
        adam = Adam(tensors, dict.fromkeys(tensors, rate), epochs * steps)
        trainer = Trainer(adam, losses, [feed.position])
        for epoch in range(epochs):
            feed.begin(epoch)
            trainer.run(steps)
            score = accuracy(model, tensors, x[validation], y[validation])
            if best is None or score > best[1]["validation"]:
                facts = {"validation": score, "test": accuracy(model, tensors, *test), "rate": rate}
                best = {name: t.detach().clone() for name, t in tensors.items()}, facts
    assert best is not None
    return best


def accuracy(model: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor) -> float:
    """In percent, on these images."""
    with tf32(x.device):
        found = in_parts(lambda part: functional_call(model, dict(tensors), (part,)).argmax(-1), x)
    return 100 * int((found == y).sum()) / len(y)


@torch.no_grad()
def in_parts(function: Callable[[Tensor], Tensor], x: Tensor, size: int = 5000) -> Tensor:
    """A function of rows, some thousand of them at a time."""
    return torch.cat([function(part) for part in x.split(size)])


@dataclass(frozen=True)
class ImageTable:
    """What a table of images depends on."""

    name: str
    data: str
    model: str
    dense_epochs: int = 15  # of the dense model
    dense_batch: int = 100
    dense_rates: tuple[float, ...] = (0.0003, 0.001)
    epochs: int = 12  # of fine-tuning
    batch: int = 200
    # A start and its learning rate: every method is tried from each.
    starts: tuple[tuple[str, float], ...] = (("projection", 0.001), ("fresh", 0.002))
    descent: int = 100  # steps of the projections
    train_limit: int | None = None  # images at most
    test_limit: int | None = None
    factors: tuple[int, ...] = FACTORS  # how many times fewer parameters
    distilled: Distilled = field(default_factory=Distilled)
    seed: int = 0

    def begin(self, results: Path, device: torch.device, data_dir: str | None) -> ImageRun:
        """The table under way."""
        return ImageRun(self, results, device, data_dir)

    def quick(self) -> ImageTable:
        """A small version for a laptop."""
        return replace(
            self,
            dense_epochs=2,
            dense_rates=(0.001,),
            epochs=1,
            batch=100,
            descent=2,
            train_limit=1000,
            test_limit=500,
            factors=(10,),
        )


_TABLES = (
    ImageTable("shl_cifar", "cifar10_grey", "shl"),
    ImageTable("cnn_cifar", "cifar10", "cnn"),
    ImageTable("shl_mnist", "mnist", "shl"),
    ImageTable("cnn_mnist", "mnist", "cnn"),
)
IMAGE_TABLES = {table.name: table for table in _TABLES}


class ImageRun(TableRun):
    """A table of images under way."""

    table: ImageTable
    metric = "accuracy"

    def __init__(self, table: ImageTable, results: Path, device: torch.device, data_dir: str | None) -> None:
        super().__init__(table, results, device)
        protocol = Protocol(train_limit=table.train_limit, test_limit=table.test_limit)
        run = Run(table.data, table.model, seed=table.seed, protocol=protocol)
        own = table.data.endswith(".npz")
        images = Images.of(load_npz(table.data) if own else load(table.data, data_dir), run, device)
        split = Split.of(run, len(images.train_y))
        self.source = images.source
        model = image_model(table.model, images.image_shape, images.outputs, table.seed)
        model.to(device)
        train, validation = split.train.to(device), split.validation.to(device)
        known = self.load_or_train(partial(train_image_model, table, model, images, train, validation))
        model.load_state_dict(known["tensors"])
        model.eval()
        self.dense = known["test"]
        x, test_x = in_parts(model.features, images.train_x), in_parts(model.features, images.test_x)
        hidden = in_parts(model.hidden, x)
        self.examples = Examples(
            x=x,
            y=images.train_y,
            train=train,
            validation=validation,
            hidden=hidden,
            logits=in_parts(lambda h: model.logits(h.relu()), hidden),
            test_x=test_x,
            test_y=images.test_y,
        )
        self.W = known["tensors"]["hidden.weight"].unsqueeze(0)
        kept = ("logits.weight", "logits.bias", "hidden.bias")
        self.head = {k: t for k, t in known["tensors"].items() if k in kept}
        self.weights = [((self.W.shape[1], self.W.shape[2]), 1)]
        self.others = sum(t.numel() for k, t in known["tensors"].items() if k != "hidden.weight")

    def groups(self, chosen: list[Method]) -> list[list[Method]]:
        """All side by side but LDR-TD, the dearest, which comes last."""
        return [[m for m in chosen if (m.name == "ldr_td") is last] for last in (False, True)]

    def starts(self, chosen: Sequence[Method]) -> dict[Method, Stack]:
        """The projections, those of a class descended together, and each its own again."""
        found: dict[Method, Stack] = {}
        for name in dict.fromkeys(method.name for method in chosen):
            same = [method for method in chosen if method.name == name]
            stacks = [projected_start(method, self.W, self.table.seed) for method in same]
            apart = name in ("ldr_td", "block_circulant")
            places = range(len(same))
            for group in [[i] for i in places] if apart else [list(places)]:
                whole = joined([stacks[i] for i in group]).to(self.device)
                W = self.W.to(self.device).expand(len(group), -1, -1)
                whole = descend(whole, W, self.table.descent)
                for place, i in enumerate(group):
                    found[same[i]] = _picked(whole, place, stacks[i])
        return found

    def rows(self, chosen: list[Method]) -> list[Row]:
        begun = time.perf_counter()
        projected = self.starts(chosen)
        table, members, stacks = self.table, [], []
        for method in chosen:
            for start, rate in table.starts:
                members.append(Member(method, start, rate))
                fresh = start != "projection"
                own = fresh_start(method, self.W, table.seed, self.device) if fresh else projected[method]
                stacks.append(own)
        fleet = Fleet(table, members, stacks, self.head, self.examples)
        first = fleet.accuracies()[1]
        before = {m.method: a for m, a in zip(fleet.members, first, strict=True) if m.start == "projection"}
        best: dict[Method, dict[str, Any]] = {}
        for epoch in range(table.epochs):
            fleet.train_epoch(epoch)
            for member, validation, test in zip(fleet.members, *fleet.accuracies(), strict=True):
                known = best.get(member.method)
                if math.isnan(validation) or (known and validation <= known["validation"]):
                    continue
                facts = {"after": test, "start": member.start, "rate": member.rate, "epoch": epoch}
                best[member.method] = {"validation": validation, **facts}
        seconds = (time.perf_counter() - begun) / len(chosen)
        return [
            {
                **self.facts(method),
                "before": before[method],
                "residual": float(residuals(projected[method], self.W.to(self.device))[0]),
                **best.get(method, {"after": None}),
                "seconds": round(seconds, 3),
            }
            for method in chosen
        ]


def _picked(whole: Stack, place: int, like: Stack) -> Stack:
    """One matrix of a joined stack, its generators cut to the rank that they had."""
    learned = {}
    for name, t in whole.learned.items():
        part = t[place : place + 1]
        learned[name] = part[:, : like.learned[name].shape[1]] if name in ("G", "H") else part
    constants = {
        name: t[place : place + 1] if t.shape[0] != like.constants[name].shape[0] else t
        for name, t in whole.constants.items()
    }
    return Stack(whole.name, whole.shape, learned, constants)
