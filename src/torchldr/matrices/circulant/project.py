"""Projection onto circulant matrices, and onto grids of them: least squares."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core.rules import rule
from ...project.problem import Problem, Tensors
from ...project.solving import ridged
from . import Circulant


@rule("project", Circulant)
def project(problem: Problem, rank: int) -> Tensors:
    return {"column": fit_blocks(problem, max(problem.shape)).flatten()}


def fit_blocks(problem: Problem, b: int) -> Tensor:
    """The least-squares block-circulant matrix: (block rows, block columns, b).

    Block rows do not share parameters, and those of one height share their normal equations.
    """
    (m, n), full = problem.shape, problem.shape[0] // b
    blocks = -(-n // b)
    fit = _average if problem.moments is None else _least_squares
    parts = []
    if full:
        parts.append(fit(problem, problem.W[: full * b].unflatten(0, (full, b)), b, blocks))
    if m % b:
        parts.append(fit(problem, problem.W[full * b :].unsqueeze(0), b, blocks))
    return torch.cat(parts).unflatten(1, (blocks, b))


def _places(i: int, b: int, blocks: int) -> Tensor:
    """For row i of a block row: the column that holds entry (J, p) of its parameters, (J, p) flattened."""
    p = (i - torch.arange(b)) % b
    return (torch.arange(blocks).unsqueeze(1) * b + p).flatten()


def _average(problem: Problem, W: Tensor, b: int, blocks: int) -> Tensor:
    """Each parameter is the mean of the entries that it stands for; one with no entry left is 0."""
    n, size = W.shape[-1], blocks * b
    padded = pad(W, (0, size - n))
    total, count = W.new_zeros(W.shape[0], size), W.new_zeros(size)
    for i in range(W.shape[1]):
        places = _places(i, b, blocks)
        total += padded[:, i, places]
        count += places < n
    return total / count.clamp(min=1)


def _least_squares(problem: Problem, W: Tensor, b: int, blocks: int) -> Tensor:
    """Row i is x[places_i], so the normal equations add up the moments between its places."""
    n, size = W.shape[-1], blocks * b
    moments = problem.moments
    assert moments is not None
    cross = pad(W @ moments, (0, size - n))
    moments = pad(moments, (0, size - n, 0, size - n))
    normal, right = W.new_zeros(size, size), W.new_zeros(W.shape[0], size)
    whole = W.shape[1] == b
    for i in range(W.shape[1]):
        places = _places(i, b, blocks)
        right += cross[:, i, places]
        if not whole:
            normal += moments[places][:, places]
    if whole:
        normal = _summed_moments(moments, b)
    return torch.linalg.solve(ridged(normal), right.mT).mT


def _summed_moments(moments: Tensor, b: int) -> Tensor:
    """The sum over all b rows: of a block, each diagonal that goes around, for all p and q that far apart."""
    blocks = moments.shape[0] // b
    at = torch.arange(b)
    tiles = moments.view(blocks, b, blocks, b).transpose(1, 2)
    along = (at.unsqueeze(1) + at) % b
    sums = tiles.gather(-1, along.expand_as(tiles)).sum(2)
    return sums[..., (at.unsqueeze(1) - at) % b].transpose(1, 2).reshape_as(moments)
