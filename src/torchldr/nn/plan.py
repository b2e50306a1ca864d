"""The plan of a layer: the routes that it takes in inference, with what they have prepared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, addmm, is_autocast_enabled, is_grad_enabled, mm

from ..core.dense_route import DenseProduct, TypedProduct
from ..core.products import Product, allows_tf32, check_input, run_product, without_autocast
from ..core.routes import (
    Call,
    Route,
    are_transformed,
    choose,
    costs_of,
    lacks_memory,
    takes_dense,
    why_not,
)
from ..matrices import StructuredMatrix
from .snapshot import Snapshot

SHAPES = 64  # of inputs whose products are remembered
_LARGE = 1 << 28  # multiply-adds of a product whose bias is added apart
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
        # Until a route computes something from the numbers; a conversion or a choice by them would at once.
        live = matrix.dtype.itemsize >= 4 and all(route.any_dtype for route in matrix.all_routes())
        self.snapshot = Snapshot(matrix.tensors, live=live)
        self._read(matrix)
        self.dtype, self.device, self._features = matrix.dtype, matrix.device, matrix.in_features
        self.kind = self.device.type
        self._dense, self._only, self._tuned = PLANS[choice], only, tuned or {}
        self._routes: dict[Call, Route] = {}
        self._products: dict[str, Any] = {}
        self._weight: Tensor | None = None
        self._by_dense: dict[tuple[int, float], bool] = {}
        self._taken: dict[tuple[Any, ...], Callable[[Tensor, Tensor | None], Tensor]] = {}

    def _read(self, matrix: StructuredMatrix) -> None:
        """Multiply by the numbers of the snapshot: its copies, or the tensors themselves while it is live."""
        with torch.inference_mode(False), torch.no_grad():
            self._narrow = matrix.with_tensors(self.snapshot.tensors())
            self.matrix = self._narrow.promoted()

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
        if (weight := self._weight) is None:
            product = self._product(choose(self.matrix, Call(device=self.kind, kept=True), dense=True))
            assert isinstance(product, DenseProduct)
            weight = product.weight
            self._weight = None if are_transformed() else weight  # what is made there cannot be kept
        return weight

    def takes_dense(self, batch: int, gain: float) -> bool:
        """Whether so many vectors are multiplied by it, or would be for `gain` seconds more."""
        asked = batch, gain
        found = self._by_dense.get(asked)
        if found is None:
            if len(self._by_dense) >= SHAPES:
                self._by_dense.clear()
            call = Call(batch, self.kind, self.dtype, kept=True)
            found = self._by_dense[asked] = takes_dense(self.matrix, call, gain=gain)
        return found

    def _product(self, route: Route) -> Any:
        if route.name not in self._products:
            # What is made under inference mode or autocast may have to serve outside of them later.
            with torch.inference_mode(False), torch.no_grad(), without_autocast(self.kind):
                if are_transformed():  # what is made here cannot
                    return self._prepared(route)
                if not route.live and self.snapshot.keep_numbers():
                    self._products.clear()  # what they read where it is may change from now on
                    self._taken.clear()
                    self._read(self.matrix)
                self._products[route.name] = self._prepared(route)
                if self.kind == "cuda":  # the next call may come from another stream
                    torch.cuda.current_stream(self.device).synchronize()
        return self._products[route.name]

    def _prepared(self, route: Route) -> Any:
        assert route.prepare is not None
        typed = route.in_own_dtype(Call(device=self.kind, dtype=self.dtype))
        product: Any = route.prepare(self._narrow if typed and not route.holds_dense else self.matrix)
        return DenseProduct(product.weight.to(self.dtype)) if isinstance(product, DenseProduct) else product

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """M x for rows of x, in the dtype of the matrix or of autocast.

        Raises:
            TypeError, ValueError: for an input that cannot be multiplied.
        """
        # What a call can differ in. It is checked, and its product chosen, the first time.
        kind = self.kind
        cast = torch.get_autocast_dtype(kind) if is_autocast_enabled(kind) else None
        needs_grad = x.requires_grad and is_grad_enabled()
        tf32 = kind == "cuda" and allows_tf32(kind, cast or self.dtype)
        transformed = are_transformed()
        traced = transformed or lacks_memory(x)
        asked = x.shape, x.dtype, x.device, cast, needs_grad, tf32, traced
        run = self._taken.get(asked)
        if run is None:
            run = self._take(x, *asked[3:])
            if len(self._taken) >= SHAPES:
                self._taken.clear()
            if not transformed:
                self._taken[asked] = run
        return run(x, bias)

    def _take(
        self, x: Tensor, cast: torch.dtype | None, needs_grad: bool, tf32: bool, traced: bool
    ) -> Callable[[Tensor, Tensor | None], Tensor]:
        """What serves calls of one kind."""
        check_input(self, x, self._features, "in_features", "StructuredLinear")
        dtype = self.dtype if cast is None or self.dtype == torch.float64 else cast
        batch = x.numel() // self._features
        call = self.computed(Call(batch, self.kind, dtype, needs_grad, kept=True, traced=traced, tf32=tf32))
        route = self.route(call)
        product = self._product(route)
        plain = cast is None and x.ndim == 2 and len(x) > 0
        if route.in_own_dtype(call) and call.dtype == dtype:
            if plain and isinstance(product, DenseProduct):
                apart = adds_apart(call, product.weight)
                return partial(_added, product) if apart else partial(_by_dense, product.weight.mT)
            return (
                partial(_added, product.product) if plain and isinstance(product, TypedProduct) else product
            )
        if plain and dtype.itemsize >= 4:  # nothing to convert
            return partial(_added, product)
        # In a dtype that is wider than autocast's a product runs outside of it, and is rounded in the end.
        return partial(_run, product, dtype)


def adds_apart(call: Call, weight: Tensor) -> bool:
    """Whether the bias is better added afterwards.

    In float32 without TF32 cuBLAS takes slower kernels where it adds one itself. The sum takes an operation
    more, which small products do not repay.
    """
    narrow = call.device != "cuda" or call.dtype != torch.float32 or call.tf32
    return not narrow and call.batch > 1 and call.batch * weight.numel() >= _LARGE


def _added(product: Product, x: Tensor, bias: Tensor | None) -> Tensor:
    y = product(x)
    return y if bias is None else y + bias


def _by_dense(transposed: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """What `linear` does, without turning the matrix at every call."""
    return mm(x, transposed) if bias is None else addmm(bias, x, transposed)


def _run(product: Product, dtype: torch.dtype, x: Tensor, bias: Tensor | None) -> Tensor:
    return run_product(product, x, dtype, bias)
