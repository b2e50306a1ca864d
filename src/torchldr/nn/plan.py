"""The plan of a layer: the routes that it takes in inference, with what they have prepared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.dense_route import DenseProduct
from ..core.products import Product, allows_tf32, autocasts, check_input, run_product, without_autocast
from ..core.routes import Call, Route, choose, costs_of, lacks_memory, why_not
from ..matrices import StructuredMatrix
from .snapshot import Snapshot

_SHAPES = 64  # of inputs whose products are remembered
PLANS = {"auto": None, "fast": False, "dense": True}  # whether routes must hold the dense matrix


class Plan:
    """The products of a matrix whose numbers do not change.

    Args:
        matrix: the structured matrix.
        choice: "auto", "fast" (no dense matrix) or "dense".
        only: the name of a route to take for every call, or None.
        tuned: the names of the routes that were found to be fastest, by batch.

    Attributes:
        snapshot: tells whether the matrix still has the numbers that the plan was made from.
        kind: the type of its device.

    A route is prepared when it is first chosen and then kept, so that batches of different sizes may take
    turns.
    """

    def __init__(
        self,
        matrix: StructuredMatrix,
        choice: str = "auto",
        only: str | None = None,
        tuned: dict[Call, str] | None = None,
    ) -> None:
        self.snapshot = Snapshot(matrix.tensors, live=not (matrix.structured or matrix.leading))
        with torch.inference_mode(False), torch.no_grad():
            self._narrow = matrix.with_tensors({name: t.detach() for name, t in matrix.tensors.items()})
            self.matrix = self._narrow.promoted()
        self.dtype, self.device, self._features = matrix.dtype, matrix.device, matrix.in_features
        self.kind = self.device.type
        self._dense, self._only, self._tuned = PLANS[choice], only, tuned or {}
        self._routes: dict[Call, Route] = {}
        self._products: dict[str, Any] = {}
        self._taken: dict[tuple[Any, ...], _Taken] = {}

    def computed(self, call: Call) -> Call:
        """The call in the dtype of the matrix, where autocast wants another and that is the faster one.

        A CPU without instructions for bfloat16 multiplies dense matrices faster in float32, and some routes
        serve float32 alone.
        """
        if call.dtype == self.dtype or self.dtype != torch.float32:
            return call
        own = call._replace(dtype=self.dtype, tf32=allows_tf32(self.kind, self.dtype))
        seconds = [costs_of(self.matrix, c)[self.route(c)] for c in (call, own)]
        return own if seconds[1] < seconds[0] else call

    def route(self, call: Call) -> Route:
        sized = call.sized
        if sized not in self._routes:
            self._routes[sized] = self._choose(sized)
        return self._routes[sized]

    def _choose(self, call: Call) -> Route:
        if self._only is not None:
            return choose(self.matrix, call, only=self._only)
        tuned = self._tuned.get(call)
        if tuned is not None:  # the numbers may have changed since: the route need not serve any more
            for route in self.matrix.all_routes():
                if route.name == tuned and why_not(route, self.matrix, call) is None:
                    return route
        return choose(self.matrix, call, dense=self._dense)

    def prepared(self) -> list[str]:
        """The names of the routes that have been prepared."""
        return list(self._products)

    def weight(self) -> Tensor:
        """The dense matrix, which is kept like any other product."""
        call = Call(device=self.matrix.device.type, kept=True)
        product = self._product(choose(self.matrix, call, dense=True))
        assert isinstance(product, DenseProduct)
        return product.weight

    def _product(self, route: Route) -> Any:
        if route.name not in self._products:
            assert route.prepare is not None
            # What is made under inference mode or autocast may have to serve outside of them later.
            with torch.inference_mode(False), torch.no_grad(), without_autocast(self.kind):
                typed = route.in_own_dtype(Call(device=self.kind, dtype=self.dtype))
                product: Any = route.prepare(self._narrow if typed and not route.holds_dense else self.matrix)
                if isinstance(product, DenseProduct):
                    product = DenseProduct(product.weight.to(self.dtype))
                self._products[route.name] = product
        return self._products[route.name]

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """M x for rows of x, in the dtype of the matrix or of autocast.

        Raises:
            TypeError, ValueError: for an input that cannot be multiplied.
        """
        # What a call can differ in. It is checked, and its product chosen, the first time.
        kind = self.kind
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        asked = x.shape, x.dtype, x.device, x.requires_grad and torch.is_grad_enabled(), cast, lacks_memory(x)
        taken = self._taken.get(asked)
        if taken is None or taken.tf32 != allows_tf32(kind, taken.dtype):
            if len(self._taken) >= _SHAPES:
                self._taken.clear()
            taken = self._taken[asked] = self._take(x, asked[3], asked[-1])
        return taken.run(x, bias)

    def _take(self, x: Tensor, needs_grad: bool, traced: bool) -> _Taken:
        check_input(self, x, self._features, "in_features", "StructuredLinear")
        kind, dtype = self.kind, self.dtype
        if dtype != torch.float64 and autocasts(kind):
            dtype = torch.get_autocast_dtype(kind)
        tf32 = allows_tf32(kind, dtype)
        call = self.computed(
            Call(x.numel() // self._features, kind, dtype, needs_grad, kept=True, traced=traced, tf32=tf32)
        )
        route = self.route(call)
        product = self._product(route)
        if route.in_own_dtype(call) and call.dtype == dtype:
            return _Taken(product, dtype, tf32)
        # In a dtype that is wider than autocast's a product runs outside of it, and is rounded in the end.
        plain = (
            x.ndim == 2 and len(x) > 0 and x.dtype == dtype and dtype.itemsize >= 4 and not autocasts(kind)
        )
        return _Taken(partial(_added if plain else _run, product, dtype), dtype, tf32)


class _Taken(NamedTuple):
    """What serves calls of one kind."""

    run: Callable[[Tensor, Tensor | None], Tensor]
    dtype: torch.dtype  # of the result
    tf32: bool


def _added(product: Product, dtype: torch.dtype, x: Tensor, bias: Tensor | None) -> Tensor:
    y = product(x)
    return y if bias is None else y + bias


def _run(product: Product, dtype: torch.dtype, x: Tensor, bias: Tensor | None) -> Tensor:
    return run_product(product, x, dtype, bias)
