"""The gate to the loops that Numba compiles: whether they serve in this process, and why not.

Numba may be missing, broken, unable to compile for this machine, or wrong on it. So nothing runs a compiled
loop before its `Loops` said that they serve: when they are first wanted they multiply something tiny, which
compiles them (or loads them from disk) for the dtype in question and no others, and the result is compared
with the definition in torch. Where anything fails the plain form in torch serves, and `torchldr info` prints
the reason.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor

from ...torch_private import are_recorded

Check = Callable[[torch.dtype], Iterable[tuple[Tensor, Tensor]]]  # pairs of what came and what is right

TOLERANCE = 1e3  # in eps of the largest number: tells wrong loops from rounding errors

_families: list[Loops] = []
_one_at_a_time = threading.Lock()
_here = threading.local()  # .checking in the thread of a check


@cache
def why_not() -> str | None:
    """Why no loop can be compiled on this machine, or None: Numba can at least be imported."""
    try:
        import numba  # noqa: F401
    except ModuleNotFoundError as error:
        return "numba is not installed" if error.name == "numba" else _cannot_be_imported(error)
    except Exception as error:  # a broken installation raises anything
        return _cannot_be_imported(error)
    return None


def serves(*tensors: Tensor) -> bool:
    """Whether these tensors can go through compiled loops, if the loops themselves serve: see `Loops`."""
    if torch.compiler.is_compiling() or are_recorded():
        return False
    return all(t.device.type == "cpu" and t.dtype in _DTYPES for t in tensors) and why_not() is None


_DTYPES = (torch.float32, torch.float64)


class Loops:
    """Compiled loops that are used together, behind a check of their numbers in this process.

    Args:
        name: for `torchldr info`.
        check: takes a dtype, runs the loops on something tiny and yields pairs: what they computed, and the
            same by the definition in float64. It runs once for each dtype, in a thread of its own where
            nobody's torch modes (inference, vmap, default devices) are on, and where all loops that were not
            checked yet say that they do not serve.
    """

    def __init__(self, name: str, check: Check) -> None:
        self.name = name
        self._check = check
        self._found: dict[torch.dtype, str | None] = {}
        _families.append(self)

    def serves(self, *tensors: Tensor, dtype: torch.dtype | None = None) -> bool:
        """Whether the loops take these tensors, to compute in `dtype` (that of the first one)."""
        return serves(*tensors) and self.why_not(dtype or tensors[0].dtype) is None

    def why_not(self, dtype: torch.dtype) -> str | None:
        """Why the loops do not serve in this dtype, or None. The first call checks them."""
        reason = why_not()
        if reason is not None or dtype in self._found:
            return reason or self._found[dtype]
        if getattr(_here, "checking", False):
            return "not checked yet"
        with _one_at_a_time:
            if dtype not in self._found:
                self._found[dtype] = self._apart(dtype)
        return self._found[dtype]

    def _apart(self, dtype: torch.dtype) -> str | None:
        try:
            with ThreadPoolExecutor(1, thread_name_prefix="torchldr-check") as thread:
                return thread.submit(self._verdict, dtype).result()
        except RuntimeError as error:  # no threads any more, as while the interpreter ends
            return str(error)

    def _verdict(self, dtype: torch.dtype) -> str | None:
        _here.checking = True
        try:
            errors = [_error(got, right) for got, right in self._check(dtype)]
        except Exception as error:  # Numba's errors have no common class
            return _brief(error)
        worst = max(errors, key=lambda error: math.inf if math.isnan(error) else error)
        return None if worst <= TOLERANCE * torch.finfo(dtype).eps else f"wrong numbers, off by {worst:.1e}"


def found() -> dict[str, str]:
    """The loops that were found not to serve in this process, with the reason."""
    return {
        loops.name: reason
        for loops in _families
        for reason in list(loops._found.values())
        if reason is not None
    }


def numbers(*shape: int, dtype: torch.dtype) -> Tensor:
    """Numbers in [-1, 1] for a check, no two alike; the caller's generators are not ours to move."""
    angles = torch.arange(1.0, 1 + math.prod(shape), dtype=torch.float64).reshape(shape)
    return (torch.polar(angles.sin(), angles) if dtype.is_complex else angles.sin()).to(dtype)


def wide(t: Tensor) -> Tensor:
    """A copy in float64, for the definition."""
    return t.detach().to(torch.complex128 if t.is_complex() else torch.float64, copy=True)


def _error(got: Tensor, right: Tensor) -> float:
    """The largest difference, relative to the largest number; nan where there is one."""
    difference = (wide(got) - wide(right)).abs().max().item()
    return difference / max(right.abs().max().item(), torch.finfo(torch.float64).tiny)


def _cannot_be_imported(error: Exception) -> str:
    return f"numba cannot be imported: {_brief(error)}"


def _brief(error: Exception) -> str:
    """An error in one line: Numba's have many."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:200]
