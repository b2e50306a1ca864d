"""Polynomial transforms: M[i, j] = p_i(node_j), from the Fourier matrix to any orthogonal polynomials.

Polynomials with a three-term recurrence, as all orthogonal ones have,

    p_{i+1}(x) = (a_i x + b_i) p_i(x) + c_i p_{i-1}(x),   p_0 = 1, p_{-1} = 0,

turn a multiplication by x into a tridiagonal matrix A: x p_i = (p_{i+1} - b_i p_i - c_i p_{i-1}) / a_i. So
A M - M diag(nodes) is zero but for its last row, -p_m(node_j) / a_{m-1}: rank 1 for any nodes, and 0 at the
m zeros of p_m, where the transform diagonalises A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ...algebra.known import Operators
from ...core.checks import checked_int, checked_vector
from ...functional.orthogonal import cosine_transform, inverse_cosine_transform
from ...functional.vandermonde import chebyshev_points
from ...operators import Diagonal, Tridiagonal
from .base import ClassicalMatrix
from .families import Vandermonde

TILE = 64  # rows that are made, used and forgotten
_NORMS = {None: "backward", "sqrtn": "ortho", "n": "forward"}


class DFT(Vandermonde):
    """The discrete Fourier transform, complex: M[i, j] = exp(-2 pi i j sqrt(-1) / n).

    A Vandermonde matrix whose nodes are the roots of unity. Its displacement with Z_0 has rank 1; with Z_1
    in its place it is 0, which says that the transform diagonalises cyclic shifts.

    Args:
        n: size.
        orthonormal: divide by sqrt(n), as scale="sqrtn" does.
        scale: None, "sqrtn" or "n": what to divide by, as in scipy.linalg.dft.
        dtype: complex64 or complex128.

    Cost: one FFT a vector.
    """

    def __init__(
        self,
        n: int,
        *,
        orthonormal: bool = False,
        scale: str | None = None,
        dtype: torch.dtype = torch.complex128,
        device: torch.device | str | None = None,
    ) -> None:
        if scale not in _NORMS:
            raise ValueError(f"DFT: scale must be None, 'sqrtn' or 'n', got {scale!r}.")
        if orthonormal and scale == "n":
            raise ValueError("DFT: orthonormal=True is scale='sqrtn', got scale='n' too.")
        n = checked_int("DFT", "n", n)
        if not isinstance(dtype, torch.dtype) or not dtype.is_complex:
            raise TypeError(f"DFT: dtype must be complex, got {dtype!r}.")
        self.out_features = self.in_features = n
        self.scale = "sqrtn" if orthonormal else scale
        self.nodes = _roots_of_unity(torch.arange(n, device="cpu"), n).to(_place(device), dtype)

    @property
    def norm(self) -> str:
        """The scale, as torch.fft calls it."""
        return _NORMS[self.scale]

    def to_dense(self) -> Tensor:
        n = self.in_features
        i = torch.arange(n, device="cpu")
        M = _roots_of_unity(i.unsqueeze(-1) * i % n, n).to(self.nodes)
        return M / {None: 1.0, "sqrtn": math.sqrt(n), "n": n}[self.scale]

    def _matmul(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x, norm=self.norm)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return self._matmul(y)  # symmetric


class OrthogonalPolynomials(ClassicalMatrix):
    """The transform of polynomials with a three-term recurrence: M[i, j] = p_i(node_j), shape (m, n).

    Args:
        a, b, c: of p_{i+1} = (a_i x + b_i) p_i + c_i p_{i-1}, shape (m,) each, a not 0. c_0 has no effect,
            the last entries none on M, only on the last row of its operator.
        nodes: shape (n,).
        scale: multiplies row i, shape (m,): orthonormal polynomials, for example. None is 1, nor 0.

    Cost: O(m n) operations a vector, by the recurrence, in O(n) memory.
    """

    made_of = "nodes", "a", "b", "c", "scale"

    def __init__(self, a: Tensor, b: Tensor, c: Tensor, nodes: Tensor, scale: Tensor | None = None) -> None:
        who = type(self).__name__
        self.nodes = checked_vector(nodes, who, "nodes")
        self.a, self.b, self.c = (checked_vector(t, who, name) for t, name in ((a, "a"), (b, "b"), (c, "c")))
        self.scale = torch.ones_like(a) if scale is None else checked_vector(scale, who, "scale")
        self.out_features, self.in_features = a.shape[0], nodes.shape[0]
        for name, t in (("b", b), ("c", c), ("scale", self.scale)):
            if t.shape != a.shape:
                raise ValueError(
                    f"{who}: {name} must have the shape {tuple(a.shape)} of a, got {tuple(t.shape)}."
                )
        for name, t in (("a", a), ("scale", self.scale)):
            if bool((t.detach() == 0).any()):
                raise ValueError(
                    f"{who}: no entry of {name} may be 0, but {name}[{int((t == 0).nonzero()[0])}] is."
                )

    def to_dense(self) -> Tensor:
        rows = [torch.ones_like(self.nodes)]
        before = torch.zeros_like(self.nodes)
        for i in range(self.out_features - 1):
            rows.append((self.a[i] * self.nodes + self.b[i]) * rows[-1] + self.c[i] * before)
            before = rows[-2]
        return self.scale.unsqueeze(-1) * torch.stack(rows)

    def operators(self) -> Operators:
        s = self.scale
        A = Tridiagonal(
            -self.c[1:] / self.a[1:] * s[1:] / s[:-1], -self.b / self.a, 1 / self.a[:-1] * s[:-1] / s[1:]
        )
        return Operators(A, Diagonal(self.nodes))

    def support(self) -> tuple[Sequence[int], Sequence[int]]:
        return (self.out_features - 1,), ()

    def _tiles(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """The rows of M, up to TILE of them at a time."""
        nodes, a, b, c, scale = (t.to(dtype) for t in (self.nodes, self.a, self.b, self.c, self.scale))
        before, now, tile = torch.zeros_like(nodes), torch.ones_like(nodes), []
        for i in range(self.out_features):
            tile.append(scale[i] * now)
            if len(tile) == TILE or i + 1 == self.out_features:
                yield torch.stack(tile)
                tile = []
            now, before = (a[i] * nodes + b[i]) * now + c[i] * before, now

    def _matmul(self, x: Tensor) -> Tensor:
        dtype = torch.promote_types(x.dtype, self.dtype)
        x = x.to(dtype)
        return torch.cat([x @ rows.mT for rows in self._tiles(dtype)], -1)

    def _rmatmul(self, y: Tensor) -> Tensor:
        dtype = torch.promote_types(y.dtype, self.dtype)
        z = y.new_zeros(y.shape[0], self.in_features, dtype=dtype)
        for part, rows in zip(y.to(dtype).split(TILE, -1), self._tiles(dtype), strict=True):
            z = z + part @ rows
        return z


class Chebyshev(OrthogonalPolynomials):
    """Chebyshev polynomials of the first kind, T_i(node_j) with T_i(cos u) = cos(i u).

    Args:
        n: how many polynomials.
        nodes: by default the n zeros of T_n, where this is the cosine transform (DCT-II).
        scale: multiplies row i, shape (n,).
        dtype, device: of the default nodes.
    """

    def __init__(
        self,
        n: int,
        nodes: Tensor | None = None,
        *,
        scale: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        n = checked_int(type(self).__name__, "n", n)
        self.at_zeros = nodes is None
        nodes = chebyshev_points(n, dtype, _place(device)) if nodes is None else nodes
        a = torch.full((n,), 2.0, dtype=nodes.dtype, device=nodes.device)
        a[0] = 1
        super().__init__(a, torch.zeros_like(a), -torch.ones_like(a), nodes, scale)

    def _matmul(self, x: Tensor) -> Tensor:
        if not self.at_zeros or x.is_complex():
            return super()._matmul(x)
        return cosine_transform(x) * self._unscale(x)

    def _rmatmul(self, y: Tensor) -> Tensor:
        if not self.at_zeros or y.is_complex():
            return super()._rmatmul(y)
        return inverse_cosine_transform(y * self._unscale(y)).clone(memory_format=torch.contiguous_format)

    def _unscale(self, like: Tensor) -> Tensor:
        """Row factors between the orthonormal cosine transform and this matrix."""
        n, scale = self.out_features, self.scale.to(like.dtype)
        return torch.cat((scale[:1] * math.sqrt(n), scale[1:] * math.sqrt(n / 2)))


class DCT2(Chebyshev):
    """The discrete cosine transform of type II: M[i, j] = cos(pi i (j + 1/2) / n).

    The Chebyshev transform at the zeros of T_n.

    Args:
        n: size.
        orthonormal: scale the rows to length 1.

    Cost: one FFT of length n a vector.
    """

    def __init__(
        self,
        n: int,
        *,
        orthonormal: bool = False,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        n = checked_int("DCT2", "n", n)
        scale = torch.ones(n, dtype=dtype, device=device)
        if orthonormal:
            scale = scale * math.sqrt(2 / n)
            scale[0] = math.sqrt(1 / n)
        super().__init__(n, scale=scale, dtype=dtype, device=device)

    def to_dense(self) -> Tensor:
        n = self.in_features
        i = torch.arange(n, device=self.device)
        turns = i.unsqueeze(-1) * (2 * i + 1) % (4 * n)  # reduced as integers: exact for every n
        return self.scale.unsqueeze(-1) * torch.cos(turns.to(self.dtype) * (math.pi / (2 * n)))


class Legendre(OrthogonalPolynomials):
    """Legendre polynomials P_i(node_j), orthogonal on (-1, 1) with weight 1.

    Args:
        n: how many polynomials.
        nodes: by default the n zeros of P_n, the nodes of Gauss's quadrature.
        dtype, device: of the default nodes.
    """

    def __init__(
        self,
        n: int,
        nodes: Tensor | None = None,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        n = checked_int("Legendre", "n", n)
        if nodes is None:
            nodes = torch.from_numpy(np.polynomial.legendre.leggauss(n)[0]).to(_place(device), dtype)
        i = torch.arange(n, dtype=nodes.dtype, device=nodes.device)
        super().__init__((2 * i + 1) / (i + 1), torch.zeros_like(i), -i / (i + 1), nodes)


def _place(device: torch.device | str | None) -> torch.device | str:
    """Where tensors go that are computed on the CPU, whatever the default device is."""
    return torch.get_default_device() if device is None else device


def _roots_of_unity(turns: Tensor, n: int) -> Tensor:
    """exp(-2 pi sqrt(-1) turns / n), in complex128."""
    angle = turns.to(torch.float64) * (-2 * math.pi / n)
    return torch.polar(torch.ones_like(angle), angle)
