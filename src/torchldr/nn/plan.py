"""The plan of a layer: the routes that it takes in inference, with what they have prepared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.dense_route import DenseProduct
from ..core.products import Product, allows_tf32, autocasts, run_product, without_autocast
from ..core.routes import Call, Route, choose, lacks_memory, why_not
from ..matrices import StructuredMatrix
from .snapshot import Snapshot

PLANS = {"auto": None, "fast": False, "dense": True}  # whether routes must hold the dense matrix


class Plan:
    """The products of a matrix whose numbers do not change.

    Args:
        matrix: the structured matrix.
        choice: "auto", "fast" (no dense matrix) or "dense".
        only: the name of a route to take for every call, or None.
        tuned: the names of the routes that were found to be fastest, by batch.

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
        self._snapshot = Snapshot([*matrix.tensors.values()], live=not (matrix.structured or matrix.leading))
        with torch.inference_mode(False), torch.no_grad():
            self._narrow = matrix.with_tensors({name: t.detach() for name, t in matrix.tensors.items()})
            self.matrix = self._narrow.promoted()
        self.dtype, self.device, self._features = matrix.dtype, matrix.device, matrix.in_features
        self._dense, self._only, self._tuned = PLANS[choice], only, tuned or {}
        self._routes: dict[Call, Route] = {}
        self._products: dict[str, Product] = {}
        self._taken: dict[tuple[Any, ...], tuple[Product, torch.dtype, bool]] = {}

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the plan was made of these very tensors, or found to hold for them."""
        return self._snapshot.is_of(tensors)

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the matrix still has the numbers that the plan was made from."""
        return self._snapshot.matches(tensors)

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

    def _product(self, route: Route) -> Product:
        if route.name not in self._products:
            assert route.prepare is not None
            # What is made under inference mode or autocast may have to serve outside of them later.
            with torch.inference_mode(False), torch.no_grad(), without_autocast(self.device.type):
                typed = route.in_own_dtype(Call(device=self.device.type, dtype=self.dtype))
                product = route.prepare(self._narrow if typed and not route.holds_dense else self.matrix)
                if isinstance(product, DenseProduct):
                    product = DenseProduct(product.weight.to(self.dtype))
                self._products[route.name] = product
        return self._products[route.name]

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """M x for rows of x, in the dtype of the matrix or of autocast; x was checked."""
        product, dtype, typed = self._take(x)
        return product(x, bias) if typed else run_product(product, x, dtype, bias)

    def _take(self, x: Tensor) -> tuple[Any, torch.dtype, bool]:
        """The product for an input, the dtype of its result, and whether it gives that by itself.

        Found again by what a call differs in.
        """
        dtype, device = self.dtype, self.device.type
        if dtype != torch.float64 and autocasts(device):
            dtype = torch.get_autocast_dtype(device)
        needs_grad = x.requires_grad and torch.is_grad_enabled()
        batch = x.numel() // self._features
        tf32 = allows_tf32(device, dtype)
        asked = batch.bit_length(), batch & (batch - 1) == 0, dtype, needs_grad, tf32, lacks_memory(x)
        taken = self._taken.get(asked)
        if taken is None:
            call = Call(batch, device, dtype, needs_grad, kept=True, traced=asked[-1], tf32=tf32)
            route = self.route(call)
            taken = self._taken[asked] = self._product(route), dtype, route.in_own_dtype(call)
        return taken
