"""`finetune`: a plain training loop that suits structured layers. examples/ shows full trainers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...core.checks import check_model
from ..session import check_count
from .groups import parameter_groups
from .teacher import Distillation, Teacher

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Step:
    """A callback's argument after each optimizer step: `step` of `steps`, from 1; the pass, from 0."""

    step: int
    steps: int
    epoch: int
    loss: Tensor  # mean over the batches of the step; a tensor, since reading it waits for a GPU
    lr: float  # of the first group


@dataclass(frozen=True)
class FinetuneResult:
    """The result of a fine-tuning: the mean loss of every pass, the number of steps, and seconds."""

    losses: tuple[float, ...]
    steps: int
    seconds: float
    stopped: bool  # by the callback


def finetune(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    epochs: int = 1,
    loss: Loss | None = None,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    optimizer: torch.optim.Optimizer | None = None,
    warmup: float = 0.05,
    accumulate: int = 1,
    max_grad_norm: float | None = 1.0,
    amp: torch.dtype | None = None,
    teacher: nn.Module | None = None,
    distillation: Distillation | None = None,
    callback: Callable[[Step], object] | None = None,
) -> FinetuneResult:
    """Train a model further, in place: AdamW with rates that suit structured layers, and a cosine schedule.

    Args:
        model: any module, for instance after `compress_`. It ends in `eval()`.
        loader: batches, with a length; they are moved to the model's device. Of a tuple or list the last
            entry is the target and the others are the inputs. A mapping is passed as keywords and is its own
            target.
        epochs: passes over the loader.
        loss: a function of (output, target). By default cross entropy, for mappings the output's own `loss`.
        lr, weight_decay: as in `parameter_groups`.
        optimizer: your own instead, made from `parameter_groups(model, ...)`.
        warmup: share of the steps over which the rate rises from 0; then it falls to 0 by a cosine.
        accumulate: batches whose gradients make one step.
        max_grad_norm: limit of the gradient's norm over all parameters; None for no limit.
        amp: run forward passes under autocast in torch.bfloat16, or in torch.float16 with scaled gradients.
        teacher: the original model (a copy, because `compress_` works in place), to learn from.
        distillation: the weights of the teacher's losses; by default `Distillation()`.
        callback: called with a `Step` after each step; a true result stops the training.

    Raises:
        FloatingPointError: if the loss of a pass is not finite.

    Examples:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
        >>> batches = [(torch.randn(4, 8), torch.randint(3, (4,))) for _ in range(5)]
        >>> finetune(model, batches, epochs=2, callback=lambda step: step.step == 7).steps
        7
    """
    check_model("finetune", model)
    check_count("finetune", epochs=epochs, accumulate=accumulate)
    _check(warmup, max_grad_norm, amp, teacher, distillation)
    steps = epochs * math.ceil(_length(loader) / accumulate)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if optimizer is None:
        groups = parameter_groups(model, lr, weight_decay=weight_decay)
        if not groups:
            raise ValueError("finetune: no parameter of the model requires a gradient.")
        optimizer = torch.optim.AdamW(groups)
    learned = [p for group in optimizer.param_groups for p in group["params"]]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(_factor, steps, warmup))
    scaler = torch.amp.GradScaler(device.type, enabled=amp == torch.float16)
    learn = None if teacher is None else Teacher(model, teacher.to(device), distillation or Distillation())
    begun, losses, step, stopped = time.perf_counter(), [], 0, False
    optimizer.zero_grad()
    with nullcontext() if learn is None else learn.watching():
        for epoch in range(epochs):
            total, seen, stream = torch.zeros((), device=device), 0, iter(loader)
            while not stopped and (batches := list(islice(stream, accumulate))):
                model.train()  # a callback may have validated it
                part = torch.zeros((), device=device)
                for batch in batches:
                    inputs, keywords, target = _unpack(batch, device)
                    with torch.autocast(device.type, amp, enabled=amp is not None):
                        output = model(*inputs, **keywords)
                        task = partial(_task_loss, loss, output, target)
                        value = task() if learn is None else learn.loss(inputs, keywords, output, task)
                    scaler.scale(value / len(batches)).backward()
                    part, total = part + value.detach(), total + value.detach()
                if max_grad_norm is not None:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(learned, max_grad_norm)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                schedule.step()
                step, seen = step + 1, seen + len(batches)
                rate = float(schedule.get_last_lr()[0])
                if callback is not None:
                    stopped = bool(callback(Step(step, steps, epoch, part / len(batches), rate)))
            if not seen:
                raise ValueError("finetune: the loader gave no batch; an iterator can be used only once.")
            losses.append(float(total) / seen)
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(
                    f"finetune: the loss is not finite in pass {epoch + 1}; lower lr={lr:g}."
                )
            if stopped:
                break
    model.eval()
    return FinetuneResult(tuple(losses), step, time.perf_counter() - begun, stopped)


def _check(warmup: float, norm: float | None, amp: Any, teacher: Any, distillation: Any) -> None:
    if not 0 <= warmup < 1:
        raise ValueError(f"finetune: warmup must lie in [0, 1), got {warmup!r}.")
    if amp not in (None, torch.bfloat16, torch.float16):
        raise ValueError(f"finetune: amp must be torch.bfloat16, torch.float16 or None, got {amp!r}.")
    if norm is not None and not norm > 0:
        raise ValueError(f"finetune: max_grad_norm must be positive or None, got {norm!r}.")
    if distillation is not None and teacher is None:
        raise ValueError("finetune: distillation needs a teacher.")


def _length(loader: Iterable[Any]) -> int:
    try:
        found = len(loader)  # type: ignore[arg-type]
    except TypeError:  # a generator, or a DataLoader of one
        raise ValueError("finetune: the loader needs a length; list(loader) has one.") from None
    if not found:
        raise ValueError("finetune: the loader gave no batch.")
    return found


def _factor(steps: int, warmup: float, step: int) -> float:
    """The factor of the learning rates at a step."""
    rising = math.ceil(warmup * steps)
    if step < rising:
        return (step + 1) / (rising + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def _unpack(batch: Any, device: torch.device) -> tuple[list[Any], dict[str, Any], Any]:
    """Inputs, keywords and target of a batch, on the device."""

    def moved(value: Any) -> Any:
        return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value

    if isinstance(batch, Mapping):
        named = {key: moved(value) for key, value in batch.items()}
        return [], named, named
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        *inputs, target = map(moved, batch)
        return inputs, {}, target
    raise TypeError(
        "finetune: a batch must be a mapping, or a tuple or list of inputs and a target, got "
        f"{type(batch).__name__}."
    )


def _task_loss(loss: Loss | None, output: Any, target: Any) -> Tensor:
    if loss is not None:
        return loss(output, target)
    if isinstance(target, Mapping):
        found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if not isinstance(found, Tensor):
            raise TypeError("finetune: the batches are mappings and the output has no `loss`: give loss=.")
        return found
    if not isinstance(output, Tensor):
        raise TypeError(f"finetune: the output is a {type(output).__name__}, not a tensor: give loss=.")
    return cross_entropy(output, target)
