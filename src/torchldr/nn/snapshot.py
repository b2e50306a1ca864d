"""Whether tensors still hold the numbers that something was computed from.

torch counts edits in place (`_version`), but fused optimizers, `.data`, numpy, DLPack and other processes
write without being counted, and tensors made under inference mode have no count (layers give their own one:
`count_edits_`). So in CPU memory the numbers themselves are compared with a copy: some bytes for each of a
few vectors, little beside a product. A class with many numbers pays for it: a block-circulant matrix with
blocks of 8 has n^2 / 8 of them, and its product with one vector takes two to three times as long.

On a GPU a comparison would wait for the device at every call. There a tensor counts as unchanged while
its count, its address and its object are the same and no optimizer of the process has made a step; after
a step, and where a tensor has no count or shares its memory with another one, the numbers are compared.
What this rule cannot see is memory of a GPU that is written without being counted: by `.data`, a raw kernel,
DLPack in another library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
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
_SMALL = 1 << 16  # bytes of a tensor that are compared by way of a copy: faster than a call of memcmp


class Snapshot:
    """Copies of tensors, to tell later whether the tensors in their place are the same.

    Args:
        tensors: by name.
        live: nothing is computed from the numbers yet, what is kept reads them where they are: any will do,
            as long as they lie there. Before that changes `keep_numbers` is called.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, live: bool = False) -> None:
        self._live, self._in_memory, self._names, self._copies = True, False, tuple(tensors), list[Tensor]()
        self._look_at([*tensors.values()])
        if not live:
            self.keep_numbers()

    def tensors(self) -> dict[str, Tensor]:
        """The numbers: copies that nobody else writes, or while it is live the tensors themselves."""
        kept = [place[1].detach() for place in self._places] if self._live else self._copies
        return dict(zip(self._names, kept, strict=True))

    def keep_numbers(self) -> bool:
        """From now on the tensors must have the numbers that they have now; whether this is new."""
        if was := self._live:
            tensors = [place[1] for place in self._places]
            with torch.inference_mode(False), torch.no_grad():
                self._copies = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]
            self._live, self._in_memory = False, all(c.device.type == "cpu" for c in self._copies)
            self._look_at(tensors)
        return was

    def _look_at(self, tensors: Sequence[Tensor]) -> None:
        """Keep by what the tensors are told from others next time."""
        self._small = self._in_memory and all(t.nbytes <= _SMALL and t.is_contiguous() for t in tensors)
        self._steps = _steps
        self._counted = all(why_uncounted(t) is None for t in tensors)
        counts = self._counted and not (self._live or self._in_memory)  # else all that counts is elsewhere
        versions = [t._version if counts else None for t in tensors]
        self._places = [*map(_place, self._names, tensors, versions)]
        # Bytes, which must not be read unless the tensors are known to be there.
        self._memories = [*map(_memory, tensors)] if self._small else []
        self._numbers = b"".join(map(_memory, self._copies)) if self._small else b""
        # A reference to the data, so that no other data comes to the same address.
        self._data = [] if self._in_memory else [t.detach() for t in tensors]

    def holds(self, own: dict[str, Any]) -> bool:
        """Whether what has these names now are the very tensors, with the same numbers, bit for bit.

        Asked at every call, so in one loop: a function more costs more than what it does.
        """
        find: Callable[[str], Any] = own.get
        for name, t, version, address, dtype, shape, stride in self._places:
            if find(name) is not t or (version is not None and t._version != version):
                return False
            if t.data_ptr() != address or t.dtype is not dtype or t.shape != shape:
                return False
            if not t.is_contiguous() if stride is None else t.stride() != stride:
                return False
        if self._small:
            return b"".join(self._memories) == self._numbers
        if self._live:
            return True
        if self._in_memory:
            return self._are_equal([place[1] for place in self._places])
        return self._counted and _steps == self._steps

    def matches(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these tensors hold the same numbers, wherever they lie."""
        known = all(t is place[1] for t, place in zip(tensors, self._places, strict=True))
        if known and self.holds(dict(zip(self._names, tensors, strict=True))):
            return True
        if self._live or not self._are_equal(tensors):
            return False
        if known or not self._in_memory:
            self._look_at(tensors)
        return True

    def _are_equal(self, tensors: Sequence[Tensor]) -> bool:
        if not self._in_memory and tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return False  # to look at them would end the recording
        return all(map(_same_bytes if self._in_memory else _equal, tensors, self._copies))


def _place(name: str, t: Tensor, version: int | None) -> tuple[Any, ...]:
    """What tells a tensor from others, and where that counts from itself before an edit."""
    stride = None if t.is_contiguous() else t.stride()  # None: that is asked in less time
    return name, t, version, t.data_ptr(), t.dtype, t.shape, stride


def _memory(t: Tensor) -> memoryview:
    return memoryview((ctypes.c_char * t.nbytes).from_address(t.data_ptr()))


def why_uncounted(t: Tensor) -> str | None:
    """Why an edit of this tensor need not be counted, or None where it is."""
    if not counts_edits(t):
        return "was made under inference mode"
    alone = t.untyped_storage().nbytes() == t.nbytes  # else others may write its memory
    return None if alone else "is a part of a larger piece of memory"


def _same_bytes(t: Tensor, copy: Tensor) -> bool:
    if t.dtype is not copy.dtype or t.shape != copy.shape or t.device.type != "cpu":
        return False
    if _memcmp is not None and t.is_contiguous():
        return not _memcmp(t.data_ptr(), copy.data_ptr(), copy.nbytes)
    return torch.equal(t, copy)


def _equal(t: Tensor, copy: Tensor) -> bool:
    return t.dtype is copy.dtype and t.device == copy.device and torch.equal(t, copy)
