"""The fleet: all learning rates and trials of a run trained as one network with a replica axis.

Every replica starts from weights of its own and has its own learning rate; all see the same images in
the same order. Replicas never mix: a gradient of the sum of their losses is the stack of their
gradients. On a GPU a step is captured once as a CUDA graph and replayed: it takes the next images by a
counter on the device, so that an epoch needs nothing from the host. On a CPU the same step runs as it
is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..models.images import SingleHiddenLayer, build_model, is_penalised, magnitude_mask
from ..models.network import StackedNetwork
from ..protocol import Run
from .batches import Feed, Images, Split, generator
from .graphs import StepGraphs


class Scores(NamedTuple):
    """What an epoch gave, one entry a replica; None for one that has diverged, or what was not asked for."""

    loss: list[float | None]
    train: list[float | None]
    validation: list[float | None]
    test: list[float | None]
    validation_loss: list[float | None]


def initial_models(run: Run, images: Images) -> list[SingleHiddenLayer]:
    """The networks of a run as they start, one a replica, on the CPU."""
    return [
        build_model(run, images.image_shape, images.outputs, generator(run.seed, "weights", index))
        for index in range(len(run.protocol.replicas))
    ]


class Fleet:
    """The replicas of a run, their optimiser and their data.

    Args:
        run: what to train.
        images: the data, on the device to train on.

    Attributes:
        flat: all parameters, (R, length); velocity: the optimiser's momentum, alike.
        alive: which replicas have not diverged.
        network: the forward pass.
    """

    def __init__(self, run: Run, images: Images) -> None:
        self.run, self.images, self.device = run, images, images.device
        models = initial_models(run, images)
        self.network = StackedNetwork(models, self.device, fixed=bool(run.fixed))
        self.flat = self.network.layout.pack(models).to(self.device).requires_grad_()
        self.velocity = torch.zeros_like(self.flat, requires_grad=False)
        self.split = Split.of(run, len(images.train_y))
        self.alive = [True] * len(models)
        self._rounded: Callable[[Tensor], Tensor] = lambda flat: flat
        lrs = [replica.lr for replica in run.protocol.replicas]
        self._rates = -torch.tensor(lrs, dtype=self.flat.dtype).unsqueeze(1).to(self.device)
        self._losses = torch.zeros(len(models), dtype=self.flat.dtype, device=self.device)
        self._train = self.split.train.to(self.device)
        self.feed = Feed(self._train, run.protocol.batch, run.seed)
        self._validation = self.split.validation.to(self.device)
        self._penalty: Tensor | None = None  # what `Run.l1` counts of a row of parameters
        if run.l1 is not None:
            self._penalty = torch.zeros_like(self.flat[0], requires_grad=False)
            for name, part in self.network.layout.parts(self._penalty).items():
                part.fill_(run.l1 * is_penalised(name))
        changed = [self.flat, self.velocity, self.feed.position, self._losses]
        self._graphs = StepGraphs(self.step, changed)

    def step(self, size: int) -> None:
        """One step of gradient descent on the next `size` images. Reads no value on the host."""
        rows = self.feed.take(size)
        x, y = self.images.train_x.index_select(0, rows), self.images.train_y.index_select(0, rows)
        logits = self.network.logits(self._rounded(self.flat), x)
        count = len(logits)
        losses = cross_entropy(logits.flatten(0, 1), y.repeat(count), reduction="none")
        loss = losses.view(count, size).mean(1)
        (gradient,) = torch.autograd.grad(loss.sum(), self.flat)
        with torch.no_grad():
            if self._penalty is not None:
                gradient = torch.addcmul(gradient, self.flat.sign(), self._penalty)
            torch.add(gradient, self.velocity, alpha=self.run.protocol.momentum, out=self.velocity)
            self.flat.addcmul_(self.velocity, self._rates)
            self._losses.add_(loss.detach(), alpha=size)

    def train_epoch(self, epoch: int) -> None:
        """Train on all training images once, the last partial batch included."""
        self.feed.begin(epoch)
        self._losses.zero_()
        for size in self.feed.sizes:
            self._graphs.replay(size)

    def finish_epoch(self) -> list[float | None]:
        """The replicas' mean losses of the epoch; one that is not finite any more is frozen.

        The one place where an epoch waits for the device.
        """
        losses = [loss / len(self.split.train) for loss in self._losses.tolist()]
        for index, loss in enumerate(losses):
            if self.alive[index] and not math.isfinite(loss):
                self.alive[index] = False
                self._freeze(index)
        return [loss if alive else None for loss, alive in zip(losses, self.alive, strict=True)]

    @torch.no_grad()
    def _freeze(self, index: int) -> None:
        """Give a diverged replica finite weights that no longer change."""
        healthy = next((i for i, alive in enumerate(self.alive) if alive), None)
        if healthy is not None:
            self.flat[index].copy_(self.flat[healthy])
        self.velocity[index].zero_()
        self._rates[index].zero_()

    @torch.no_grad()
    def prune(self, keep: int) -> None:
        """Keep the largest `keep` hidden weights of every replica and start the momentum anew."""
        weight = self.network.layout.parts(self.flat.detach())["hidden.weight"]
        mask = self.network.buffers["hidden.mask"]
        mask.copy_(magnitude_mask(weight, keep))
        weight.mul_(mask)
        self.velocity.zero_()

    @torch.no_grad()
    def continue_from(self, rows: Tensor, rounded: Callable[[Tensor], Tensor], rate: float) -> None:
        """Go on from these parameters, without momentum, with rounded weights and a share of the rates."""
        self.flat.copy_(rows)
        self.velocity.zero_()
        self._rates.mul_(rate)
        self._rounded = rounded
        self._graphs.clear()

    def validation(self, flat: Tensor) -> list[float]:
        """Accuracies in percent of all replicas with these parameters on validation images."""
        images = self.images
        right = self.network.score(flat, images.train_x, images.train_y, self._validation)[0]
        return (100 / len(self._validation) * right).tolist()

    def evaluate(self, loss: list[float | None], *, everything: bool = True) -> Scores:
        """Accuracies in percent on validation images and, where asked for, on training and test images.

        One wait for the device.
        """
        images, flat = self.images, self.flat.detach()
        total = self.network.score(flat, images.train_x, images.train_y, self._validation)
        train, test = self.train_and_test(flat) if everything else (None, None)
        right, losses = total.tolist()
        size = len(self._validation)

        def living(row: Sequence[float] | None, factor: float = 1.0) -> list[float | None]:
            if row is None:
                return [None] * len(self.alive)
            return [factor * v if alive else None for v, alive in zip(row, self.alive, strict=True)]

        return Scores(loss, living(train), living(right, 100 / size), living(test), living(losses, 1 / size))

    def train_and_test(self, flat: Tensor) -> tuple[list[float], list[float]]:
        """Accuracies in percent of all replicas with these parameters on training and on test images."""
        images = self.images
        totals = [
            self.network.score(flat, images.train_x, images.train_y, self._train)[0] / len(self._train),
            self.network.score(flat, images.test_x, images.test_y)[0] / len(images.test_y),
        ]
        train, test = (100 * torch.stack(totals)).tolist()
        return train, test

    # What a checkpoint holds.

    def tensors(self) -> dict[str, Tensor]:
        """Everything that training changes or that was drawn."""
        drawn = {f"buffer.{name}": tensor for name, tensor in self.network.drawn.items()}
        return {"flat": self.flat, "velocity": self.velocity, **drawn}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], alive: list[bool]) -> None:
        """Go on from what `tensors` gave, in place."""
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])
        for index, healthy in enumerate(alive):
            self.alive[index] = healthy
            if not healthy:
                self._rates[index].zero_()

    def replica_state(self, row: Tensor, index: int) -> dict[str, Tensor]:
        """The state_dict of one replica: a row of parameters with that replica's buffers."""
        parts = {name: part.clone() for name, part in self.network.layout.parts(row).items()}
        return parts | {name: tensor[index].clone() for name, tensor in self.network.drawn.items()}
