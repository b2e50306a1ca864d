"""The loops of `gko` in torch, one step a column: for every device, and where C was not compiled.

Names, arguments and results are those of `kernels.cpu.gko`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _swap(V: Tensor, i: int, j: int) -> None:
    V[..., [i, j]] = V[..., [j, i]]


def _keep(line: Tensor, k: int, where: Tensor, kept: Tensor) -> None:
    """Write down the entries of `line` at the places in `where` that are past k."""
    later = where > k
    kept[k][later] = line[where[later]]


def eliminate(
    s: Tensor,
    t: Tensor,
    G: Tensor,
    H: Tensor,
    B: Tensor,
    order: Tensor,
    d: Tensor,
    ties: tuple[Tensor, Tensor],
    kept: tuple[Tensor, Tensor],
    places: Tensor,
) -> bool:
    n = G.shape[1]
    line = torch.zeros_like(G[0])
    for k in range(n):
        line[k:] = (H[:, k] @ G[:, k:]) / (s[k:] - t[k])
        pivot = k + int(line[k:].abs().argmax())
        if line[pivot] == 0:
            return False
        if pivot != k:
            for V in (G, B, line, s, order):
                _swap(V, k, pivot)
            places[order[[k, pivot]]] = torch.tensor([k, pivot], device=places.device)
        d[k] = line[k]
        rows = ties[0][order[k]]
        _keep(line, k, torch.where(rows >= 0, places[rows], rows), kept[0])
        after, below = slice(k + 1, n), line[k + 1 :] / d[k]
        G[:, after] -= torch.outer(G[:, k], below)
        B[:, after] -= torch.outer(B[:, k], below)
        line[after] = (G[:, k] @ H[:, after]) / (s[k] - t[after])
        _keep(line, k, ties[1][k], kept[1])
        H[:, after] -= torch.outer(H[:, k], line[after] / d[k])
    return True


def forward(s: Tensor, t: Tensor, G: Tensor, H: Tensor, d: Tensor, B: Tensor) -> None:
    n = G.shape[1]
    for k in range(n - 1):
        after = slice(k + 1, n)
        below = (H[:, k] @ G[:, after]) / (s[after] - t[k]) / d[k]
        G[:, after] -= torch.outer(G[:, k], below)
        B[:, after] -= torch.outer(B[:, k], below)


def backward(t: Tensor, G: Tensor, H: Tensor, d: Tensor, ties: Tensor, kept: Tensor, B: Tensor) -> None:
    n = G.shape[1]
    line = torch.zeros_like(G[0])
    for k in range(n - 1, -1, -1):
        after = slice(k + 1, n)
        line[after] = (G[:, k] @ H[:, after]) / (t[k] - t[after])
        later = ties[k] > k
        line[ties[k][later]] = kept[k][later]
        H[:, after] += torch.outer(H[:, k], line[after] / d[k])
        B[:, k] = (B[:, k] - B[:, after] @ line[after]) / d[k]
