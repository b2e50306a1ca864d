"""The memory of a tensor as an array, for compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

_TYPES = {torch.float32: np.dtype(np.float32).str, torch.float64: np.dtype(np.float64).str}


class _Memory:
    """What numpy asks of the owner of some memory; it keeps the tensor alive."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, t: Tensor) -> None:
        self.tensor = t
        self.__array_interface__ = {
            "data": (t.data_ptr(), False),
            "shape": t.shape,
            "strides": None if t.is_contiguous() else tuple(t.element_size() * step for step in t.stride()),
            "typestr": _TYPES[t.dtype],
            "version": 3,
        }


def as_array(t: Tensor) -> Any:
    """A numpy array over the memory of a CPU tensor of float32 or float64, whether it requires grad or not.

    Not `t.numpy()`: from then on that forbids to resize the storage, and resizing to nothing is how FSDP
    frees a parameter between uses. For tensors that are not ours: parameters, inputs, gradients.
    """
    return np.asarray(_Memory(t.resolve_neg()))  # torch may only note that the numbers are negated
