"""A matrix known by its products, and its algebra."""

from __future__ import annotations

from functools import reduce
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from . import rules

Number = int | float | complex | Tensor


@rules.family
class LinearMap:
    """A matrix known by its products, shape (out_features, in_features).

    `M.matmul(x)` acts on the last axis of x, as a layer does; `M @ x` is `torch.matmul`.

    Maps form an algebra: `M.T`, `M + N`, `M - N`, `c * M`, `M @ N` and `M.inverse()` are maps again, whose
    products combine the fast ones. If M and N have low displacement rank, the result knows its operators, its
    generators and a bound of its rank: see `displacement_structure` and `rank_bound`.
    """

    out_features: int
    in_features: int
    made_of: ClassVar[tuple[str, ...]]  # attributes (tensors or maps) that define its dtype and device
    _transpose: LinearMap | None = None  # the map that this one transposes
    __array_ufunc__ = None  # NumPy arrays then leave every operation to the map

    @property
    def dtype(self) -> torch.dtype:
        return reduce(torch.promote_types, [getattr(self, name).dtype for name in self.made_of])

    @property
    def device(self) -> torch.device:
        return getattr(self, self.made_of[0]).device

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.out_features, self.in_features))

    def matmul(self, x: Tensor) -> Tensor:
        """Multiply vectors: (..., in_features) to (..., out_features)."""
        raise NotImplementedError

    def rmatmul(self, y: Tensor) -> Tensor:
        """Multiply by the transposed matrix: (..., out_features) to (..., in_features)."""
        raise NotImplementedError

    def to_dense(self) -> Tensor:
        """The matrix itself, from its definition, shape (out_features, in_features)."""
        raise NotImplementedError

    # The algebra: rules give each result the most specific class.

    @property
    def T(self) -> LinearMap:
        """The transposed matrix, of the same class if that is closed under transposes, else lazy."""
        if self._transpose is None:
            found: LinearMap = rules.apply("transpose", self)
            found._transpose = self
            return found
        return self._transpose

    def __matmul__(self, x: Any) -> Any:
        if isinstance(x, LinearMap):
            check_sizes("@", self, x, self.in_features, x.out_features)
            return rules.apply("matmul", self, x)
        if isinstance(x, np.ndarray):
            raise TypeError(
                f"{type(self).__name__}: expected a tensor, got an array; torch.from_numpy makes one."
            )
        if not isinstance(x, Tensor):
            return NotImplemented
        return self.matmul(x) if x.ndim < 2 else self.matmul(x.mT).mT

    def __rmatmul__(self, x: Any) -> Any:
        return self.rmatmul(x) if isinstance(x, Tensor) else NotImplemented

    def __add__(self, other: LinearMap) -> LinearMap:
        if not isinstance(other, LinearMap):
            return NotImplemented
        check_sizes("+", self, other, tuple(self.shape), tuple(other.shape))
        return rules.apply("add", self, other)

    def __sub__(self, other: LinearMap) -> LinearMap:
        return self + -other if isinstance(other, LinearMap) else NotImplemented

    def __mul__(self, scalar: Number | np.number[Any]) -> LinearMap:
        scalar = self._scalar(scalar)
        is_tensor = isinstance(scalar, Tensor) and scalar.ndim == 0
        if not (is_tensor or isinstance(scalar, int | float | complex)):
            return NotImplemented
        return rules.apply("scale", self, scalar=scalar)

    __rmul__ = __mul__

    def __truediv__(self, scalar: Number | np.number[Any]) -> LinearMap:
        return self * (1 / self._scalar(scalar))

    def _scalar(self, scalar: Any) -> Any:
        """A NumPy number as a Python number; a tensor with at least the precision of the matrix."""
        if isinstance(scalar, Tensor):
            return scalar.to(reduce(torch.promote_types, (scalar.dtype, self.dtype.to_real(), torch.float32)))
        return scalar.item() if isinstance(scalar, np.number) else scalar

    def __neg__(self) -> LinearMap:
        return self * -1.0

    def inverse(self) -> LinearMap:
        """The inverse of a square matrix. Each product with it solves a system."""
        if self.out_features != self.in_features:
            raise ValueError(f"{type(self).__name__}: only a square matrix has an inverse, got {show(self)}.")
        return rules.apply("inverse", self)

    def solve(self, b: Tensor, *, tol: float | None = None, method: str | None = None) -> Tensor:
        """The x with M x = b, for b of shape (n,) or (..., n, k); see `torchldr.solve`."""
        return rules.apply("solve", self, b=b, tol=tol, method=method)

    def as_scipy(self) -> Any:
        """A `scipy.sparse.linalg.LinearOperator` with these products; see `torchldr.algebra.as_scipy`."""
        return rules.apply("as_scipy", self)

    # Displacement.

    def displacement_structure(self) -> Any:
        """The `torchldr.algebra.DisplacementStructure` of this matrix, or None.

        It has operators, a rank bound and generators.
        """
        return rules.first("displacement_structure", self)

    def _structure(self) -> Any:
        found = self.displacement_structure()
        if found is None:
            raise TypeError(
                f"{type(self).__name__} has no displacement operators of its own; "
                "torchldr.algebra.displacement(M, A, B) takes them as arguments. (Operators that were "
                "learned apart count as different outside of torch.no_grad(), whatever their values.)"
            )
        return found

    @property
    def rank_bound(self) -> int | None:
        """A bound of the displacement rank by the closure rules, or None."""
        found = self.displacement_structure()
        return None if found is None else found.rank

    def displacement(self) -> Tensor:
        """M - A M B or A M - M B by this matrix's own operators, as a dense matrix.

        Raises:
            TypeError: for a matrix without displacement operators.
        """
        return self._structure().of_dense(self.to_dense())

    def displacement_rank(self, tol: float | None = None) -> int:
        """The rank of `displacement()`, from the generators: never a dense matrix.

        Args:
            tol: singular values above `tol` times the size of the generators count; by default the
                larger side times the rounding unit.
        """
        return self.generators(tol)[0].shape[0]

    def generators(self, tol: float | None = None) -> tuple[Tensor, Tensor]:
        """G (r, m) and H (r, n) with the fewest rows such that `displacement()` is G^T H."""
        return self._structure().reduced(tol).generators()

    def recompress(self, tol: float | None = None, structure: str | None = None) -> LinearMap:
        """The same matrix with the fewest generators, as a member of a structured class if one fits.

        Operators that are separate parameters count as different, even if equal, unless gradients are off.

        Args:
            tol: as for `displacement_rank`.
            structure: the class of the result; by default any class with these operators.
        """
        return rules.apply("recompress", self, tol=tol, structure=structure)


def show(M: LinearMap) -> str:
    return " x ".join(map(str, M.shape))


def check_sizes(operation: str, M: LinearMap, N: LinearMap, left: object, right: object) -> None:
    if left != right:
        raise ValueError(
            f"{type(M).__name__} {operation} {type(N).__name__}: sizes {show(M)} and {show(N)} do not fit."
        )
