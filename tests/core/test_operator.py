"""A product as one operator, for compilers."""

from __future__ import annotations

import torch

from torchldr import LDRTridiagonal
from torchldr.core.operator import product


def test_vmap_over_vectors_and_over_tensors():
    M = LDRTridiagonal.random(5, 4, 2, dtype=torch.float64)
    x, G = torch.randn(3, 2, 4, dtype=torch.float64), torch.randn(3, 2, 5, dtype=torch.float64)
    by_vectors = torch.vmap(lambda v: product(M, v, transposed=False))(x)
    torch.testing.assert_close(by_vectors, x @ M.to_dense().mT)
    members = [M.with_tensors({**M.tensors, "G": g}) for g in G]
    y = torch.vmap(lambda g: product(members[0].with_tensors({**M.tensors, "G": g}), x[0], transposed=False))(
        G
    )
    torch.testing.assert_close(y, torch.stack([x[0] @ one.to_dense().mT for one in members]))
