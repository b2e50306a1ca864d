"""Circulant blocks by FFTs, some rows at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from torchldr import BlockCirculant, Circulant, StructuredLinear
from torchldr.functional import cyclic_rows


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("shape", "n", "m"), [((8,), 8, 8), ((6,), 4, 6), ((6,), 6, 3), ((2, 3, 4), 11, 7), ((1, 2, 2), 4, 2)]
)
@pytest.mark.parametrize("entries", [1, 20, 1 << 24])
def test_values_and_derivatives(
    shape: tuple[int, ...], n: int, m: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cyclic_rows, "ENTRIES", entries)
    columns, x = some(*shape).requires_grad_(), some(5, n, seed=1).requires_grad_()
    made = columns if columns.ndim == 3 else columns[None, None]
    size = shape[-1]
    M = BlockCirculant(made.shape[0] * size, made.shape[1] * size, column=made, block_size=size)
    right = x @ M.to_dense()[:m, :n].mT
    product = lambda columns, x: cyclic_rows.product(columns, x, m, torch.float64)
    assert torch.allclose(product(columns, x), right)
    assert torch.autograd.gradcheck(product, (columns, x), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(product, (columns, x))
    for given in ((columns, x.detach()), (columns.detach(), x)):
        assert torch.autograd.gradcheck(product, given)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_narrow_numbers_keep_their_dtype(rows: int) -> None:
    columns, x = some(2, 2, 8).bfloat16().requires_grad_(), some(rows, 16).bfloat16().requires_grad_()
    y = cyclic_rows.product(columns, x, 16, torch.bfloat16)
    exact = cyclic_rows.product(columns.double(), x.double(), 16, torch.float64)
    u = some(rows, 16, seed=2).bfloat16()
    got = torch.autograd.grad(y, (columns, x), u)
    right = torch.autograd.grad(exact, (columns, x), u.double())
    assert y.dtype == torch.bfloat16
    for a, b in zip((y, *got), (exact, *right), strict=True):
        assert (a.double() - b.double()).norm() <= 2**-7 * b.double().norm()


@pytest.mark.parametrize(
    "options", [{"structure": "circulant"}, {"structure": "block_circulant", "block_size": 8}]
)
@pytest.mark.parametrize("autocast", [False, True])
def test_layers_take_the_route(options: dict[str, Any], autocast: bool) -> None:
    layer, x = StructuredLinear(24, 16, **options), torch.randn(2, 3, 24)
    found = []
    for route in ("rows", "fft"):
        layer.route = route
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = layer(x)
        y.float().square().sum().backward()
        found.append([y, *(p.grad for p in layer.parameters())])
    assert found[0][0].dtype == (torch.bfloat16 if autocast else torch.float32)
    for a, b in zip(*found, strict=True):
        assert torch.allclose(
            a.float(), b.float(), rtol=0.02 if autocast else 1e-4, atol=0.1 if autocast else 1e-4
        )


def test_parts_are_as_long_as_the_blocks_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few entries a row has: its transform has those of its blocks."""
    monkeypatch.setattr(cyclic_rows, "ENTRIES", 64)
    for columns, step in ((some(32), 2), (some(4, 1, 8), 2), (some(1, 2, 8), 4)):
        parts = [len(part) for (part,) in cyclic_rows._parts(columns, some(5, 3))]
        assert parts == [step] * (5 // step) + [5 % step]


def test_what_is_kept_is_the_input() -> None:
    """No spectrum of all rows."""
    M, x = Circulant.random(64, 64), torch.randn(100, 64)
    saved: list[Tensor] = []
    M.tensors["column"].requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        M.matmul(x, route="rows")
    assert sorted(t.numel() for t in saved) == [64, 6400]
