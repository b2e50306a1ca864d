"""The stencil products of LDR-TD: compiled and plain against the definition; boundedness."""

import pytest
import torch

import torchldr
from torchldr.functional import stencil, tridiagonal
from torchldr.functional.reference import krylov_of_ring_reference, krylov_reference, tridiagonal_reference


def problem(m, k, seed=0, b=3, r=2):
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=g)
    ring = (1 + 0.02 * draw(m), 0.1 * draw(m), 0.1 * draw(m))
    return ring, draw(r, m), draw(b, r, k), draw(b, m)


@pytest.mark.parametrize("m", [1, 2, 3, 7])
def test_a_ring_is_the_tridiagonal_matrix_with_corners(m):
    (lower, diagonal, upper), V, *_ = problem(m, m)
    A = tridiagonal_reference(lower[1:], diagonal, upper[:-1], torch.stack((lower[0], upper[-1])))
    got = krylov_of_ring_reference(lower, diagonal, upper, V[0], 5)
    assert torch.allclose(got, krylov_reference(A, V[0], 5))


@pytest.mark.parametrize(
    ("m", "k"), [(1, 1), (2, 1), (2, 2), (5, 3), (31, 31), (65, 65), (129, 70), (200, 200)]
)
@pytest.mark.parametrize("form", ["compiled", "plain"])
def test_values_and_gradients(m, k, form, monkeypatch):
    if form == "plain":
        monkeypatch.setattr(stencil, "serves", lambda *tensors: False)
    elif stencil.unavailable():
        pytest.skip(stencil.unavailable())
    ring, V, w, u = problem(m, k)

    def forward(*args):
        *ring, V, w = args
        return sum(w[:, i] @ krylov_of_ring_reference(*ring, V[i], k).mT for i in range(len(V)))

    def transposed(*args):
        *ring, V, u = args
        return torch.stack([u @ krylov_of_ring_reference(*ring, v, k) for v in V], 1)

    for ours, exact, x in (
        (tridiagonal.krylov_matmul, forward, w),
        (lambda *args: tridiagonal.krylov_rmatmul(*args, k), transposed, u),
    ):
        inputs = [t.clone().requires_grad_() for t in (*ring, V, x)]
        got, want = ours(*inputs), exact(*inputs)
        assert torch.allclose(got, want, rtol=1e-11, atol=1e-11 * want.abs().max().item())
        direction = torch.randn_like(want)
        both = [
            torch.autograd.grad(y, inputs, direction, allow_unused=True, materialize_grads=True)
            for y in (got, want)
        ]
        for a, b in zip(*both, strict=True):
            assert torch.allclose(a, b, rtol=1e-10, atol=1e-10 * max(1, b.abs().max().item()))


@pytest.mark.parametrize("operator", ["superdiagonal .3", "random"])
def test_normalized_stays_finite_at_4096(operator):
    layer = torchldr.StructuredLinear(4096, 4096, bias=False, structure="ldr_td", normalize=True)
    with torch.no_grad():
        for name, p in layer.named_parameters():
            if operator == "random" and name not in "GH":
                p.normal_()
            elif name.startswith("superdiagonal"):
                p.fill_(0.3)
        assert layer(torch.randn(2, 4096)).isfinite().all()
