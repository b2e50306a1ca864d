"""Routes that are tried before anything is known of the values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torchldr import StructuredLinear, ToeplitzLike
from torchldr.core import routes
from torchldr.core.routes import RefusedError, Route

LOG: list[str] = []


def _reason(M: Any, call: Any) -> str | None:
    LOG.append("looked")
    return "its first entry is negative" if M.G[0, 0] < 0 else None


def _apply(M: Any, x: Tensor, transposed: bool, bias: Tensor | None = None) -> Tensor:
    LOG.append("ran")
    y = x @ (M.to_dense() if transposed else M.to_dense().mT)
    if M.G[0, 0] < 0:
        raise RefusedError("its first entry is negative")
    return y if bias is None else y + bias


@pytest.fixture(autouse=True, params=[True, False], ids=["any dtype", "float32"])
def one_more_route(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """The cheapest of all, for matrices whose first entry is not negative."""
    own, ours = request.param, lambda M, call: None
    tried = Route("tried", _reason, lambda M, call: 0.0, _apply, any_dtype=own, tried=ours)
    monkeypatch.setattr(ToeplitzLike, "ROUTES", (*ToeplitzLike.ROUTES, tried))
    caches = routes._costs, routes._first
    for cache in caches:
        cache.cache_clear()
    LOG.clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_a_layer_looks_first_after_one_was_refused() -> None:
    layer, x = StructuredLinear(8, 8, structure="toeplitz_like"), torch.randn(3, 8)

    def step(first: float) -> list[str]:
        with torch.no_grad():
            layer.G[0, 0] = first
        LOG.clear()
        right = x @ layer.matrix().to_dense().mT + layer.bias
        assert torch.allclose(layer(x), right, atol=1e-5)
        return [*LOG]

    assert step(1.0) == ["ran"]
    assert step(1.0) == ["ran"]
    assert step(-1.0) == ["ran", "looked"]
    assert step(-1.0) == ["looked"]
    assert step(1.0) == ["looked", "ran"]
    assert step(1.0) == ["ran"]


def test_tables_and_matrices_look_first() -> None:
    layer = StructuredLinear(8, 8, structure="toeplitz_like")
    with torch.no_grad():
        layer.G[0, 0] = -1
    assert layer.routes(3).chosen != "tried"
    LOG.clear()
    layer.matrix().matmul(torch.randn(3, 8))
    assert LOG == ["looked"]
    with pytest.raises(ValueError, match="first entry is negative"):
        layer.matrix().matmul(torch.randn(3, 8), route="tried")


def test_checkpoints_see_the_same_twice() -> None:
    """Their second run must save as many tensors as the first, though it knows that a route was refused."""
    layer, x = StructuredLinear(8, 8, structure="toeplitz_like"), torch.randn(3, 8)
    with torch.no_grad():
        layer.G[0, 0] = -1
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert LOG == ["looked", "looked"]


def test_what_is_refused_after_a_look_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking again would not help."""
    *others, tried = ToeplitzLike.ROUTES
    monkeypatch.setattr(ToeplitzLike, "ROUTES", (*others, tried._replace(why_not=lambda M, call: None)))
    M = ToeplitzLike.random(8, 8, 1)
    M.G[0, 0] = -1
    with pytest.raises(RefusedError, match="first entry is negative"):
        M.matmul(torch.randn(3, 8))
