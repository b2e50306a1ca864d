"""What a node of a traced model says about itself: its shape, its module, why there is no C for it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..check import ExportError


def refused(node: torch.fx.Node, why: str) -> ExportError:
    return ExportError(f"to_c: the node {node.name!r} ({node.target}) {why}")


def shape_of(node: torch.fx.Node) -> tuple[int, ...]:
    found = node.meta.get("val")
    if not isinstance(found, Tensor) or any(not isinstance(size, int) for size in found.shape):
        raise refused(node, "has a shape that depends on data.")
    return tuple(found.shape)


def layer_name(node: torch.fx.Node) -> str:
    """The module that a node comes from."""
    stack = node.meta.get("nn_module_stack") or {}
    found = [path for path, _ in stack.values()]
    return str(found[-1]).removeprefix("L['self'].") if found else ""
