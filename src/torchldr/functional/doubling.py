"""The dense matrix of two operators that only shift and scale, as in LDR-SD and Toeplitz-like, by doubling.

    M_j     = sum_{l < j} A^l E (C^l)^T,  E = G^T H
    M_{i+j} = M_i + A^i M_j (C^i)^T,      (A^i v)_a = (lower_a lower_{a-1} .. lower_{a-i+1}) v_{a-i}

with indices modulo m, so about log2 k passes over the m n entries give M = M_k, whatever the rank.
Nothing is divided and no value is read: right for every operator, and fit for vmap, tracing and CUDA graphs.
"""

from __future__ import annotations

from torch import Tensor


def shifted_sum(E: Tensor, lower_A: Tensor, lower_C: Tensor, k: int) -> Tensor:
    """The dense matrix sum_{l < k} A^l E (C^l)^T of two scaled cyclic shifts.

    Args:
        E: shape (..., m, n), G^T H of an LDR matrix.
        lower_A: (A v)_i = lower_A[i] v_{i-1}, indices modulo m: the corner, then the subdiagonal,
            shape (..., m).
        lower_C: the same for C, shape (..., n).
        k: how many terms, at least 1.

    Returns:
        Shape (..., m, n). 2 log2 k passes over m n entries at most.

    The same, slowly: the sum of `krylov_reference(A, g, k) @ krylov_reference(C, h, k).mT`.
    """
    M = E
    # M holds the first j terms, a and c the coefficients of A^j and C^j.
    j, a, c = 1, lower_A, lower_C
    for bit in f"{k:b}"[1:]:
        M = M + _moved(a, c, M, j)
        j, a, c = 2 * j, a * a.roll(j, -1), c * c.roll(j, -1)
        if bit == "1":
            M = E + _moved(lower_A, lower_C, M, 1)
            j, a, c = j + 1, lower_A * a.roll(1, -1), lower_C * c.roll(1, -1)
    return M


def _moved(a: Tensor, c: Tensor, M: Tensor, j: int) -> Tensor:
    """A^j M (C^j)^T for the coefficients of A^j and C^j."""
    return a.unsqueeze(-1) * c.unsqueeze(-2) * M.roll((j, j), (-2, -1))
