"""Layers of many replicas through their dense matrices, against the class."""

from __future__ import annotations

import pytest
import torch

from torchldr.matrices import get_structure
from torchldr_paper.models.stacked.scan import STRUCTURES, scan_product


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("m", "n"), [(4, 12), (6, 8), (5, 7), (8, 8), (1, 3), (9, 4)])
@pytest.mark.parametrize("shared", [False, True])
def test_products_and_gradients_are_those_of_the_class(structure: str, m: int, n: int, shared: bool) -> None:
    draw = torch.Generator().manual_seed(m + n)
    kind, R, b = get_structure(structure), 3, 5
    r = min(2, m)
    members = [kind.random(m, n, r, dtype=torch.float64, generator=draw) for _ in range(R)]
    tensors = {
        name: torch.stack([M.tensors[name] for M in members]).requires_grad_() for name in members[0].tensors
    }
    x = torch.randn(*((b, n) if shared else (R, b, n)), dtype=torch.float64, generator=draw).requires_grad_()
    u = torch.randn(R, b, m, dtype=torch.float64, generator=draw)
    leaves = [*tensors.values(), x]
    y = scan_product(structure, tensors, x)
    dense = torch.stack(
        [
            kind.unchecked(m, n, {k: t[i] for k, t in tensors.items()}, M.options).to_dense()
            for i, M in enumerate(members)
        ]
    )
    expected = x @ dense.mT
    torch.testing.assert_close(y, expected)
    # At m = 1 nothing moves and an operator has no gradient.
    got, wanted = (
        torch.autograd.grad(out, leaves, u, allow_unused=True, materialize_grads=True)
        for out in (y, expected)
    )
    for name, ours, theirs in zip([*tensors, "x"], got, wanted, strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )
