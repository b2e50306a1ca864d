"""Which product an LDR-TD matrix takes, kept from one product to the next.

A matrix is made anew at every forward pass, its tensors stay: so choices are kept by the memory of G, H and
the subdiagonals, and go when that goes. The first product of a matrix waits for its choice. After that its
steps are counted: products of tensors whose versions are new, or with gradients, as fused optimisers count no
versions. After 10 of them, after 20 more, and so on up to every 200, the operators are measured again, on
their device, at the oversampling in use, its half and its double. An entry of an operator that has moved by
more than `JUMP` since the last measurement is no step of training: then the choice is made anew at once. On a
GPU all these numbers are copied without waiting and read at the first later product that finds them there: no
step waits for the device, and after a jump some steps still take the old choice (`StructuredLinear.drop_plan`
drops it). Where no oversampling is accepted, or none is cheaper, the stencil is taken, until a later revision
says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef

from ..functional import port_choice, stencil
from ..functional.later import Later
from ..functional.port_choice import CANDIDATES, Choice, Trial
from ..functional.tridiagonal import Operator

PRODUCTS = "auto", "stencil", "port"
FROM = {"cpu": 4096, "cuda": 8192}  # k = min(m, n) from which "auto" looks at the port product at all
FIRST_REVISION, LAST_REVISION = 10, 200  # steps of training until the choice is looked at again
JUMP = 0.05
_KEYS = "G", "H", "subdiagonal_A", "subdiagonal_C"

Operators = Callable[[], tuple[Operator, Operator]]


class Way(NamedTuple):
    """How to multiply by port: log gamma and c of A and of C."""

    scales: tuple[float, float]
    oversampling: tuple[int, int]

    def swapped(self) -> Way:
        return Way(self.scales[::-1], self.oversampling[::-1])


class Keeper:
    """The choice for one matrix."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.memory = [StorageWeakRef(tensors[name].untyped_storage()) for name in _KEYS]
        self.choices: tuple[Choice, Choice] | None = None  # of A and of C
        self.rates: list[float] = []
        self._versions: list[int] = []  # when last looked at, and when last measured
        self._measured: list[int] = []
        self._entries: list[Tensor] = []  # of the operators, when last measured
        self._steps, self._interval = 0, FIRST_REVISION
        self._asked: tuple[Later, list[list[int]], torch.dtype, int] | None = None
        self._moved: Later | None = None

    @property
    def way(self) -> Way | None:
        if self.choices is None or not all(choice.accepted for choice in self.choices):
            return None
        A, C = self.choices
        return Way((A.log_scale, C.log_scale), (A.trial.oversampling, C.trial.oversampling))

    def look(self, tensors: Mapping[str, Tensor], operators: Operators, most: int) -> None:
        """Bring the choice up to date, with an oversampling up to `most`: first by waiting, later without."""
        versions = _versions(tensors)
        if self.choices is None:
            self._versions, self._interval = versions, FIRST_REVISION
            self._note(tensors)
            self._choose(operators, most)
            return
        if self._asked is not None:
            self._read()
        if versions == self._versions and not _trains(tensors):
            return
        self._versions, self._steps = versions, self._steps + 1
        if self._moved is None:
            self._moved = Later(self._distance(tensors))
        jumped = False
        if self._moved.here():
            jumped, self._moved = self._moved.read()[0] > JUMP, None
        if jumped and self._entries[0].device.type == "cpu":
            self.choices = self._asked = None
            self.look(tensors, operators, most)
        elif (jumped or self._steps >= self._interval) and self._asked is None:
            self._interval = min(2 * self._interval, LAST_REVISION)
            self._note(tensors)
            self._ask(operators, most)

    @torch.no_grad()
    def _note(self, tensors: Mapping[str, Tensor]) -> None:
        self._measured, self._steps, self._moved = _versions(tensors), 0, None
        self._entries = [t.detach().clone() for t in _entries(tensors)]

    @torch.no_grad()
    def _distance(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """How far the furthest entry of the operators has moved since they were measured, (1,)."""
        moved = torch._foreach_sub(_entries(tensors), self._entries)
        return torch.stack(torch._foreach_norm(moved, torch.inf)).amax().reshape(1)

    def renew(self, tensors: Mapping[str, Tensor]) -> None:
        """Choose anew at the next look if a tensor has changed since the last choice: a plan is made once."""
        if self._measured != _versions(tensors):
            self.choices = self._asked = None

    def _choose(self, operators: Operators, most: int) -> None:
        """Measure and wait, raising c one at a time."""
        pair, k, dtype = _facts(operators)
        rates = [port_choice.growth_rate(*operator, k) for operator in pair]
        scales = port_choice.balanced(rates[0], rates[1], k)
        self.rates = [float(rate) for rate in rates]
        A, C = (
            port_choice.choose_port(*operator, k, dtype, log_scale=float(scale), most=most)
            for operator, scale in zip(pair, scales, strict=True)
        )
        self.choices = A, C

    @torch.no_grad()
    def _ask(self, operators: Operators, most: int) -> None:
        """Measure around the present choice; the numbers come later."""
        assert self.choices is not None
        pair, k, dtype = _facts(operators)
        rates = [
            port_choice.growth_rate(*operator, k, guess=rate if math.isfinite(rate) else None)
            for operator, rate in zip(pair, self.rates, strict=True)
        ]
        scales = port_choice.balanced(rates[0], rates[1], k)
        numbers, tried = [torch.stack((*rates, *scales))], []
        for operator, scale, choice in zip(pair, scales, self.choices, strict=True):
            at = choice.trial.oversampling
            tried.append(sorted({min(max(c, CANDIDATES[0]), most) for c in (at // 2, at, 2 * at)}))
            numbers += [port_choice.measure(*operator, k, scale, dtype, c) for c in tried[-1]]
        self._asked = Later(torch.cat(numbers)), tried, dtype, k
        self._read()

    def _read(self) -> None:
        """Take over the numbers that were asked for, if they are here."""
        assert self._asked is not None
        found, tried, dtype, k = self._asked
        if not found.here():
            return
        self._asked, numbers = None, iter(found.read())
        self.rates = [next(numbers), next(numbers)]
        scales = [next(numbers), next(numbers)]
        choices = []
        for scale, candidates in zip(scales, tried, strict=True):
            trials = [Trial(c, next(numbers), next(numbers), next(numbers)) for c in candidates]
            verdicts = [port_choice.verdict(trial, dtype, k) for trial in trials]
            at = verdicts.index("take") if "take" in verdicts else len(trials) - 1
            choices.append(Choice(scale, trials[at], verdicts[at] == "take"))
        self.choices = choices[0], choices[1]


def _versions(tensors: Mapping[str, Tensor]) -> list[int]:
    return [t._version for t in tensors.values() if not t.is_inference()]


def _trains(tensors: Mapping[str, Tensor]) -> bool:
    """Whether this may be a step of training: fused optimisers change tensors without a new version."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())


def _entries(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The operators' tensors."""
    return [t for name, t in tensors.items() if name not in ("G", "H") and t.numel()]


def _facts(operators: Operators) -> tuple[tuple[Operator, Operator], int, torch.dtype]:
    with torch.no_grad():
        pair = operators()
    return pair, min(V.shape[-1] for *_, V in pair), pair[0][3].dtype


_kept: dict[tuple[Any, ...], Keeper] = {}


def _key(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> tuple[Any, ...]:
    places = ((tensors[name].untyped_storage()._cdata, tensors[name].storage_offset()) for name in _KEYS)
    some = tensors["G"]
    return *places, some.shape, tensors["H"].shape, some.dtype, options["normalize"]


def keeper(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> Keeper:
    """The keeper of the matrix with these tensors."""
    key = _key(tensors, options)
    found = _kept.get(key)
    if found is None or any(memory.expired() for memory in found.memory):
        for gone in [k for k, v in _kept.items() if any(memory.expired() for memory in v.memory)]:
            del _kept[gone]
        found = _kept[key] = Keeper(tensors)
    return found


def forget(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> None:
    """Drop what is kept for these tensors."""
    if not any(t.is_meta for t in tensors.values()) and _lasting(tensors):
        _kept.pop(_key(tensors, options), None)


def way(
    tensors: Mapping[str, Tensor],
    options: Mapping[str, Any],
    sizes: tuple[int, int],
    x: Tensor,
    operators: Operators,
) -> Way | None:
    """How to multiply x by the matrix with these tensors by port, or None where the stencil is taken.

    Args:
        tensors, options: of the matrix as it is kept.
        sizes: m and n.
        x: the input, (b, n), or (b, m) for the transpose.
        operators: gives A and C, with their start vectors, in the dtype that products run in.
    """
    if not considered(options, sizes, x) or not _lasting(tensors):
        return None
    if forward_ad._current_level >= 0 or not stencil.is_plain(x):
        return None
    r, b, device = tensors["G"].shape[0], x.shape[0], x.device.type
    auto = options["product"] == "auto"
    cheap = [c for c in CANDIDATES if port_choice.port_is_cheaper(sizes, r, b, (c, c), device)]
    if auto and not cheap:
        return None
    found = keeper(tensors, options)
    if not (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        found.look(tensors, operators, cheap[-1] if auto else CANDIDATES[-1])
    chosen = found.way
    if chosen and auto and not port_choice.port_is_cheaper(sizes, r, b, chosen.oversampling, device):
        return None
    return chosen


def considered(options: Mapping[str, Any], sizes: tuple[int, int], x: Tensor) -> bool:
    """Whether the option, the size, the device and the dtype leave the port product open."""
    if options["product"] == "stencil" or torch.compiler.is_compiling() or x.shape[0] == 0:
        return False
    if x.device.type not in FROM or x.dtype not in (torch.float32, torch.float64):
        return False
    return options["product"] == "port" or min(sizes) >= FROM[x.device.type]


def _lasting(tensors: Mapping[str, Tensor]) -> bool:
    """Whether these are tensors of their own or views of such: others are gone after the product."""
    some = [tensors[name] for name in _KEYS]
    if not all(type(t) in (Tensor, torch.nn.Parameter) and stencil.is_plain(t) for t in some):
        return False
    return all(t.is_leaf or (t._base is not None and t._base.is_leaf) for t in some)


def describe(tensors: Mapping[str, Tensor], options: Mapping[str, Any], sizes: tuple[int, int]) -> str:
    """The product in use and why, from what is known without measuring; for a layer's repr."""
    some, option = tensors["G"], options["product"]
    if option == "stencil":
        return ""
    if option == "auto" and min(sizes) < FROM.get(some.device.type, 1 << 62):
        return ""
    if some.is_meta or not _lasting(tensors):
        return "stencil"
    found = _kept.get(_key(tensors, options))
    if found is None or found.choices is None:
        return "chosen at the first product"
    if not all(choice.accepted for choice in found.choices):
        worst = max((c.trial for c in found.choices if not c.accepted), key=lambda trial: trial.error)
        reason = "truncation" if worst.truncation >= worst.rounding else "rounding"
        amount = max(worst.truncation, worst.rounding)
        return f"stencil: {reason} of the port product {amount:.0e} at c = {worst.oversampling}"
    cs = sorted({choice.trial.oversampling for choice in found.choices})
    worst_cut = max(choice.trial.truncation for choice in found.choices)
    worst_round = max(choice.trial.rounding for choice in found.choices)
    c = " and ".join(map(str, cs))
    return f"port, c = {c}, truncation at most {worst_cut:.0e}, rounding {worst_round:.0e}"
