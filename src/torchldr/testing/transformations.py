"""A layer of a class under torch's transformations: derivatives, vmap, functional_call, compile, export.

Each function takes the class and its options, and raises AssertionError where a transformation changes the
result. Layers are in float64, so tolerances are those of `torch.allclose`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jacfwd, jacrev, jvp, stack_module_state, vmap

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


def check_jvp(cls: Class, **options: Any) -> None:
    """Forward mode, against finite differences and `to_dense`.

    A bare custom operation would return a tangent of zero without a word.
    """
    layer = layer_of(cls, 20, 33, **options)
    at = (_vectors(3, 20), *(p.detach() for p in layer.parameters()))
    direction = tuple(torch.randn_like(t) for t in at)
    tangent = jvp(product_of(layer), at, direction)[1]
    h = 1e-5
    ahead, behind = (
        product_of(layer)(*(t + sign * h * d for t, d in zip(at, direction, strict=True))) for sign in (1, -1)
    )
    _same(layer, "jvp", tangent, (ahead - behind) / (2 * h), rtol=1e-4, atol=1e-5)
    layer = layer_of(cls, 5, 4, **options)
    x, W = _vectors(5), layer.matrix().to_dense()
    _same(layer, "jacrev", jacrev(layer)(x), W)
    _same(layer, "jacfwd", jacfwd(layer)(x), W)


def check_vmap(cls: Class, **options: Any) -> None:
    """vmap over inputs, and over the parameters of an ensemble with their gradients."""
    layer = layer_of(cls, 20, 33, **options)
    x = _vectors(4, 3, 20)
    _same(layer, "vmap", vmap(layer)(x), layer(x))
    _same(layer, "vmap over the second axis", vmap(layer, in_dims=1, out_dims=1)(x), layer(x))
    _same(layer, "vmap of single vectors", vmap(lambda x: layer(x))(x[:, 0]), layer(x[:, 0]))
    check_ensemble([layer_of(cls, 20, 33, **options) for _ in range(3)])


def check_ensemble(layers: list[StructuredLinear]) -> None:
    """vmap over the parameters of several layers of one kind, and their gradients."""
    first = layers[0]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            for p in layer.parameters():
                p.add_(0.01 * i)
    x = torch.randn(len(layers), 5, first.in_features, dtype=next(first.parameters()).dtype)
    parameters, buffers = stack_module_state(layers)
    own = [
        functional_call(first, (dict(layer.named_parameters()), dict(layer.named_buffers())), (v,))
        for layer, v in zip(layers, x, strict=True)
    ]

    def one(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
        return functional_call(first, (parameters, buffers), (x,))

    # Constants outside of the state_dict are buffers too, and the same for all members.
    together = vmap(one)(parameters, buffers, x)
    _same(first, "vmap over an ensemble", together, torch.stack(own))
    gradients = torch.autograd.grad(together.square().sum(), list(parameters.values()))
    for i, layer in enumerate(layers):
        alone = torch.autograd.grad(own[i].square().sum(), list(layer.parameters()))
        for (name, _), a, b in zip(layer.named_parameters(), gradients, alone, strict=True):
            _same(layer, f"gradient of {name} under vmap", a[i], b)


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
    torch._dynamo.reset()
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
        shapes = {"x": {0: torch.export.Dim("batch")}}
        program = torch.export.export(layer, (_vectors(3, 40),), dynamic_shapes=shapes)
        for size in (2, 7):
            x = _vectors(size, 40)
            _same(layer, "exported", program.module()(x), layer(x))


def _vectors(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _same(
    layer: StructuredLinear, what: str, got: Tensor, want: Tensor, rtol: float = 1e-5, atol: float = 1e-8
) -> None:
    scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
    if got.shape != want.shape or not torch.allclose(got, want, rtol=rtol, atol=atol * scale):
        raise AssertionError(f"{layer!r}: {what} is something else.")
