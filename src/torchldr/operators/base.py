"""The base class of displacement operators, with transposes and powers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import checked_int
from ..core.linear_map import LinearMap
from ..core.products import check_size
from ..core.rules import family


class Entries(NamedTuple):
    """The entries of a sparse matrix as coordinates, each shape (e,); repeated places add up."""

    rows: Tensor
    columns: Tensor
    values: Tensor


@family
class Operator(LinearMap):
    """A square matrix with a product in O(n), shape (n, n)."""

    def __init__(self, n: int) -> None:
        self.n = self.out_features = self.in_features = checked_int(type(self).__name__, "n", n)

    # To be defined by each kind of operator.

    def _matmul(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _rmatmul(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def entries(self) -> Entries:
        """The nonzero entries (zeros may be among them)."""
        raise NotImplementedError

    def eigenvalues(self) -> Tensor:
        """The n eigenvalues, known without a decomposition.

        Raises:
            NotImplementedError: if they are not known; `torch.linalg.eigvals(A.to_dense())` gives them.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: the eigenvalues of this operator are not known in closed form; "
            "torch.linalg.eigvals(A.to_dense()) computes them."
        )

    def inverse(self) -> Operator:
        """The inverse operator, as sparse as this one.

        Raises:
            ValueError: for a singular operator.
            NotImplementedError: if the inverse is not sparse.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: the inverse of this operator is not sparse; "
            "DenseOperator(torch.linalg.inv(A.to_dense())) is the dense one."
        )

    def _power_matmul(self, x: Tensor, p: int) -> Tensor:
        for _ in range(p):
            x = self._matmul(x)
        return x

    def _power_rmatmul(self, y: Tensor, p: int) -> Tensor:
        for _ in range(p):
            y = self._rmatmul(y)
        return y

    # Derived from that.

    def matmul(self, x: Tensor) -> Tensor:
        return self._matmul(self._checked(x))

    def rmatmul(self, y: Tensor) -> Tensor:
        return self._rmatmul(self._checked(y))

    def _checked(self, x: Tensor) -> Tensor:
        check_size(type(self).__name__, x, self.n, "n")
        return x

    def to_dense(self) -> Tensor:
        return self.dense_in(self.dtype)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        """`to_dense` in another dtype, without first rounding to this operator's own."""
        rows, columns, values = self.entries()
        zero = torch.zeros(self.n * self.n, dtype=values.dtype, device=values.device)
        return zero.index_add(0, rows * self.n + columns, values).reshape(self.n, self.n).to(dtype)

    @property
    def T(self) -> Operator:
        """The transposed operator, which shares this one's tensors."""
        return TransposedOperator(self)

    def __pow__(self, p: int) -> Operator:
        return (self.inverse() ** -p) if p < 0 else Power(self, p)

    def krylov(self, v: Tensor, k: int) -> Tensor:
        """The Krylov matrix with columns v, Av, .., A^{k-1} v: (n,) to (n, k).

        Leading axes of v stay: (..., n) to (..., n, k). Cost: O(n k).
        """
        columns = [self._checked(v)]
        for _ in range(self._columns(k) - 1):
            columns.append(self._matmul(columns[-1]))
        dtype = columns[-1].dtype  # the first column may be real and the others complex
        return torch.stack([column.to(dtype) for column in columns], -1)

    def _columns(self, k: int) -> int:
        if k < 1:
            raise ValueError(f"{type(self).__name__}: krylov needs k of at least 1, got {k}.")
        return k

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n})"


class TransposedOperator(Operator):
    """The transpose of an operator."""

    made_of = ("of",)

    def __init__(self, of: Operator) -> None:
        self.of = of
        super().__init__(of.n)

    @property
    def T(self) -> Operator:
        return self.of

    def _matmul(self, x: Tensor) -> Tensor:
        return self.of._rmatmul(x)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return self.of._matmul(y)

    def entries(self) -> Entries:
        rows, columns, values = self.of.entries()
        return Entries(columns, rows, values)

    def eigenvalues(self) -> Tensor:
        return self.of.eigenvalues()

    def inverse(self) -> Operator:
        return self.of.inverse().T

    def __pow__(self, p: int) -> Operator:
        return (self.of**p).T

    def __repr__(self) -> str:
        return f"{self.of!r}.T"


class Power(Operator):
    """A^p for p >= 0: p products with A, or one if A is a shift."""

    made_of = ("of",)

    def __init__(self, of: Operator, p: int) -> None:
        self.of = of
        self.p = checked_int("Power", "p", p, 0, why="A ** -1 takes the inverse where it is sparse")
        super().__init__(of.n)

    def _matmul(self, x: Tensor) -> Tensor:
        return self.of._power_matmul(x, self.p)

    def _rmatmul(self, y: Tensor) -> Tensor:
        return self.of._power_rmatmul(y, self.p)

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        return torch.linalg.matrix_power(self.of.dense_in(dtype), self.p)

    def entries(self) -> Entries:
        i = torch.arange(self.n, device=self.device)
        power = Entries(i, i, torch.ones(self.n, dtype=self.dtype, device=self.device))
        step = self.of.entries()
        for _ in range(self.p):
            power = coalesced(sparse_product(step, power, self.n), self.n)
        return power

    def eigenvalues(self) -> Tensor:
        return self.of.eigenvalues() ** self.p

    def inverse(self) -> Operator:
        return Power(self.of.inverse(), self.p)

    def __pow__(self, p: int) -> Operator:
        return self.of ** (self.p * p)

    def __repr__(self) -> str:
        return f"{self.of!r} ** {self.p}"


def sparse_product(left: Entries, right: Entries, n: int) -> Entries:
    """The entries of a product of two sparse n x n matrices; places may repeat.

    Entry (i, l) of the left meets every entry (l, j) of the right. torch's own sparse product warns that it
    is in beta, and has no gradient for some dtypes.
    """
    order = right.rows.argsort(stable=True)
    counts = torch.bincount(right.rows, minlength=n)
    starts = counts.cumsum(0) - counts
    meet = counts[left.columns]  # number of right entries that each left entry meets
    first = torch.arange(left.rows.shape[0], device=meet.device).repeat_interleave(meet)
    within = torch.arange(first.shape[0], device=meet.device) - (meet.cumsum(0) - meet)[first]
    second = order[starts[left.columns[first]] + within]
    return Entries(left.rows[first], right.columns[second], left.values[first] * right.values[second])


def coalesced(entries: Entries, n: int) -> Entries:
    """Each place once, with the sum of its values."""
    places, where = torch.unique(entries.rows * n + entries.columns, return_inverse=True)
    zero = torch.zeros(places.shape[0], dtype=entries.values.dtype, device=entries.values.device)
    return Entries(places // n, places % n, zero.index_add(0, where, entries.values))
