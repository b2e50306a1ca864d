"""The products that a GPU trains with, by their plain form, against the dense matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import torchldr
from torchldr.functional.operator import Operator
from torchldr.functional.stein import stein_matrix
from torchldr.functional.subdiagonal import trained_pair
from torchldr.functional.subdiagonal.guard import RANGE, Side
from torchldr.functional.subdiagonal.pair import PAIR
from torchldr.functional.subdiagonal.trained_pair import TRAINED_PAIR


def drawn(n: int, r: int, spread: float, scale: float) -> Side:
    below = scale * (1 + spread * (2 * torch.rand(n - 1, dtype=torch.float64) - 1))
    below[::3] *= -1
    parts = below, torch.tensor(0.7, dtype=torch.float64), torch.randn(r, n, dtype=torch.float64)
    return tuple(t.requires_grad_() for t in parts)


@pytest.mark.parametrize("n", [2, 6, 16, 90])
@pytest.mark.parametrize("r", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_values_and_gradients(n: int, r: int, scale: float) -> None:
    """A scale that A has and C takes back does no harm."""
    torch.manual_seed(n)
    A, C = drawn(n, r, 0.02, scale), drawn(n, r, 0.02, 1 / scale)
    x, u = torch.randn(2, 5, n, dtype=torch.float64)
    x.requires_grad_()
    (a, f, G), (c, e, H) = A, C
    W = stein_matrix((f.reshape(1), a), (e.reshape(1), c), G, H)
    y = trained_pair.product(A, C, x, RANGE)
    assert y is not None
    wanted = torch.autograd.grad(x @ W.mT, [x, *A, *C], u)
    for got, want in zip(torch.autograd.grad(y, [x, *A, *C], u), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(y, x @ W.mT, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("broken", [0.0, 1e-4, torch.nan])
def test_operators_out_of_range_are_refused(broken: float) -> None:
    A, C = drawn(16, 1, 0.0, 1.0), drawn(16, 1, 0.0, 1.0)
    with torch.no_grad():
        A[0][5] = broken
    assert trained_pair.product(A, C, torch.randn(3, 16, dtype=torch.float64), RANGE) is None


@pytest.mark.parametrize("f", [1, -1])
@pytest.mark.parametrize(("n", "r"), [(2, 1), (12, 2), (64, 3)])
def test_shifts(n: int, r: int, f: int) -> None:
    torch.manual_seed(n)
    G, H = torch.randn(2, r, n, dtype=torch.float64)
    x, u = torch.randn(2, 5, n, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (G, H, x)]
    want = x @ stein_matrix((f, None), (-f, None), G, H).mT
    y = trained_pair.product_of_shifts(G, H, f, x)
    torch.testing.assert_close(y, want, rtol=1e-10, atol=1e-10)
    gradients = zip(torch.autograd.grad(y, leaves, u), torch.autograd.grad(want, leaves, u), strict=True)
    for got, wanted in gradients:
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("operator", [PAIR, TRAINED_PAIR], ids=lambda one: one.name)
def test_gradients_under_vmap(operator: Operator) -> None:
    torch.manual_seed(0)
    x, *rest = (t.double() if isinstance(t, torch.Tensor) else t for t in next(operator.samples()))
    tensors = 1 + sum(isinstance(t, torch.Tensor) for t in rest)

    def gradients(product: Callable[..., torch.Tensor], x: torch.Tensor) -> Any:
        loss = lambda *given: product(*given).square().sum()
        return torch.func.grad(loss, tuple(range(tensors)))(x, *rest)

    batches = torch.stack([x, -x, 2 * x])
    found = torch.vmap(partial(gradients, operator))(batches)
    each = [gradients(operator.plain, x) for x in batches]
    for got, want in zip(found, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(got, torch.stack(want))
    for i in range(tensors):
        got, want = (torch.func.jacrev(f, i)(x, *rest) for f in (operator, operator.plain))
        torch.testing.assert_close(got, want)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Layers take this product where a GPU would, by its plain form; counts its calls."""
    calls: list[Any] = []

    def plain(*given: torch.Tensor) -> torch.Tensor:
        calls.append(given)
        return TRAINED_PAIR.plain(*given)

    monkeypatch.setattr(trained_pair, "serves", lambda m, n, x: m == n)
    monkeypatch.setattr(trained_pair, "TRAINED_PAIR", plain)
    return calls


@pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like", "hankel_like"])
def test_layers(structure: str, as_on_a_gpu: list[Any]) -> None:
    layer = torchldr.StructuredLinear(12, 12, structure=structure)
    layer.product, x = "fast", torch.randn(3, 5, 12)
    as_on_a_gpu.clear()
    torch.testing.assert_close(layer(x), x @ layer.weight.mT + layer.bias)
    torch.testing.assert_close(layer.matrix().rmatmul(x, product="fast"), x @ layer.weight)
    assert len(as_on_a_gpu) == 2
    W = torch.stack([layer.weight, layer.weight])
    stacked = torchldr.stack([layer.matrix(), layer.matrix()])
    torch.testing.assert_close(stacked.matmul(x[:2], product="fast"), x[:2] @ W.mT)
    weights = {name: t.detach() for name, t in layer.named_parameters()}
    loss = lambda weights, x: torch.func.functional_call(layer, weights, (x,)).square().sum()
    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    for name, t in torch.func.grad(loss)(weights, x).items():
        torch.testing.assert_close(each[name].sum(0), t)
    assert len(as_on_a_gpu) == 2


def test_deterministic_mode_takes_another_product(as_on_a_gpu: list[Any]) -> None:
    """A GPU's cumsum raises there."""
    layer = torchldr.StructuredLinear(12, 12, structure="ldr_sd")
    layer.product, x = "fast", torch.randn(5, 12)
    as_on_a_gpu.clear()
    y = layer(x)
    assert len(as_on_a_gpu) == 1
    torch.use_deterministic_algorithms(True)
    try:
        torch.testing.assert_close(layer(x), y)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(as_on_a_gpu) == 1
