"""Distillation: a compressed model's loss against the original."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, mse_loss

from ...nn.description import describe
from ...nn.evaluating import evaluating
from ..outputs import LOGITS, main_output


@dataclass(frozen=True)
class Distillation:
    """The weights of the parts of a distillation loss. Each may be 0.

    Attributes:
        task: weight of the loss on the targets.
        logits: weight of the divergence between the softmax of teacher and student, times temperature^2. For
            other outputs (embeddings, hidden states) it weights the relative squared error.
        layers: weight of the relative squared errors of the replaced layers' outputs, averaged over the
            layers.
        temperature: the divisor of both logits.
        output: the entry of the output to compare; by default its logits, else sentence embeddings or
            hidden states, else the first tensor.
    """

    task: float = 1.0
    logits: float = 1.0
    layers: float = 0.1
    temperature: float = 2.0
    output: str | None = None

    def __post_init__(self) -> None:
        for name in ("task", "logits", "layers"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Distillation: {name} must be at least 0, got {getattr(self, name)!r}.")
        if not self.temperature > 0:
            raise ValueError(f"Distillation: temperature must be positive, got {self.temperature!r}.")


def replaced_layers(student: nn.Module, teacher: nn.Module) -> list[str]:
    """Names of the student's structured layers with a dense counterpart in the teacher.

    A structured layer inside another (a projection of an attention) counts with the outer one if the teacher
    has no module of its name.
    """
    known = dict(teacher.named_modules())
    return [
        name
        for name, module in student.named_modules()
        if name in known and describe(module) is not None and describe(known[name]) is None
    ]


def _compared(output: Any, name: str | None) -> tuple[bool, Tensor]:
    """The compared part of an output, and whether it is logits; a bare tensor or a tuple's first one is."""
    try:
        found, value = main_output(output, name, "finetune")
    except ValueError as error:
        raise TypeError(str(error)) from None
    bare = isinstance(output, Tensor | tuple | list) and not hasattr(output, "_fields")
    return found == LOGITS or (bare and name is None), value.float()


class Teacher:
    """The teacher, and hooks on the replaced layers of both models."""

    def __init__(self, student: nn.Module, teacher: nn.Module, how: Distillation) -> None:
        self.teacher, self.how = teacher, how
        names = replaced_layers(student, teacher) if how.layers else []
        if how.layers and not names:
            raise ValueError(
                "finetune: no structured layer of the model has a dense counterpart in the teacher; give "
                "the model as it was before compress_, or distillation with layers=0."
            )
        self._pairs = [(student.get_submodule(name), teacher.get_submodule(name)) for name in names]
        self._seen: dict[nn.Module, Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Collect the outputs of both models' layers inside this context; the teacher is in `eval()`."""
        with ExitStack() as hooks, evaluating(self.teacher):
            for module in chain(*self._pairs):
                hooks.enter_context(module.register_forward_hook(self._see))
            yield

    def _see(self, module: nn.Module, args: Any, output: Any) -> None:
        self._seen[module] = output[0] if isinstance(output, tuple) else output

    def loss(
        self, inputs: Iterable[Any], keywords: dict[str, Any], output: Any, task: Callable[[], Tensor]
    ) -> Tensor:
        """The loss of the student's latest output: the teacher's, plus the task's, computed if it counts."""
        with torch.no_grad():
            told = self.teacher(*inputs, **keywords)
        how, total = self.how, torch.zeros(())
        if how.logits:
            T = how.temperature
            (soft, ours), (_, theirs) = _compared(output, how.output), _compared(told, how.output)
            if ours.shape != theirs.shape:
                raise ValueError(
                    f"finetune: the model gives logits of shape {tuple(ours.shape)}, the teacher of shape "
                    f"{tuple(theirs.shape)}."
                )
            if soft:
                p, q = ((x / T).log_softmax(-1).flatten(0, -2) for x in (theirs, ours))
                total = how.logits * T * T * kl_div(q, p, log_target=True, reduction="batchmean")
            else:
                total = how.logits * _relative(ours, theirs)
        if how.layers:
            # Some modules are never called, such as the out_proj of torch's attention.
            called = [pair for pair in self._pairs if all(module in self._seen for module in pair)]
            errors = [
                _relative(self._seen[ours].float(), self._seen[theirs].float()) for ours, theirs in called
            ]
            if errors:
                total = total + how.layers * torch.stack(errors).mean()
        self._seen.clear()
        return total + how.task * task() if how.task else total


def _relative(ours: Tensor, theirs: Tensor) -> Tensor:
    return mse_loss(ours, theirs) / theirs.square().mean().clamp(min=1e-12)
