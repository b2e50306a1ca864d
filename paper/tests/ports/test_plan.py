"""Plans of the port product against the definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.timing import captured
from torchldr_paper.ports import PortPlan, port_matmul, port_rmatmul, series

pytestmark = pytest.mark.usefixtures("small_leaves")


def operands(
    n: int, r: int, b: int, k: int, corners: float, seed: int
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ring = torch.randn(3, n, generator=generator, dtype=torch.float64) * torch.tensor([[0.05], [0.1], [0.1]])
    ring[0] += 1
    ring[0, 0] *= corners
    ring[2, -1] *= corners
    V, U = (torch.randn(rows, n, generator=generator, dtype=torch.float64) for rows in (r, b))
    w = torch.randn(b, r, k, generator=generator, dtype=torch.float64)
    return list(ring / ring.abs().sum(0).max()), V, U, w


@pytest.mark.parametrize("leaf", [32, 128])
@given(
    n=st.one_of(st.integers(1, 70), st.integers(71, 600)),
    share=st.sampled_from([0.3, 1.0, 2.5]),
    corners=st.sampled_from([0.0, 1.0]),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=12, deadline=None)
def test_both_products(
    leaf: int, n: int, share: float, corners: float, sizes: tuple[int, int], seed: int
) -> None:
    (r, b), k = sizes, max(1, round(share * n))
    ring, V, U, w = operands(n, r, b, k, corners, seed)
    K = krylov_of_ring_reference(*ring, V, k)
    want = torch.einsum("bn,rnk->brk", U, K), torch.einsum("brk,rnk->bn", w, K)
    scale = torch.einsum("bn,rnk->brk", U.abs(), K.abs()), torch.einsum("brk,rnk->bn", w.abs(), K.abs())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "LEAF", leaf)
        for dtype, share in ((torch.float64, 1e-12), (torch.float32, 16 * torch.finfo(torch.float32).eps)):
            plan = PortPlan(*(x.to(dtype) for x in ring), V.to(dtype), k)
            assert (plan.n, plan.rank, plan.k, plan.oversampling) == (n, r, k, 4)
            for _ in range(2):  # a product leaves nothing behind
                got = plan.rmatmul(U.to(dtype)), plan.matmul(w.to(dtype))
                for x, y, size in zip(got, want, scale, strict=True):
                    assert x.dtype == dtype
                    assert x.shape == y.shape
                    assert float((x - y).abs().max()) <= share * float(size.max())


def test_a_plan_is_the_product() -> None:
    """The same numbers as without a plan."""
    ring, V, U, w = operands(300, 2, 2, 300, 1.0, 0)
    plan = PortPlan(*ring, V, 300, oversampling=2)
    torch.testing.assert_close(plan.rmatmul(U), port_rmatmul(*ring, V, U, 300, oversampling=2))
    torch.testing.assert_close(plan.matmul(w), port_matmul(*ring, V, w, oversampling=2))


def test_a_plan_keeps_its_operator() -> None:
    ring, V, U, _ = operands(100, 1, 1, 100, 1.0, 1)
    plan = PortPlan(*ring, V, 100)
    before = plan.rmatmul(U)
    for x in (*ring, V):
        x.mul_(0.5)
    torch.testing.assert_close(plan.rmatmul(U), before, rtol=0, atol=0)


def test_products_of_a_plan_are_transposes() -> None:
    """<w, K^T u> = <K w, u>, for inputs that are not contiguous and need gradients."""
    ring, V, _, _ = operands(150, 2, 1, 90, 1.0, 2)
    plan = PortPlan(*ring, V, 90)
    U = torch.randn(150, 4, dtype=torch.float64).mT.requires_grad_()
    w = torch.randn(4, 90, 2, dtype=torch.float64).mT.requires_grad_()
    left, right = (plan.rmatmul(U) * w).sum(), (plan.matmul(w) * U).sum()
    torch.testing.assert_close(left, right)
    assert not plan.rmatmul(U).requires_grad


def test_what_is_refused() -> None:
    x, V = torch.ones(8) / 3, torch.ones(1, 8)
    with pytest.raises(ValueError, match="power of two"):
        PortPlan(x, x, x, V, 8, oversampling=6)
    plan = PortPlan(x, x, x, V, 5)
    with pytest.raises(
        ValueError, match=r"PortPlan.rmatmul: U must be \(b, 8\) in torch.float32, got \(1, 7\)"
    ):
        plan.rmatmul(torch.ones(1, 7))
    with pytest.raises(ValueError, match=r"PortPlan.matmul: w must be \(b, 1, 5\) in torch.float32"):
        plan.matmul(torch.ones(1, 1, 5).double())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("corners", [0.0, 1.0])
def test_a_plan_in_a_cuda_graph(corners: float) -> None:
    ring, V, U, w = operands(1000, 2, 3, 700, corners, 3)
    K = krylov_of_ring_reference(*ring, V, 700)
    want = torch.einsum("bn,rnk->brk", U, K), torch.einsum("brk,rnk->bn", w, K)
    for dtype, share in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        plan = PortPlan(*(x.to("cuda", dtype) for x in ring), V.to("cuda", dtype), 700)
        held = [torch.zeros_like(x, dtype=dtype, device="cuda") for x in (U, w)]
        got = {}

        def products(plan=plan, held=held, got=got):
            got["rmatmul"], got["matmul"] = plan.rmatmul(held[0]), plan.matmul(held[1])

        graph = captured(products)
        held[0].copy_(U)
        held[1].copy_(w)
        graph.replay()
        for x, y in zip(got.values(), want, strict=True):
            assert float((x.cpu().double() - y).abs().max()) <= share * float(y.abs().max())
