"""Lazy transposes, sums, multiples, compositions and inverses, which combine the products of their parts.

Operations return these if no class is closed under them. Their products cost as much as those of their parts.
The rules in `closure` give their displacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from ..core import rules
from ..core.linear_map import LinearMap, Number
from ..core.rules import rule
from ..operators import Operator
from .closure import inverse_structure, product_structure, sum_structure
from .multiply import multiply, real_dtype, rmultiply, through
from .structure import DisplacementStructure


class Transposed(LinearMap):
    """The transpose of a linear map."""

    made_of = ("of",)

    def __init__(self, of: LinearMap) -> None:
        self.of = of
        self.out_features, self.in_features = of.in_features, of.out_features

    @property
    def T(self) -> LinearMap:
        return self.of

    def matmul(self, x: Tensor) -> Tensor:
        return self.of.rmatmul(x)

    def rmatmul(self, y: Tensor) -> Tensor:
        return self.of.matmul(y)

    def to_dense(self) -> Tensor:
        return self.of.to_dense().mT

    def __repr__(self) -> str:
        return f"{self.of!r}.T"


class Scaled(LinearMap):
    """A multiple of a linear map."""

    made_of = ("of",)

    def __init__(self, of: LinearMap, scalar: Number) -> None:
        self.of, self.scalar = of, scalar
        self.out_features, self.in_features = of.out_features, of.in_features

    @property
    def dtype(self) -> torch.dtype:
        s = self.scalar
        is_complex = s.is_complex() if isinstance(s, Tensor) else isinstance(s, complex)
        return torch.promote_types(self.of.dtype, torch.complex32) if is_complex else self.of.dtype

    def matmul(self, x: Tensor) -> Tensor:
        return self.scalar * through(self.of, self.of.matmul, x)

    def rmatmul(self, y: Tensor) -> Tensor:
        return self.scalar * through(self.of, self.of.rmatmul, y)

    def to_dense(self) -> Tensor:
        return self.scalar * self.of.to_dense()

    def __repr__(self) -> str:
        return f"{self.scalar!r} * {self.of!r}"


def joint_dtype(parts: Sequence[LinearMap]) -> torch.dtype:
    """The dtype of a map made of these. A complex operator makes it complex; its precision does not count."""
    fixed = [part.dtype for part in parts if not isinstance(part, Operator)]
    every = [part.dtype for part in parts]
    dtype = reduce(torch.promote_types, fixed or every)
    return torch.promote_types(dtype, torch.complex32) if any(d.is_complex for d in every) else dtype


class Pair(LinearMap):
    """Common parts of sums and compositions: two maps on one device, of one dtype."""

    operation = ""

    def __init__(self, left: LinearMap, right: LinearMap) -> None:
        fixed = not isinstance(left, Operator) and not isinstance(right, Operator)
        if fixed and real_dtype(left.dtype) != real_dtype(right.dtype):  # operators follow their input
            raise TypeError(
                f"{type(left).__name__} {self.operation} {type(right).__name__}: the dtypes {left.dtype} and "
                f"{right.dtype} differ; convert one of them."
            )
        self.left, self.right = left, right
        self.out_features, self.in_features = left.out_features, right.in_features
        self._dtype = joint_dtype([left, right])  # cached: the calls would double at each level

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self.right.device if isinstance(self.left, Operator) else self.left.device

    def __repr__(self) -> str:
        return f"({self.left!r} {self.operation} {self.right!r})"


class Sum(Pair):
    """The sum of two linear maps: a product with each."""

    operation = "+"

    def matmul(self, x: Tensor) -> Tensor:
        return through(self.left, self.left.matmul, x) + through(self.right, self.right.matmul, x)

    def rmatmul(self, y: Tensor) -> Tensor:
        return through(self.left, self.left.rmatmul, y) + through(self.right, self.right.rmatmul, y)

    def to_dense(self) -> Tensor:
        return self.left.to_dense() + self.right.to_dense()


class Composition(Pair):
    """The matrix product of two linear maps: a product with one after the other."""

    operation = "@"

    def matmul(self, x: Tensor) -> Tensor:
        return multiply(self.left, through(self.right, self.right.matmul, x))

    def rmatmul(self, y: Tensor) -> Tensor:
        return rmultiply(self.right, through(self.left, self.left.rmatmul, y))

    def to_dense(self) -> Tensor:
        left, right = self.left.to_dense(), self.right.to_dense()
        dtype = torch.promote_types(left.dtype, right.dtype)
        return left.to(dtype) @ right.to(dtype)


class Inverse(LinearMap):
    """The inverse of a square linear map: a product with it solves a system."""

    made_of = ("of",)

    def __init__(self, of: LinearMap) -> None:
        self.of = of
        self.out_features = self.in_features = of.out_features

    @property
    def T(self) -> LinearMap:
        return self.of.T.inverse()

    def inverse(self) -> LinearMap:
        return self.of

    def matmul(self, x: Tensor) -> Tensor:
        return _solve(self.of, x)

    def rmatmul(self, y: Tensor) -> Tensor:
        return _solve(self.of.T, y)

    def to_dense(self) -> Tensor:
        return torch.linalg.inv(self.of.to_dense())

    def __repr__(self) -> str:
        return f"{self.of!r}.inverse()"


def _solve(M: LinearMap, b: Tensor) -> Tensor:
    """Solve for vectors on the last axis, where `solve` takes columns."""
    columns = b.reshape(-1, b.shape[-1]).mT
    return rules.apply("solve", M, b=columns).mT.reshape(b.shape)


# The results of operations under which no class is closed.

rule("transpose", LinearMap)(Transposed)
rule("add", LinearMap, LinearMap)(Sum)
rule("matmul", LinearMap, LinearMap)(Composition)
rule("inverse", LinearMap)(Inverse)


@rule("scale", LinearMap)
def _(M: LinearMap, scalar: Number) -> LinearMap:
    return Scaled(M.of, scalar * M.scalar) if isinstance(M, Scaled) else Scaled(M, scalar)


# And their displacement.


@rule("displacement_structure", Transposed)
def _(M: Transposed) -> DisplacementStructure | None:
    of = M.of.displacement_structure()
    return None if of is None else of.transposed()


@rule("displacement_structure", Scaled)
def _(M: Scaled) -> DisplacementStructure | None:
    of = M.of.displacement_structure()
    return None if of is None else of.scaled(M.scalar)


rule("displacement_structure", Sum)(lambda M: sum_structure(M.left, M.right))
rule("displacement_structure", Composition)(lambda M: product_structure(M.left, M.right))
rule("displacement_structure", Inverse)(lambda M: inverse_structure(M.of, M))
