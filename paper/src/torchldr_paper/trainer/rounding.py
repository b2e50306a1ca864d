"""Networks of a fleet with weights rounded to int8, as `torchldr.quantize_` rounds them.

After training the networks with the best validation are rounded and scored. Where that costs more than half
a point of validation accuracy, all replicas are trained a little more with rounded weights and the gradients
of these (straight through), and each keeps what is better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchldr.matrices import get_structure
from torchldr.nn import Storage, stored_bytes, straight_through

from ..models.images import CHANNELS, hidden_input
from ..protocol import Run
from .fleet import Fleet

INT8, FLOAT = Storage(torch.int8), Storage(torch.float32)
LOSS = 0.5  # points of validation accuracy from which on networks are trained with rounded weights
EPOCHS = 3
RATE = 0.2  # of the learning rate


def storage_of(run: Run, name: str) -> Storage:
    """How a parameter of a network is stored."""
    layer, _, own = name.rpartition(".")
    if own == "bias":
        return FLOAT
    stored = get_structure(run.structure).stored if layer == "hidden" else {}
    return stored.get(own, INT8)


def flash_bytes(run: Run, image_shape: tuple[int, int, int], outputs: int) -> int:
    """What the weights of a run's network take in flash: integers, scales, biases, and what says where the
    weights of a pruned layer stand."""
    size = hidden_input(run.model, image_shape)
    units = run.hidden or size
    structure = get_structure(run.structure)
    options = structure.check_options(dict(run.options))
    own = structure.parameter_shapes(units, size, run.rank or 1, **options)
    shapes = {f"hidden.{name}": shape for name, shape in own.items()}
    shapes |= {"logits.weight": (outputs, units), "logits.bias": (outputs,)}
    if run.model == "cnn":
        before = image_shape[0]
        for i, channels in enumerate(CHANNELS, start=1):
            shapes |= {f"conv{i}.weight": (channels, before, 5, 5), f"conv{i}.bias": (channels,)}
            before = channels
        shapes["hidden.bias"] = (units,)
    pruned = 0 if run.keep is None else sparse_bytes(run.keep, *shapes.pop("hidden.weight"))
    return pruned + sum(stored_bytes(shape, storage_of(run, name)) for name, shape in shapes.items())


def sparse_bytes(keep: int, m: int, n: int) -> int:
    """A pruned int8 matrix with one scale, in the smallest of three forms, wherever its weights stand.

    A bit for each entry; or an offset of 8 bits from one weight to the next, with a weight of 0 where that is
    not enough; or 16 bits of column for each weight and 16 (from 65,536 weights on 32) for each row.
    """
    bitmap = -(-m * n // 8) + keep
    offsets = 2 * (keep + m * n // 256)
    columns = 3 * keep + (m + 1) * (2 if keep < 1 << 16 else 4)
    return 4 + min(bitmap, offsets, columns)


def rounding(run: Run, fleet: Fleet) -> Callable[[Tensor], Tensor]:
    """The function that rounds the parameters of all replicas, (R, length), and lets gradients through."""
    layout = fleet.network.layout

    def rounded(flat: Tensor) -> Tensor:
        pieces = list(flat.split(layout.sizes, -1))
        for i, (name, shape) in enumerate(layout.shapes.items()):
            piece, storage = pieces[2 * i], storage_of(run, name)
            one_scale = name == "hidden.weight" and run.keep is not None
            whole = piece if one_scale else piece.unflatten(-1, shape)
            pieces[2 * i] = straight_through(whole, storage, lead=1).flatten(1)
        return torch.cat(pieces, -1)

    return rounded


def score_rounded(run: Run, fleet: Fleet, best: Tensor, validation: list[float | None]) -> dict[str, Any]:
    """Accuracies of all replicas with rounded weights, for the notes of a record.

    `best` are the parameters of each replica where its validation was best, (R, length), `validation` the
    accuracies there, None where a replica diverged at once. The fleet's own parameters change.
    """
    rounded = rounding(run, fleet)
    rows = rounded(best).detach()
    scores = fleet.validation(rows)
    pairs = [(a, b) for a, b in zip(scores, validation, strict=True) if b is not None]
    lost = max((b for _, b in pairs), default=0.0) - max((a for a, _ in pairs), default=0.0)
    trained = lost > LOSS
    if trained:
        fleet.continue_from(best, rounded, RATE)
        for epoch in range(run.epochs, run.epochs + EPOCHS):
            fleet.train_epoch(epoch)
            fleet.finish_epoch()
            now = rounded(fleet.flat.detach()).detach()
            for i, (new, old) in enumerate(zip(fleet.validation(now), scores, strict=True)):
                if fleet.alive[i] and new > old:
                    rows[i].copy_(now[i])
                    scores[i] = new
    _, test = fleet.train_and_test(rows)
    known = [v is not None for v in validation]
    return {
        "validation": [round(s, 4) if k else None for s, k in zip(scores, known, strict=True)],
        "test": [round(t, 4) if k else None for t, k in zip(test, known, strict=True)],
        "trained": trained,
        "lost": round(lost, 4),
    }
