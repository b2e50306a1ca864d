"""A fine-tuning under way: its passes over the data, and what a checkpoint holds of it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...core.checks import check_choices, check_model
from ...progress import Report
from ..progress import check_count
from .groups import parameter_groups
from .state import StateFile, copied
from .teacher import Distillation, Teacher

Loss = Callable[[Any, Any], Tensor]
_PROGRESS = ("step", "epoch", "within", "waited", "history", "best", "finished", "stopped", "seconds")
_SETTINGS = (  # what the numbers depend on
    "epochs", "steps", "lr", "operator_lr", "weight_decay", "even", "clip", "schedule", "warmup", "amp",
    "patience", "seed",
)  # fmt: skip


SCHEDULES = ("cosine", "linear", "constant")


@dataclass(kw_only=True)
class FinetuneRun:
    """A model, its optimizer and its history; `finetune` says what the fields are."""

    model: nn.Module
    loader: Any
    epochs: int | None
    steps: int | None
    loss: Loss | None
    lr: float
    operator_lr: float | None
    weight_decay: float
    even: bool | str
    clip: float | None
    schedule: str
    warmup: float
    teacher: nn.Module | None
    distillation: Distillation | None
    amp: str | None
    checkpoint: str | os.PathLike[str] | None
    every: int | None
    validate: Callable[[nn.Module], float] | None
    patience: int | None
    device: Any
    seed: int

    def __post_init__(self) -> None:
        self._check()
        self.total = self._total()
        self.device = torch.device(self.device or next((p.device for p in self.model.parameters()), "cpu"))
        self.model.to(self.device)
        given: Any = {"operator_lr": self.operator_lr, "weight_decay": self.weight_decay, "even": self.even}
        groups = parameter_groups(self.model, self.lr, **given)
        if not groups:
            raise ValueError("finetune: no parameter of the model requires a gradient.")
        self.learn = None
        if self.teacher is not None:
            how = self.distillation or Distillation()
            self.learn = Teacher(self.model, self.teacher.to(self.device), how)
        elif self.distillation is not None:
            raise ValueError("finetune: distillation needs a teacher.")
        settings = {name: getattr(self, name) for name in _SETTINGS}
        settings["distillation"] = None if self.learn is None else asdict(self.learn.how)
        settings["shapes"] = {name: list(t.shape) for name, t in self.model.state_dict().items()}
        self.file = None if self.checkpoint is None else StateFile(self.checkpoint, settings)
        self.rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.AdamW(groups)
        self.learned = [p for group in groups for p in group["params"]]
        self.step = self.epoch = self.within = self.waited = 0  # `within`: batches done of this pass
        self.history: list[dict[str, Any]] = []
        self.best: list[Any] | None = None  # validation, entry of the history or -1 for the start
        self.best_state: dict[str, Any] | None = None
        self.finished = self.stopped = False
        self.seconds = 0.0
        self.total_loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self._random: dict[str, Any] | None = None

    def _check(self) -> None:
        check_model("finetune", self.model)
        if (self.epochs is None) == (self.steps is None):
            raise TypeError("finetune: give one of epochs and steps.")
        counts = {name: getattr(self, name) for name in ("epochs", "steps", "every", "patience")}
        check_count("finetune", **{name: value for name, value in counts.items() if value is not None})
        check_choices("finetune", schedule=(self.schedule, SCHEDULES))
        if not 0 <= self.warmup < 1:
            raise ValueError(f"finetune: warmup must lie in [0, 1), got {self.warmup!r}.")
        if self.amp not in (None, "bf16"):
            raise ValueError(f"finetune: amp must be 'bf16' or None, got {self.amp!r}.")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"finetune: clip must be positive or None, got {self.clip!r}.")
        if self.patience is not None and self.validate is None:
            raise ValueError("finetune: patience needs validate.")

    def _total(self) -> int:
        """The number of steps in all."""
        if self.epochs is None:
            return self.steps or 0
        try:
            batches = len(self.loader)
        except TypeError:  # a generator, or a DataLoader of one
            batches = 0
        if not batches:
            given = f"epochs={self.epochs} needs a loader with a length of at least 1"
            raise ValueError(f"finetune: {given}; give steps= for others.")
        return self.epochs * batches

    def _factor(self, step: int) -> float:
        """What the learning rates are multiplied by at a step."""
        warmup = math.ceil(self.warmup * self.total)
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = (step - warmup) / max(1, self.total - warmup)
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        return 1 - done if self.schedule == "linear" else 1.0

    def judge_start(self) -> None:
        """Validate the model as it came: what is not better is not kept."""
        if self.validate is not None and self.step == 0:
            self.best, self.best_state = [self._score(), -1], copied(self.model)

    def one_pass(self, report: Report) -> None:
        """What is left of a pass over the loader, and its validation."""
        begun, before = time.perf_counter(), self.seconds
        self.model.train()
        for batch in self._rest_of_pass():
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * self._factor(self.step)
            self._train(batch)
            self.step += 1
            self.within += 1
            self.seconds = before + time.perf_counter() - begun
            report(f"fine-tuning, pass {self.epoch + 1}", self.step, self.total)
            last = self.step >= self.total
            if self.every and self.step % self.every == 0 and not last:
                self._check_finite()
                self.save()
            if last:
                break
        if not self.within:
            raise ValueError("finetune: the loader gave no batch; a generator can be used only once.")
        self._check_finite()
        self._close_pass()
        self.finished = self.stopped or self.step >= self.total
        self.seconds = before + time.perf_counter() - begun
        self.history[-1]["seconds"] = round(self.seconds, 3)
        self.save()

    def _rest_of_pass(self) -> Iterator[Any]:
        """The batches of this pass that were not seen yet, in an order that depends on the seed alone."""
        torch.manual_seed(self.seed * 1_000_003 + self.epoch)
        generator = getattr(self.loader, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(self.seed * 1_000_003 + self.epoch)
        sampler: Any = getattr(self.loader, "sampler", None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
        iterator = iter(self.loader)
        if self.within:
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
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp == "bf16"):
            output = self.model(*inputs, **keywords)
            loss = torch.zeros((), device=self.device)
            if self.learn is None or self.learn.how.task:
                loss = _task_loss(self.loss, output, target)
            if self.learn is not None:
                loss = self.learn.how.task * loss + self.learn.loss(inputs, keywords, output)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.learned, self.clip)
        self.optimizer.step()
        self.total_loss += loss.detach()

    def _check_finite(self) -> None:
        if not math.isfinite(float(self.total_loss)):
            raise FloatingPointError(
                f"finetune: the loss is not finite any more at step {self.step}; lower "
                f"lr={self.lr:g} or operator_lr, or set clip."
            )

    def _close_pass(self) -> None:
        score = None
        if self.validate is not None:
            score = self._score()
            if self.best is None or score > self.best[0]:
                self.best, self.best_state, self.waited = [score, len(self.history)], copied(self.model), 0
            else:
                self.waited += 1
            self.stopped = self.patience is not None and self.waited >= self.patience
        self.history.append(
            {
                "epoch": self.epoch,
                "step": self.step,
                "loss": float(self.total_loss) / self.within,
                "lr": self.lr * self._factor(self.step - 1),
                "validation": score,
                "seconds": 0.0,
            }
        )
        self.total_loss.zero_()
        self.epoch, self.within = self.epoch + 1, 0

    def _score(self) -> float:
        assert self.validate is not None
        self.model.eval()
        with torch.no_grad():
            return float(self.validate(self.model))

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
                "progress": {name: getattr(self, name) for name in _PROGRESS},
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
        self._random = state["random"] if self.within else None


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
