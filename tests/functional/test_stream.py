"""Products of LDR-TD by Krylov matrices and by tiles of their columns, against the definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchldr.functional import krylov, stream, tridiagonal
from torchldr.functional.reference import krylov_of_ring_reference

FORMS = ["held", "tiles", "plain"]


@pytest.fixture
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Matrices that are held, by what serves here; tiles of them, made in plain torch; no kernel at all."""
    if request.param == "tiles":
        monkeypatch.setattr(stream, "HELD", 0)
        monkeypatch.setattr(stream, "WIDTH", 5)
        monkeypatch.setattr(krylov, "_columns", lambda *given, out=None: tridiagonal.krylov_of_ring(*given))
        monkeypatch.setattr(krylov, "adjoint", plain_adjoint)
        monkeypatch.setattr(stream.STREAM, "_serves", lambda *given: True)
    if request.param == "plain":
        monkeypatch.setattr(stream, "HELD", 0)
        monkeypatch.setattr(stream.STREAM, "_serves", lambda *given: False)
    return request.param


every_form = pytest.mark.parametrize("form", FORMS, indirect=True)


def plain_adjoint(*given: Tensor) -> list[Tensor]:
    *inputs, K, dK = given
    pull = torch.func.vjp(lambda *t: tridiagonal.krylov_of_ring(*t, K.shape[-2]), *inputs)[1]
    return list(pull(dK))


def problem(m: int, seed: int = 0, r: int = 2) -> tuple[Tensor, ...]:
    """Lower, diagonal, upper and start vectors of an operator near the shift."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=g)
    return 1 + 0.02 * draw(m), 0.1 * draw(m), 0.1 * draw(m), draw(r, m)


def product(*inputs: Tensor) -> Tensor:
    return stream.product(inputs[:4], inputs[4:8], inputs[8])


def definition(*inputs: Tensor) -> Tensor:
    """The product from dense Krylov matrices."""
    *A, G, c, d, e, H, x = inputs
    k = min(G.shape[-1], H.shape[-1])
    return sum(
        x @ krylov_of_ring_reference(c, d, e, h, k) @ krylov_of_ring_reference(*A, g, k).mT
        for g, h in zip(G, H, strict=True)
    )


@every_form
@pytest.mark.parametrize(
    ("m", "n"), [(1, 1), (2, 1), (2, 2), (5, 3), (3, 6), (7, 7), (31, 31), (129, 150), (300, 137)]
)
def test_values_and_gradients(m, n, form):
    inputs = [*problem(m), *problem(n, seed=1), torch.randn(3, n, dtype=torch.float64)]
    inputs = [t.requires_grad_() for t in inputs]
    got, want = product(*inputs), definition(*inputs)
    assert torch.allclose(got, want, rtol=1e-11, atol=1e-11 * want.abs().max().item())
    direction = torch.randn_like(want)
    both = [
        torch.autograd.grad(y, inputs, direction, allow_unused=True, materialize_grads=True)
        for y in (got, want)
    ]
    for a, b in zip(*both, strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-10 * max(1, b.abs().max().item()))


@every_form
def test_more_derivatives(form):
    inputs = [*problem(3, r=1), *problem(2, seed=1, r=1), torch.randn(2, 2, dtype=torch.float64)]
    inputs = [t.requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(product, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(product, inputs)


def growing(n: int, seed: int) -> tuple[Tensor, ...]:
    """An operator near the shift whose powers reach 1e7 and more on the way, and lose float32's digits."""
    g = torch.Generator().manual_seed(seed)
    lower, diagonal, upper, V = (torch.randn(1, n, generator=g) for _ in range(4))
    return (1 + 0.05 * lower)[0], 0.1 * diagonal[0], 0.1 * upper[0], V


@every_form
def test_powers_that_grow_are_as_exact_as_others(form, monkeypatch):
    """Of all rows at once, and of each by a map."""
    monkeypatch.setattr(stream, "WIDTH", 256)
    A, C = growing(1536, 0), growing(1536, 1)
    x, direction = torch.randn(2, 1536), torch.randn(2, 1536)
    inputs = [t.requires_grad_() for t in (*A, *C, x)]
    wide = [t.detach().double().requires_grad_() for t in inputs]
    want = product(*wide)
    right = [want.detach(), *torch.autograd.grad(want, wide, direction.double())]
    by_rows = torch.vmap(lambda x: product(*inputs[:8], x[None])[0])
    for got in (product(*inputs), by_rows(inputs[8])):
        both = [got.detach(), *torch.autograd.grad(got, inputs, direction)]
        for a, b in zip(both, right, strict=True):
            assert a.dtype == torch.float32
            assert (a - b).abs().max() <= 1e-6 * b.abs().max()


@pytest.mark.parametrize(("n", "spread"), [(640, 1.5), (1000, 1.5), (1024, 1.2)])
def test_powers_that_grow_within_a_thousand_columns(n, spread):
    """Fewer lose as much: of these some were off by 0.1 and by 5 times their size, the last between tiles."""
    for seed in range(6):
        (a, b, c, G), (d, e, f, H) = growing(n, seed), growing(n, seed + 50)
        inputs = 2 * a - 1, spread * b, spread * c, G, 2 * d - 1, spread * e, spread * f, H
        x = torch.randn(1, n, generator=torch.Generator().manual_seed(seed))
        got = product(*inputs, x)
        right = product(*(t.double() for t in inputs), x.double())
        if right.abs().max() < 1e30:
            assert (got - right).abs().max() <= 2e-4 * right.abs().max()


@pytest.mark.parametrize("mapped", range(8))
def test_vmap_over_a_part_of_a_large_operator(mapped):
    inputs, x = [*growing(1056, 0), *growing(1056, 1)], torch.randn(1, 1056)
    right = product(*(t.double() for t in (*inputs, x)))
    inputs[mapped] = inputs[mapped][None]
    dims = tuple(0 if i == mapped else None for i in range(8))
    got = torch.vmap(lambda *t: product(*t, x), dims)(*inputs)
    assert (got[0] - right).abs().max() <= 1e-6 * right.abs().max()


@every_form
@pytest.mark.parametrize("stack", [(2,), (2, 1)])
def test_stacks_are_each_of_their_matrices(form, stack):
    """Also where powers grow, and where matrices share their vectors; to the bound of a single matrix."""
    sides = [[growing(640, seed + i) for i in range(2)] for seed in (0, 50)]
    inputs = [
        torch.stack(pair).reshape(*stack, *pair[0].shape)
        for side in sides
        for pair in zip(*side, strict=True)
    ]
    inputs = [t.requires_grad_() for t in (*inputs, torch.randn(*[1] * len(stack), 3, 640))]
    got = product(*inputs).flatten(0, len(stack) - 1)
    direction = torch.randn_like(got)
    found = torch.autograd.grad(got, inputs, direction)
    shared = torch.zeros(3, 640, dtype=torch.float64)
    for i in range(2):
        alone = [
            t.detach().double().requires_grad_()
            for t in (*sides[0][i], *sides[1][i], inputs[-1].reshape(3, 640))
        ]
        want = product(*alone)
        right = torch.autograd.grad(want, alone, direction[i].double())
        shared += right[-1]
        parts = [t.flatten(0, len(stack) - 1)[i] for t in found[:-1]]
        for a, b in zip((got[i], *parts), (want, *right[:-1]), strict=True):
            assert (a - b).abs().max() <= 2e-4 * b.abs().max()
    assert (found[-1].reshape(3, 640) - shared).abs().max() <= 2e-4 * shared.abs().max()
