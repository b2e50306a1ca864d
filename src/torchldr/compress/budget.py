"""Budgets: a share or a number of parameters, bytes, or milliseconds that are measured here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.checks import checked_int
from ..nn import MatrixStack
from ..timing import minimum_seconds
from .candidates import Weight
from .filling import quiet_linear
from .session import check_count
from .structure import DENSE, Structure

REPEATS, SECONDS = 10, 0.02  # to time each layer


@dataclass(frozen=True)
class Bytes:
    """A budget in bytes: of the replaced weights as they are stored, biases not counted.

    Args:
        amount: the number of bytes, at least 1.

    Examples:
        >>> Bytes(200_000)
        Bytes(amount=200000)
    """

    amount: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", checked_int("Bytes", "amount", self.amount))


@dataclass(frozen=True)
class Latency:
    """A budget in measured time: of one inference by each of the replaced layers, together.

    Layers with the shapes, dtype and device of the weights are timed on this machine, one after the other.
    Each gets a batch of vectors: pixels for a convolution, one step of as many sequences for an LSTM or GRU.
    The rest of the model is not counted.

    Args:
        ms: milliseconds.
        batch: vectors at a time.

    Examples:
        >>> Latency(0.5, batch=8)
        Latency(ms=0.5, batch=8)
    """

    ms: float
    batch: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.ms, bool) or not isinstance(self.ms, float | int):
            raise TypeError(f"Latency: ms must be a number, got {self.ms!r}.")
        if not (math.isfinite(self.ms) and self.ms > 0):
            raise ValueError(f"Latency: ms must be positive and finite, got {self.ms}.")
        check_count("Latency", batch=self.batch)


class BudgetError(ValueError):
    """A budget that not even the smallest candidates meet."""


Budget = float | int | Bytes | Latency
Costs = Callable[[Weight, Sequence[Structure]], list[float]]


def check_budget(who: str, budget: object) -> None:
    """Raise unless this is a budget."""
    if isinstance(budget, Bytes | Latency):
        return
    if isinstance(budget, bool) or not isinstance(budget, float | int):
        hint = f"; torchldr.compress.parse_budget({budget!r}) reads text" if isinstance(budget, str) else ""
        raise TypeError(
            f"{who}: a budget must be a fraction, a number of parameters, torchldr.compress.Bytes or "
            f"torchldr.compress.Latency, got {budget!r}{hint}."
        )
    if isinstance(budget, float) and not 0 < budget < 1:
        raise ValueError(f"{who}: a budget as a fraction must lie between 0 and 1, got {budget}.")
    if isinstance(budget, int) and budget < 1:
        raise ValueError(f"{who}: a budget in parameters must be at least 1, got {budget}.")


def allowance(budget: Budget, weights: Sequence[Weight]) -> tuple[float, str, Costs]:
    """A budget for some weights: the limit of the total cost, its unit, and the cost of each structure."""
    if isinstance(budget, Latency):
        return budget.ms, "ms", Stopwatch(budget.batch)
    if isinstance(budget, Bytes):
        return budget.amount, "bytes", lambda weight, some: [s.stored_bytes(weight.matrices) for s in some]
    whole = sum(weight.size for weight in weights)
    limit = int(budget * whole) if isinstance(budget, float) else budget
    return limit, "parameters", lambda weight, some: [s.parameters_of(weight.matrices) for s in some]


def no_room(
    who: str, budget: Budget, weights: Sequence[Weight], candidates: Sequence[Sequence[Structure]]
) -> str | None:
    """Why a budget of parameters or bytes is too small for any candidates of the weights, if it is."""
    if isinstance(budget, Latency):
        return None
    limit, unit, costs = allowance(budget, weights)
    least = sum(min(costs(w, [*some, DENSE])) for w, some in zip(weights, candidates, strict=True))
    if limit >= least:
        return None
    share = f"; for {budget} % write {budget / 100:g}" if isinstance(budget, int) and budget < 100 else ""
    return (
        f"{who}: a budget of {round(limit)} {unit} is too small: the smallest candidates have "
        f"{round(least)}{share}."
    )


class Stopwatch:
    """Milliseconds of one inference of a weight's layer with each of some structures, a batch at a time.

    It takes the shortest of several calls (`minimum_seconds`) and times each shape once. A weight counts as
    often as the model uses it.
    """

    def __init__(self, batch: int, repeats: int = REPEATS, seconds: float = SECONDS) -> None:
        self.batch, self.repeats, self.seconds = batch, repeats, seconds
        self._known: dict[tuple[Any, ...], float] = {}

    def __call__(self, weight: Weight, structures: Sequence[Structure]) -> list[float]:
        W, gates = weight.matrices[0], len(weight.matrices)
        alike = (W.shape, W.dtype, W.device, gates)
        new = [s for s in dict.fromkeys(structures) if (alike, s) not in self._known]
        calls = {repr(s): self._call(s, W, gates) for s in new}
        with torch.inference_mode():  # entered once: each entry takes as long as a small product
            seconds = minimum_seconds(calls, self.repeats, self.seconds) if calls else {}
        self._known.update({(alike, s): 1e3 * seconds[repr(s)] for s in new})
        return [len(weight.names) * self._known[alike, s] for s in structures]

    def _call(self, structure: Structure, W: Tensor, gates: int) -> Callable[[], object]:
        m, n = W.shape
        made: Any
        with torch.random.fork_rng(devices=[]):
            if structure.is_dense:
                made = nn.Linear(n, gates * m, False, dtype=W.dtype)
            elif gates > 1:  # the input products of one step
                chosen: Any = {"rank": structure.rank, "options": structure.options}
                made = MatrixStack((gates,), n, m, dtype=W.dtype, structure=structure.cls, **chosen)
            else:
                made = quiet_linear(m, n, structure, W.dtype)
        made.to(W.device).eval()
        x = torch.ones(self.batch, n, dtype=W.dtype, device=W.device)

        def call() -> None:
            made.matrix().multiply(x) if isinstance(made, MatrixStack) else made(x)
            if x.is_cuda:
                torch.cuda.synchronize()

        return call


_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_TIMES = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def parse_budget(text: str, batch: int = 1) -> Budget:
    """A budget from text: a fraction, a ratio or a percentage, a number of parameters, bytes, or a time.

    Args:
        text: as in the examples.
        batch: vectors at a time, for a latency.

    Raises:
        ValueError: for other text.

    Examples:
        >>> [parse_budget(text) for text in ("0.1", "1/20", "5%", "100000")]
        [0.1, 0.05, 0.05, 100000]
        >>> [parse_budget(text) for text in ("200 kB", "1.5 MiB", "0.5 ms")]
        [Bytes(amount=200000), Bytes(amount=1572864), Latency(ms=0.5, batch=1)]
    """
    form = r"\s*(?:(\d+)/(\d+)|([\d_]*\.?\d+(?:e-?\d+)?)\s*(%|[a-zµ]*))\s*"
    found = re.fullmatch(form, text.lower())
    top, bottom, number, unit = found.groups("") if found else ("", "", "", "?")
    number = number.replace("_", "")
    made: Budget
    if bottom.strip("0"):
        made = int(top) / int(bottom)
    elif unit in _UNITS:
        made = Bytes(int(float(number) * _UNITS[unit]))
    elif unit in _TIMES:
        made = Latency(float(number) * _TIMES[unit], batch)
    elif unit == "%":
        made = float(number) / 100
    elif number and not unit:
        made = float(number) if "." in number or "e" in number else int(number)
    else:
        raise ValueError(
            f"a budget is a fraction (0.1, 1/10, 10%), a number of parameters (100000), bytes (200 kB) or a "
            f"time (0.5 ms), got {text!r}."
        )
    check_budget("budget", made)
    return made


def budget_text(budget: Budget) -> str:
    """A budget in words, as `parse_budget` reads it.

    >>> [budget_text(b) for b in (0.5, 1 / 20, 0.37, 1000, Bytes(2000), Latency(0.5))]
    ['1/2', '1/20', '0.37', '1000', '2000 B', '0.5 ms']
    """
    if isinstance(budget, Bytes):
        return f"{budget.amount} B"
    if isinstance(budget, Latency):
        return f"{budget.ms:g} ms"
    if isinstance(budget, float):
        times = round(1 / budget)
        return f"1/{times}" if times > 1 and abs(budget * times - 1) < 1e-9 else f"{budget:g}"
    return str(budget)
