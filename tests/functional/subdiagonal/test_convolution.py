"""Products of LDR-SD with prepared constants, by convolutions: values and derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchldr.functional.reference import krylov_of_side_reference
from torchldr.functional.subdiagonal.convolution import CONVOLVED, Constants, prepare, product
from torchldr.kernels.cpu import library

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason="needs the C kernels")

SHAPES = [(4, 4, 1), (5, 3, 2), (3, 5, 1), (1, 4, 1), (4, 1, 1), (40, 70, 2)]


def problem(m: int, n: int, r: int) -> tuple[Constants, Tensor, Tensor]:
    """Constants, rows and the dense matrix that these are multiplied by."""
    A, C = (
        (1 + 0.1 * torch.randn(size - 1).double(), torch.randn(()).double(), torch.randn(r, size).double())
        for size in (m, n)
    )
    made = prepare(A, C, torch.float64)
    assert isinstance(made, Constants)
    K_A, K_C = (krylov_of_side_reference(side, min(m, n)) for side in (A, C))
    return made, torch.randn(2, n).double(), torch.einsum("imk,ink->mn", K_A, K_C)


@pytest.mark.parametrize("shape", SHAPES)
def test_products_by_c_and_by_torch_in_both_directions(shape):
    constants, x, M = problem(*shape)
    u = torch.randn(2, shape[0]).double()
    for form in (CONVOLVED, CONVOLVED.plain):
        torch.testing.assert_close(form(x, *constants, False), x @ M.mT)
        torch.testing.assert_close(form(u, *constants, True), u @ M)


@pytest.mark.parametrize("shape", SHAPES)
def test_first_and_second_derivatives_in_both_modes(shape):
    constants, x, M = problem(*shape)
    x.requires_grad_()
    of_rows = lambda x: product(x, *constants)
    torch.testing.assert_close(torch.autograd.grad(of_rows(x).sum(), x)[0], M.sum(0).expand_as(x))
    assert torch.autograd.gradcheck(of_rows, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(of_rows, x)


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_derivatives_in_the_constants(shape):
    constants, x, _ = problem(*shape)
    inputs = [t.requires_grad_() for t in (x, *constants)]
    assert torch.autograd.gradcheck(product, inputs, check_forward_ad=True)


def test_a_stack_of_matrices():
    constants, x, M = zip(*(problem(5, 3, 2) for _ in range(3)), strict=True)
    stacked = [torch.stack(parts) for parts in zip(*constants, strict=True)]
    got = torch.vmap(product)(torch.stack(x), *stacked)
    torch.testing.assert_close(got, torch.stack(x) @ torch.stack(M).mT)
    torch.testing.assert_close(product(torch.stack(x), *stacked), got)
