"""Routes: the ways to multiply by a structured matrix, and the one place that chooses among them.

A class lists its routes (`StructuredMatrix.ROUTES`). Each says in words why it does not serve a call,
what it would cost, how it multiplies, and what it can prepare once for many products. `choose` takes the
cheapest route that serves. It computes costs and never measures them, so that a model gives the same
numbers in every process; `torchldr.tune` measures.

The first route of a class serves every call, in plain differentiable torch operations. It is the one that
compilers, exporters and vmap see, where there are no values to look at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..torch_private import are_recorded
from .products import Matrix, Product
from .registry import near

LARGEST_BATCH = 1 << 14  # batches above take as long a vector


class Sizes(NamedTuple):
    """What the cost of a route depends on besides the call."""

    shape: torch.Size  # (m, n)
    rank: int | None
    options: dict[str, Any]
    routes: tuple[Route, ...] = ()  # of one matrix of a stack


class Call(NamedTuple):
    """What is asked of a product: everything about it except the values."""

    batch: int = 1
    device: str = "cpu"
    dtype: torch.dtype = torch.float32  # of the result; FFTs compute in float32 or wider
    needs_grad: bool = False  # of the vectors, or of the matrix where it is not kept
    kept: bool = False  # the matrix is a constant: what a route prepares serves many calls
    traced: bool = False  # no values to look at: vmap, export, a tensor subclass, capture of a CUDA graph
    transposed: bool = False
    matrices: int = 1  # so many at once, each with a batch: the operations are started once for all
    captured: bool = False  # into a CUDA graph, where operations cost next to nothing to start
    tf32: bool = False  # matrix products in float32 may round their factors, which a GPU has units for

    @property
    def sized(self) -> Call:
        """The same with a batch that stands for this one: the next power of two."""
        batch = 1 << max(self[0] - 1, 0).bit_length()
        return Call(min(batch, LARGEST_BATCH), *self[1:])


class RefusedError(ValueError):
    """A route that was tried does not serve: the reason."""


class Route(NamedTuple):
    """One way to multiply. The matrix that its functions get has tensors of float32 or wider.

    Attributes:
        name: by which it is forced, listed and shown.
        why_not: None where the route serves, else the reason, in words for a user; ask by `why_not`.
        cost: seconds by a simple model, from sizes alone; ask by `seconds`.
        apply: (M, x, transposed) to M x or M^T x for rows of x; differentiable. One of any dtype takes a bias
            as well. None for a route that serves matrices that are kept alone. vmap maps the first route of a
            class that does not hold the dense matrix.
        prepare: M to the product with everything done that does not depend on x. It must be
            differentiable in x where the route serves a kept call that needs a gradient.
        holds_dense: whether it makes the m x n matrix.
        any_dtype: whether it can multiply in the dtype of x, by a matrix whose tensors have any dtype. The
            products that it prepares add a bias, too.
        live: whether what it prepares reads the tensors of the matrix where they are.
        by_sizes: whether `why_not` looks at sizes and the call alone, and takes `Sizes` for a matrix.
        tried: for a route that looks at values: what `why_not` says by sizes alone. Where that is None, a
            matrix that `tries` takes the route, whose `apply` looks on its way, not to keep a device waiting,
            and raises `RefusedError` where it should not have been taken.
    """

    name: str
    why_not: Callable[[Any, Call], str | None]
    cost: Callable[[Any, Call], float]
    apply: Callable[..., Tensor] | None
    prepare: Callable[[Any], Product] | None = None
    holds_dense: bool = False
    any_dtype: bool = False
    live: bool = False
    by_sizes: bool = False
    tried: Callable[[Any, Call], str | None] | None = None

    def in_own_dtype(self, call: Call) -> bool:
        """Whether it multiplies in the dtype of the call: factors in a narrow one are for a GPU."""
        return self.any_dtype and (self.holds_dense or call.device == "cuda" or call.dtype.itemsize >= 4)

    def seconds(self, M: Any, call: Call) -> float:
        """Its cost, in the dtype in which it multiplies."""
        if not self.in_own_dtype(call):
            call = call._replace(dtype=torch.promote_types(call.dtype, torch.float32))
        return self.cost(M, call)

    def run(self, *arguments: Any) -> Tensor:
        """`apply`, of a route that serves calls without a plan."""
        assert self.apply is not None
        return self.apply(*arguments)


def choose(M: Matrix, call: Call, *, only: str | None = None, dense: bool | None = None) -> Route:
    """The cheapest route that serves.

    Args:
        M: the matrix, `promoted()`.
        call: what is asked.
        only: the name of a route to take, whatever it costs.
        dense: True for routes that hold the dense matrix alone, False for the others alone.

    Raises:
        ValueError: where the route that was named, or any, does not serve; with the reason.
    """
    routes = costs_of(M, call)
    if only is not None:
        routes = {route: cost for route, cost in routes.items() if route.name == only}
        if not routes:
            raise ValueError(f"{type(M).__name__}: no route {only!r}{near(only, dict.fromkeys(names(M)))}.")
    reasons = []
    for route in routes:
        if dense is not None and route.holds_dense != dense:
            continue
        reason = why_not(route, M, call)
        if reason is None:
            return route
        reasons.append(f"{route.name}: {reason}")
    if dense is not None and not reasons:
        return choose(M, call)  # a class without such a route: "dense" itself, say
    raise ValueError(f"{type(M).__name__}: no route serves this call ({'; '.join(reasons)}).")


def known_at_once(M: Matrix, call: Call, *, dense: bool | None = None) -> Route | None:
    """The cheapest route that serves without a plan, or is tried, where sizes alone tell; else None.

    None is tried that a checkpoint would run again: it counts what is saved, and by then it may be known that
    the route is refused.
    """
    tries = M.tries and not (call.needs_grad and _saving_hooks(True))
    return _first(_kind(M), call, dense, tries)


def takes_dense(M: Matrix, call: Call, *, gain: float = 0.0) -> bool:
    """Whether the dense matrix is the cheapest way that serves, or dearer by less than `gain` seconds."""
    costs = costs_of(M, call)
    dense = next((route for route in costs if route.holds_dense), None)
    if dense is None or why_not(dense, M, call) is not None:
        return False
    # Routes that cost more need not be asked, which may mean to look at the values.
    cheaper = (route for route, cost in costs.items() if cost + gain < costs[dense])
    return all(why_not(route, M, call) is not None for route in cheaper)


def why_not(route: Route, M: Matrix, call: Call) -> str | None:
    """None where the route serves a call, else the reason, in words for a user."""
    if route.apply is None and (not call.kept or call.transposed):
        return "for matrices that are kept"
    return route.why_not(M, call)


def untraced(call: Call) -> str | None:
    """Why a product that looks at values, or leaves torch, does not serve; for `Route.why_not`."""
    return "not for tracing, vmap and capture" if call.traced else None


def names(M: Matrix) -> list[str]:
    return [route.name for route in M.all_routes()]


def costs_of(M: Matrix, call: Call) -> dict[Route, float]:
    """The routes with their costs, the cheapest first."""
    return _costs(_kind(M), call.sized)


class _Kind(NamedTuple):
    """What costs of a matrix depend on."""

    cls: Any  # a class is hashable, which the types of lru_cache do not see
    leading: tuple[int, ...]
    shape: tuple[int, int]
    rank: int | None
    options: tuple[Any, ...]
    threads: int  # of torch

    @property
    def sizes(self) -> Sizes:
        return Sizes(torch.Size(self.shape), self.rank, dict(self.options), self.cls.ROUTES)


def _kind(M: Matrix) -> _Kind:
    shape, options = (M.out_features, M.in_features), tuple(M.options.items())
    return _Kind(type(M), tuple(M.leading), shape, M.rank, options, torch.get_num_threads())


@lru_cache(maxsize=4096)
def _costs(kind: _Kind, call: Call) -> dict[Route, float]:
    """Costs depend on sizes and threads alone, so they are computed once."""
    routes = kind.cls.STACK_ROUTES if kind.leading else kind.cls.ROUTES
    call, sizes = call._replace(matrices=math.prod(kind.leading)), kind.sizes
    costs = {route: route.seconds(sizes, call) for route in routes}
    return dict(sorted(costs.items(), key=lambda item: item[1]))


@lru_cache(maxsize=4096)
def _first(kind: _Kind, call: Call, dense: bool | None, tries: bool) -> Route | None:
    """`known_at_once`, which is asked once as well."""
    for route in _costs(kind, call.sized):
        if route.apply is None or (dense is not None and route.holds_dense != dense):
            continue
        by_sizes = route.why_not if route.by_sizes else route.tried if tries else None
        if by_sizes is None:
            return None
        if by_sizes(kind.sizes, call) is None:
            return route
    return None


_saving_hooks = torch._C._autograd._top_saved_tensors_default_hooks
are_transformed = torch._C._are_functorch_transforms_active
_PLAIN = frozenset((Tensor, torch.nn.Parameter))


def is_traced(*tensors: Tensor) -> bool:
    """Whether there are no values to look at: under a tracer or a transformation. Capture is not asked.

    A transformation of torch.func wraps what goes through autograd, be the tensors its own or not.
    """
    if is_recorded("cpu") or are_transformed():
        return True
    return not have_memory(tensors) and any(map(lacks_memory, tensors))


def have_memory(tensors: tuple[Tensor, ...]) -> bool:
    """Whether all are plain tensors with memory: asked of all at once. False may only mean not to know."""
    if forward_ad._current_level >= 0 or not _PLAIN.issuperset(map(type, tensors)):
        return False
    try:
        return all(map(Tensor.data_ptr, tensors))  # 0 on the meta device, and of tensors without entries
    except RuntimeError:
        return False


def is_recorded(device: str) -> bool:
    """Whether operations are recorded now, for values that come later; on this type of device."""
    return are_recorded() or (device == "cuda" and is_captured(device))


def is_captured(device: str) -> bool:
    """Whether a CUDA graph is captured now, on this type of device."""
    return device == "cuda" and torch.cuda.is_current_stream_capturing()


def lacks_memory(t: Tensor) -> bool:
    """Whether a tensor stands for others: under vmap, on the meta device, as a subclass, with a tangent."""
    if type(t) not in _PLAIN and not _is_plain_parameter(type(t)):
        return True
    try:
        t.data_ptr()
    except RuntimeError:  # of vmap and other transformations
        return True
    return t.is_meta or (forward_ad._current_level >= 0 and forward_ad.unpack_dual(t).tangent is not None)


def _is_plain_parameter(cls: type[Tensor]) -> bool:
    """Whether a class of parameters leaves torch's operations alone, and only adds attributes."""
    return (
        issubclass(cls, torch.nn.Parameter)
        and cls.__torch_function__ is torch.nn.Parameter.__torch_function__
        and cls.__torch_dispatch__ is Tensor.__torch_dispatch__
    )


class Row(NamedTuple):
    """One line of a table of routes."""

    route: str
    seconds: float
    why_not: str | None
    chosen: bool


class RouteTable(Sequence[Row]):
    """Every route of a matrix for one call, the cheapest first; printed as a table."""

    def __init__(self, M: Matrix, call: Call, *, only: str | None = None, dense: bool | None = None) -> None:
        self.call = call
        self.note = ""
        chosen = choose(M, call, only=only, dense=dense)
        self.rows = tuple(
            Row(route.name, cost, why_not(route, M, call), route is chosen)
            for route, cost in costs_of(M, call).items()
        )

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def chosen(self) -> str:
        """The name of the route in use."""
        return next(row.route for row in self.rows if row.chosen)

    def to_dicts(self) -> list[dict[str, Any]]:
        return [row._asdict() for row in self.rows]

    def __repr__(self) -> str:
        width = max(len(row.route) for row in self.rows)
        lines = []
        for row in self.rows:
            mark = "->" if row.chosen else "  "
            lines.append(f"{mark} {row.route:{width}}  {_shown(row.seconds):>9}  {row.why_not or ''}")
        lines += [self.note] if self.note else []
        return "\n".join(line.rstrip() for line in lines)


def _shown(seconds: float) -> str:
    if math.isinf(seconds):  # not on this device, or not for these sizes
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
