"""Exact representations: the same matrix as a member of LDR-TD, or of a class with fixed operators.

A low displacement rank does not by itself give a short Krylov form sum_i K_k(A, g_i) K_k(C, h_i)^T; these do:

    matrix                   as            A             C           rank
    low-rank r               LDR-TD        0             0           r
    Toeplitz                 LDR-TD        Z_0           Z_0         2
    Hankel                   LDR-TD        Z_0^T         Z_0         2
    circulant                LDR-TD        Z_1           Z_0         1
    Vandermonde, m x n       LDR-TD        diag(nodes)   Z_0         ceil(n / m)
    Toeplitz-like r          LDR-TD        Z_a           Z_{-a}      r
    Hankel-like r            LDR-TD        reversed Z_a  Z_{-a}      r
    LDR-SD r                 LDR-TD        its own       its own     r
    k x l circulant blocks   LDR-TD        Z_a           Z_{-a}      k + l, at most
    any matrix               Toeplitz-like Z_a           Z_{-a}      rank of M - Z_a M Z_{-a}^T

The last holds because M - A M C^T = R - A^k R (C^k)^T can be solved for R = G^T H: one of Z_a^k, Z_{-a}^k
is a multiple of the identity. For Toeplitz matrices that rank is 2, for circulant ones 1, for rank r 2 r.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core.linear_map import LinearMap
from ..block_circulant import BlockCirculant
from ..circulant import Circulant
from ..hankel_like import HankelLike
from ..ldr_sd import LDRSubdiagonal
from ..ldr_td import LDRTridiagonal
from ..low_rank import LowRank
from ..toeplitz_like import ToeplitzLike, corner_sign
from ..vandermonde_like import VandermondeLike
from .constructors import Hankel, Toeplitz, Vandermonde
from .constructors_convolution import Convolution2d

Parts = dict[str, Tensor]


@singledispatch
def to_ldr_td(M: Any) -> LDRTridiagonal:
    """The same matrix as a member of LDR-TD, exactly.

    Args:
        M: low-rank, Toeplitz, Hankel, circulant or Vandermonde, a grid of circulant blocks or of
            convolutions, or a member of a class with shifts or subdiagonal operators: the table above
            gives operators and ranks.

    Returns:
        The matrix, in the dtype of M and differentiable in its vectors. Where the rank of the table would
        exceed min(m, n), operators 0 and the dense matrix serve.

    Raises:
        TypeError: for a matrix of which no Krylov form of low rank is known.
    """
    raise TypeError(
        f"to_ldr_td: no Krylov form of low rank is known for {type(M).__name__}. Its displacement rank may "
        "be low all the same; LDRTridiagonal.from_dense finds an approximation."
    )


@to_ldr_td.register
def _(M: LDRTridiagonal) -> LDRTridiagonal:
    return M


@to_ldr_td.register
def _(M: LowRank) -> LDRTridiagonal:
    m, n = M.shape
    return _member(M.G, M.H, _diagonal(M.G.new_zeros(m)), _diagonal(M.H.new_zeros(n)))


@to_ldr_td.register
def _(M: Toeplitz) -> LDRTridiagonal:
    _real(M)
    # M - Z_0 M Z_0^T is the first column and row: what stands further in stands before, one up and left.
    G, H = _cross(M.column, M.row)
    return _member(G, H, _shift(G), _shift(H))


@to_ldr_td.register
def _(M: Hankel) -> LDRTridiagonal:
    _real(M)
    upside_down = to_ldr_td(_reversed(M))  # Z_0^T is Z_0 with rows and columns reversed
    up = _shift(upside_down.G)
    up["superdiagonal"], up["subdiagonal"] = up["subdiagonal"], up["superdiagonal"]
    return _member(upside_down.G.flip(-1), upside_down.H, up, _shift(upside_down.H))


@to_ldr_td.register
def _(M: Circulant) -> LDRTridiagonal:
    m, n = M.shape
    column = M.column
    one = torch.zeros(1, min(m, n), dtype=column.dtype, device=column.device)
    one[0, 0] = 1
    if m >= n:  # K_n(Z_1, column) is the matrix itself, K_n(Z_0, e_0) the identity
        return _member(column.unsqueeze(0), one, _shift(column, 1.0), _shift(one))
    row = torch.cat((column[:1], column[1:].flip(0))).unsqueeze(0)
    return _member(one, row, _shift(one), _shift(row, 1.0))


@to_ldr_td.register
def _(M: Vandermonde) -> LDRTridiagonal:
    _real(M)
    return to_ldr_td(to_vandermonde_like(M))


@to_ldr_td.register
def _(M: VandermondeLike) -> LDRTridiagonal:
    m, n = M.shape
    turns = -(-n // m) if m < n else 1  # its Krylov factors have n columns, those of LDR-TD min(m, n)
    if turns * M.G.shape[0] > min(m, n):
        return _dense(M.to_dense())
    G = torch.cat([M.G * M.nodes.to(M.dtype) ** (t * m) for t in range(turns)])
    H = torch.cat([pad(M.H, (t * m, 0))[:, :n] for t in range(turns)])  # Z_0^{t m} h
    return _member(G, H, _diagonal(M.nodes.to(M.dtype)), _shift(H))


@to_ldr_td.register
def _(M: ToeplitzLike) -> LDRTridiagonal:
    a = float(corner_sign(*M.shape))
    return _member(M.G, M.H, _shift(M.G, a), _shift(M.H, -a))


@to_ldr_td.register
def _(M: HankelLike) -> LDRTridiagonal:
    a = float(corner_sign(*M.shape))
    up = _shift(M.G, a)
    up["superdiagonal"], up["subdiagonal"] = up["subdiagonal"], up["superdiagonal"]
    up["corners"] = up["corners"].flip(0)
    return _member(M.G.flip(-1), M.H, up, _shift(M.H, -a))


@to_ldr_td.register(BlockCirculant)
@to_ldr_td.register(Convolution2d)
def _(M: BlockCirculant | Convolution2d) -> LDRTridiagonal:
    return to_ldr_td(to_toeplitz_like(M))


@to_ldr_td.register
def _(M: LDRSubdiagonal) -> LDRTridiagonal:
    def side(name: str) -> Parts:
        s, corner = M.tensors[f"subdiagonal_{name}"], M.tensors[f"corner_{name}"]
        parts = _diagonal(s.new_zeros(s.shape[0] + 1))
        parts["subdiagonal"] = s
        parts["corners"] = torch.stack((corner.reshape(()), s.new_zeros(())))
        return parts

    return _member(M.G, M.H, side("A"), side("C"))


@singledispatch
def to_toeplitz_like(M: Any, *, tol: float | None = None) -> ToeplitzLike:
    """The same matrix as a Toeplitz-like one, exactly.

    Args:
        M: any real matrix: a linear map, or a tensor (m, n).
        tol: singular values of the displacement below `tol` times the largest are dropped; by default
            max(m, n) times the dtype's precision. Toeplitz, circulant and low-rank matrices need none.

    Returns:
        The matrix with rank the displacement rank of M: 2 for a Toeplitz matrix, 1 for a circulant one, at
        most 2 r for one of rank r, and up to min(m, n) for a matrix that is not Toeplitz-like.
    """
    if not isinstance(M, LinearMap | Tensor):
        raise TypeError(f"to_toeplitz_like: expected a matrix, got {type(M).__name__}.")
    W = M if isinstance(M, Tensor) else M.to_dense()
    if W.ndim != 2 or not W.is_floating_point():
        raise TypeError(
            f"to_toeplitz_like: the matrix must be real, (m, n), got {W.dtype}, {tuple(W.shape)}."
        )
    m, n = W.shape
    a = corner_sign(m, n)
    moved = _down(_down(W.mT, a).mT, -a)  # Z_a M Z_{-a}^T
    U, s, V = torch.linalg.svd(W - moved, full_matrices=False)
    least = (max(m, n) * torch.finfo(W.dtype).eps if tol is None else tol) * s[0]
    r = max(1, int((s > least).sum()))
    root = s[:r].sqrt().unsqueeze(-1)
    return _solved(m, n, root * U[:, :r].mT, root * V[:r])


@to_toeplitz_like.register
def _(M: ToeplitzLike, *, tol: float | None = None) -> ToeplitzLike:
    if isinstance(M, HankelLike):
        return to_toeplitz_like(M.to_dense(), tol=tol)
    return M


@to_toeplitz_like.register
def _(M: Toeplitz, *, tol: float | None = None) -> ToeplitzLike:
    _real(M)
    (m, n), t = M.shape, M.entries
    a = corner_sign(m, n)
    # The displacement is its first row and column; t[d] of diagonal d stands at d + n - 1.
    corner = t[n - 1 : n] + t[m - 1 : m]
    row = torch.cat((corner, (t[: n - 1] - a * t[m : m + n - 1]).flip(0)))
    column = torch.cat((corner, t[n:] + a * t[: m - 1]))
    return _solved(m, n, *_cross(column, row))


@to_toeplitz_like.register
def _(M: Circulant, *, tol: float | None = None) -> ToeplitzLike:
    m, n = M.shape
    column = M.column
    if m != n:
        row = torch.cat((column[:1], column[1:].flip(0)))
        return to_toeplitz_like(Toeplitz(column[:m], row[:n]))
    one = torch.zeros_like(column)
    one[0] = 1
    return _solved(m, n, 2 * column.unsqueeze(0), one.unsqueeze(0))


@to_toeplitz_like.register
def _(M: LowRank, *, tol: float | None = None) -> ToeplitzLike:
    m, n = M.shape
    if 2 * M.G.shape[0] > min(m, n):
        return to_toeplitz_like(M.to_dense(), tol=tol)
    a = corner_sign(m, n)
    return _solved(m, n, torch.cat((M.G, -_down(M.G, a))), torch.cat((M.H, _down(M.H, -a))))


def to_hankel_like(M: LinearMap | Tensor) -> HankelLike:
    """The same matrix as a Hankel-like one: its rows reversed, as `to_toeplitz_like`."""
    if isinstance(M, Hankel):
        T = to_toeplitz_like(_reversed(M))
    else:
        T = to_toeplitz_like((M if isinstance(M, Tensor) else M.to_dense()).flip(0))
    return HankelLike(*T.shape, G=T.G, H=T.H)


def to_vandermonde_like(M: Vandermonde) -> VandermondeLike:
    """The same matrix as a Vandermonde-like one of rank 1: K_n(diag(nodes), 1) K_n(Z_0, e_0)^T."""
    _real(M)
    one = M.nodes.new_zeros(1, M.in_features)
    one[0, 0] = 1
    return VandermondeLike(
        M.out_features, M.in_features, G=torch.ones_like(M.nodes).unsqueeze(0), H=one, nodes=M.nodes
    )


def _member(G: Tensor, H: Tensor, A: Parts, C: Parts) -> LDRTridiagonal:
    sides = {f"{part}_{side}": t for side, parts in (("A", A), ("C", C)) for part, t in parts.items()}
    return LDRTridiagonal(G.shape[-1], H.shape[-1], G=G, H=H, **sides)


def _dense(W: Tensor) -> LDRTridiagonal:
    """Any matrix: operators 0, and the smaller side's unit vectors."""
    m, n = W.shape
    one = torch.eye(min(m, n), dtype=W.dtype, device=W.device)
    G, H = (one, W) if m <= n else (W.mT, one)
    return _member(G, H, _diagonal(W.new_zeros(m)), _diagonal(W.new_zeros(n)))


def _diagonal(d: Tensor) -> Parts:
    zero = d.new_zeros(d.shape[-1] - 1)
    return {"subdiagonal": zero, "diagonal": d, "superdiagonal": zero.clone(), "corners": d.new_zeros(2)}


def _shift(like: Tensor, f: float = 0.0) -> Parts:
    """Z_f of the size of the last axis."""
    parts = _diagonal(like.new_zeros(like.shape[-1]))
    parts["subdiagonal"] = torch.ones_like(parts["subdiagonal"])
    parts["corners"] = like.new_tensor([f, 0.0])
    return parts


def _down(x: Tensor, f: float) -> Tensor:
    """Z_f x along the last axis."""
    return torch.cat((f * x[..., -1:], x[..., :-1]), -1)


def _cross(column: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """G and H of the matrix that is zero but for this first column and row, which share their corner."""
    m, n = column.shape[0], row.shape[0]
    first, other = row.new_zeros(m), row.new_zeros(n)
    first[0], other[0] = 1, 1
    if m == 1 or n == 1:
        return (first.unsqueeze(0), row.unsqueeze(0)) if m == 1 else (column.unsqueeze(0), other.unsqueeze(0))
    return torch.stack((first, column * (1 - first))), torch.stack((row, other))


def _solved(m: int, n: int, G: Tensor, H: Tensor) -> ToeplitzLike:
    """The Toeplitz-like matrix whose displacement is G^T H."""
    a = corner_sign(m, n)
    if n <= m:  # Z_{-a}^n = -a: (1 + a Z_a^n) R
        G = _solve_power(G, a, n, a)
    else:  # Z_a^m = a: R (1 - a Z_{-a}^m)^T
        H = _solve_power(H, -a, m, -a)
    return ToeplitzLike(m, n, G=G, H=H)


def _solve_power(v: Tensor, f: int, p: int, c: int) -> Tensor:
    """(1 + c Z_f^p)^{-1} v along the last axis, f = 1 or -1, by the eigenvectors of Z_f.

    They are the Fourier vectors, times exp(i pi j / n) for f = -1; the eigenvalues are mu^n = f.
    """
    n = v.shape[-1]
    if p % n == 0:
        return v / (1 + c * f ** (p // n))
    j = torch.arange(n, dtype=torch.float64, device=v.device)
    half = 0.0 if f == 1 else 1.0
    twist = torch.polar(torch.ones_like(j), j * (torch.pi * half / n))
    mu_p = torch.polar(torch.ones_like(j), (2 * j + half) * (torch.pi * p / n))
    spectrum = torch.fft.ifft(v * twist) / (1 + c * mu_p)
    return (torch.fft.fft(spectrum) * twist.conj()).real.to(v.dtype)


def _reversed(M: Hankel) -> Toeplitz:
    """The Toeplitz matrix of a Hankel one's rows from the last to the first: its first row is the last."""
    return Toeplitz(M.column.flip(0), M.last_row)


def _real(M: LinearMap) -> None:
    if M.dtype.is_complex:
        raise TypeError(f"{type(M).__name__}: the classes of layers are real, got {M.dtype}.")
