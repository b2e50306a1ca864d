"""How far the scales of a subdiagonal operator on a GPU range, without waiting for it at every step.

The convolutions of `subdiagonal` are right while max|P| / min|P| is small. A matrix is made anew at every
forward pass, its subdiagonals stay: so what is known is kept by their memory and goes when that goes. The
first product waits for its number. After that a change of the subdiagonal (its version counts them) has the
range measured on the device, and the number is taken over by the first later product that finds it there. So
some steps of training go by a range that is some steps old, and limits leave room for it (`subdiagonal`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import stencil
from .later import Later

_Key = tuple[Any, ...]


class _Watch:
    """What is known of one subdiagonal."""

    def __init__(self, s: Tensor) -> None:
        self.memory = StorageWeakRef(s.untyped_storage())
        self.version = s._version
        self.reach = float(_reach(s))
        self.asked: Later | None = None

    def look(self, s: Tensor) -> float:
        if self.asked is not None and self.asked.here():
            self.reach, self.asked = self.asked.read()[0], None
        if self.asked is None and s._version != self.version:
            self.version, self.asked = s._version, Later(_reach(s).reshape(1))
        return self.reach


_kept: dict[_Key, _Watch] = {}


def lasts(s: Tensor) -> bool:
    """Whether this is a tensor of its own or a view of one: others are gone after the product."""
    if type(s) not in (Tensor, torch.nn.Parameter) or s.is_inference() or not stencil.is_plain(s):
        return False
    return s.is_leaf or (s._base is not None and s._base.is_leaf)


def reach(s: Tensor) -> float:
    """max|P| / min|P| for the scales P of a subdiagonal, as far as it is known; one that `lasts`."""
    key = _key(s)
    found = _kept.get(key)
    if found is None or found.memory.expired():
        for gone in [k for k, v in _kept.items() if v.memory.expired()]:
            del _kept[gone]
        found = _kept[key] = _Watch(s)
        return found.reach
    return found.look(s)


def forget(s: Tensor) -> None:
    """Drop what is known: the next product waits."""
    if not s.is_meta and lasts(s):
        _kept.pop(_key(s), None)


def _key(s: Tensor) -> _Key:
    return s.untyped_storage()._cdata, s.storage_offset(), s.shape, s.stride(), s.dtype


@torch.no_grad()
def _reach(s: Tensor) -> Tensor:
    """In float64, which a product of many entries may need; not a number where they overflow even that."""
    P = torch.cat((s.new_ones(1, dtype=torch.float64), s.detach().double().cumprod(-1)))
    low, high = P.abs().aminmax()
    return high / low
