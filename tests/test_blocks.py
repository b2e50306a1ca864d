"""BLAST, Kronecker and Monarch: their definitions, uneven blocks, and projections that nothing beats."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr import Blast, Kronecker, Monarch, StructuredLinear, from_dense, get_structure, testing
from torchldr.functional.grid import split

sides, seeds = st.integers(1, 20), st.integers(0, 2**31)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def blocks_of(W: Tensor, blocks: int) -> list[list[Tensor]]:
    (_, p), (_, q) = split(W.shape[0], blocks), split(W.shape[1], blocks)
    return [list(rows.split(q, 1)) for rows in W.split(p)]


# Definitions.


@given(m=sides, n=sides, seed=seeds, data=st.data())
@settings(max_examples=25)
def test_entries_of_monarch(m: int, n: int, seed: int, data: st.DataObject):
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
def test_entries_of_blast(m: int, n: int, seed: int, data: st.DataObject):
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


@given(m=sides, n=sides, data=st.data())
@settings(max_examples=25)
def test_kronecker_is_the_cropped_sum(m: int, n: int, data: st.DataObject):
    out, into = data.draw(st.none() | st.integers(1, m)), data.draw(st.none() | st.integers(1, n))
    rank = data.draw(st.integers(1, min(m, n, 3)))
    M = Kronecker.random(m, n, rank, out_blocks=out, in_blocks=into, dtype=torch.float64)
    a, b, c, d = M.sizes
    assert (a - 1) * b < m <= a * b
    assert (c - 1) * d < n <= c * d
    W = sum(torch.kron(A, B) for A, B in zip(M.A, M.B, strict=True))[:m, :n]
    torch.testing.assert_close(M.to_dense(), W)
    torch.testing.assert_close(M.materialize(), W)
    assert isinstance(M.T, Kronecker)
    torch.testing.assert_close(M.T.to_dense(), W.mT)


def test_no_parameter_of_monarch_is_without_effect():
    """At rank 1 each block is free to exchange a scale between its factors, and nothing else."""
    M = Monarch.random(7, 5, 1, blocks=3, dtype=torch.float64)
    dense = lambda G, H: M.with_tensors({"G": G, "H": H}).to_dense().flatten()
    J = torch.cat([j.flatten(1) for j in torch.func.jacrev(dense, argnums=(0, 1))(M.G, M.H)], 1)
    (u, _), (v, _) = M.grid
    assert torch.linalg.matrix_rank(J) == J.shape[1] - u * v


UNEVEN = [(name, {"blocks": blocks}) for name in ("monarch", "blast") for blocks in (1, 3, 7, 40)]
UNEVEN += [
    ("kronecker", {"out_blocks": out, "in_blocks": into})
    for out, into in ((1, 1), (40, 23), (7, 5), (None, 23))
]


@pytest.mark.parametrize(("name", "options"), UNEVEN)
def test_the_contract_holds_for_uneven_blocks(name: str, options: dict[str, Any]):
    M = testing.member(get_structure(name), 40, 23, 2, **options)
    testing.check_values(M)
    testing.check_gradients(M)
    assert torch.allclose(M.T.to_dense(), M.to_dense().mT)
    assert torch.allclose(M.materialize(), M.to_dense())


WRONG: list[tuple[object, type[Exception]]] = [
    (0, ValueError), (9, ValueError), (2.0, TypeError), (True, TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("blocks", "error"), WRONG)
@pytest.mark.parametrize(
    ("name", "option"),
    [("monarch", "blocks"), ("blast", "blocks"), ("kronecker", "out_blocks"), ("kronecker", "in_blocks")],
)
def test_wrong_blocks(name: str, option: str, blocks: object, error: type[Exception]):
    with pytest.raises(error, match="blocks must be"):
        StructuredLinear(8, 6, structure=name, rank=1, **{option: blocks})


# Projections.


@given(m=sides, n=sides, seed=seeds, data=st.data())
@settings(max_examples=25)
def test_the_projection_on_monarch_is_the_svd_of_each_block(m: int, n: int, seed: int, data: st.DataObject):
    blocks, rank = data.draw(st.integers(1, max(m, n))), data.draw(st.integers(1, min(m, n, 3)))
    W = normal(m, n, seed=seed)
    tails = [torch.linalg.svdvals(block)[rank:] for row in blocks_of(W, blocks) for block in row]
    found = from_dense(W, "monarch", rank, blocks=blocks)
    assert found.residual == pytest.approx((torch.cat(tails).norm() / W.norm()).item(), abs=1e-12)


@given(seed=seeds, rank=st.integers(1, 4))
@settings(max_examples=10)
def test_the_projection_on_kronecker_is_van_loans(seed: int, rank: int):
    W = normal(12, 20, seed=seed)
    rows = W.view(4, 3, 5, 4).permute(0, 2, 1, 3).reshape(20, 12)
    tail = torch.linalg.svdvals(rows)[rank:].norm() / W.norm()
    found = from_dense(W, "kronecker", rank, out_blocks=4, in_blocks=5)
    assert found.residual == pytest.approx(tail.item(), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "effort", "contained"),
    [("monarch", 1.0, True), ("blast", 0.5, True), ("kronecker", 1.0, False)],
)
@given(m=sides, n=sides, seed=seeds, weighted=st.sampled_from(["no", "few", "many"]))
@example(m=4, n=5, seed=0, weighted="many")  # cropped: without activations another minimum was found
@settings(max_examples=10, deadline=None)
def test_nothing_that_is_known_is_better(
    name: str, effort: float, contained: bool, m: int, n: int, seed: int, weighted: str
):
    """Not a lower rank, with activations not the projection without them, and not low rank if contained."""
    W, decay = normal(m, n, seed=seed), torch.logspace(0, -2, n, dtype=torch.float64)
    X = normal(2 if weighted == "few" else 3 * n, n, seed=seed + 1) * decay
    told = None if weighted == "no" else X
    X = torch.eye(n, dtype=torch.float64) if told is None else X

    def lost(name: str, rank: int, activations: Tensor | None) -> float:
        M = from_dense(W, name, rank, activations=activations, effort=effort).matrix.to_dense()
        return ((W - M) @ X.mT).norm().item()

    ranks = range(1, min(m, n, 3) + 1)
    ours = [lost(name, rank, told) for rank in ranks]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(ours))
    for rank, found in zip(ranks, ours, strict=True):
        assert found <= lost(name, rank, None) + 1e-9
        assert not contained or found <= lost("low_rank", rank, told) + 1e-9


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("name", "rank", "options"),
    [("monarch", 1, {"blocks": 3}), ("blast", 1, {"blocks": 3}), ("kronecker", 2, {})],
)
def test_with_much_effort_no_gradient_is_left(name: str, rank: int, options: dict[str, int], weighted: bool):
    W, X = normal(11, 13, seed=1), normal(40, 13, seed=2) if weighted else None
    M = from_dense(W, name, rank, activations=X, effort=100.0, **options).matrix
    X = torch.eye(13, dtype=torch.float64) if X is None else X
    leaves = {key: t.clone().requires_grad_() for key, t in M.tensors.items()}
    rest = (W - M.with_tensors(leaves).to_dense()) @ X.mT
    gradients = torch.autograd.grad(rest.square().sum() / (W @ X.mT).square().sum(), list(leaves.values()))
    assert all(float((g * t.detach()).norm()) < 2e-3 for g, t in zip(gradients, leaves.values(), strict=True))


def test_cropped_projections_on_kronecker_use_what_is_open():
    """The entries behind m and n are free: a better fit than that of the matrix padded with zeros."""
    W = normal(13, 13, seed=1)
    padded = torch.nn.functional.pad(W, (0, 3, 0, 3))
    ours = from_dense(W, "kronecker", 2, out_blocks=4, in_blocks=4).residual
    theirs = from_dense(padded, "kronecker", 2, out_blocks=4, in_blocks=4).matrix.to_dense()[:13, :13]
    assert ours < 0.999 * ((W - theirs).norm() / W.norm()).item()


def test_a_blast_member_of_one_term_is_found():
    """Which no matrix of low rank comes near."""
    W = Blast.random(20, 30, 1, blocks=5, dtype=torch.float64).to_dense()
    assert from_dense(W, "blast", 1, blocks=5).residual < 1e-10
    assert from_dense(W, "low_rank", 1).residual > 0.1


# Sums, products and systems.


def test_sums_of_blast_have_the_terms_of_both():
    M, N = (Blast.random(9, 8, rank, dtype=torch.float64) for rank in (1, 2))
    assert isinstance(M + N, Blast)
    assert (M + N).rank == 3
    torch.testing.assert_close((M + N).to_dense(), M.to_dense() + N.to_dense())
    other = Blast.random(9, 8, 1, blocks=5, dtype=torch.float64)
    assert not isinstance(M + other, Blast)
    torch.testing.assert_close((M + other).to_dense(), M.to_dense() + other.to_dense())


def test_products_of_kronecker_are_taken_factor_by_factor():
    M = Kronecker.random(11, 12, 2, out_blocks=3, in_blocks=4, dtype=torch.float64)
    N = Kronecker.random(12, 10, 2, out_blocks=4, in_blocks=5, dtype=torch.float64)
    product = M @ N
    assert isinstance(product, Kronecker)
    assert product.rank == 4
    torch.testing.assert_close(product.to_dense(), M.to_dense() @ N.to_dense())
    apart = Kronecker.random(12, 10, 2, out_blocks=3, in_blocks=5, dtype=torch.float64)
    assert not isinstance(M @ apart, Kronecker)
    torch.testing.assert_close((M @ apart).to_dense(), M.to_dense() @ apart.to_dense())


@pytest.mark.parametrize("transposed", [False, True])
def test_one_kronecker_product_is_solved_by_its_factors(transposed: bool):
    M = Kronecker.random(30, 30, 1, out_blocks=5, in_blocks=5, dtype=torch.float64)
    M = M.T if transposed else M
    b = normal(30, 2, seed=1)
    torch.testing.assert_close(M.solve(b), torch.linalg.solve(M.to_dense(), b), rtol=1e-8, atol=1e-8)
    M.tensors["G"].zero_()
    with pytest.raises(torch.linalg.LinAlgError):
        M.solve(b)


def test_blast_systems_are_solved_where_the_bases_are_large_enough():
    b = normal(8, seed=1)
    M = Blast.random(8, 8, 3, blocks=4, dtype=torch.float64)
    torch.testing.assert_close(M.to_dense() @ M.solve(b), b)
    with pytest.raises(torch.linalg.LinAlgError):
        Blast.random(8, 8, 1, blocks=4, dtype=torch.float64).solve(b)
