"""`finetune`: recover the accuracy of a compressed model."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...progress import Report, reporting
from .run import FinetuneRun, Loss
from .teacher import Distillation


@dataclass(frozen=True)
class FinetuneResult:
    """What a fine-tuning did.

    Attributes:
        history: an entry a pass over the loader: "epoch", "step", "loss" (mean of the pass), "lr",
            "validation" (None without `validate`) and "seconds" since the start.
        steps: of the optimizer.
        best: the best validation and the entry of `history` that had it, -1 for the start; None without
            `validate`.
        stopped_early: whether patience ran out.
        seconds: wall time, over all sessions that it took.
    """

    history: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    best: tuple[float, int] | None = None
    stopped_early: bool = False
    seconds: float = 0.0


def finetune(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    epochs: int | None = None,
    steps: int | None = None,
    loss: Loss | None = None,
    lr: float = 1e-3,
    operator_lr: float | None = None,
    weight_decay: float = 0.0,
    even: bool | str = True,
    clip: float | None = 1.0,
    schedule: str = "cosine",
    warmup: float = 0.05,
    teacher: nn.Module | None = None,
    distillation: Distillation | None = None,
    amp: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    validate: Callable[[nn.Module], float] | None = None,
    patience: int | None = None,
    progress: bool | Report | None = True,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> FinetuneResult:
    """Train a model further, in place, in the way that suits structured layers (AdamW).

    Args:
        model: any module; after `compress_`, say. It ends in `eval()`.
        loader: what gives the batches of a pass each time it is iterated over. Of a tuple or list the
            last entry is the target and the others are the inputs; a mapping is passed as keywords and is
            its own target. A DataLoader may shuffle: see `seed`.
        epochs: passes over the loader, or
        steps: batches; exactly one of the two.
        loss: of (output, target). By default cross entropy, and for a mapping the output's own `loss`.
        lr, operator_lr, weight_decay, even: see `parameter_groups`.
        clip: largest norm of the gradient over all parameters; None for no limit.
        schedule: "cosine" or "linear" to 0 over all steps, or "constant".
        warmup: share of the steps over which the rate first rises from 0.
        teacher: the model as it was before `compress_` (a copy: compress_ works in place), to learn from.
        distillation: how much of what; by default `Distillation()`.
        amp: "bf16" runs forward passes under torch.autocast; None as they are.
        checkpoint: a folder. An interrupted run goes on from there with the numbers that it would have
            had; a finished one is not run again. The file is read without running code from it.
        every: steps after which to write a checkpoint, besides the one after each pass.
        validate: called with the model, in `eval()` and without gradients, before the first pass and after
            each; larger is better. The best model is kept and put back at the end; where that is the model
            as it came, a warning says so.
        patience: passes without a better validation after which to stop.
        progress: True for a line on stderr, or a function called with (stage, done, total).
        device: where to train; by default where the model is. Batches are moved there.
        seed: torch's random numbers are seeded from it anew for each pass, and put back at the end. Other
            generators (numpy's, Python's) are not: a loader that draws from them repeats nothing.

    Returns:
        The history. The model holds the best weights where there is `validate`, else the last.

    Raises:
        FloatingPointError: where the loss is not finite any more; the checkpoint is from before.
    """
    run = FinetuneRun(
        model=model, loader=loader, epochs=epochs, steps=steps, loss=loss, lr=lr, operator_lr=operator_lr,
        weight_decay=weight_decay, even=even, clip=clip, schedule=schedule, warmup=warmup, teacher=teacher,
        distillation=distillation, amp=amp, checkpoint=checkpoint, every=every, validate=validate,
        patience=patience, device=device, seed=seed,
    )  # fmt: skip
    kept = torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else [])
    with kept, reporting(progress or False) as report:
        run.resume()
        run.judge_start()
        with contextlib.nullcontext() if run.learn is None else run.learn.watching():
            while not run.finished:
                run.one_pass(report)
    if run.best is not None and run.best_state is not None:
        model.load_state_dict(run.best_state)
    model.eval()
    if run.best is not None and run.best[1] < 0:
        warnings.warn(
            f"finetune: no pass was better than the start (validation {run.best[0]:g}), so the model is as "
            "it was: train longer, or lower lr.",
            stacklevel=2,
        )
    best = None if run.best is None else (run.best[0], run.best[1])
    return FinetuneResult(run.history, run.step, best, run.stopped, run.seconds)
