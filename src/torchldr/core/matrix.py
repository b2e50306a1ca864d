"""`StructuredMatrix`: everything that follows from the definitions of its class (`contract`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from . import rules, stacks
from .checks import check_dtype
from .contract import Random, Weights
from .linear_map import show
from .multiply import Multiplies
from .products import sum_of_products

_NONE = torch.Size()
_CHUNK = 1 << 24  # numbers of one intermediate while a dense matrix is made
_EXACT_NORM = 1 << 20  # entries up to which the initial scale is measured instead of computed


@rules.family
class StructuredMatrix(Multiplies):
    """A matrix given by a few tensors and frozen options; subclasses are the structured classes.

    Args:
        out_features: number of rows m.
        in_features: number of columns n.
        **fields: the class's tensors by name (constants may be left out) and its options. Tensors may have
            axes in front, the same for all: then this is a stack of matrices, multiplied together.

    Attributes:
        leading: the axes of a stack, such as (4,) for the gates of an LSTM; () for one matrix.

    Declaring a subclass with `name=` registers it for layers, the command line, contract tests, benchmarks
    and documentation.
    """

    def __init__(self, out_features: int, in_features: int, **fields: Any) -> None:
        cls = type(self)
        options = cls.check_options({k: v for k, v in fields.items() if not isinstance(v, Tensor)})
        tensors = {k: v for k, v in fields.items() if isinstance(v, Tensor)}
        rank = tensors["G"].shape[-2] if cls.ranked and "G" in tensors and tensors["G"].ndim > 1 else 1
        out_features, in_features, _ = cls.checked_sizes(
            out_features, in_features, rank if cls.ranked else None
        )
        shapes = cls.parameter_shapes(out_features, in_features, rank, **options)
        if missing := [name for name in shapes if name not in tensors]:
            raise TypeError(f"{cls.__name__}: missing tensor{'s' * (len(missing) > 1)} {', '.join(missing)}.")
        first = tensors[next(iter(shapes))]
        check_dtype(cls.__name__, first.dtype)
        constants = cls.constants(
            out_features, in_features, rank, dtype=first.dtype, device=first.device, **options
        )
        if unknown := [name for name in tensors if name not in shapes and name not in constants]:
            raise TypeError(
                f"{cls.__name__}: unknown tensor {unknown[0]!r}. Known: {', '.join([*shapes, *constants])}."
            )
        axes = first.ndim - len(shapes[next(iter(shapes))])
        leading = first.shape[:axes] if axes > 0 else torch.Size()
        if not leading.numel():
            raise ValueError(f"{cls.__name__}: a stack must hold a matrix, got {tuple(leading)} of them.")
        for key in {**shapes, **constants}.keys() & tensors.keys():
            shape = shapes[key] if key in shapes else tuple(constants[key].shape)
            if key in shapes or key in cls.drawn:
                shape = (*leading, *shape)
            if tensors[key].ndim == len(shape) - 1 and shape[-1:] == (1,):
                tensors[key] = tensors[key].unsqueeze(-1)  # a single number may come without an axis
            if tensors[key].shape != torch.Size(shape):
                raise ValueError(
                    f"{cls.__name__}: {key} must have shape {shape} for {out_features} x "
                    f"{in_features}, got {tuple(tensors[key].shape)}."
                )
            given, like = tensors[key], constants.get(key, first)
            if (given.dtype, given.device) != (like.dtype, like.device):
                raise TypeError(
                    f"{cls.__name__}: {key} must have dtype {like.dtype} on {like.device}, beside the "
                    f"{first.dtype} of {next(iter(shapes))}, got {given.dtype} on {given.device}."
                )
        for key in cls.drawn:
            if key in constants and key not in tensors:
                constants[key] = constants[key].expand(*leading, *constants[key].shape)
        self._set(out_features, in_features, constants | tensors, options)

    def _set(self, out_features: int, in_features: int, tensors: Weights, options: Mapping[str, Any]) -> None:
        self.out_features, self.in_features = out_features, in_features
        self.tensors, self.options = dict(tensors), dict(options)
        cls = type(self)
        if cls._axes is None:
            shapes = cls.parameter_shapes(out_features, in_features, 1, **options)
            cls._axes = len(shapes[cls.scaled[0]])
        shape = self.tensors[cls.scaled[0]].shape
        self.leading = shape[: -cls._axes] if len(shape) > cls._axes else _NONE

    @classmethod
    def unchecked(
        cls, out_features: int, in_features: int, tensors: Weights, options: Mapping[str, Any]
    ) -> Self:
        """An instance from all its tensors and options, without checks."""
        self = cls.__new__(cls)
        self._set(out_features, in_features, tensors, options)
        return self

    def __getattr__(self, name: str) -> Tensor:
        tensors = self.__dict__.get("tensors", {})
        if name in tensors:
            return tensors[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @classmethod
    @torch.no_grad()
    def initialise_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        """`init_`; for a small M also make its expected scale exact."""
        cls.init_(tensors, out_features, in_features, generator, **options)
        if out_features * in_features <= _EXACT_NORM:
            cls.rescale_(tensors, out_features, in_features, **options)

    @classmethod
    @torch.no_grad()
    def rescale_(cls, tensors: Weights, out_features: int, in_features: int, **options: Any) -> None:
        """Rescale so that |M|_F^2 = m / 3: measured on all unit vectors, or on 64 random ones if large."""
        some = tensors[cls.scaled[0]]
        if some.is_meta:
            return
        M = cls.unchecked(out_features, in_features, tensors, options)
        M = M.to(torch.promote_types(some.dtype, torch.float32))
        if out_features * in_features <= _EXACT_NORM:
            x = torch.eye(in_features, dtype=M.dtype, device=M.device) * in_features**0.5
        else:
            x = torch.randn(64, in_features, dtype=M.dtype, device=M.device)
        scale = (3 * M._matmul(x).square().mean()) ** (-0.5 / len(cls.scaled))
        for name in cls.scaled:
            tensors[name].mul_(scale)

    @classmethod
    @torch.no_grad()
    def init_paper_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        """The authors' start: G and H normal with variance 1 / (r n), other weights with 1 / n."""
        cls.init_(tensors, out_features, in_features, generator, **options)
        for name in ("G", "H", "weight", "column"):
            if name in tensors:
                rank = tensors[name].shape[-2] if name in ("G", "H") else 1
                normal_(tensors[name], (rank * in_features) ** -0.5, generator)

    @classmethod
    @torch.no_grad()
    def random(
        cls,
        out_features: int,
        in_features: int,
        rank: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> Self:
        """A random member of the class with nn.Linear's scale and random operators."""
        options = cls.check_options(options)
        out_features, in_features, rank = cls.checked_sizes(out_features, in_features, rank)
        shapes = cls.parameter_shapes(out_features, in_features, rank or 1, **options)
        dtype, device = dtype or torch.get_default_dtype(), device or torch.get_default_device()
        check_dtype(cls.__name__, dtype)
        constants = cls.constants(
            out_features, in_features, rank or 1, dtype=dtype, device=device, generator=generator, **options
        )
        tensors = dict(constants)
        tensors |= {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
        cls.init_(tensors, out_features, in_features, generator, **options)
        cls.draw_operators_(tensors, generator)
        cls.rescale_(tensors, out_features, in_features, **options)
        return cls.unchecked(out_features, in_features, tensors, options)

    @classmethod
    def from_dense(cls, W: Tensor, rank: int | None = None, **options: Any) -> Projection:
        """The nearest member of the class to a dense matrix, or to each of a stack: `torchldr.from_dense`."""
        return rules.apply("from_dense", W=W, structure=cls, rank=rank, **options)

    @property
    def rank(self) -> int | None:
        return self.tensors["G"].shape[-2] if self.ranked else None

    @property
    def shape(self) -> torch.Size:
        """(..., out_features, in_features)."""
        return torch.Size((*self.leading, self.out_features, self.in_features))

    def __len__(self) -> int:
        if not self.leading:
            raise TypeError(f"{type(self).__name__}: a single matrix has no length.")
        return self.leading[0]

    def __iter__(self) -> Iterator[Self]:
        """The matrices of a stack along its first axis."""
        return iter([self[i] for i in range(len(self))])

    def __getitem__(self, index: Any) -> Self:
        """The matrices of a stack at an index of its leading axes, sharing its tensors."""
        return stacks.indexed(self, index)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors[self.scaled[0]].dtype

    @property
    def device(self) -> torch.device:
        return self.tensors[self.scaled[0]].device

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The same matrix with its tensors moved or converted, as `Tensor.to`.

        Constants stay in float32 or wider, because rounding could make nodes equal.
        """
        like = self.tensors[self.scaled[0]].to(*args, **kwargs)
        check_dtype(type(self).__name__, like.dtype)
        wide = torch.promote_types(like.dtype, torch.float32)
        learned = self.parameter_shapes(self.out_features, self.in_features, 1, **self.options)
        tensors = {
            name: t.to(like)
            if name in learned
            else t.to(like.device, wide if t.is_floating_point() else None)
            for name, t in self.tensors.items()
        }
        return self.with_tensors(tensors)

    def double(self) -> Self:
        return self.to(torch.float64)

    def to_dense(self) -> Tensor:
        """The matrix itself, from its definition, shape (..., out_features, in_features)."""
        if self.leading:
            return stacks.each(self, lambda M: M.to_dense())
        return sum_of_products(self.factors()).to(self.dtype)  # constants of a class may be wider

    def magnitude(self) -> Tensor:
        """The product of the factors' absolute values, the scale of rounding errors."""
        if self.leading:
            return stacks.each(self, lambda M: M.magnitude())
        positive = [tuple(torch.where(f < 0, -f, f) for f in term) for term in self.factors()]
        return sum_of_products(positive)

    def displacement(self) -> Tensor:
        """M - A M B or A M - M B by this matrix's own operators, as a dense matrix, (..., m, n)."""
        return stacks.each(self, lambda M: M.displacement()) if self.leading else super().displacement()

    def solve(self, b: Tensor, *, tol: float | None = None, method: str | None = None) -> Tensor:
        """The x with M x = b, for b of shape (n,) or (..., n, k); see `torchldr.solve`.

        The systems of a stack are solved one after the other; the axes of b in front must be those of the
        stack, or broadcast to them.
        """
        if not self.leading:
            return super().solve(b, tol=tol, method=method)
        if b.ndim == 1:
            return self.solve(b.unsqueeze(-1), tol=tol, method=method).squeeze(-1)
        axes = zip(reversed(self.leading), reversed(b.shape[:-2]), strict=False)
        if not 2 <= b.ndim <= len(self.shape) or any(size not in (1, count) for count, size in axes):
            raise ValueError(
                f"solve: b must have shape (n,) or (..., n, k) with axes in front that broadcast to "
                f"{tuple(self.leading)} for {type(self).__name__} of {show(self)}, got {tuple(b.shape)}."
            )
        parts = iter(b.expand(*self.leading, *b.shape[-2:]).flatten(0, -3).unbind(0))
        return stacks.each(self, lambda M: M.solve(next(parts), tol=tol, method=method))

    def with_tensors(self, tensors: Weights) -> Self:
        """The same matrix with other tensors."""
        return self.unchecked(self.out_features, self.in_features, tensors, self.options)

    def promoted(self) -> Self:
        """The same matrix in the dtype of its own product, float32 or wider."""
        return self if self.dtype.itemsize >= 4 else self.to(torch.float32)

    def materialize(self) -> Tensor:
        """The dense matrix by a fast product; differentiable. `to_dense` is the oracle."""
        if torch.is_grad_enabled() or self.leading or not self._by_unit_vectors():
            return self.dense_in(self.dtype).contiguous()
        return by_columns(self)

    def _by_unit_vectors(self) -> bool:
        return type(self)._materialize is StructuredMatrix._materialize

    def __repr__(self) -> str:
        parts = [str(self.out_features), str(self.in_features)]
        parts += [f"leading={tuple(self.leading)}"] if self.leading else []
        parts += [f"rank={self.rank}"] if self.ranked else []
        parts += [f"{k}={v!r}" for k, v in self.options.items() if v is not None]
        return f"{type(self).__name__}({', '.join(parts)}, dtype={self.dtype})"


def by_columns(M: StructuredMatrix) -> Tensor:
    """The dense matrix (m, n), made some columns at a time so that intermediates stay small; no gradient."""
    (m, n), wide = M.shape, M.promoted()
    weight = torch.empty(m, n, dtype=M.dtype, device=M.device)
    step = max(1, _CHUNK // ((m + n) * (M.rank or 1)))
    for j in range(0, n, step):
        unit = torch.zeros(min(step, n - j), n, dtype=wide.dtype, device=M.device)
        unit.diagonal(j).fill_(1)
        weight[:, j : j + step] = wide._matmul(unit).mT
    return weight


class Projection(NamedTuple):
    """A structured approximation of a dense matrix.

    `residual` is |W - M|_F / |W|_F, for a stack over all its entries. `weighted_residual` is
    |(W - M) X|_F / |W X|_F for given activations X, else None. Both are those of the returned matrix, after
    rounding.
    """

    matrix: StructuredMatrix
    residual: float
    weighted_residual: float | None = None


def normal_(t: Tensor, std: float, generator: Random) -> Tensor:
    return t.normal_(0, std, generator=generator)


def generators_(tensors: Weights, mean_square: float, generator: Random) -> None:
    """Draw G and H normal so that E|M|_F^2 / (m n) = 1 / 3n, given it is `mean_square` at variance 1."""
    G, H = tensors["G"], tensors["H"]
    std = (1 / (3 * H.shape[-1] * mean_square)) ** 0.25
    normal_(G, std, generator)
    normal_(H, std, generator)
