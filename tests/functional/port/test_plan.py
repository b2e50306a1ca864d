"""Plans of the port product against the definition, and the compiled spectra against polynomials."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr.functional.port import series as port_series
from torchldr.functional.port import sweep as port_sweep
from torchldr.functional.port.product import PortPlan, port_matmul, port_rmatmul
from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.kernels.cpu import compiled
from torchldr.timing import captured

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


@pytest.mark.parametrize("form", ["compiled", "torch", "larger leaves"])
@given(
    n=st.one_of(st.integers(1, 70), st.integers(71, 600)),
    share=st.sampled_from([0.3, 1.0, 2.5]),
    corners=st.sampled_from([0.0, 1.0]),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=12, deadline=None)
def test_both_products(
    form: str, n: int, share: float, corners: float, sizes: tuple[int, int], seed: int
) -> None:
    (r, b), k = sizes, max(1, round(share * n))
    ring, V, U, w = operands(n, r, b, k, corners, seed)
    K = krylov_of_ring_reference(*ring, V, k)
    want = torch.einsum("bn,rnk->brk", U, K), torch.einsum("brk,rnk->bn", w, K)
    scale = torch.einsum("bn,rnk->brk", U.abs(), K.abs()), torch.einsum("brk,rnk->bn", w.abs(), K.abs())
    with pytest.MonkeyPatch.context() as patch:
        if form != "compiled":
            patch.setattr(port_sweep.compiled, "why_not", lambda: "switched off")
        if form == "larger leaves":
            patch.setattr(port_series, "LEAF", 128)  # c = 4 below
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


def test_the_two_forms_agree_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long enough for threads to share rows, cuts and places."""
    if compiled.why_not():
        pytest.skip("numba is not installed")
    ring, V, U, w = operands(2000, 1, 2, 2000, 1.0, 4)
    before = torch.get_num_threads()
    found = []
    for threads, form in ((1, "compiled"), (3, "compiled"), (1, "torch")):
        torch.set_num_threads(threads)
        if form == "torch":
            monkeypatch.setattr(port_sweep.compiled, "why_not", lambda: "switched off")
        plan = PortPlan(*ring, V, 2000)
        found.append((plan.rmatmul(U), plan.matmul(w)))
    torch.set_num_threads(before)
    for other in found[1:]:
        for x, y in zip(found[0], other, strict=True):
            assert float((x - y).abs().max()) <= 5e-12 * float(y.abs().max())


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("M", [64, 128, 256, 2048])
def test_spectra_are_values_of_polynomials(M: int, dtype: str) -> None:
    if compiled.why_not():
        pytest.skip("numba is not installed")
    from torchldr.kernels.cpu.port import levels as compiled_port
    from torchldr.kernels.cpu.port import spectra as compiled_spectra

    rng = np.random.default_rng(M)
    x = rng.standard_normal((3, M)).astype(dtype)
    R, constants = M + compiled_spectra.EXTRA, compiled_spectra.constants(M, dtype)
    rows, scratch = np.full((3, R), 7, dtype), np.empty(5 * R, dtype)
    compiled_port.to_spectra(x.ravel(), M, M, rows.reshape(-1), M, 0, 3, scratch, constants)

    def complex_values(row: np.ndarray) -> np.ndarray:
        parts = row.astype(float).reshape(-1, 2, 4)
        return (parts[:, 0] + 1j * parts[:, 1]).ravel()

    z = complex_values(compiled_spectra.roots(M, "float64"))
    real = np.abs(z) > 0.5
    assert real.sum() == M // 2 + 1  # 1, -1 and one of each pair
    np.testing.assert_allclose(z[real] ** M, 1, atol=1e-10)
    eps, powers = np.finfo(dtype).eps, z[real][:, None] ** np.arange(M)
    for row, coefficients in zip(rows, x, strict=True):
        values = complex_values(row)
        exact = powers @ coefficients.astype(float)
        assert np.abs(values[real] - exact).max() <= max(1e-9, 20 * eps * np.abs(coefficients).sum())
        assert np.all(values[~real] == 0)
    back = np.ones((3, M), dtype)
    compiled_port.add_series(rows.reshape(-1), M, back.reshape(-1), M, 0, 3, scratch, constants)
    np.testing.assert_allclose(back - 1, x, atol=30 * eps)


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
