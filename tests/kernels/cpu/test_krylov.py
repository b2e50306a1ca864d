"""The C stencil against its definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.kernels.cpu import krylov, library, threads

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

# R, r, k, m
SIZES = [(1, 1, 1, 1), (2, 2, 3, 1), (1, 2, 4, 2), (2, 1, 5, 3), (2, 3, 1, 17), (2, 3, 7, 17), (1, 2, 9, 16)]
SIZES += [(2, 2, 40, 64), (1, 1, 33, 70)]


def defined(tensors: list[Tensor], dK: Tensor) -> list[Tensor]:
    """The columns and all gradients, in float64."""
    *ring, V = (t.double().requires_grad_() for t in tensors)
    each = [krylov_of_ring_reference(*(t[i] for t in ring), V[i], dK.shape[2]).mT for i in range(V.shape[0])]
    K = torch.stack(each)
    found = torch.autograd.grad((dK.double() * K).sum(), (*ring, V), allow_unused=True)
    return [
        K.detach(),
        *(torch.zeros_like(t) if g is None else g for g, t in zip(found, (*ring, V), strict=True)),
    ]


def hold(R: int, r: int, k: int, m: int, dtype: torch.dtype, size: float) -> None:
    tensors = [size * torch.randn(R, m) for _ in range(3)]
    tensors = [t.to(dtype) for t in (*tensors, torch.randn(R, r, m))]
    dK = torch.randn(R, r, k, m).to(dtype)
    K = krylov.columns(*tensors, k)
    got, right = [K, *krylov.adjoint(*tensors, K, dK)], defined(tensors, dK)
    bounds, eps = defined([t.abs() for t in tensors], dK.abs()), torch.finfo(dtype).eps
    for found, wanted, bound in zip(got, right, bounds, strict=True):
        assert found.is_contiguous()
        assert ((found.double() - wanted).abs() <= 4 * (k + m) * eps * bound + 1e-37).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("size", [0.01, 0.4, 1.0])
def test_columns_and_gradients(size: float, dtype: torch.dtype) -> None:
    for seed, sizes in enumerate(SIZES):
        torch.manual_seed(seed)
        hold(*sizes, dtype, size)


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WORTHWHILE", 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        hold(4, 2, 20, 37, torch.float32, 0.4)
    finally:
        torch.set_num_threads(before)
