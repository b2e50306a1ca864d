"""Monarch matrices: their definition, uneven blocks, and projections that nothing beats."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr import Monarch, StructuredLinear, from_dense, testing
from torchldr.functional.grid import split

sides, seeds = st.integers(1, 20), st.integers(0, 2**31)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def blocks_of(W: Tensor, blocks: int) -> list[list[Tensor]]:
    (_, p), (_, q) = split(W.shape[0], blocks), split(W.shape[1], blocks)
    return [list(rows.split(q, 1)) for rows in W.split(p)]


@given(m=sides, n=sides, seed=seeds, data=st.data())
@settings(max_examples=25)
def test_entries_are_those_of_the_definition(m: int, n: int, seed: int, data: st.DataObject):
    blocks, rank = data.draw(st.integers(1, max(m, n))), data.draw(st.integers(1, min(m, n, 3)))
    M = Monarch.random(m, n, rank, blocks=blocks, dtype=torch.float64)
    (u, p), (v, q) = M.grid
    assert (u - 1) * p < m <= u * p
    assert (v - 1) * q < n <= v * q
    G, H, row, column = M.G.view(rank, v, m), M.H.view(rank, u, n), seed % m, seed % n
    entry = (G[:, column // q, row] * H[:, row // p, column]).sum()
    torch.testing.assert_close(M.to_dense()[row, column], entry)
    assert all(
        torch.linalg.matrix_rank(block) <= rank for row in blocks_of(M.to_dense(), blocks) for block in row
    )


@given(m=sides, n=sides, seed=seeds, data=st.data())
@settings(max_examples=25)
def test_the_projection_is_the_svd_of_each_block(m: int, n: int, seed: int, data: st.DataObject):
    blocks, rank = data.draw(st.integers(1, max(m, n))), data.draw(st.integers(1, min(m, n, 3)))
    W = normal(m, n, seed=seed)
    tails = [torch.linalg.svdvals(block)[rank:] for row in blocks_of(W, blocks) for block in row]
    found = from_dense(W, "monarch", rank, blocks=blocks)
    assert found.residual == pytest.approx((torch.cat(tails).norm() / W.norm()).item(), abs=1e-12)


@given(m=sides, n=sides, seed=seeds, few=st.booleans())
@settings(max_examples=20, deadline=None)
def test_with_activations_nothing_that_is_known_is_better(m: int, n: int, seed: int, few: bool):
    """Not the plain projection, not low rank, not a lower rank."""
    W, X = normal(m, n, seed=seed), normal(2 if few else 3 * n, n, seed=seed + 1)
    X = X * torch.logspace(0, -2, n, dtype=torch.float64)

    def lost(M: Tensor) -> float:
        return ((W - M) @ X.mT).norm().item()

    ranks = range(1, min(m, n, 3) + 1)
    weighted = [lost(from_dense(W, "monarch", rank, activations=X).matrix.to_dense()) for rank in ranks]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(weighted))
    for rank, ours in zip(ranks, weighted, strict=True):
        assert ours <= lost(from_dense(W, "monarch", rank).matrix.to_dense()) + 1e-9
        assert ours <= lost(from_dense(W, "low_rank", rank, activations=X).matrix.to_dense()) + 1e-9


def test_with_activations_and_much_effort_no_gradient_is_left():
    W, X = normal(12, 10, seed=1), normal(40, 10, seed=2) @ normal(10, 10, seed=3)
    M = from_dense(W, "monarch", 1, blocks=3, activations=X, effort=100.0).matrix
    leaves = {name: M.tensors[name].clone().requires_grad_() for name in "GH"}
    rest = (W - M.with_tensors(leaves).to_dense()) @ X.mT
    gradients = torch.autograd.grad(rest.square().sum() / (W @ X.mT).square().sum(), list(leaves.values()))
    assert all(float((g * t.detach()).norm()) < 2e-3 for g, t in zip(gradients, leaves.values(), strict=True))


@pytest.mark.parametrize("blocks", [1, 3, 7, 40])
def test_the_contract_holds_for_uneven_blocks(blocks: int):
    M = testing.member(Monarch, 40, 23, 2, blocks=blocks)
    testing.check_values(M)
    testing.check_gradients(M)
    assert torch.allclose(M.T.to_dense(), M.to_dense().mT)
    assert torch.allclose(M.materialize(), M.to_dense())


def test_no_parameter_is_without_effect():
    """At rank 1 each block is free to exchange a scale between its factors, and nothing else."""
    M = Monarch.random(7, 5, 1, blocks=3, dtype=torch.float64)
    dense = lambda G, H: M.with_tensors({"G": G, "H": H}).to_dense().flatten()
    J = torch.cat([j.flatten(1) for j in torch.func.jacrev(dense, argnums=(0, 1))(M.G, M.H)], 1)
    (u, _), (v, _) = M.grid
    assert torch.linalg.matrix_rank(J) == J.shape[1] - u * v


@pytest.mark.parametrize(
    ("blocks", "error"), [(0, ValueError), (9, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_wrong_blocks(blocks: object, error: type[Exception]):
    with pytest.raises(error, match="blocks must be"):
        StructuredLinear(8, 6, structure="monarch", rank=1, blocks=blocks)
