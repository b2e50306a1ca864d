"""The plain loop: one replica after the other, an nn.Module and torch.optim.SGD.

What the fleet must agree with.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from torchldr_paper.models.images import SingleHiddenLayer, is_operator, is_penalised
from torchldr_paper.protocol import Run
from torchldr_paper.trainer.batches import Images, Split, generator
from torchldr_paper.trainer.fleet import initial_models


def train_plain(run: Run, images: Images, steps: int) -> list[SingleHiddenLayer]:
    """Train every replica of a run for some steps, separately.

    Args:
        run: what to train.
        images: the data.
        steps: how many steps of gradient descent, over as many epochs as they take.

    Returns:
        The trained networks, in the order of `run.protocol.replicas`.
    """
    split, protocol = Split.of(run, len(images.train_y)), run.protocol
    models = [model.to(images.device) for model in initial_models(run, images)]
    for model, (lr, _) in zip(models, protocol.replicas, strict=True):
        learned = [p for name, p in model.named_parameters() if not (run.fixed and is_operator(name))]
        optimizer = torch.optim.SGD(learned, lr=lr, momentum=protocol.momentum)
        for rows in _batches(run, split, steps):
            rows = rows.to(images.device)
            optimizer.zero_grad()
            loss = cross_entropy(model(images.train_x[rows]), images.train_y[rows])
            if run.l1 is not None:
                counted = (p.abs().sum() for name, p in model.named_parameters() if is_penalised(name))
                loss = loss + run.l1 * sum(counted)
            loss.backward()
            optimizer.step()
    return models


def _batches(run: Run, split: Split, steps: int) -> list[torch.Tensor]:
    """The rows of the first `steps` batches."""
    batches: list[torch.Tensor] = []
    epoch = 0
    while len(batches) < steps:
        shuffle = torch.randperm(len(split.train), generator=generator(run.seed, "order", epoch))
        batches += split.train[shuffle].split(run.protocol.batch)
        epoch += 1
    return batches[:steps]
