"""Tridiagonal operators as rings, their row sums; boundedness."""

import pytest
import torch

import torchldr
from torchldr.functional.reference import (
    krylov_of_ring_reference,
    krylov_of_shift_reference,
    krylov_reference,
    shift_reference,
    tridiagonal_reference,
)


def problem(m, seed=0, r=2):
    """Lower, diagonal, upper and start vectors of an operator near the shift."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=g)
    return 1 + 0.02 * draw(m), 0.1 * draw(m), 0.1 * draw(m), draw(r, m)


@pytest.mark.parametrize("m", [1, 2, 3, 7])
def test_a_ring_is_the_tridiagonal_matrix_with_corners(m):
    lower, diagonal, upper, V = problem(m)
    A = tridiagonal_reference(lower[1:], diagonal, upper[:-1], torch.stack((lower[0], upper[-1])))
    got = krylov_of_ring_reference(lower, diagonal, upper, V[0], 5)
    assert torch.allclose(got, krylov_reference(A, V[0], 5))
    for f in (0.0, 1.0, -1.0, 0.3):
        want = krylov_reference(shift_reference(len(V[0]), f, V.dtype), V[0], 9)
        assert torch.allclose(krylov_of_shift_reference(V[0], f, 9), want)


@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_row_sums_are_those_of_the_dense_operator(m):
    """Corners of small operators add to the entries that they meet; at corner 0 the scale is smooth there."""
    draw = torch.Generator().manual_seed(m)
    plain = torchldr.LDRTridiagonal.random(m, m, 1, dtype=torch.float64, generator=draw)
    for name, t in plain.tensors.items():
        t.normal_(generator=draw).mul_(3)
        if name.startswith("corners") and m < 3:
            t.zero_()
        t.requires_grad_()
    normalized = plain.unchecked(m, m, plain.tensors, {**plain.options, "normalize": True})
    made = [plain.operators(), normalized.operators()]
    for A, scaled in zip(*made, strict=True):
        want = A / A.abs().sum(1).amax().clamp(min=1)
        torch.testing.assert_close(scaled, want)
        weights = torch.randn(m, m, dtype=torch.float64, generator=draw)
        parts = list(plain.tensors.values())
        got = [torch.autograd.grad((t * weights).sum(), parts, allow_unused=True) for t in (scaled, want)]
        for a, b in zip(*got, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.allclose(a, b, rtol=1e-12, atol=1e-14)


def test_a_corner_adds_to_the_entry_that_it_meets_before_row_sums_are_taken():
    """A[1, 0] is 1 - 0.5 = 0.5, and the row sum of A is no larger than 1."""
    M = torchldr.LDRTridiagonal.random(2, 2, 1, normalize=True)
    for name, values in {"subdiagonal": [1.0], "diagonal": [0.0, 0.0], "superdiagonal": [0.0]}.items():
        M.tensors[f"{name}_A"].copy_(torch.tensor(values))
    M.tensors["corners_A"].copy_(torch.tensor([0.0, -0.5]))
    assert M.operators()[0].tolist() == [[0, 0], [0.5, 0]]


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
