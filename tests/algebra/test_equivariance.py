"""Equivariance: displacement rank 0 as in the paper's proposition, relative errors, learned operators."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import torchldr
from torchldr import Circulant
from torchldr.algebra.equivariance import equivariance_error, learned_operators
from torchldr.matrices.classical.convolution import Convolution2d
from torchldr.matrices.classical.families import Hankel, Toeplitz
from torchldr.matrices.classical.transforms import DCT2, Legendre
from torchldr.operators import BlockDiagonal, Shift

sizes, seeds = st.integers(2, 40), st.integers(0, 2**20)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=20, deadline=None)
@given(n=sizes, seed=seeds, power=st.integers(-3, 5))
def test_rank_zero_is_equivariance_to_the_whole_group(n: int, seed: int, power: int):
    """A M = M B with invertible operators gives A^i M = M B^i for all integers i."""
    M, Z = Circulant.from_column(drawn(seed, n)), Shift(n, 1.0)
    assert equivariance_error(M, Z**power, Z**power) <= 1e-13
    A, B = drawn(seed, n, n), drawn(seed + 1, n, n)
    Q = torch.linalg.qr(A).Q
    D = torch.diag(0.5 + drawn(seed + 2, n).abs())
    A, B = Q @ D @ Q.mT, D  # Q B = A Q: M = Q p(D) for any polynomial p
    M = Q @ (D @ D - 3 * D)
    raised = torch.linalg.matrix_power
    assert equivariance_error(M, raised(A, power), raised(B, power)) <= 1e-9
    x = drawn(seed + 3, n)
    torch.testing.assert_close(M @ (B @ x), A @ (M @ x))


def test_transforms_at_their_points_and_convolutions_on_a_torus_are_equivariant():
    for M in (DCT2(12), Legendre(9)):
        A, B, _ = M.operators()
        assert equivariance_error(M, A, B) <= 1e-13
    M = Convolution2d(drawn(0, 2, 3, 3, 3), 4, 5, "circular")
    down = Shift(20, 1.0) ** 5
    right = BlockDiagonal([Shift(5, 1.0)] * 4)
    for move in (down, right):
        A, B = BlockDiagonal([move] * 2), BlockDiagonal([move] * 3)
        assert equivariance_error(M, A, B) <= 1e-13
    assert equivariance_error(Convolution2d(M.weight, 4, 5), A, B) > 0.1


@settings(max_examples=20, deadline=None)
@given(m=sizes, n=sizes, seed=seeds)
def test_the_error_is_the_relative_norm_of_the_displacement(m: int, n: int, seed: int):
    M, A, B = Toeplitz(drawn(seed, m), drawn(seed + 1, n)), drawn(seed + 2, m, m), drawn(seed + 3, n, n)
    W = M.to_dense()
    for form, left, right in (("sylvester", A @ W, W @ B), ("stein", W, A @ W @ B)):
        wanted = (left - right).norm() / (left.norm() ** 2 + right.norm() ** 2).sqrt()
        torch.testing.assert_close(equivariance_error(M, A, B, form), wanted)
        torch.testing.assert_close(equivariance_error(5 * W, A, B, form), wanted)


def test_what_is_equivariant_and_what_is_not():
    n = 256
    Z, W = Shift(n, 1.0), drawn(0, n, n)
    assert abs(float(equivariance_error(W, Z, Z)) - 1) < 0.02  # a random matrix knows of no shift
    assert equivariance_error(torch.zeros(n, n), Z, Z) == 0
    T = Toeplitz(drawn(1, n), drawn(2, n))
    assert equivariance_error(T, Z, Z) < 0.2  # but for two border lines of n
    assert equivariance_error(Hankel(drawn(1, n), drawn(2, n)), Z, Z) > 0.9
    assert equivariance_error(Hankel(drawn(1, n), drawn(2, n)), Z, Z.T) < 0.2


def test_the_error_is_differentiable():
    Z = Shift(4, 1.0)
    assert torch.autograd.gradcheck(lambda W: equivariance_error(W, Z, Z), drawn(0, 4, 4).requires_grad_())
    nothing = torch.zeros(4, 4, requires_grad=True)  # where a penalty should not make a weight nan
    equivariance_error(nothing, Z, Z).backward()
    assert not nothing.grad.any()


@pytest.mark.parametrize(
    "name", ["ldr_sd", "ldr_td", "toeplitz_like", "hankel_like", "vandermonde_like", "circulant"]
)
def test_the_operators_of_a_layer(name: str):
    rank = 2 if torchldr.get_structure(name).ranked else None
    layer = torchldr.StructuredLinear(24, 20, structure=name, rank=rank)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    found = learned_operators(layer)
    A, C = found.A.to_dense().double(), found.C.to_dense().double()
    W = layer.matrix().double().to_dense().detach()
    D = W - A @ W @ C.mT
    torch.testing.assert_close(found.displacement, D)
    assert torch.linalg.matrix_rank(D, rtol=1e-8) <= found.rank
    assert found.error == pytest.approx(float(equivariance_error(W, A, C.mT, "stein")))
    assert 0 <= found.error < 1.42
    assert not found.displacement.requires_grad
    assert f"{found.error:.4g}" in repr(found)


def test_training_finds_the_operators_of_its_target():
    """Fitted to what a weighted shift displaces, a layer becomes equivariant to that, not to shifts."""
    torch.manual_seed(0)
    n = 16
    target = torchldr.LDRSubdiagonal.random(n, n, 1, dtype=torch.float64)
    with torch.no_grad():
        for side in "AC":
            target.tensors[f"subdiagonal_{side}"].uniform_(0.7, 1.3)
            target.tensors[f"corner_{side}"].zero_()
    W = target.to_dense()
    layer = torchldr.StructuredLinear(n, n, False, structure="ldr_sd", rank=1, dtype=torch.float64)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = (layer.matrix().to_dense() - W).square().sum() / W.square().sum()
        value.backward()
        return value

    before = learned_operators(layer)
    optimiser.step(loss)
    found = learned_operators(layer)
    assert float(loss().detach()) < 1e-2
    assert before.error == before.shift_error  # the start is the shift
    assert found.error < found.shift_error


def test_the_picture():
    pytest.importorskip("matplotlib")
    layer = torchldr.StructuredLinear(24, 20, structure="ldr_td", rank=2)
    figure = learned_operators(layer).picture()
    assert len(figure.axes) == 5
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=60)
    assert stream.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: equivariance_error(torch.ones(3, 3), Shift(3), Shift(3), "lyapunov"),
            ValueError,
            "form must be",
        ),
        (
            lambda: equivariance_error(torch.ones(3, 4), Shift(3), Shift(3)),
            ValueError,
            "B must be 4 x 4 for a matrix of 3 x 4, got 3 x 3",
        ),
        (
            lambda: equivariance_error([1], Shift(1), Shift(1)),
            TypeError,
            "M must be a tensor or a linear map",
        ),
        (lambda: learned_operators(torchldr.Dense.random(3, 3)), TypeError, "Dense has no operators"),
        (
            lambda: learned_operators(torchldr.CauchyLike.random(3, 3, 1)),
            TypeError,
            "CauchyLike has no operators",
        ),
        (lambda: learned_operators(torch.ones(3, 3)), TypeError, "expected a StructuredLinear"),
    ],
)
def test_errors_say_what_is_wrong(make, error, message: str):
    with pytest.raises(error, match=message):
        make()
