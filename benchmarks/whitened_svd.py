"""A baseline on real models: the SVD of W C^(1/2), with C the second moments of a layer's inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Parts = tuple[Tensor, Tensor, Tensor, Tensor]


def linear_layers(model: nn.Module, left: Collection[str] = ()) -> dict[str, nn.Linear]:
    """The linear layers by name, but for those that are `left` alone."""
    named = model.named_modules()
    return {name: layer for name, layer in named if isinstance(layer, nn.Linear) and name not in left}


@torch.no_grad()
def input_moments(
    model: nn.Module, batches: Iterable[dict[str, Tensor]], left: Collection[str] = ()
) -> dict[str, Tensor]:
    """The second moments of the layers' inputs, over all tokens, or those that a batch's `mask` has."""
    found: dict[str, Tensor] = {}
    mask: Tensor | None = None

    def hook(name: str) -> Any:
        def add(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            X = args[0].flatten(0, -2) if mask is None else args[0][mask]
            found[name] = found.get(name, 0) + (X.mT @ X).double()

        return add

    handles = [
        layer.register_forward_pre_hook(hook(name)) for name, layer in linear_layers(model, left).items()
    ]
    for batch in batches:
        mask = batch.get("mask")
        model(**batch)
    for handle in handles:
        handle.remove()
    return found


def decomposed(W: Tensor, C: Tensor) -> Parts:
    """The SVD of a weight times the root of its inputs' moments, and that root."""
    eye = torch.eye(len(C), dtype=C.dtype, device=C.device)
    root = torch.linalg.cholesky(C / C.diagonal().mean() + 1e-6 * eye)
    return *torch.linalg.svd(W.detach().double() @ root, full_matrices=False), root


def low_rank(parts: Parts, rank: int) -> Tensor:
    """The approximation of a weight that is best for its inputs, from what `decomposed` gave."""
    U, s, V, root = parts
    low = (U[:, :rank] * s[:rank]) @ V[:rank]
    return torch.linalg.solve_triangular(root, low, upper=False, left=False)


def rank_of(share: float, layer: nn.Linear) -> int:
    """The rank at which two factors have this share of the parameters."""
    m, n = layer.weight.shape
    return int(share * m * n / (m + n))


@torch.no_grad()
def whiten_(
    model: nn.Module, share: float, batches: Iterable[dict[str, Tensor]], left: Collection[str] = ()
) -> None:
    """The same share for every layer."""
    moments = input_moments(model, batches, left)
    for name, layer in linear_layers(model, left).items():
        parts = decomposed(layer.weight, moments.pop(name))
        layer.weight.copy_(low_rank(parts, rank_of(share, layer)))
