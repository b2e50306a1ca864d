"""The definitions that a structured class must, should and may write.

A class must write
    parameter_shapes    names and shapes of its parameters; keyword-only arguments are its options
    init_               their initial values, with nn.Linear's |M|_F (only needed beyond G and H)
    factors             its definition, as products of dense factors: the oracle
    _matmul, _rmatmul   its own product, (b, in) -> (b, out) and back, in plain torch operations
should write, where it applies,
    constants           tensors that are not learned (nodes, a permutation); `drawn` names the random ones
    _materialize        the dense matrix, differentiable, if that is faster than multiplying all unit vectors
    dense_in            the same for parameters of any dtype, if no conversion is needed
    cpu_frozen, cpu_training, gpu_frozen, gpu_training
                        when its own product beats the dense matrix: see `fast_pays`
    fast_in_words       a description of its own product for one row
and may write
    operators           its displacement operators A and C, which brings the displacement tests
    variants, all_ranks, multiply_adds and the class variables beside them, for `compress_`
and register rules (`rules`) for its sums, products and transposes, for solving, projection and ONNX graphs.

All of this is written for one matrix. A matrix with leading axes is a stack (`stacks`): functions are mapped
over the stack or called for each matrix, except those in `at_once`, which accept leading axes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from . import stacks
from .checks import as_int, check_choices, checked_int
from .choice import Use
from .linear_map import LinearMap
from .registry import REGISTRY, near
from .storage import Storage

Weights = Mapping[str, Tensor]  # the tensors of a matrix, by name
Random = torch.Generator | None  # source of random numbers; None for torch's own


class RankFit(Protocol):
    """The nearest members of a class to one matrix, by rank."""

    def error(self, rank: int) -> float:
        """The squared distance of the nearest member; `error(0)` is that of zero."""
        ...

    def tensors(self, rank: int) -> dict[str, Tensor]:
        """Its tensors."""
        ...


class Contract(LinearMap):
    """The class variables and functions that a structured class may write, with their defaults.

    `StructuredMatrix` adds what follows from them, and is the base to write a class on.
    """

    name: ClassVar[str]
    look: ClassVar[tuple[str, str]] = ("#888888", ".")  # colour and marker in figures
    ranked: ClassVar[bool] = True
    scaled: ClassVar[tuple[str, ...]] = ("G", "H")  # M is multilinear in these: they carry its scale
    also_linear: ClassVar[tuple[str, ...]] = ()  # in these too; they share a scale out of range
    drawn: ClassVar[tuple[str, ...]] = ()  # random constants, which the state_dict keeps
    own_dtype: ClassVar[bool] = False  # whether it uses only matrix products, accurate in any dtype
    retired: ClassVar[Mapping[str, Sequence[Any]]] = {}  # options of saved layers that nothing reads any more
    cpu_frozen: ClassVar[float] = math.inf  # c of `pays_on_a_cpu`, by benchmarks/products.py
    cpu_training: ClassVar[tuple[float, float, float]] = math.inf, 0.0, 0.0  # c, s and late
    gpu_frozen: ClassVar[tuple[float, float]] = math.inf, 0.0  # c and late of `pays_on_a_gpu`
    gpu_training: ClassVar[tuple[float, float]] = math.inf, 0.0
    stored: ClassVar[Mapping[str, Storage]] = {}  # tensors that quantisation does not make int8
    at_once: ClassVar[tuple[str, ...]] = ()  # which of these functions accept the axes of a stack
    _axes: ClassVar[int | None] = None  # of the first tensor of one matrix; found out when first needed
    structured: ClassVar[bool] = True  # False for the class of unstructured matrices
    first_rank: ClassVar[int] = 1  # a good first rank; the default is the smallest one
    compresses: ClassVar[bool] = False  # whether a budget considers it by default
    projection_work: ClassVar[float] = 12.0  # microseconds per entry of a quick projection of rank 1
    # 0 if the nearest member is found at once, at any effort

    def __init_subclass__(cls, *, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # An inherited comparison does not apply to a product that a subclass redefines.
        product = min(_depth(cls, part) for part in ("_matmul", "_rmatmul", "factors"))
        if product < _depth(cls, "_materialize"):
            cls._materialize = Contract._materialize  # type: ignore[method-assign]
        if min(product, _depth(cls, "_materialize")) < _depth(cls, "dense_in"):
            cls.dense_in = Contract.dense_in  # type: ignore[method-assign]
        for part in ("fast_pays", "cpu_frozen", "cpu_training", "gpu_frozen", "gpu_training"):
            if product < _depth(cls, part):
                setattr(cls, part, Contract.__dict__[part])
        cls.at_once = tuple(name for name in cls.at_once if _depth(cls, name) >= _depth(cls, "at_once"))
        cls._axes = None
        cls.name = name or f"{cls.__module__}.{cls.__qualname__}"
        if name is not None:
            REGISTRY[name] = cls

    # Must and should.

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters; a class adds its options as keyword-only arguments."""
        return {"G": (rank, out_features), "H": (rank, in_features)}

    @classmethod
    def constants(
        cls,
        out_features: int,
        in_features: int,
        rank: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> dict[str, Tensor]:
        """Tensors that are not learned, by name; those that are random are named in `drawn`."""
        return {}

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        """Draw the parameters in place, so that in expectation |M|_F^2 = m / 3, as in nn.Linear.

        `tensors` also holds the constants. The default is for a class whose entries are sums of r products of
        an entry of G and one of H.
        """
        if not tensors.keys() >= {"G", "H"}:
            raise NotImplementedError(f"{cls.__name__} must write init_.")
        std = (1 / (3 * in_features * tensors["G"].shape[-2])) ** 0.25
        for name in "GH":
            tensors[name].normal_(0, std, generator=generator)

    @classmethod
    def draw_operators_(cls, tensors: Weights, generator: Random = None) -> None:
        """Move the operators away from their initial values; most classes have none."""

    def factors(self) -> list[tuple[Tensor, ...]]:
        """The definition of M, as a sum of these products of dense factors."""
        raise NotImplementedError

    def _matmul(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _rmatmul(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def _reads(self, x: Tensor) -> bool:
        """Whether the class's own product has kernels for rows of a GPU in the dtype that they have."""
        return False

    def _materialize(self) -> Tensor:
        """The dense matrix by a fast product; differentiable."""
        return self._matmul(torch.eye(self.in_features, dtype=self.dtype, device=self.device)).mT

    def dense_in(self, dtype: torch.dtype) -> Tensor:
        """`materialize` in a dtype, rounded once."""
        M: Any = self.promoted()
        dense: Tensor = stacks.materialize(M) if M.leading else M._materialize()
        return dense.to(dtype)

    def promoted(self) -> Self:
        """The same matrix in the dtype that its own product runs in, float32 or wider."""
        raise NotImplementedError

    @classmethod
    def fast_pays(cls, use: Use) -> bool:
        """Whether the class's own product is faster than the dense matrix."""
        return cls.pays_on_a_gpu(use) if use.gpu else cls.pays_on_a_cpu(use)

    @classmethod
    def pays_on_a_cpu(cls, use: Use) -> bool:
        """The comparison on a CPU, in multiply-adds of a dense product of float32.

        The class's own multiply-adds are `c` times as slow, after the fixed overhead `late`, one for all
        matrices of a stack. A frozen dense matrix is read for every row, or for four. In training it is also
        computed, which costs as much as `s` more rows.
        """
        own = cls.multiply_adds(use.m, use.n, use.rank, **use.options)
        if own is None:
            return False
        if use.frozen:
            c, rows, late = cls.cpu_frozen, max(use.cost * use.rows, 4.0), 2e6
        else:
            c, s, late = cls.cpu_training
            rows = use.cost * use.rows + s
        return c * use.rows * own + late / use.matrices < use.m * use.n * rows

    @classmethod
    def pays_on_a_gpu(cls, use: Use) -> bool:
        """The comparison on a GPU, in multiply-adds of a dense product of float32 without TF32.

        The class's own are `c` times as slow, or take `late` to launch, whichever is longer. Low-precision
        units are sixteen times as fast, for TF32 eight times. A frozen dense matrix is read from memory.
        Training takes three dense products, and computing the matrix costs as much as 143 more rows.
        """
        own = cls.multiply_adds(use.m, use.n, use.rank, **use.options)
        if own is None:
            return False
        rows = use.rows if use.exact else use.rows * use.dtype.itemsize / 32
        if use.frozen:
            (c, late), dense = cls.gpu_frozen, rows + 6 * use.dtype.itemsize
        else:
            (c, late), dense = cls.gpu_training, 3 * (rows + 143)
        return max(c * use.rows * own, late) < use.m * use.n * dense

    def fast_in_words(self) -> str:
        """The class's own product for one row, in words."""
        M: Any = self
        found = self.multiply_adds(self.out_features, self.in_features, M.rank or 1, **M.options)
        return "the class's own product" if found is None else f"about {found:,.0f} multiply-adds a row"

    def _made_in_words(self) -> str:
        """How the dense matrix is computed: the words after "make the m x n matrix"."""
        return ""

    def operators(self) -> tuple[Tensor, Tensor] | None:
        """The displacement operators A and C as dense matrices, or None."""
        return None

    def krylov_length(self) -> int:
        """The number of columns of the Krylov factors: k = min(m, n) by default."""
        return min(self.shape)

    # For compression.

    @classmethod
    def variants(cls, out_features: int, in_features: int) -> list[dict[str, Any]]:
        """The options that a search tries for matrices of this shape."""
        return [{}]

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float | None:
        """An estimate of the multiply-adds of one fast product with a vector; None if the class has none."""
        return None

    @classmethod
    def all_ranks(cls, W: Tensor, left: Tensor | None, root: Tensor | None) -> RankFit | None:
        """The nearest members of every rank in |L (W - M) R^T|_F by one decomposition; None without one.

        Args:
            W: the matrix (m, n), in float64 on the CPU.
            left: L (m, m), upper triangular, or None for the identity.
            root: R (n, n), upper triangular, or None.
        """
        return None

    # Checks.

    @classmethod
    def default_options(cls) -> dict[str, Any]:
        """The class's options with their defaults: the keyword-only arguments of `parameter_shapes`."""
        shapes = cls.parameter_shapes
        return dict(_keywords(getattr(shapes, "__func__", shapes)))

    @classmethod
    def check_options(cls, options: Mapping[str, Any], layer: type | None = None) -> dict[str, Any]:
        """All options, given and default. An unknown one is an error that also lists a layer's arguments.

        `retired` options are dropped, so that old files load.
        """
        known = cls.default_options()
        gone = {key: options[key] for key in cls.retired if key in options and key not in known}
        check_choices(cls.__name__, **{key: (value, cls.retired[key]) for key, value in gone.items()})
        options = {key: value for key, value in options.items() if key not in gone}
        for key in options:
            if key not in known:
                arguments = inspect.signature(layer).parameters.values() if layer else ()
                named = (a.name for a in arguments if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD))
                listed = {**known, **dict.fromkeys(named)}
                raise TypeError(f"{(layer or cls).__name__}: unknown keyword {key!r}{near(key, listed)}.")
        chosen = {key: as_int(value) for key, value in {**known, **options}.items()}
        for key, value in chosen.items():
            if value is inspect.Parameter.empty:
                raise TypeError(f"{cls.__name__}: the option {key!r} must be given.")
        return chosen

    @classmethod
    def check_shapes(
        cls,
        out_features: int,
        in_features: int,
        rank: int | None,
        options: Mapping[str, Any],
        who: str | None = None,
    ) -> dict[str, tuple[int, ...]]:
        """The parameter shapes, after checking sizes and rank."""
        out_features, in_features, rank = cls.checked_sizes(out_features, in_features, rank, who)
        return cls.parameter_shapes(out_features, in_features, rank or 1, **options)

    @classmethod
    def checked_sizes(
        cls, out_features: int, in_features: int, rank: int | None, who: str | None = None
    ) -> tuple[int, int, int | None]:
        """The sizes and the rank as Python ints, or an error."""
        who = who or cls.__name__
        out_features = checked_int(who, "out_features", out_features)
        in_features = checked_int(who, "in_features", in_features)
        if rank is not None and not cls.ranked:
            raise ValueError(f"{who}: the structure {cls.name!r} has no rank, got rank={rank}.")
        if rank is not None:
            why = f"the smaller of out_features={out_features} and in_features={in_features}"
            rank = checked_int(who, "rank", rank, most=min(out_features, in_features), why=why)
        return out_features, in_features, rank


@cache
def _keywords(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword-only arguments with their defaults; cached, because reading a signature is slow."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _depth(cls: type, attribute: str) -> int:
    """How many steps up the MRO an attribute is defined; 0 is the class itself."""
    return next(depth for depth, base in enumerate(cls.__mro__) if attribute in base.__dict__)
