"""Tensors that depend on sizes alone, made once for each dtype and device."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ..torch_private import has_modes, has_transforms

Make = Callable[..., Tensor]


def kept(most: int) -> Callable[[Make], Make]:
    """Keep up to so many results of a function between its calls.

    Tracers get tensors of their own. A tensor made under a transformation of torch.func belongs to it, and
    one made while a CUDA graph is captured gets its values on replay, in the graph's memory: neither is kept.
    A tensor that a captured graph uses is kept for good, because the graph knows only its address.
    """

    def wrap(make: Make) -> Make:
        found: dict[Any, Tensor] = {}
        read_by_graphs: dict[int, Tensor] = {}

        @wraps(make)
        def of(*key: Any) -> Tensor:
            if torch.compiler.is_compiling() or has_modes():
                return make(*key)
            result, capturing = found.get(key), _capturing()
            if result is None:
                if has_transforms() or capturing:
                    return make(*key)
                with torch.inference_mode(False):  # or autograd could not use it later
                    result = make(*key)
                if result.is_cuda:  # another stream may be the next to read it
                    torch.cuda.current_stream(result.device).synchronize()
                if len(found) >= most:
                    found.clear()
                found[key] = result
            elif capturing:
                read_by_graphs[id(result)] = result
            return result

        return of

    return wrap


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
