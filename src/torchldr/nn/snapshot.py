"""Whether tensors still hold the numbers that something was computed from.

torch counts edits in place (`_version`), but fused optimizers, `.data`, numpy, DLPack and other processes
write without being counted, and tensors made under inference mode have no count (layers give their own one:
`count_edits_`). So in CPU memory the numbers themselves are compared with a copy: some bytes for each of a
few vectors, at most a few percent of a product.

On a GPU a comparison would wait for the device at every call. There a tensor counts as unchanged while
its count, its address and its object are the same and no optimizer of the process has made a step; after
a step, and where a tensor has no count or shares its memory with another one, the numbers are compared.
What this rule cannot see is memory of a GPU that is written without being counted: by `.data`, a raw kernel,
DLPack in another library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from .tensors import counts_edits

_steps = 0  # of all optimizers of this process


def _count_step(*_: Any) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count_step)


def _find_memcmp() -> Any:
    try:
        found = ctypes.CDLL(None).memcmp
    except (OSError, AttributeError, TypeError):  # no such library: Windows
        return None
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return found


_memcmp = _find_memcmp()
_bytes_of = attrgetter("raw")
_SMALL = 1 << 16  # bytes of a tensor that are compared by way of a copy: a call less


class Snapshot:
    """Copies of tensors, to tell later whether the tensors in their place are the same.

    Args:
        tensors: in the order in which they are compared.
        live: nothing was computed from the numbers, what is kept reads them where they are: any will do, as
            long as they lie there.
    """

    def __init__(self, tensors: Sequence[Tensor], *, live: bool = False) -> None:
        self._live = live
        if live:
            self._in_memory = False
            self._look_at(tensors)
            return
        with torch.inference_mode(False), torch.no_grad():
            copies = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]
        self._copies = copies
        self._in_memory = all(c.device.type == "cpu" for c in copies)
        self._small = self._in_memory and all(c.nbytes <= _SMALL for c in copies)
        if self._small:
            self._memory = [_memory(t, c.nbytes) for t, c in zip(tensors, copies, strict=True)]
            self._bytes = [_memory(c, c.nbytes).raw for c in copies]
            self._small = all(map(Tensor.is_contiguous, tensors))
        self._look_at(tensors)

    def _look_at(self, tensors: Sequence[Tensor]) -> None:
        """Keep by what the tensors are told from others next time."""
        self._steps, self._tensors = _steps, list(tensors)
        self._counted = all(why_uncounted(t) is None for t in tensors)
        self._places = [
            (t, t._version if self._counted else 0, t.data_ptr(), t.dtype, t.numel()) for t in tensors
        ]
        self._grids = [(t, t.stride()) for t in tensors if t.ndim > 1]
        # A reference to the data, so that no other data comes to the same address.
        self._data = [] if self._in_memory else [t.detach() for t in tensors]

    def _lie_there(self, *, unedited: bool = False) -> bool:
        """Whether the tensors have the same memory and shape still; where `unedited`, their counts too."""
        for t, version, address, dtype, size in self._places:  # a loop: faster than a function for each
            if t.data_ptr() != address or t.dtype is not dtype or t.numel() != size:
                return False
            if unedited and t._version != version:
                return False
        for t, stride in self._grids:  # noqa: SIM110
            if t.stride() != stride:
                return False
        return True

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the very tensors, whatever numbers they hold now."""
        return all(map(is_, tensors, self._tensors))

    def matches(self, tensors: Sequence[Tensor], *, same: bool = False) -> bool:
        """Whether these tensors hold the same numbers, bit for bit; `same` where `is_of` is known to hold."""
        same = same or self.is_of(tensors)
        if self._live:
            return same and self._lie_there()
        if self._in_memory:
            return self._same_bytes(tensors, same)
        if same and self._counted and _steps == self._steps and self._lie_there(unedited=True):
            return True
        if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        if not all(map(_equal, tensors, self._copies)):
            return False
        self._look_at(tensors)
        return True

    def _same_bytes(self, tensors: Sequence[Tensor], same: bool) -> bool:
        if self._small and same and self._lie_there():
            return [*map(_bytes_of, self._memory)] == self._bytes  # these alone may have changed
        for t, copy in zip(tensors, self._copies, strict=True):
            if t.dtype is not copy.dtype or t.shape != copy.shape or t.device.type != "cpu":
                return False
            if _memcmp is not None and t.is_contiguous():
                if _memcmp(t.data_ptr(), copy.data_ptr(), copy.nbytes):
                    return False
            elif not torch.equal(t, copy):
                return False
        return True


def _memory(t: Tensor, size: int) -> ctypes.Array[ctypes.c_char]:
    """The memory of a tensor as bytes, which must not be read unless the tensor is known to be there."""
    return (ctypes.c_char * size).from_address(t.data_ptr())


def why_uncounted(t: Tensor) -> str | None:
    """Why an edit of this tensor need not be counted, or None where it is."""
    if not counts_edits(t):
        return "was made under inference mode"
    return "is a part of a larger piece of memory" if _shares_memory(t) else None


def _shares_memory(t: Tensor) -> bool:
    """Whether the tensor is a part of a larger piece of memory, which others may write."""
    return t.untyped_storage().nbytes() != t.nbytes


def _equal(t: Tensor, copy: Tensor) -> bool:
    return t.dtype is copy.dtype and t.device == copy.device and torch.equal(t, copy)
