"""A layer under each transformation of torch.func, against the same transformation of the dense definition.

A product is a function of one dictionary: "x", and the layer's parameters by their names where they vary.
`TRANSFORMATIONS` has a function of (product, inputs, directions) by name. The oracle is the same function
of `matrix().to_dense()`, eager, in float64; finite differences hold eager derivatives in `check_derivatives`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing import assert_close

from ..matrices import StructuredMatrix
from ..nn import StructuredLinear
from .transformations import layer_of

Inputs: TypeAlias = dict[str, Tensor]
Product: TypeAlias = Callable[[Inputs], Tensor]

MODES = ("train", "eval", "constant")
"""Parameters as inputs in training and in `eval()`; a layer in `eval()` whose parameters need no gradient."""
PRODUCTS = ("fast", "dense")


def _loss(product: Product) -> Callable[[Inputs], Tensor]:
    return lambda inputs: product(inputs).sin().sum()


def _slope(product: Product, along: Inputs) -> Callable[[Inputs], Tensor]:
    """The derivative of the loss along a direction, by reverse mode."""

    def slope(inputs: Inputs) -> Tensor:
        gradient = grad(_loss(product))(inputs)
        return torch.stack([(gradient[name] * along[name]).sum() for name in along]).sum()

    return slope


def _pair(inputs: Inputs, along: Inputs) -> Inputs:
    """Two of each input: what an ensemble of two layers would stack."""
    return {name: torch.stack((t, t + 0.1 * along[name])) for name, t in inputs.items()}


def _over_x(inputs: Inputs) -> tuple[dict[str, int | None]]:
    return ({name: 0 if name == "x" else None for name in inputs},)


def _jvp_of_jvp(product: Product, inputs: Inputs, along: Inputs) -> Tensor:
    once = lambda at: jvp(product, (at,), (along,))[1]
    return jvp(once, (inputs,), (along,))[1]


def _vjp(product: Product, inputs: Inputs, along: Inputs) -> Any:
    y, back = vjp(product, inputs)
    return y, back(y.cos())


TRANSFORMATIONS: Mapping[str, Callable[[Product, Inputs, Inputs], Any]] = {
    "grad": lambda f, at, along: grad(_loss(f))(at),
    "grad of grad": lambda f, at, along: grad(_slope(f, along))(at),
    "jvp": lambda f, at, along: jvp(f, (at,), (along,)),
    "jvp of jvp": _jvp_of_jvp,
    "vjp": _vjp,
    "jacrev": lambda f, at, along: jacrev(f)(at),
    "jacfwd": lambda f, at, along: jacfwd(f)(at),
    "hessian": lambda f, at, along: hessian(_loss(f))(at),
    "vmap": lambda f, at, along: vmap(f, in_dims=_over_x(at))(at),
    "vmap over parameters": lambda f, at, along: vmap(f)(_pair(at, along)),
    "vmap of grad": lambda f, at, along: vmap(grad(_loss(f)))(_pair(at, along)),
    "per-sample gradients": lambda f, at, along: vmap(grad(_loss(f)), in_dims=_over_x(at))(at),
}
"""The transformations by name: functions of (product, inputs, directions) that give tensors."""


def func_layer(cls: type[StructuredMatrix], mode: str, product: str, /, **options: Any) -> StructuredLinear:
    """A layer in one of the `MODES`, which multiplies by the product that is named."""
    layer = layer_of(cls, 6, 5, **options).train(mode == "train").requires_grad_(mode != "constant")
    setattr(layer, "product" if hasattr(type(layer), "product") else "plan", product)
    return layer


def func_inputs(layer: StructuredLinear, mode: str) -> tuple[Inputs, Inputs]:
    """The inputs of a product, and a direction for each."""
    inputs = {} if mode == "constant" else {k: p.detach().clone() for k, p in layer.named_parameters()}
    inputs["x"] = torch.randn(3, layer.in_features, dtype=torch.float64)
    return inputs, {name: torch.randn_like(t) for name, t in inputs.items()}


def layer_product(layer: StructuredLinear, mode: str) -> Product:
    """The layer's own product: with constant parameters a plain call, else by `functional_call`."""
    if mode == "constant":
        return lambda inputs: layer(inputs["x"])
    return lambda inputs: functional_call(layer, {k: t for k, t in inputs.items() if k != "x"}, inputs["x"])


def dense_product(layer: StructuredLinear) -> Product:
    """The oracle: x M^T + b with M from its definition."""
    own = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    size = (layer.out_features, layer.in_features)

    def product(inputs: Inputs) -> Tensor:
        tensors = {**{name: t.detach() for name, t in own.items()}, **inputs}
        x, bias = tensors.pop("x"), tensors.pop("bias")
        return x @ layer.structure.unchecked(*size, tensors, layer.options).to_dense().mT + bias

    return product


def check_transformation(
    layer: StructuredLinear, name: str, mode: str = "train", backend: str | None = None
) -> None:
    """One transformation of a layer, eager or in one graph of a compiler, against the dense definition."""
    inputs, along = func_inputs(layer, mode)
    product, transformation = layer_product(layer, mode), TRANSFORMATIONS[name]
    run = lambda inputs, along: transformation(product, inputs, along)
    if backend is not None:
        torch.compiler.reset()
        run = torch.compile(run, fullgraph=True, backend=backend)
    wanted = transformation(dense_product(layer), inputs, along)
    how = "eager" if backend is None else f"compiled by {backend}"
    message = lambda text: f"{layer!r}: {name} in mode {mode!r}, {how}, is something else.\n{text}"
    assert_close(run(inputs, along), wanted, rtol=1e-9, atol=1e-9, msg=message)


def check_func(cls: type[StructuredMatrix], **options: Any) -> None:
    """All transformations of torch.func, eager, in all modes, by both products."""
    for mode in MODES:
        for product in PRODUCTS:
            layer = func_layer(cls, mode, product, **options)
            for name in TRANSFORMATIONS:
                check_transformation(layer, name, mode)
