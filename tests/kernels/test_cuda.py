"""Which tensors kernels may read."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchldr.functional.krylov_dense import KRYLOV_DENSE
from torchldr.kernels import cuda


def test_no_tensors_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels would write through a null pointer, and what a tracer records would lack them."""
    monkeypatch.setattr(cuda, "unavailable", lambda: None)
    with FakeTensorMode():
        t, rings = torch.empty(2, 8, device="cuda"), torch.empty(2, 4, 8, device="cuda")
        assert not cuda.serves(1, t)
        assert not KRYLOV_DENSE._serves(rings, torch.float32, False)
    assert t.is_cuda
    assert not cuda.serves(1, t)
    assert not KRYLOV_DENSE._serves(rings, torch.float32, False)
