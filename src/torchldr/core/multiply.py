"""How a structured matrix multiplies: what a product asks for, and the route that it takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Self

import torch
from torch import Tensor

from . import operator, stacks
from .contract import Contract
from .products import Matrix, allows_tf32, autocasts, check_input, is_jit_tracing, run_product
from .routes import (
    Call,
    RefusedError,
    Route,
    RouteTable,
    are_transformed,
    choose,
    have_memory,
    is_captured,
    is_recorded,
    is_traced,
    known_at_once,
)

_requires_grad = attrgetter("requires_grad")


class Multiplies(Contract):
    """The products of a matrix with `tensors`, by the routes of its class."""

    tensors: dict[str, Tensor]
    leading: torch.Size
    tries = False  # whether routes are tried before they look; that of the last product served

    def promoted(self) -> Self:
        """The same matrix in the dtype that products run in, float32 or wider, and without facts."""
        raise NotImplementedError

    def matmul(self, x: Tensor, *, route: str | None = None) -> Tensor:
        """Multiply vectors: (..., in_features) to (..., out_features).

        With leading axes, vectors (..., b, in_features) give (..., b, out_features), and the axes in front
        broadcast as in `torch.matmul`.

        Args:
            x: vectors.
            route: the name of the route to take (`routes` lists them), by default the cheapest that serves.

        FFTs and sums run in float32 or wider; the result has the dtype of `x` (under autocast that of
        autocast). A wrong size, dtype or device is an error.
        """
        check_input(self, x, self.in_features, "in_features")
        return self.multiply(x, route=route)

    def rmatmul(self, y: Tensor, *, route: str | None = None) -> Tensor:
        """Multiply by the transposed matrix: (..., out_features) to (..., in_features)."""
        check_input(self, y, self.out_features, "out_features")
        return self.multiply(y, transposed=True, route=route)

    def multiply(
        self,
        x: Tensor,
        *,
        transposed: bool = False,
        route: str | None = None,
        dense: bool | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """`matmul` or `rmatmul` of an input that was checked, plus a bias; `dense` as for `choose`."""
        if self.leading:
            y = stacks.multiply(self, x, transposed=transposed, route=route, dense=dense)
            return y if bias is None else y + bias
        if torch.compiler.is_compiling() or is_jit_tracing():
            asked = Call(device=x.device.type, dtype=torch.bfloat16 if autocasts(x.device.type) else x.dtype)
            if self.ROUTES[0].in_own_dtype(asked) and not is_jit_tracing():
                return self.ROUTES[0].run(self, x, transposed, bias)
            seen = partial(operator.as_compilers_see, self.promoted(), transposed=transposed)
            return run_product(seen, x, self.dtype, bias)
        call = self.call(x, transposed=transposed)
        M, chosen = self, known_at_once(self, call, dense=dense) if route is None else None
        looked = chosen is None
        if chosen is None:
            M = self.promoted()
            chosen = choose(M, call, only=route, dense=dense)
            self.tries = chosen.tried is not None
        try:
            if chosen.in_own_dtype(call):
                return chosen.run(self, x, transposed, bias)
            return _run_wide(chosen.run, M, x, transposed, bias, self.dtype)
        except RefusedError:
            if looked:
                raise
        self.tries = False
        return self.multiply(x, transposed=transposed, dense=dense, bias=bias)

    def call(self, x: Tensor, *, transposed: bool = False, kept: bool = False) -> Call:
        """What a product with these vectors asks for; `kept` where this matrix is a constant."""
        tensors = (x,) if kept else (x, *self.tensors.values())
        needs_grad = torch.is_grad_enabled() and any(map(_requires_grad, tensors))
        device, dtype = x.device.type, self.dtype
        if dtype != torch.float64 and autocasts(device):
            dtype = torch.get_autocast_dtype(device)
        captured = tf32 = False
        if device != "cpu":
            captured, tf32 = is_captured(device), allows_tf32(device, dtype)
        traced = captured or is_traced(*tensors)
        batch = x.numel() // x.shape[-1]
        return Call(batch, device, dtype, needs_grad, kept, traced, transposed, 1, captured, tf32)

    def asked(self, x: Tensor) -> tuple[Any, ...] | None:
        """What the route for x can depend on besides the matrix's sizes; None where there is more to see.

        Asked at every call of a layer that trains, so in few steps.
        """
        tensors, device = (x, *self.tensors.values()), x.device
        kind = device.type
        if is_recorded(kind) or are_transformed() or not have_memory(tensors):
            return None
        dtype = cast = self.dtype
        if autocasts(kind):
            cast = torch.get_autocast_dtype(kind)
        needs_grad = torch.is_grad_enabled() and any(map(_requires_grad, tensors))
        tf32 = kind == "cuda" and allows_tf32(kind, cast)
        return x.shape, x.dtype, device, dtype, self.device, cast, needs_grad, tf32

    def run_by_sizes(self, x: Tensor, *, dense: bool | None = None) -> Callable[..., Tensor] | None:
        """What multiplies, (M, x, transposed, bias), for all calls of which the same is `asked`.

        None where the route takes more than sizes to choose.
        """
        call = self.call(x)
        route = known_at_once(self, call, dense=dense)
        if route is None or route.in_own_dtype(call):
            return route and route.apply
        return partial(_run_wide, route.run)

    def all_routes(self) -> tuple[Route, ...]:
        """The routes of the class, or those of a stack."""
        return self.STACK_ROUTES if self.leading else self.ROUTES

    def routes(
        self,
        batch: int = 1,
        *,
        needs_grad: bool = False,
        kept: bool = False,
        traced: bool = False,
        transposed: bool = False,
        dtype: torch.dtype | None = None,
    ) -> RouteTable:
        """Every route of this matrix for a call: its cost in seconds by the model, or the reason against it.

        >>> from torchldr import ToeplitzLike
        >>> ToeplitzLike.random(256, 256, rank=2).routes(batch=64).chosen in ("fft", "dense")
        True
        """
        device, dtype = self.device.type, dtype or self.dtype
        call = Call(
            batch, device, dtype, needs_grad, kept, traced, transposed, tf32=allows_tf32(device, dtype)
        )
        return RouteTable(self.promoted(), call)


def _run_wide(
    apply: Callable[..., Tensor],
    M: Matrix,
    x: Tensor,
    transposed: bool,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The product of a route in float32 or wider, given in `dtype`, by default that of M, or autocast's."""
    wide = M if M.dtype.itemsize >= 4 else M.promoted()
    return run_product(lambda flat: apply(wide, flat, transposed), x, dtype or M.dtype, bias)
