"""What is known of a subdiagonal's range: the first number is waited for, later ones come when they come."""

from __future__ import annotations

import gc

import pytest
import torch

from torchldr import StructuredLinear
from torchldr.functional import joint, subdiagonal, watch
from torchldr.functional.later import Later


class Slow(Later):
    """A number that comes when the test says so."""

    arrived = False

    def here(self) -> bool:
        return self.arrived


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[Slow]:
    monkeypatch.setattr(watch, "Later", Slow)
    monkeypatch.setattr(Slow, "arrived", False)
    return Slow


def test_the_range_is_that_of_the_scales() -> None:
    s = torch.tensor([2.0, 4.0, 1 / 16])
    assert watch.reach(s) == 16  # of 1, 2, 8, 1/2
    assert watch.reach(torch.tensor([1.0, 0.0, 1.0])) == float("inf")
    assert watch.reach(torch.full((4096,), 1.05)) == pytest.approx(
        1.05**4096, rel=1e-3
    )  # float32 ends at 3e38


def test_later_numbers_are_not_waited_for(slow: type[Slow]) -> None:
    s = torch.ones(5, requires_grad=True)
    assert watch.reach(s) == 1
    with torch.no_grad():
        s[2] = 8
    assert watch.reach(s) == 1  # asked for
    assert watch.reach(s) == 1  # not here yet
    with torch.no_grad():
        s[2] = 64
    slow.arrived = True
    assert watch.reach(s) == 8  # of what it was when it was asked for; the next is asked for
    assert watch.reach(s) == 64
    assert watch.reach(s) == 64


def test_forgetting_waits_again(slow: type[Slow]) -> None:
    layer = StructuredLinear(6, 6, structure="ldr_sd")
    s = layer.get_parameter("subdiagonal_A")
    assert watch.reach(s) == 1
    with torch.no_grad():
        s[2] = 8
    assert watch.reach(s) == 1
    layer.drop_plan()
    assert watch.reach(s) == 8
    with torch.no_grad():
        s[2] = 16
    layer.load_state_dict(layer.state_dict())
    assert watch.reach(s) == 16


def test_what_is_gone_is_not_kept() -> None:
    s = torch.ones(5)
    watch.reach(s)
    before = len(watch._kept)
    del s
    gc.collect()
    watch.reach(torch.ones(7))
    assert len(watch._kept) <= before


def test_only_what_stays_is_watched() -> None:
    p = torch.nn.Parameter(torch.ones(5))
    assert watch.lasts(p)
    assert watch.lasts(p[1:])
    assert not watch.lasts(p * 2)
    with torch.inference_mode():
        assert not watch.lasts(torch.ones(3))
    assert torch.vmap(lambda t: torch.tensor(float(watch.lasts(t))))(torch.ones(2, 3)).sum() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dense_matrix_that_a_gpu_makes_where_the_guard_refuses(dtype: torch.dtype) -> None:
    """The same function and gradients as the split product."""
    draw = torch.Generator().manual_seed(0)
    m, n, r, b = 7, 10, 2, 3
    sides = []
    for size in (m, n):
        s = torch.rand(size - 1, dtype=dtype, generator=draw) + 0.5
        s[3] = 0
        V = torch.randn(r, size, dtype=dtype, generator=draw)
        sides.append(tuple(t.requires_grad_() for t in (s, torch.tensor(0.5, dtype=dtype), V)))
    x = torch.randn(b, n, dtype=dtype, generator=draw).requires_grad_()
    u = torch.randn(b, m, dtype=dtype, generator=draw)
    A, C = sides
    leaves, k = [*A, *C, x], min(m, n)
    y = x @ joint.shifted_sum(A[2], C[2], joint._lower(A), joint._lower(C), k).mT
    want = subdiagonal.matmul_by(None, *A, subdiagonal.rmatmul_by(None, *C, x, k))
    torch.testing.assert_close(y, want)
    got, expected = torch.autograd.grad(y, leaves, u), torch.autograd.grad(want, leaves, u)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
