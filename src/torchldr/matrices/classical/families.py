"""Toeplitz, Hankel, Vandermonde and Cauchy matrices: the four of the theory of displacement.

    class          entry              operators (A M - M B)    rank of the displacement
    Toeplitz       t[i - j]           Z_1, Z_{-1}              2
    Hankel         h[i + j]           Z_1, Z_0^T               2
    Vandermonde    v_i^j              diag(v), Z_0             1
    Cauchy         1 / (s_i - t_j)    diag(s), diag(t)         1

All may be rectangular. The tests hold products to `to_dense()`, and ranks to the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from ...algebra.known import Operators
from ...algebra.members import opposite_shifts, shift
from ...core.checks import checked_int, checked_vector
from ...functional.cauchy import cauchy_matmul, cauchy_reference
from ...functional.fft import fast_length
from ...functional.vandermonde import vandermonde_matmul, vandermonde_reference, vandermonde_rmatmul
from ...operators import Diagonal
from .base import ClassicalMatrix


class Diagonals(ClassicalMatrix):
    """What Toeplitz and Hankel share: one number for each of m + n - 1 diagonals.

    A matrix without rows, or without columns, has one more, so that the other side has its length.
    """

    made_of = ("entries",)

    entries: Tensor

    def __init__(self, entries: Tensor, out_features: int, in_features: int) -> None:
        self.entries, self.out_features, self.in_features = entries, out_features, in_features

    def with_entries(self, entries: Tensor) -> Self:
        """A matrix of the same class and shape."""
        other = copy(self)
        other.entries, other._transpose = entries, None
        return other


class Toeplitz(Diagonals):
    """A Toeplitz matrix, constant along its diagonals: M[i, j] = t[i - j].

    Args:
        column: first column t[0] .. t[m - 1], shape (m,).
        row: first row t[0] .. t[1 - n], shape (n,); its first entry is ignored, as SciPy does. By default
            the column, conjugated: a symmetric or Hermitian matrix.

    Both may be empty, as in SciPy.

    Cost: two FFTs of a length near m + n a vector.
    """

    def __init__(self, column: Tensor, row: Tensor | None = None) -> None:
        column = checked_vector(column, "Toeplitz", "column", least=0)
        row = column.conj().resolve_conj() if row is None else checked_vector(row, "Toeplitz", "row", least=0)
        m, n = column.shape[0], row.shape[0]
        super().__init__(torch.cat((row[1:].flip(0), column if m else row[:1])), m, n)

    @property
    def column(self) -> Tensor:
        m, n = self.shape
        return self.entries[max(n - 1, 0) :][:m]

    @property
    def row(self) -> Tensor:
        return self.entries[: self.in_features].flip(0)

    def to_dense(self) -> Tensor:
        i = torch.arange(self.out_features, device=self.device).unsqueeze(-1)
        j = torch.arange(self.in_features, device=self.device)
        return self.entries[i - j + self.in_features - 1]

    def operators(self) -> Operators:
        return opposite_shifts(self)

    def support(self) -> tuple[Sequence[int], Sequence[int]]:
        return (0,), (self.in_features - 1,)

    def _matmul(self, x: Tensor) -> Tensor:
        return _windows(self.entries, x, self.out_features)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return _windows(self.entries.flip(0), y, self.in_features)


class Hankel(Diagonals):
    """A Hankel matrix, constant along its antidiagonals: M[i, j] = h[i + j].

    Args:
        column: first column h[0] .. h[m - 1], shape (m,).
        last_row: last row h[m - 1] .. h[m + n - 2], shape (n,); its first entry is ignored, as SciPy does.

    Cost: two FFTs of a length near m + n a vector.
    """

    def __init__(self, column: Tensor, last_row: Tensor) -> None:
        column = checked_vector(column, "Hankel", "column", least=0)
        last_row = checked_vector(last_row, "Hankel", "last_row", least=0)
        m, n = column.shape[0], last_row.shape[0]
        super().__init__(torch.cat((column, last_row[1:] if m else last_row)), m, n)

    @property
    def column(self) -> Tensor:
        return self.entries[: self.out_features]

    @property
    def last_row(self) -> Tensor:
        m, n = self.shape
        return self.entries[max(m - 1, 0) :][:n]

    def to_dense(self) -> Tensor:
        i = torch.arange(self.out_features, device=self.device).unsqueeze(-1)
        return self.entries[i + torch.arange(self.in_features, device=self.device)]

    def operators(self) -> Operators:
        m, n = self.shape
        return Operators(shift(m, 1.0, self), shift(n, 0.0, self).T)

    def support(self) -> tuple[Sequence[int], Sequence[int]]:
        return (0,), (0,)

    def _matmul(self, x: Tensor) -> Tensor:
        return _windows(self.entries, x.flip(-1), self.out_features)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return _windows(self.entries, y.flip(-1), self.in_features)


class Vandermonde(ClassicalMatrix):
    """A Vandermonde matrix, powers of nodes: M[i, j] = node_i^j.

    Args:
        nodes: real or complex, shape (m,).
        columns: n, how many powers; by default m.

    Cost: O(m n) operations a vector in O(m + n) memory.
    """

    made_of = ("nodes",)

    def __init__(self, nodes: Tensor, columns: int | None = None) -> None:
        self.nodes = checked_vector(nodes, "Vandermonde", "nodes")
        self.out_features = nodes.shape[0]
        columns = self.out_features if columns is None else columns
        self.in_features = checked_int("Vandermonde", "columns", columns)

    def to_dense(self) -> Tensor:
        return vandermonde_reference(self.nodes, self.in_features)

    def operators(self) -> Operators:
        return Operators(Diagonal(self.nodes), shift(self.in_features, 0.0, self))

    def support(self) -> tuple[Sequence[int], Sequence[int]]:
        return (), (self.in_features - 1,)

    def _matmul(self, x: Tensor) -> Tensor:
        return vandermonde_matmul(*_promoted(self.nodes, x))

    def _rmatmul(self, y: Tensor) -> Tensor:
        return vandermonde_rmatmul(*_promoted(self.nodes, y), self.in_features)


class Cauchy(ClassicalMatrix):
    """A Cauchy matrix: M[i, j] = 1 / (s_i - t_j).

    Args:
        s: row nodes, real, shape (m,).
        t: column nodes, real, shape (n,); none may equal a row node.

    Cost: O(m n) operations a vector in O(m + n) memory.
    """

    made_of = "s", "t"

    def __init__(self, s: Tensor, t: Tensor) -> None:
        self.s, self.t = checked_vector(s, "Cauchy", "s"), checked_vector(t, "Cauchy", "t")
        if s.is_complex() or t.is_complex():
            raise TypeError(f"Cauchy: s and t must be real, got {s.dtype} and {t.dtype}.")
        met = torch.isin(s.detach(), t.detach())
        if bool(met.any()):
            i = int(met.nonzero()[0])
            j = int((t == s[i]).nonzero()[0])
            raise ValueError(f"Cauchy: no s may equal a t, but s[{i}] = t[{j}] = {float(s[i]):.6g}.")
        self.out_features, self.in_features = s.shape[0], t.shape[0]

    @property
    def displacement_rank_bound(self) -> int:
        return 1  # all ones

    def _generators(self) -> tuple[Tensor, Tensor]:
        ones = torch.ones(1, max(self.shape), dtype=self.dtype, device=self.device)
        return ones[:, : self.out_features], ones[:, : self.in_features]

    def to_dense(self) -> Tensor:
        return cauchy_reference(self.s, self.t)

    def operators(self) -> Operators:
        return Operators(Diagonal(self.s), Diagonal(self.t))

    def _matmul(self, x: Tensor) -> Tensor:
        return self._product(self.s, self.t, x)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return -self._product(self.t, self.s, y)

    def _product(self, s: Tensor, t: Tensor, x: Tensor) -> Tensor:
        if x.is_complex():
            return torch.complex(self._product(s, t, x.real), self._product(s, t, x.imag))
        return cauchy_matmul(s.to(x.dtype), t.to(x.dtype), x)


def _promoted(nodes: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(nodes.dtype, x.dtype)
    return nodes.to(dtype), x.to(dtype)


def _windows(entries: Tensor, x: Tensor, m: int) -> Tensor:
    """y_i = sum_j entries[i - j + n - 1] x_j, i < m: a convolution of which the middle is kept.

    A cyclic one of length m + n - 1 or more serves: what wraps around falls outside of the middle.
    """
    n = x.shape[-1]
    if entries.dtype is not x.dtype:
        dtype = torch.promote_types(entries.dtype, x.dtype)
        entries, x = entries.to(dtype), x.to(dtype)
    length = fast_length(m + n - 1)
    if x.is_complex():
        y = torch.fft.ifft(torch.fft.fft(entries, length) * torch.fft.fft(x, length))
    else:
        y = torch.fft.irfft(torch.fft.rfft(entries, length) * torch.fft.rfft(x, length), length)
    return y[..., n - 1 : n - 1 + m].clone(memory_format=torch.contiguous_format)
