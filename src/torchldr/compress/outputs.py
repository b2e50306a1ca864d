"""Calling a model with a batch, the output that counts, and the distance of two outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..nn.tensors import called_with

# Which entry of an output counts where none is named; else the first tensor of floating point.
PREFERRED = ("logits", "sentence_embedding", "last_hidden_state")
LOGITS = "logits"


def entries(output: Any) -> dict[str, Tensor]:
    """The tensors of floating point in an output, by name; by place in a tuple, "" for the output itself."""
    if isinstance(output, Tensor):
        named: list[tuple[Any, Any]] = [("", output)]
    elif isinstance(output, Mapping):
        named = list(output.items())
    elif is_dataclass(output):
        named = [(field.name, getattr(output, field.name)) for field in fields(output)]
    elif isinstance(output, tuple | list):
        named = list(enumerate(output))
    else:
        named = list(getattr(output, "__dict__", {}).items())
    return {str(name): x for name, x in named if isinstance(x, Tensor) and x.is_floating_point()}


def main_output(output: Any, name: str | None = None, who: str = "compress_") -> tuple[str, Tensor]:
    """The name of the entry that counts, and the entry.

    Without a name: the logits if there are any, else sentence embeddings, hidden states or the first tensor.

    Raises:
        ValueError: if there is no such entry.
    """
    known = entries(output)
    wanted = PREFERRED if name is None else (name,)
    found = next((key for key in wanted if key in known), None)
    if found is None and name is None:
        found = next((key for key, x in known.items() if x.ndim), None)
    if found is None:
        has = ", ".join(repr(key) for key in known) or "no tensor of floating point, not counting nested ones"
        missing = "" if name is None else f"has no entry {name!r}: it "
        raise ValueError(f"{who}: the output, a {type(output).__name__}, {missing}has {has}.")
    return found, known[found]


def copied(batch: Any) -> dict[str, Any]:
    """The inputs of a batch by name, copied, because a loader may reuse its memory.

    A mapping gives keyword arguments. The first entry of a list or tuple, or anything else, is the input: "".
    """
    first = batch[0] if isinstance(batch, tuple | list) else batch
    taken = dict(batch) if isinstance(batch, Mapping) else {"": first}
    return pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), taken)


def called(model: nn.Module, weights: Mapping[str, Tensor], batch: Any) -> Any:
    """The output with other parameters. Model and batch never change, even if it works in place."""
    given = copied(batch)
    args = (given.pop(""),) if "" in given else ()
    lent = {id(buffer): buffer.clone() for buffer in model.buffers()}
    lent |= {id(model.get_parameter(name)): W for name, W in weights.items()}
    return called_with(model, lent, args, given)


def counted(batch: Any, output: Tensor) -> Tensor | None:
    """Which positions of an output count, (batch, length), by the batch's attention mask; None for all."""
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    fits = isinstance(mask, Tensor) and output.ndim > 2 and mask.shape == output.shape[:2]
    return mask.bool() if fits and isinstance(mask, Tensor) else None


def kept(batch: Any, output: Tensor) -> Tensor:
    """The output, in float32 or wider, without the positions that do not count."""
    mask, wide = counted(batch, output), output.float() if output.dtype != torch.float64 else output
    return wide if mask is None else wide[mask.to(wide.device)]


def distance(name: str, ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """How far outputs are from the original's, as (sum, size): their ratio is the distance.

    For logits this is the divergence of the softmax, summed over the rows; for other outputs the squared
    error and the squared size of the original.
    """
    if name == LOGITS:
        p, q = theirs.log_softmax(-1).flatten(0, -2), ours.log_softmax(-1).flatten(0, -2)
        return float((p.exp() * (p - q)).sum()), float(len(p))
    return float((ours - theirs).square().sum()), float(theirs.square().sum())
