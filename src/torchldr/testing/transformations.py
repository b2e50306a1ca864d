"""A layer of a class under torch's tools: derivatives, functional_call, compile, export.

Each function takes the class and its options, and raises AssertionError where a transformation changes the
result. Layers are in float64, so tolerances are those of `torch.allclose`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from ..matrices import StructuredMatrix
from ..nn import StructuredLinear
from .checks import has_operators, member

Class = type[StructuredMatrix]


def layer_of(
    cls: Class,
    in_features: int,
    out_features: int,
    rank: int = 2,
    regime: str = "near one",
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> StructuredLinear:
    """A layer whose operators are not where training starts."""
    rank = min(rank, in_features, out_features)
    layer = StructuredLinear(
        in_features, out_features, structure=cls, rank=rank if cls.ranked else None, dtype=dtype, **options
    )
    if has_operators(cls):
        M = member(cls, out_features, in_features, rank, regime=regime, **options)
        with torch.no_grad():
            for name, t in M.tensors.items():
                layer.get_parameter(name).copy_(t)
    return layer


def product_of(layer: StructuredLinear) -> Callable[..., Tensor]:
    """The layer as a function of (input, *parameters)."""
    names = [name for name, _ in layer.named_parameters()]

    def product(x: Tensor, *parameters: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, parameters, strict=True)), x)

    return product


def check_derivatives(cls: Class, **options: Any) -> None:
    """First and second derivatives, in reverse and forward mode, against finite differences."""
    for regime in ("near one", "zeros") if has_operators(cls) else ("near one",):
        layer = layer_of(cls, 4, 3, regime=regime, **options)
        inputs = [_vectors(2, 4), *layer.parameters()]
        inputs = [t.detach().clone().requires_grad_() for t in inputs]
        torch.autograd.gradcheck(product_of(layer), inputs, check_forward_ad=True)
        torch.autograd.gradgradcheck(product_of(layer), inputs)


def check_functional_call(cls: Class, **options: Any) -> None:
    """functional_call sees the parameters that it is given, in training and in evaluation."""
    for training in (True, False):
        layer = layer_of(cls, 12, 9, **options).train(training)
        x = _vectors(3, 12)
        layer(x)
        with torch.no_grad():
            before = layer(x)
            other = {name: 2 * p for name, p in layer.named_parameters()}
            if torch.allclose(functional_call(layer, other, x), before):
                raise AssertionError(f"{layer!r}: functional_call does not see other parameters.")
            if not torch.equal(layer(x), before):
                raise AssertionError(f"{layer!r}: functional_call changes what the layer gives afterwards.")


def check_compile(cls: Class, **options: Any) -> None:
    """torch.compile gives one graph, the same values and the same gradients."""
    torch.compiler.reset()
    layer = layer_of(cls, 40, 70, **options)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = _vectors(3, 40).requires_grad_()
    wanted = [x, *layer.parameters()]
    y, z = layer(x), compiled(x)
    _same(layer, "compiled", z, y)
    want, got = (torch.autograd.grad(out.sum(), wanted) for out in (y, z))
    for a, b in zip(got, want, strict=True):
        _same(layer, "a gradient of the compiled layer", a, b)


def check_export(cls: Class, **options: Any) -> None:
    """torch.export with a batch that may change, in training and in inference."""
    for training in (True, False):
        layer = layer_of(cls, 40, 70, **options).train(training)
        shapes = {"input": {0: torch.export.Dim("batch")}}
        program = torch.export.export(layer, (_vectors(3, 40),), dynamic_shapes=shapes)
        for size in (2, 7):
            x = _vectors(size, 40)
            _same(layer, "exported", program.module()(x), layer(x))


def _vectors(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _same(layer: StructuredLinear, what: str, got: Tensor, want: Tensor) -> None:
    scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
    if got.shape != want.shape or not torch.allclose(got, want, rtol=1e-5, atol=1e-8 * scale):
        raise AssertionError(f"{layer!r}: {what} is something else.")
