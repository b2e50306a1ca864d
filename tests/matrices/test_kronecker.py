"""Sums of Kronecker products: their definition, cropped sizes, projections, products and systems."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchldr import Kronecker, StructuredLinear, from_dense, testing

sides, seeds = st.integers(1, 20), st.integers(0, 2**31)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(m=sides, n=sides, data=st.data())
@settings(max_examples=25)
def test_it_is_the_cropped_sum(m: int, n: int, data: st.DataObject):
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


@given(seed=seeds, rank=st.integers(1, 4))
@settings(max_examples=10)
def test_the_projection_is_van_loans(seed: int, rank: int):
    W = normal(12, 20, seed=seed)
    rows = W.view(4, 3, 5, 4).permute(0, 2, 1, 3).reshape(20, 12)
    tail = torch.linalg.svdvals(rows)[rank:].norm() / W.norm()
    found = from_dense(W, "kronecker", rank, out_blocks=4, in_blocks=5)
    assert found.residual == pytest.approx(tail.item(), abs=1e-12)


@given(m=sides, n=sides, seed=seeds, few=st.booleans())
@example(m=4, n=5, seed=0, few=False)  # cropped: without activations another minimum was found
@settings(max_examples=10, deadline=None)
def test_with_activations_it_is_not_worse_than_without_nor_than_a_lower_rank(
    m: int, n: int, seed: int, few: bool
):
    W, X = normal(m, n, seed=seed), normal(2 if few else 3 * n, n, seed=seed + 1)
    X = X * torch.logspace(0, -2, n, dtype=torch.float64)

    def lost(M: Tensor) -> float:
        return ((W - M) @ X.mT).norm().item()

    ranks = range(1, min(m, n, 3) + 1)
    weighted = [lost(from_dense(W, "kronecker", rank, activations=X).matrix.to_dense()) for rank in ranks]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(weighted))
    for rank, ours in zip(ranks, weighted, strict=True):
        assert ours <= lost(from_dense(W, "kronecker", rank).matrix.to_dense()) + 1e-9


def test_cropped_projections_use_what_is_open():
    """The entries behind m and n are free: a better fit than that of the matrix padded with zeros."""
    W = normal(13, 13, seed=1)
    padded = torch.nn.functional.pad(W, (0, 3, 0, 3))
    ours = from_dense(W, "kronecker", 2, out_blocks=4, in_blocks=4).residual
    theirs = from_dense(padded, "kronecker", 2, out_blocks=4, in_blocks=4).matrix.to_dense()[:13, :13]
    assert ours < 0.999 * ((W - theirs).norm() / W.norm()).item()


@pytest.mark.parametrize("weighted", [False, True])
def test_with_much_effort_no_gradient_is_left(weighted: bool):
    W, X = normal(11, 13, seed=1), normal(40, 13, seed=2) if weighted else None
    M = from_dense(W, "kronecker", 2, activations=X, effort=100.0).matrix
    X = torch.eye(13, dtype=torch.float64) if X is None else X
    leaves = {name: M.tensors[name].clone().requires_grad_() for name in "GH"}
    rest = (W - M.with_tensors(leaves).to_dense()) @ X.mT
    gradients = torch.autograd.grad(rest.square().sum() / (W @ X.mT).square().sum(), list(leaves.values()))
    assert all(float((g * t.detach()).norm()) < 2e-3 for g, t in zip(gradients, leaves.values(), strict=True))


def test_products_are_taken_factor_by_factor():
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
def test_one_product_is_solved_by_its_factors(transposed: bool):
    M = Kronecker.random(30, 30, 1, out_blocks=5, in_blocks=5, dtype=torch.float64)
    M = M.T if transposed else M
    b = normal(30, 2, seed=1)
    torch.testing.assert_close(M.solve(b), torch.linalg.solve(M.to_dense(), b), rtol=1e-8, atol=1e-8)
    M.tensors["G"].zero_()
    with pytest.raises(torch.linalg.LinAlgError):
        M.solve(b)


@pytest.mark.parametrize(("out", "into"), [(1, 1), (40, 23), (7, 5), (None, 23)])
def test_the_contract_holds_for_all_sizes(out: int | None, into: int):
    M = testing.member(Kronecker, 40, 23, 2, out_blocks=out, in_blocks=into)
    testing.check_values(M)
    testing.check_gradients(M)


@pytest.mark.parametrize(
    ("options", "error"),
    [({"out_blocks": 0}, ValueError), ({"in_blocks": 9}, ValueError), ({"out_blocks": 2.0}, TypeError)],
)
def test_wrong_blocks(options: dict[str, object], error: type[Exception]):
    with pytest.raises(error, match="blocks must be"):
        StructuredLinear(8, 6, structure="kronecker", rank=1, **options)
