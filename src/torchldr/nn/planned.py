"""A layer's plan under torch.compile: one operator that keeps what eager inference keeps.

A compiler takes parameters for inputs of its graph, so that a product would prepare itself at every call. In
`eval()`, on a CPU and without gradients it is shown `torchldr::planned` instead, except for classes that a
compiler makes as fast itself. The operator is a function of its tensors: the layer, found by a number, only
lends its plan, and a plan is asked whether it holds for the tensors that came.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

_LAYERS: WeakValueDictionary[int, Any] = WeakValueDictionary()
_numbers = itertools.count()


def number(layer: Any) -> int:
    """A number by which the operator finds a layer, as long as there is one."""
    key = next(_numbers)
    _LAYERS[key] = layer
    return key


def planned(layer: Any, x: Tensor) -> Tensor:
    """M x + b by the plan of a layer, as one operator: (..., in) to (..., out)."""
    tensors = [*layer._tensors().values()]
    flat = x.reshape(-1, layer.in_features)
    y = torch.ops.torchldr.planned(flat, tensors, layer.bias, layer._number, layer.out_features)
    return y.reshape(*x.shape[:-1], layer.out_features)


def _planned(x: Tensor, tensors: Sequence[Tensor], bias: Tensor | None, layer: int, m: int) -> Tensor:
    found = _LAYERS[layer]
    matrix = found.matrix().with_tensors(dict(zip(found._names, tensors, strict=True)))
    own = found._tensors().values()
    swapped = any(t.data_ptr() != mine.data_ptr() for t, mine in zip(tensors, own, strict=True))
    if swapped:  # the layer's plan is for its own numbers
        return matrix.multiply(x, bias=bias).contiguous()
    with torch.no_grad():
        return found._plan_for(matrix)(x, bias).contiguous()


def _register() -> None:
    torch.library.define(
        "torchldr::planned", "(Tensor x, Tensor[] tensors, Tensor? bias, int layer, int m) -> Tensor"
    )
    torch.library.impl("torchldr::planned", "CompositeExplicitAutograd", _planned)

    def fake(x: Tensor, tensors: Any, bias: Tensor | None, layer: int, m: int) -> Tensor:
        return x.new_empty(x.shape[0], m)

    torch.library.register_fake("torchldr::planned", fake)

    def stacked(
        info: Any,
        in_dims: tuple[Any, ...],
        x: Tensor,
        tensors: Sequence[Tensor],
        bias: Tensor | None,
        *rest: Any,
    ) -> tuple[Tensor, int]:
        def part(t: Tensor | None, dim: int | None, i: int) -> Tensor | None:
            return t if t is None or dim is None else t.select(dim, i)

        x_dim, dims, bias_dim, *_ = in_dims
        outputs = [
            torch.ops.torchldr.planned(
                part(x, x_dim, i),
                [part(t, d, i) for t, d in zip(tensors, dims, strict=True)],
                part(bias, bias_dim, i),
                *rest,
            )
            for i in range(info.batch_size)
        ]
        return torch.stack(outputs), 0

    torch.library.register_vmap("torchldr::planned", stacked)


_register()
