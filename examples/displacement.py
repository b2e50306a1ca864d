"""See what displacement rank is: Toeplitz matrices, their inverses and products, and a learned operator.

The displacement M - A M C^T compares every entry with a neighbour, which A and C choose. If the displacement
has low rank, it determines the matrix by a few numbers a row.

    python examples/displacement.py
"""

from __future__ import annotations

import torch
from torch import Tensor

import torchldr
from torchldr.functional.reference import shift_reference


def displacement_rank(M: Tensor, A: Tensor, C: Tensor) -> int:
    return int(torch.linalg.matrix_rank(M - A @ M @ C.mT, rtol=1e-9))


def main() -> None:
    n, generator = 64, torch.Generator().manual_seed(0)
    entries = torch.randn(2 * n - 1, dtype=torch.float64, generator=generator)
    i = torch.arange(n)
    T = entries[i.unsqueeze(1) - i + n - 1] + 8 * torch.eye(n, dtype=torch.float64)
    Z = shift_reference(n, 1.0), shift_reference(n, -1.0)
    noise = torch.randn(n, n, dtype=torch.float64, generator=generator)

    print(f"displacement ranks of {n} x {n} matrices by the shifts Z_1 and Z_-1")
    for name, M in (
        ("Toeplitz", T),
        ("its inverse", torch.linalg.inv(T)),
        ("its square", T @ T),
        ("noise", noise),
    ):
        print(f"  {name:12} {displacement_rank(M, *Z):3}   (rank {int(torch.linalg.matrix_rank(M))})")

    M = torchldr.LDRSubdiagonal.random(n, n, rank=2, dtype=torch.float64, generator=generator)
    operators = M.operators()
    print("a random LDR-SD matrix of rank 2")
    print(f"  by the shifts        {displacement_rank(M.to_dense(), *Z):3}")
    print(f"  by its own operators {displacement_rank(M.to_dense(), *operators):3}")


if __name__ == "__main__":
    main()
