"""Layers under torch.fx: one node each."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import Proxy


def is_proxy(x: object) -> bool:
    """Whether torch.fx is tracing, and this stands for a tensor."""
    return isinstance(x, Proxy)


def as_node(layer: nn.Module, *arguments: Any) -> Any:
    """The call of a layer with proxies as a node of the graph that is traced: products are not looked into.

    Raises:
        TypeError: where the layer is all that is traced.
    """
    tracer = arguments[0].tracer
    if tracer.root is layer:
        raise TypeError(
            f"{type(layer).__name__}: torch.fx does not look into this layer, it is one node of a model's "
            "graph. Trace a model that contains it, such as nn.Sequential(layer)."
        )
    given = [argument for argument in arguments if argument is not None]
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), tuple(given), {})
