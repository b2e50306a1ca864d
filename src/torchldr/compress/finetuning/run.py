"""`finetune`: recover the accuracy of a compressed model; its passes over the data, and its checkpoints."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...core.checks import check_choices, check_model
from ...progress import Report, reporting
from ..progress import check_count
from .groups import parameter_groups
from .state import StateFile, copied
from .teacher import Distillation, Teacher

Loss = Callable[[Any, Any], Tensor]
_PROGRESS = ("step", "epoch", "within", "waited", "history", "best", "finished", "stopped")
_SETTINGS = (  # what the numbers depend on
    "epochs", "steps", "lr", "operator_lr", "weight_decay", "even", "clip", "schedule", "warmup", "amp",
    "patience", "seed",
)  # fmt: skip
SCHEDULES = ("cosine", "linear", "constant")


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
    run = FinetuneRun(**{name: value for name, value in locals().items() if name != "progress"})
    kept = torch.random.fork_rng(devices=[run.device] if run.device.type == "cuda" else [])
    with kept, reporting(progress or False) as report:
        run.resume()
        run.judge_start()
        with nullcontext() if run.learn is None else run.learn.watching():
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
    return FinetuneResult(run.history, run.step, run.best, run.stopped, run.seconds)


class FinetuneRun:
    """A model, its optimizer and its history; `given` are the arguments of `finetune`."""

    def __init__(self, **given: Any) -> None:
        self.how = how = SimpleNamespace(**given)
        _check(how)
        self.model: nn.Module = how.model
        self.total = _total(how)
        self.device = torch.device(how.device or next((p.device for p in self.model.parameters()), "cpu"))
        self.model.to(self.device)
        rates: Any = {name: given[name] for name in ("lr", "operator_lr", "weight_decay", "even")}
        groups = parameter_groups(self.model, **rates)
        if not groups:
            raise ValueError("finetune: no parameter of the model requires a gradient.")
        self.learn = None
        if how.teacher is not None:
            distillation = how.distillation or Distillation()
            self.learn = Teacher(self.model, how.teacher.to(self.device), distillation)
        elif how.distillation is not None:
            raise ValueError("finetune: distillation needs a teacher.")
        settings = {name: given[name] for name in _SETTINGS}
        settings["distillation"] = None if self.learn is None else asdict(self.learn.how)
        settings["shapes"] = {name: list(t.shape) for name, t in self.model.state_dict().items()}
        self.file = None if how.checkpoint is None else StateFile(how.checkpoint, settings)
        self.rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.AdamW(groups)
        self.learned = [p for group in groups for p in group["params"]]
        self.step = self.epoch = self.within = self.waited = 0  # `within`: batches done of this pass
        self.history: list[dict[str, Any]] = []
        self.best: tuple[float, int] | None = None  # validation, entry of the history or -1 for the start
        self.best_state: dict[str, Any] | None = None
        self.finished = self.stopped = False
        self.begun = time.perf_counter()
        self.total_loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self._random: dict[str, Any] | None = None

    @property
    def seconds(self) -> float:
        """Since the start, without the time between sessions."""
        return time.perf_counter() - self.begun

    def _factor(self, step: int) -> float:
        """What the learning rates are multiplied by at a step."""
        warmup = math.ceil(self.how.warmup * self.total)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = (step - warmup) / max(1, self.total - warmup)
        if self.how.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        return 1 - done if self.how.schedule == "linear" else 1.0

    def judge_start(self) -> None:
        """Validate the model as it came: what is not better is not kept."""
        if self.how.validate is not None and self.step == 0:
            self.best, self.best_state = (self._score(), -1), copied(self.model)

    def one_pass(self, report: Report) -> None:
        """What is left of a pass over the loader, and its validation."""
        self.model.train()
        for batch in self._rest_of_pass():
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * self._factor(self.step)
            self._train(batch)
            self.step += 1
            self.within += 1
            report(f"fine-tuning, pass {self.epoch + 1}", self.step, self.total)
            last = self.step >= self.total
            if self.how.every and self.step % self.how.every == 0 and not last:
                self._check_finite()
                self.save()
            if last:
                break
        if not self.within:
            raise ValueError("finetune: the loader gave no batch; a generator can be used only once.")
        self._check_finite()
        self._close_pass()
        self.finished = self.stopped or self.step >= self.total
        self.save()

    def _rest_of_pass(self) -> Iterator[Any]:
        """The batches of this pass that were not seen yet, in an order that depends on the seed alone."""
        torch.manual_seed(self.how.seed * 1_000_003 + self.epoch)
        generator = getattr(self.how.loader, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(self.how.seed * 1_000_003 + self.epoch)
        sampler: Any = getattr(self.how.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
        iterator = iter(self.how.loader)
        for _ in islice(iterator, self.within):
            pass
        if self._random is not None:
            torch.set_rng_state(self._random["cpu"])
            for state in self._random["cuda"]:
                torch.cuda.set_rng_state(state, self.device)
            self._random = None
        return iterator

    def _train(self, batch: Any) -> None:
        inputs, keywords, target = _unpack(batch, self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.how.amp == "bf16"):
            output = self.model(*inputs, **keywords)
            loss = torch.zeros((), device=self.device)
            if self.learn is None or self.learn.how.task:
                loss = _task_loss(self.how.loss, output, target)
            if self.learn is not None:
                loss = self.learn.how.task * loss + self.learn.loss(inputs, keywords, output)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.how.clip is not None:
            nn.utils.clip_grad_norm_(self.learned, self.how.clip)
        self.optimizer.step()
        self.total_loss += loss.detach()

    def _check_finite(self) -> None:
        if not math.isfinite(float(self.total_loss)):
            raise FloatingPointError(
                f"finetune: the loss is not finite any more at step {self.step}; lower "
                f"lr={self.how.lr:g} or operator_lr, or set clip."
            )

    def _close_pass(self) -> None:
        score = None
        if self.how.validate is not None:
            score = self._score()
            if self.best is None or score > self.best[0]:
                self.best, self.best_state, self.waited = (score, len(self.history)), copied(self.model), 0
            else:
                self.waited += 1
            self.stopped = self.how.patience is not None and self.waited >= self.how.patience
        self.history.append(
            {
                "epoch": self.epoch,
                "step": self.step,
                "loss": float(self.total_loss) / self.within,
                "lr": self.how.lr * self._factor(self.step - 1),
                "validation": score,
                "seconds": round(self.seconds, 3),
            }
        )
        self.total_loss.zero_()
        self.epoch, self.within = self.epoch + 1, 0

    def _score(self) -> float:
        assert self.how.validate is not None
        self.model.eval()
        with torch.no_grad():
            return float(self.how.validate(self.model))

    # Interruptions.

    def save(self) -> None:
        if self.file is None:
            return
        cuda = [torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []
        self.file.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "random": {"cpu": torch.get_rng_state(), "cuda": cuda},
                "best_state": self.best_state,
                "total_loss": self.total_loss,
                "progress": {name: getattr(self, name) for name in (*_PROGRESS, "seconds")},
            }
        )

    def resume(self) -> None:
        state = None if self.file is None else self.file.load()
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for p, kept in self.optimizer.state.items():  # single numbers of 0.1 have no axis
            kept |= {name: t.reshape(p.shape) for name, t in kept.items() if name.startswith("exp_avg")}
        self.best_state = state["best_state"]
        self.total_loss.copy_(state["total_loss"])
        for name in _PROGRESS:
            setattr(self, name, state["progress"][name])
        self.best = None if self.best is None else (self.best[0], self.best[1])  # a list in older files
        self.begun = time.perf_counter() - state["progress"]["seconds"]
        self._random = state["random"] if self.within else None


def _check(how: SimpleNamespace) -> None:
    check_model("finetune", how.model)
    if (how.epochs is None) == (how.steps is None):
        raise TypeError("finetune: give one of epochs and steps.")
    counts = {name: getattr(how, name) for name in ("epochs", "steps", "every", "patience")}
    check_count("finetune", **{name: value for name, value in counts.items() if value is not None})
    check_choices("finetune", schedule=(how.schedule, SCHEDULES))
    if not 0 <= how.warmup < 1:
        raise ValueError(f"finetune: warmup must lie in [0, 1), got {how.warmup!r}.")
    if how.amp not in (None, "bf16"):
        raise ValueError(f"finetune: amp must be 'bf16' or None, got {how.amp!r}.")
    if how.clip is not None and not how.clip > 0:
        raise ValueError(f"finetune: clip must be positive or None, got {how.clip!r}.")
    if how.patience is not None and how.validate is None:
        raise ValueError("finetune: patience needs validate.")


def _total(how: SimpleNamespace) -> int:
    """The number of steps in all."""
    if how.epochs is None:
        return int(how.steps)
    try:
        batches = len(how.loader)
    except TypeError:  # a generator, or a DataLoader of one
        batches = 0
    if not batches:
        given = f"epochs={how.epochs} needs a loader with a length of at least 1"
        raise ValueError(f"finetune: {given}; give steps= for others.")
    return int(how.epochs) * batches


def _unpack(batch: Any, device: torch.device) -> tuple[list[Any], dict[str, Any], Any]:
    """Inputs, keywords and target of a batch, on the device."""
    if isinstance(batch, Mapping):
        moved = {key: _moved(value, device) for key, value in batch.items()}
        return [], moved, moved
    if isinstance(batch, tuple | list) and len(batch) >= 2:
        *inputs, target = (_moved(part, device) for part in batch)
        return inputs, {}, target
    raise TypeError(
        "finetune: a batch must be a mapping, or a tuple or list of inputs and a target, got "
        f"{type(batch).__name__}."
    )


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value


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
