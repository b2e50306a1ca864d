"""Finding operators A and C such that the displacement W - A W C^T has nearly rank r.

A and C are rings: for every offset d in `offsets` a vector, (A x)_i = sum_d A[d, i] x_{i+d}, indices
modulo m; offset -1 alone is LDR-SD with its corner, (-1, 0, 1) is LDR-TD. For a member of LDR-SD the
displacement with its own operators has rank r, so

    f(A, C) = |E - (its best rank-r part)|_F^2,   E = W - A W C^T,

is zero there. The generators are eliminated by an SVD, and the operators move by Levenberg-Marquardt
steps on the part of E outside of the generators' row and column spaces, P E Q with P = I - U U^T and
Q = I - V^T V. Its normal equations need no m n x (m + n) Jacobian: they are entrywise products of
matrices of size m and n. With X_d = W C^T and Y_d = A W moved by d rows or columns,

    <A_di, A_ei'> = P[i, i'] (X_d Q X_e^T)[i, i']      <A_di, C_ej> = (X_d Q)[i, j] (P Y_e)[i, j]
    <C_dj, C_ej'> = Q[j, j'] (Y_d^T P Y_e)[j, j'].

On members it converges quadratically, in five to ten steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .solving import leading


class Operators(NamedTuple):
    """Rings A (offsets, m) and C (offsets, n), and f relative to |W|_F^2."""

    A: Tensor
    C: Tensor
    loss: float


class _Split(NamedTuple):
    """The part of a displacement E outside its leading singular spaces U (m, r) and V (r, n)."""

    outside: Tensor  # P E Q
    U: Tensor
    V: Tensor
    rest: float  # |P E Q|^2


def apply_ring(ring: Tensor, offsets: tuple[int, ...], X: Tensor) -> Tensor:
    """A X for a ring A (offsets, m) and X (m, n)."""
    moved = (row.unsqueeze(1) * X.roll(-d, 0) for row, d in zip(ring, offsets, strict=True))
    return torch.stack(list(moved)).sum(0)


def displacement(W: Tensor, A: Tensor, C: Tensor, offsets: tuple[int, ...]) -> Tensor:
    """W - A W C^T."""
    return W - apply_ring(C, offsets, apply_ring(A, offsets, W).mT).mT


def fit_operators(
    W: Tensor,
    rank: int,
    offsets: tuple[int, ...],
    A: Tensor,
    C: Tensor,
    *,
    steps: int,
    damping: float = 0.1,
    first: int = 0,
) -> Operators:
    """Levenberg-Marquardt from the rings A and C, until a step gains less than a thousandth of f.

    With first = 1 the first row and column of the displacement do not count, nor do the corners of LDR-SD,
    which affect only these entries and would lead into local minima.
    """
    total = W.square().sum().item()
    split = _split(W, A, C, offsets, rank, None, first)
    for _ in range(steps):
        normal, gradient, scale = _normal_equations(W, A, C, offsets, split, first)
        for _ in range(8):
            moved = _step(normal, gradient, damping * scale, A, C, first)
            trial = None if moved is None else _split(W, *moved, offsets, rank, split.V, first)
            if trial is not None and trial.rest < split.rest:
                break
            damping *= 4
        else:
            break
        assert moved is not None
        assert trial is not None
        gain = 1 - trial.rest / split.rest
        (A, C), split, damping = moved, trial, damping / 5
        if gain < 1e-3 or split.rest <= 1e-26 * total:
            break
    return Operators(A, C, split.rest / max(total, 1e-300))


def _split(
    W: Tensor, A: Tensor, C: Tensor, offsets: tuple[int, ...], rank: int, near: Tensor | None, first: int
) -> _Split:
    E = displacement(W, A, C, offsets)[first:, first:]
    U, _, V = leading(E, rank, near)
    outside = E - U @ (U.mT @ E)
    outside = outside - (outside @ V.mT) @ V
    return _Split(outside, U, V, outside.square().sum().item())


def _normal_equations(
    W: Tensor, A: Tensor, C: Tensor, offsets: tuple[int, ...], split: _Split, first: int
) -> tuple[Tensor, Tensor, float]:
    """J^T J, -J^T residual and the mean squared column of the Jacobian before projection."""
    outside, U, V, _ = split
    P = torch.eye(len(U), dtype=W.dtype) - U @ U.mT
    Q = torch.eye(V.shape[1], dtype=W.dtype) - V.mT @ V
    WC, AW = apply_ring(C, offsets, W.mT).mT, apply_ring(A, offsets, W)
    X = [WC.roll(-d, 0)[first:, first:] for d in offsets]
    Y = [AW.roll(-d, 1)[first:, first:] for d in offsets]
    XQ = [x - (x @ V.mT) @ V for x in X]
    PY = [y - U @ (U.mT @ y) for y in Y]
    AA = torch.cat([torch.cat([P * (xq @ x.mT) for x in X], 1) for xq in XQ])
    CC = torch.cat([torch.cat([Q * (y.mT @ py) for py in PY], 1) for y in Y])
    AC = torch.cat([torch.cat([xq * py for py in PY], 1) for xq in XQ])
    normal = torch.cat((torch.cat((AA, AC), 1), torch.cat((AC.mT, CC), 1)))
    gradient = torch.cat([(outside * x).sum(1) for x in X] + [(outside * y).sum(0) for y in Y])
    squares = sum(x.square().sum().item() for x in X) + sum(y.square().sum().item() for y in Y)
    return normal, gradient, max(squares / len(gradient), 1e-300)


def _step(
    normal: Tensor, gradient: Tensor, ridge: float, A: Tensor, C: Tensor, first: int
) -> tuple[Tensor, Tensor] | None:
    damped = normal.clone()
    damped.diagonal().add_(ridge)
    L, failed = torch.linalg.cholesky_ex(damped)
    if failed:
        return None
    d = torch.cholesky_solve(gradient.unsqueeze(1), L).squeeze(1)
    A, C = A.clone(), C.clone()
    inner = A[:, first:].numel()
    A[:, first:] += d[:inner].view(len(A), -1)
    C[:, first:] += d[inner:].view(len(C), -1)
    return A, C
