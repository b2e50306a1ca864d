"""The displacement of the ridge forecaster W = P^T K^-1, straight from the moments.

With B_c[i+1, j+1] - B_c[i, j] = (Q^T J Q)[i, j], Z_f the shift with corner f and K = B_c[:L, :L] + ridge I,
P = B_c[:L, L:]:

    D_K = Z_a K - K Z_0     = e_0 u'^T + v' e^T - (Z_0 Q_K)^T J Q_K
    D_P = Z_s P^T - P^T Z_0 = e_0 u^T  + v e^T  - (Z_0 Q_P)^T J Q_K
    Z_s W - W Z_a = (D_P - W D_K) K^-1

(Q_K the first L columns of Q, Q_P those from L on, shifts of each row). K^-1 is taken without its null
direction n; there W n = 0 gives the displacement: (Z_s W - W Z_a) n = -W Z_a n.

Where the past is short, W itself is made, and its displacement taken. That is no worse than the dense
regression however close to singular K is; errors of the formula above grow with the square of its condition.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..matrices.toeplitz_like import corner_sign
from .gram import Gram, dense_gram, null_vector
from .moments import Moments
from .solvers import Solve, by_cholesky

SPARE = 8  # random vectors beyond the rank


class Displacement(NamedTuple):
    """Z_s W - W Z_-s = left^T right; left (b, r, H), right (b, r, L), singular values in order.

    rows: the first and the last row of W as K^-1 gave them, (b, 2, L).
    """

    left: Tensor
    right: Tensor
    rows: Tensor


def displacement(of: Moments, ridge: Tensor, solve: Solve) -> Displacement:
    """The displacement of the forecaster, given how to solve with K."""
    L, H, M = of.past, of.horizon, of.window
    s = float(corner_sign(H, L))
    a = -s
    pad = torch.nn.functional.pad
    Q, J = of.steps()
    null = null_vector(of.center, L)
    at_L, at_M, at_0, before_L = (of.column(p) for p in (L, M - 1, 0, L - 1))
    one = torch.zeros(len(Q), 1, L, dtype=Q.dtype)
    e_0, e = one.clone(), one.clone()
    e_0[..., 0] = e[..., -1] = 1
    down_K = pad(Q[..., : L - 1], (1, 0))
    down_P = pad(Q[..., L : M - 1], (1, 0))
    first, last = at_0[:, :L].clone(), before_L[:, :L].clone()
    first[:, 0] += ridge
    last[:, -1] += ridge
    u_K = a * last - pad(first[:, 1:], (0, 1))
    u_P = s * at_M[:, :L] - pad(at_L[:, 1:L], (0, 1))
    beta, beta_M = at_L[:, None, :L], at_M[:, None, :L]
    parts = (e_0, beta, beta_M, u_P[:, None], u_K[:, None], e, Q[..., :L], down_K)
    count = [part.shape[-2] for part in parts]
    y_0, y_L, y_M, y_P, y_u, y_e, y_Q, y_down = solve(torch.cat(parts, -2)).split(count, -2)
    # W x = P^T K^-1 x, of what stands left in D_K.
    left_K = torch.cat((y_0, y_L - beta[..., :1] * y_0, y_down), -2)
    W_0, W_v, W_down = Gram(of, M)(pad(left_K, (0, H)))[..., L:].split((1, 1, y_down.shape[-2]), -2)
    v_P = pad(at_L[:, None, L + 1 :], (1, 0))
    unit = torch.zeros_like(v_P)
    unit[..., 0] = 1
    left = [unit, -W_0, v_P - W_v, -(J.mT @ (down_P - W_down))]
    right = [y_P, y_u, y_e, y_Q]
    if null is not None:
        n = null.expand_as(one)
        left.append(-a * W_0 if of.center == "last" else (1 - a) * L**-0.5 * W_0)
        right.append(n)
    return Displacement(*reduced(torch.cat(left, -2), torch.cat(right, -2)), torch.cat((y_L, y_M), -2))


def dense_displacement(of: Moments, ridge: Tensor, most: int) -> Displacement:
    """The same by the dense W; `most` is what the rank is at most."""
    L = of.past
    W = by_cholesky(of, ridge)(dense_gram(of, of.window, L)[..., L:].mT)
    s = float(corner_sign(of.horizon, L))
    down = torch.cat((s * W[:, -1:], W[:, :-1]), 1)
    D = down - torch.cat((W[..., 1:], -s * W[..., :1]), -1)
    # The rank is known: a few random vectors find all of the range.
    generator = torch.Generator().manual_seed(0)
    sketch = torch.randn(L, min(most + SPARE, L), dtype=D.dtype, generator=generator)
    left = torch.linalg.qr(D @ (D.mT @ torch.linalg.qr(D @ sketch).Q)).Q
    return Displacement(*reduced(left.mT, left.mT @ D), W[:, [0, -1]])


def reduced(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of the same left^T right whose rows are orthogonal, the largest singular value first."""
    Q_left, R_left = torch.linalg.qr(left.mT)
    Q_right, R_right = torch.linalg.qr(right.mT)
    U, S, V = torch.linalg.svd(R_left @ R_right.mT, full_matrices=False)
    root = S.sqrt()[..., None, :]
    return ((Q_left @ U) * root).mT, ((Q_right @ V.mT) * root).mT


def singular_values(left: Tensor) -> Tensor:
    """Of left^T right, from what `reduced` returns, relative to the first: (b, r)."""
    values = left.square().sum(-1)
    return values / values[:, :1].clamp(min=torch.finfo(values.dtype).tiny)
