"""Circulant blocks by FFTs, some rows at a time."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

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
    columns, x = some(*shape).requires_grad_(), some(4, n, seed=1).requires_grad_()
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
        rows, run = some(5, 3), Mock(side_effect=lambda rows: rows)
        assert torch.equal(cyclic_rows._by_parts(run, columns, 3, rows.dtype, rows), rows)
        assert [len(call.args[0]) for call in run.call_args_list] == [step] * (5 // step) + [5 % step]


class Held(TorchDispatchMode):
    """The most bytes that tensors which are made in here, or of which parts are, hold together."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self._made = 0, dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        made = function(*arguments, **(options or {}))
        if isinstance(made, Tensor):
            storage = made.untyped_storage()
            self._made[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self._made = {place: held for place, held in self._made.items() if not held[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._made.values()))
        return made


@pytest.mark.parametrize("shape", [(64,), (4, 4, 16)])
def test_a_part_is_let_go_before_the_next(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside x and both gradients: spectra of dy, and two more tensors of their size."""
    monkeypatch.setattr(cyclic_rows, "ENTRIES", 1 << 12)
    columns, x = torch.randn(shape, requires_grad=True), torch.randn(1024, 64, requires_grad=True)
    y = cyclic_rows.product(columns, x, 64, torch.float32)
    with Held() as held:
        torch.autograd.grad(y, (columns, x), y.detach())
    assert held.most < 3 * x.nbytes + 3.6 * 4 * cyclic_rows.ENTRIES


def test_what_is_kept_is_the_input() -> None:
    """And the spectrum of the column, but none of the rows."""
    M, x = Circulant.random(64, 64), torch.randn(100, 64)
    saved: list[Tensor] = []
    M.tensors["column"].requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t), t)[1], lambda t: t):
        M.matmul(x, route="rows")
    assert sorted(t.numel() for t in saved) == [33, 64, 6400]
