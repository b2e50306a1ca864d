"""Distillation: a student's loss against the model that it was compressed from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, mse_loss

from .records import record


@dataclass(frozen=True)
class Distillation:
    """How much of a loss comes from where; every weight may be 0.

    Attributes:
        task: weight of the loss on the targets.
        logits: of the divergence between the softmax of teacher and student, times temperature^2.
        layers: of the squared errors of the replaced layers' outputs, each relative to the teacher's
            outputs, their mean over the layers.
        temperature: that both logits are divided by.
    """

    task: float = 1.0
    logits: float = 1.0
    layers: float = 0.1
    temperature: float = 2.0

    def __post_init__(self) -> None:
        for name in ("task", "logits", "layers"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Distillation: {name} must be at least 0, got {getattr(self, name)!r}.")
        if not self.temperature > 0:
            raise ValueError(f"Distillation: temperature must be positive, got {self.temperature!r}.")


def replaced_layers(student: nn.Module, teacher: nn.Module) -> list[str]:
    """Names of the structured layers of the student that the teacher has a dense module for.

    A structured layer inside another (the projections of an attention) counts with the outer one where
    the teacher has no module of its name.
    """
    known = dict(teacher.named_modules())
    return [
        name
        for name, module in student.named_modules()
        if name in known and record(module) is not None and record(known[name]) is None
    ]


def output_logits(output: Any) -> Tensor:
    """The logits of a model's output: a tensor, or what has them as `logits`."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise TypeError(f"finetune: found no logits in an output of {type(output).__name__}.")


class Teacher:
    """The model that is learned from, and the hooks that see what the replaced layers give.

    Args:
        student, teacher: of the same architecture but for the replaced layers.
        how: the weights.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module, how: Distillation) -> None:
        self.teacher, self.how = teacher, how
        self.names = replaced_layers(student, teacher) if how.layers else []
        if how.layers and not self.names:
            raise ValueError(
                "finetune: found no structured layer of the model that the teacher has a dense one for; give "
                "the model as it was before compress_, or distillation with layers=0."
            )
        self._ours = {name: student.get_submodule(name) for name in self.names}
        self._theirs = {name: teacher.get_submodule(name) for name in self.names}
        self._seen: dict[str, Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Collect the outputs of both models' layers while this lasts; the teacher is in `eval()`."""
        mode = [(module, module.training) for module in self.teacher.modules()]
        handles = [
            module.register_forward_hook(self._note(side + name))
            for side, modules in (("s:", self._ours), ("t:", self._theirs))
            for name, module in modules.items()
        ]
        self.teacher.eval()
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for module, training in mode:
                module.training = training

    def _note(self, key: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._seen[key] = output[0] if isinstance(output, tuple) else output

        return hook

    def loss(self, inputs: Iterable[Any], keywords: dict[str, Any], output: Any) -> Tensor:
        """What the teacher says of an output that the student has just given."""
        with torch.no_grad():
            told = self.teacher(*inputs, **keywords)
        how, total = self.how, torch.zeros(())
        if how.logits:
            T = how.temperature
            ours, theirs = output_logits(output).float() / T, output_logits(told).float() / T
            if ours.shape != theirs.shape:
                raise ValueError(
                    f"finetune: the model gives logits of shape {tuple(ours.shape)}, the teacher of shape "
                    f"{tuple(theirs.shape)}."
                )
            rows = ours.log_softmax(-1).flatten(0, -2), theirs.log_softmax(-1).flatten(0, -2)
            total = how.logits * T * T * kl_div(*rows, log_target=True, reduction="batchmean")
        if how.layers:
            errors = []
            for name in self.names:
                # A module that was not called has nothing to say: the out_proj of torch's attention, say.
                if "s:" + name in self._seen and "t:" + name in self._seen:
                    ours, theirs = self._seen["s:" + name].float(), self._seen["t:" + name].float()
                    errors.append(mse_loss(ours, theirs) / theirs.square().mean().clamp(min=1e-12))
            if errors:
                total = total + how.layers * torch.stack(errors).mean()
        self._seen.clear()
        return total
