"""The CPU's kernels: a shared library of C functions, called by ctypes, which releases the GIL.

`setup.py` compiles `*.c` beside this file into `_kernels.so` when the package is built, if there is a C
compiler. Without it everything runs in plain torch, more slowly.
"""

from __future__ import annotations

import ctypes
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

INTERFACE = 1  # of the C functions; `ldr_interface` in version.c says what a library was built for
_SUFFIX = {torch.float32: "_f32", torch.float64: "_f64"}
_NUMBERS = {int, float, bool}  # by class: isinstance(t, Tensor) takes a microsecond for each
_TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "d": ctypes.c_double}


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or None with the reason."""
    found = sorted(Path(__file__).parent.glob("_kernels*.so")) + sorted(
        Path(__file__).parent.glob("_kernels*.pyd")
    )
    if not found:
        return None, "the CPU's kernels were not built: there was no C compiler when torchldr was installed"
    try:
        library = ctypes.CDLL(str(found[0]))
        library.ldr_interface.restype = ctypes.c_int64
        if library.ldr_interface() != INTERFACE:
            return None, f"{found[0].name} was built from other sources: install torchldr again"
    except (OSError, AttributeError) as error:
        return None, f"{found[0].name} cannot be loaded: {error}"
    return library, None


def why_not() -> str | None:
    """Why compiled kernels are missing, or None if they are there."""
    return _loaded()[1]


def serves(*tensors: Tensor) -> bool:
    """Whether kernels can read these tensors: on the CPU, in one dtype of float32 and float64."""
    dtype = tensors[0].dtype
    return (
        dtype in _SUFFIX and all(t.dtype is dtype and t.device.type == "cpu" for t in tensors) and available()
    )


def available() -> bool:
    """Whether there are compiled kernels; warns the first time that a missing one is needed."""
    if _loaded()[0] is None:
        _warn()
        return False
    return True


@cache
def _warn() -> None:
    warnings.warn(
        f"{why_not()}; products on the CPU take plain torch, which is several times slower",
        RuntimeWarning,
        stacklevel=3,
    )


class Kernel:
    """One C function in both types: NAME_f32 and NAME_f64.

    Args:
        name: without the suffix.
        signature: a letter for each argument: p for a pointer, i for an int64_t, d for a double.

    Call it with the dtype, then with tensors (contiguous; None for NULL) or addresses, ints and floats.
    """

    def __init__(self, name: str, signature: str) -> None:
        self.name, self.signature = name, signature
        self._functions: dict[torch.dtype, ctypes._NamedFuncPointer] = {}

    def __call__(self, dtype: torch.dtype, *arguments: Any) -> None:
        function = self._functions.get(dtype) or self._find(dtype)
        function(*[t if t is None or t.__class__ in _NUMBERS else t.data_ptr() for t in arguments])

    def _find(self, dtype: torch.dtype) -> ctypes._NamedFuncPointer:
        library, reason = _loaded()
        if library is None:
            raise RuntimeError(f"{self.name}: {reason}")
        function: ctypes._NamedFuncPointer = getattr(library, self.name + _SUFFIX[dtype])
        function.argtypes, function.restype = [_TYPES[letter] for letter in self.signature], None
        self._functions[dtype] = function
        return function
