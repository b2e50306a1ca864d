"""BLAST matrices: their definition, uneven blocks, and projections that are not worse than low rank."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr import Blast, StructuredLinear, from_dense, testing

sides, seeds = st.integers(1, 20), st.integers(0, 2**31)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(m=sides, n=sides, seed=seeds, data=st.data())
@settings(max_examples=25)
def test_entries_are_those_of_the_definition(m: int, n: int, seed: int, data: st.DataObject):
    blocks, rank = data.draw(st.none() | st.integers(1, max(m, n))), data.draw(st.integers(1, min(m, n, 3)))
    M = Blast.random(m, n, rank, blocks=blocks, dtype=torch.float64)
    (u, p), (v, q) = M.grid
    assert (u - 1) * p < m <= u * p
    assert (v - 1) * q < n <= v * q
    row, column = seed % m, seed % n
    entry = (M.G[:, row] * M.S[:, row // p, column // q] * M.H[:, column]).sum()
    torch.testing.assert_close(M.to_dense()[row, column], entry)
    torch.testing.assert_close(M.materialize(), M.to_dense())
    assert isinstance(M.T, Blast)
    torch.testing.assert_close(M.T.to_dense(), M.to_dense().mT)


@given(m=sides, n=sides, seed=seeds, weighted=st.sampled_from(["no", "few", "many"]))
@settings(max_examples=10, deadline=None)
def test_nothing_that_is_known_is_better(m: int, n: int, seed: int, weighted: str):
    """Not low rank, not a lower rank, and with activations not the projection without them."""
    W = normal(m, n, seed=seed)
    X = normal(2 if weighted == "few" else 3 * n, n, seed=seed + 1) * torch.logspace(
        0, -2, n, dtype=torch.float64
    )
    given = None if weighted == "no" else X
    X = torch.eye(n, dtype=torch.float64) if given is None else X

    def lost(name: str, rank: int, activations: Tensor | None) -> float:
        M = from_dense(W, name, rank, activations=activations, effort=0.5).matrix.to_dense()
        return ((W - M) @ X.mT).norm().item()

    ranks = range(1, min(m, n, 3) + 1)
    ours = [lost("blast", rank, given) for rank in ranks]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(ours))
    for rank, found in zip(ranks, ours, strict=True):
        assert found <= lost("low_rank", rank, given) + 1e-9
        assert found <= lost("blast", rank, None) + 1e-9


@pytest.mark.parametrize("weighted", [False, True])
def test_with_much_effort_no_gradient_is_left(weighted: bool):
    W, X = normal(11, 13, seed=1), normal(40, 13, seed=2) if weighted else None
    M = from_dense(W, "blast", 1, blocks=3, activations=X, effort=50.0).matrix
    X = torch.eye(13, dtype=torch.float64) if X is None else X
    leaves = {name: M.tensors[name].clone().requires_grad_() for name in "GSH"}
    rest = (W - M.with_tensors(leaves).to_dense()) @ X.mT
    gradients = torch.autograd.grad(rest.square().sum() / (W @ X.mT).square().sum(), list(leaves.values()))
    assert all(float((g * t.detach()).norm()) < 2e-3 for g, t in zip(gradients, leaves.values(), strict=True))


def test_a_member_of_one_term_is_found():
    """Which no matrix of low rank comes near."""
    W = Blast.random(20, 30, 1, blocks=5, dtype=torch.float64).to_dense()
    assert from_dense(W, "blast", 1, blocks=5).residual < 1e-10
    assert from_dense(W, "low_rank", 1).residual > 0.1


def test_sums_have_the_terms_of_both():
    M, N = (Blast.random(9, 8, rank, dtype=torch.float64) for rank in (1, 2))
    assert isinstance(M + N, Blast)
    assert (M + N).rank == 3
    torch.testing.assert_close((M + N).to_dense(), M.to_dense() + N.to_dense())
    other = Blast.random(9, 8, 1, blocks=5, dtype=torch.float64)
    assert not isinstance(M + other, Blast)
    torch.testing.assert_close((M + other).to_dense(), M.to_dense() + other.to_dense())


def test_systems_are_solved_where_the_bases_are_large_enough():
    b = normal(8, seed=1)
    M = Blast.random(8, 8, 3, blocks=4, dtype=torch.float64)
    torch.testing.assert_close(M.to_dense() @ M.solve(b), b)
    with pytest.raises(torch.linalg.LinAlgError):
        Blast.random(8, 8, 1, blocks=4, dtype=torch.float64).solve(b)


@pytest.mark.parametrize("blocks", [1, 3, 7, 40])
def test_the_contract_holds_for_uneven_blocks(blocks: int):
    M = testing.member(Blast, 40, 23, 2, blocks=blocks)
    testing.check_values(M)
    testing.check_gradients(M)


@pytest.mark.parametrize(("blocks", "error"), [(0, ValueError), (9, ValueError), (2.0, TypeError)])
def test_wrong_blocks(blocks: object, error: type[Exception]):
    with pytest.raises(error, match="blocks must be"):
        StructuredLinear(8, 6, structure="blast", rank=1, blocks=blocks)
