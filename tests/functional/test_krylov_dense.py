"""Dense matrices of LDR-TD by kernels, whose Krylov columns are here made in plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torchldr
from torchldr import testing
from torchldr.functional import krylov_dense, tridiagonal
from torchldr.kernels import cuda


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def adjoint(rings: Tensor, K: Tensor, dK: Tensor) -> Tensor:
        assert dK.data_ptr()  # which tensors of vmap have not
        pull = torch.func.vjp(lambda t: columns(t, K.shape[2]), rings)[1]
        return pull(dK)[0]

    monkeypatch.setattr(cuda, "krylov_columns", columns)
    monkeypatch.setattr(cuda, "krylov_adjoint", adjoint)
    monkeypatch.setattr(krylov_dense.KRYLOV_DENSE, "_serves", lambda *given: True)
    monkeypatch.setattr(krylov_dense, "takes", lambda G: True)


def columns(rings: Tensor, k: int) -> Tensor:
    """What a GPU's kernels make of rings (R, 3 + r, m): upper, lower, diagonal and start vectors."""
    upper, lower, diagonal = rings[:, :3].unbind(1)
    return tridiagonal.krylov_of_ring(lower, diagonal, upper, rings[:, 3:], k).contiguous()


def dense(rings: Tensor) -> Tensor:
    return krylov_dense.krylov_dense(rings, torch.float64, rough=False)


def some_rings(*leading: int, rank: int = 2, m: int = 5) -> Tensor:
    g = torch.Generator().manual_seed(m)
    return torch.randn(*leading, 2, 3 + rank, m, dtype=torch.float64, generator=g).div_(2).requires_grad_()


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("m", "rank", "count"), [(1, 1, 0), (2, 1, 0), (3, 2, 2), (40, 3, 0), (17, 1, 3)])
def test_it_is_the_matrix(m: int, rank: int, count: int, normalize: bool) -> None:
    made = [
        torchldr.LDRTridiagonal.random(
            m, m, rank, normalize=normalize, dtype=torch.float64, generator=torch.Generator().manual_seed(i)
        )
        for i in range(count or 1)
    ]
    M = torchldr.stack(made) if count else made[0]
    assert M.dense_in(torch.float64).shape == M.shape
    assert torch.allclose(M.dense_in(torch.float64), M.to_dense(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("regime", testing.REGIMES)
def test_every_regime(regime: str) -> None:
    """In float32, values and gradients, against the definition in float64."""
    M = testing.member(torchldr.LDRTridiagonal, 48, 48, 2, regime=regime)
    wide = M.double()
    both = [{name: t.clone().requires_grad_() for name, t in of.tensors.items()} for of in (M, wide)]
    made, exact = (of.with_tensors(tensors) for of, tensors in zip((M, wide), both, strict=True))
    W, right, D = made.dense_in(torch.float32), exact.to_dense(), some_rings(rank=45, m=48)[0].detach()
    bound = testing.tolerance(torch.float32, 48)
    assert ((W - right).abs() <= bound * wide.magnitude()).all()
    got = torch.autograd.grad(W, both[0].values(), D.float())
    for a, b in zip(got, torch.autograd.grad(right, both[1].values(), D), strict=True):
        assert (a - b).abs().max() <= bound * (b.abs().max() + wide.magnitude().max() * D.abs().max())


@pytest.mark.parametrize("leading", [(), (2,)])
def test_derivatives(leading: tuple[int, ...]) -> None:
    rings, fast = some_rings(*leading), len(leading) > 0  # random directions alone, of a stack
    assert torch.autograd.gradcheck(
        dense, rings, check_forward_ad=True, check_batched_grad=True, fast_mode=fast
    )
    assert torch.autograd.gradgradcheck(dense, rings, fast_mode=True)
    plain = lambda rings: krylov_dense.KRYLOV_DENSE.plain(rings, torch.float64)
    found, right = (torch.func.jacrev(of)(rings.detach()) for of in (dense, plain))
    assert torch.allclose(found, right, rtol=0, atol=1e-12)


def test_vmap() -> None:
    rings = some_rings(3).detach()
    assert torch.equal(torch.vmap(dense)(rings), dense(rings))
    assert torch.equal(torch.vmap(dense, 2)(rings.movedim(0, 2)), dense(rings))


def test_hooks_may_give_other_strides_back() -> None:
    rings = some_rings(2)
    (right,) = torch.autograd.grad(dense(rings).sum(), rings)

    def unpack(t: Tensor) -> Tensor:
        return t.mT.contiguous().mT

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        W = dense(rings)
    assert torch.allclose(torch.autograd.grad(W.sum(), rings)[0], right)


def test_gradients_have_the_dtype_of_the_rings() -> None:
    rings = some_rings().detach().bfloat16().requires_grad_()
    W = krylov_dense.krylov_dense(rings, torch.bfloat16, rough=False)
    exact = dense(rings.detach().double())
    assert W.dtype == torch.bfloat16
    assert torch.allclose(W.double(), exact, rtol=2**-8, atol=1e-6)
    W.backward(torch.ones_like(W))
    assert rings.grad is not None
    assert rings.grad.dtype == torch.bfloat16


def test_powers_that_grow_run_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tridiagonal, "UNSEEN", 16)
    monkeypatch.setattr(tridiagonal, "GROWTH", 100)
    g = torch.Generator().manual_seed(0)
    rings = torch.randn(2, 4, 96, generator=g).mul_(0.2)
    rings[:, 1] += 1
    given = rings.requires_grad_()
    wide = rings.detach().double().requires_grad_()
    W = krylov_dense.krylov_dense(given, torch.float32, rough=False)
    right = dense(wide)
    assert not tridiagonal.lost(given, 16)
    assert tridiagonal.lost(given, 96, [tridiagonal.sizes(columns(given, 96))])
    D = torch.randn(96, 96, generator=g)
    got, exact = torch.autograd.grad(W, given, D)[0], torch.autograd.grad(right, wide, D.double())[0]
    assert (W - right).abs().max() <= 1e-6 * right.abs().max()
    assert (got - exact).abs().max() <= 1e-6 * exact.abs().max()
