"""The best forecaster of a lower displacement rank, in the norm that the windows give.

What counts is the error of forecasts, tr(E K E^T) for E = W_k - W. In the eigenbasis of Z_s, with roots a_i,
row i of W is g_i^T R (a_i - Z)^-1 (R the right factors, Z = Z_-s), so the error falls apart into rows,

    sum_i (g_i - g*_i)^T N_i conj(g_i - g*_i),    N_i = R (a_i - Z)^-1 K (a_i - Z)^-H R^T,

and alternating steps over left factors and over k combinations of the right factors cost little. In the
eigenbasis of Z, with roots c_j and K - Z K Z^T = X^T Y, the entries of K are conj(x_j) y_l c_l / (c_l - c_j)
beside its diagonal kappa. By partial fractions

    N_i^pq = sum_j psi_j^pq / |a_i - c_j|^2 + a_i sum_j phi_j^pq / (a_i - c_j),   psi = r^p conj(r^q) kappa,
    phi = sum over X, Y of  (r^p conj(x)) (mu * conj(r^q) y) - (conj(r^q) y) (mu' * r^p conj(x)),

convolutions with mu_j = 1 / (1 - c_j / c_0)^2 and its reverse: no matrix of L x L. Where the past is short,
steps with all entries of the right factors free follow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..matrices.toeplitz_like import corner_sign
from .bilinear import Bilinear, Pair, solved
from .gram import Gram, stein
from .moments import Moments
from .roots import Roots

STEPS = 12  # alternating steps among the exact right factors
FREE_UP_TO = 1500  # unknowns of a sweep with free right factors: a matrix of 18 MB
_CHUNK = 1 << 20  # numbers in a part of the Cauchy matrix


def best_of_rank(of: Moments, ridge: Tensor, left: Tensor, right: Tensor, rank: int, sweeps: int) -> Pair:
    """Left (b, rank, H) and right (b, rank, L) factors of a displacement near left^T right."""
    s = float(corner_sign(of.horizon, of.past))
    rows, columns = Roots(of.horizon, s), Roots(of.past, -s)
    g = rows.analyse(left).conj()[..., : rows.half].mT  # (b, i, r)
    N = row_weights(of, ridge, columns.analyse(right), rows, columns)
    mix = torch.eye(rank, right.shape[-2], dtype=right.dtype).expand(len(right), -1, -1)
    size = rank * right.shape[-2]
    for _ in range(STEPS):
        found = _best_left(g, N, mix.to(N.dtype))
        scaled = rows.weight[:, None] * found.conj()
        normal = torch.einsum("zip,ziq,zirs->zpsqr", scaled, found, N).real
        target = torch.einsum("zip,zir,zirs->zps", scaled, g, N).real
        mix = solved(normal.reshape(-1, size, size), target.reshape(-1, size, 1)).reshape(mix.shape)
    found = _best_left(g, N, mix.to(N.dtype))
    new_left, new_right = rows.real_rows(found.mT), mix @ right
    if rank * of.past > FREE_UP_TO or not sweeps:
        return new_left, new_right
    pairs = []
    for z in range(len(left)):
        problem = Bilinear(of[z], ridge[z : z + 1], (left[z], right[z]))
        pairs.append(problem.swept(new_right[z], sweeps))
    lefts, rights = zip(*pairs, strict=True)
    return torch.stack(lefts), torch.stack(rights)


def _best_left(g: Tensor, N: Tensor, mix: Tensor) -> Tensor:
    """min over found of (found^T mix - g^T) N (..)^H, row by row: (b, i, k)."""
    weighted = N @ mix.mT.unsqueeze(1)  # mix is real
    normal, target = mix.unsqueeze(1) @ weighted, g.unsqueeze(-2) @ weighted
    return solved(normal.mT, target.mT).squeeze(-1)


def row_weights(of: Moments, ridge: Tensor, r: Tensor, rows: Roots, columns: Roots) -> Tensor:
    """N_i for half of the rows, (b, i, r, r), from the right factors (b, r, L) in the eigenbasis."""
    L = columns.n
    kappa = Gram(of, L).diagonal(columns) + ridge[:, None]
    # K - Z K Z^T = X^T Y
    f = -float(corner_sign(of.horizon, L))
    X, Y = (columns.analyse(part) for part in stein(of, ridge, f, f))
    mu = 1 / (1 - columns.values[1:] / columns.values[:1]) ** 2
    mu = torch.fft.fft(torch.nn.functional.pad(mu, (1, 0)))
    alpha = r[:, :, None] * X.conj()[:, None]  # (b, r, rho, L)
    beta = r.conj()[:, :, None] * Y[:, None]
    moved_beta = torch.fft.ifft(torch.fft.fft(beta) * mu)
    moved_alpha = torch.fft.ifft(torch.fft.fft(alpha.flip(-1)) * mu).flip(-1)
    # flip(-1) maps j to L-1-j, so that the transposed convolution is a convolution.
    phi = torch.einsum("zpxl,zqxl->zlpq", alpha, moved_beta) - torch.einsum(
        "zqxl,zpxl->zlpq", beta, moved_alpha
    )
    psi = torch.einsum("zpl,zql,zl->zlpq", r, r.conj(), kappa.to(r.dtype))
    parts = []
    for a in rows.values[: rows.half].split(max(1, _CHUNK // L)):
        cauchy = 1 / (a[:, None] - columns.values)
        squared = cauchy.abs().square().to(cauchy.dtype)
        parts.append(squared @ psi.flatten(-2) + a[:, None] * (cauchy @ phi.flatten(-2)))
    N = torch.cat(parts, -2).unflatten(-1, (r.shape[-2], r.shape[-2]))
    return (N + N.mH) / 2
