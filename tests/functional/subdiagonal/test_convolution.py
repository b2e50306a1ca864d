"""The convolutions of LDR-SD by torch's FFTs: values against the definition, and all derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchldr.functional.reference import krylov_of_side_reference
from torchldr.functional.subdiagonal import convolution
from torchldr.functional.subdiagonal.guard import Scales, scales


def product(*inputs: Tensor) -> Tensor:
    A, C, x = inputs[:3], inputs[3:6], inputs[6]
    return convolution.product(A, C, x, Scales(scales(A[0].detach()), scales(C[0].detach())))


@pytest.mark.parametrize(("m", "n", "r"), [(4, 4, 1), (5, 3, 2), (3, 5, 1), (1, 4, 1), (4, 1, 1)])
def test_first_and_second_derivatives_in_both_modes(m: int, n: int, r: int):
    sides = [
        part
        for size in (m, n)
        for part in (1 + 0.1 * torch.randn(size - 1), torch.randn(()), torch.randn(r, size))
    ]
    inputs = [t.double().requires_grad_() for t in (*sides, torch.randn(2, n))]
    K_A, K_C = (krylov_of_side_reference(side, min(m, n)) for side in (inputs[:3], inputs[3:6]))
    wanted = torch.einsum("imk,ink,bn->bm", K_A, K_C, inputs[6])
    torch.testing.assert_close(product(*inputs), wanted)
    assert torch.autograd.gradcheck(product, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(product, inputs)
