"""The dense models: trained once at a few learning rates, the best by validation kept in a file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from ..ledger.tensors_file import read_tensors, write_tensors
from ..models.images import ConvNet, SingleHiddenLayer, hidden_input
from ..trainer.batches import Images
from ..trainer.precision import tf32
from .fleet import Feed
from .training import Adam, Trainer

_log = logging.getLogger("torchldr_paper")

Trained = tuple[dict[str, Tensor], dict[str, Any]]


def load_or_train(path: Path, train: Callable[[], Trained]) -> dict[str, Any]:
    """The tensors and facts of a dense model, from its file or, where there is none, trained and saved.

    A file that is damaged is reported and written anew.

    Returns:
        "tensors" and what else `train` told, such as its test accuracy.
    """
    if path.is_file():
        try:
            tensors, facts, _ = read_tensors(path)
            return {**facts, "tensors": tensors}
        except ValueError as error:
            _log.warning("the dense model is trained anew: %s", error)
    tensors, facts = train()
    write_tensors(path, tensors, facts)
    return {**facts, "tensors": {name: tensor.detach().cpu() for name, tensor in tensors.items()}}


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
    model: SingleHiddenLayer,
    images: Images,
    train: Tensor,
    validation: Tensor,
    rates: tuple[float, ...],
    epochs: int,
    batch: int,
    seed: int = 0,
) -> Trained:
    """Train at each rate by Adam; the weights of the best epoch of all by validation.

    Args:
        model: as it starts.
        images: the data; train, validation: rows of its training images.

    Returns:
        The weights, and their accuracy in percent on "validation" and "test", with the rate.
    """
    x, y, test = images.train_x, images.train_y, (images.test_x, images.test_y)
    start = {name: p.detach().to(x.device) for name, p in model.named_parameters()}
    best: Trained | None = None
    for rate in rates:
        tensors = {name: p.clone().requires_grad_() for name, p in start.items()}
        feed = Feed(train, batch, seed)

        def losses(now: Mapping[str, Tensor], size: int, feed: Feed = feed) -> Tensor:
            rows = feed.take(size)
            logits = functional_call(model, dict(now), (x.index_select(0, rows),))
            return cross_entropy(logits, y.index_select(0, rows)).unsqueeze(0)

        steps = epochs * (len(train) // batch)
        trainer = Trainer(Adam(tensors, dict.fromkeys(tensors, rate), steps), losses, [feed.position])
        for epoch in range(epochs):
            trainer.run(feed.begin(epoch))
            score = accuracy(model, tensors, x, y, validation)
            if best is None or score > best[1]["validation"]:
                facts = {"validation": score, "test": accuracy(model, tensors, *test), "rate": rate}
                best = {name: t.detach().clone() for name, t in tensors.items()}, facts
    assert best is not None
    return best


@torch.no_grad()
def accuracy(
    model: nn.Module, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor, rows: Tensor | None = None
) -> float:
    """In percent, on all images or these rows."""
    right = 0
    rows = torch.arange(len(x), device=x.device) if rows is None else rows
    with tf32(x.device):
        for part in rows.split(5000):
            right += int((functional_call(model, dict(tensors), (x[part],)).argmax(-1) == y[part]).sum())
    return 100 * right / len(rows)


@torch.no_grad()
def in_parts(function: Callable[[Tensor], Tensor], x: Tensor, size: int = 5000) -> Tensor:
    """A function of rows, some thousand of them at a time."""
    return torch.cat([function(part) for part in x.split(size)])
