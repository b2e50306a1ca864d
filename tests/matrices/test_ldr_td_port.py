"""LDR-TD by ports: products that are right for every pair of operators, and choices that are not shared."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import torchldr
from torchldr.matrices import LDRTridiagonal


def opposing(n: int, profile: Tensor, **options: str) -> LDRTridiagonal:
    """The subdiagonal of C is the inverse of that of A and G = H = e_0: the identity."""
    e, zeros = torch.zeros(1, n), torch.zeros(n)
    e[0, 0] = 1
    tensors = {"G": e, "H": e.clone(), "subdiagonal_A": profile, "subdiagonal_C": 1 / profile}
    for side in "AC":
        tensors |= {f"diagonal_{side}": zeros.clone(), f"superdiagonal_{side}": zeros[1:].clone()}
        tensors |= {f"corners_{side}": zeros[:2].clone()}
    return LDRTridiagonal(n, n, **tensors, **options)


def by_stencil(M: LDRTridiagonal, x: Tensor) -> Tensor:
    """M x in float64."""
    with torch.no_grad():
        return LDRTridiagonal(*M.shape, **M.double().tensors, product="stencil").matmul(x.double())


@pytest.mark.parametrize("profile", ["steps", "sine"])
def test_opposing_operators_that_make_the_identity(profile: str) -> None:
    """|A^t g| rises and falls while |C^t h| does the opposite."""
    n = 4096
    at = torch.arange(n - 1)
    s = torch.where(at < n // 2, 1.01, 1 / 1.01)
    if profile == "sine":
        s = (0.01 * (2 * math.pi * at / n).sin()).exp()
    M = opposing(n, s)
    x = torch.randn(2, n, requires_grad=True)
    want = by_stencil(M, x)
    assert (want - x).norm() <= 1e-3 * x.norm()
    y = M.matmul(x)
    (dx,) = torch.autograd.grad(y, x, x.detach())
    with torch.no_grad():
        for got in (y, dx, M.prepare()(x), M.rmatmul(x)):  # the matrix is its own transpose
            assert (got - want).norm() <= 1e-5 * want.norm()


def test_a_random_matrix_of_thousands_of_features() -> None:
    M = LDRTridiagonal.random(4096, 4096, 1, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 4096)
    want = by_stencil(M, x)
    assert (M.matmul(x) - want).norm() <= 1e-5 * want.norm()


@pytest.mark.parametrize("part", ["diagonal_A", "superdiagonal_C", "corners_A"])
def test_matrices_that_share_tensors_do_not_share_a_choice(part: str) -> None:
    """Two matrices that differ in one tensor alone, one after the other."""
    n = 300
    M = LDRTridiagonal.random(n, n, 1, product="port")
    other = LDRTridiagonal(n, n, **(M.tensors | {part: M.tensors[part] + 0.3}), product="port")
    x = torch.randn(2, n)
    for matrix in (M, other):
        want = x.double() @ matrix.double().to_dense().mT
        assert (matrix.matmul(x) - want).norm() <= 1e-5 * want.norm()


def test_edits_of_a_converted_copy_are_seen() -> None:
    n = 300
    M = LDRTridiagonal.random(n, n, 1, product="port")
    wide = M.double()
    x = torch.randn(2, n, dtype=torch.float64)
    M.matmul(x.float())
    wide.matmul(x)
    wide.tensors["superdiagonal_A"].add_(0.2)
    want = x @ wide.to_dense().mT
    assert (wide.matmul(x) - want).norm() <= 1e-9 * want.norm()


def test_the_option() -> None:
    with pytest.raises(ValueError, match="product must be one of auto, stencil, port, got 'tree'"):
        torchldr.StructuredLinear(8, 8, structure="ldr_td", product="tree")
