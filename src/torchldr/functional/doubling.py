"""The dense matrix of two operators that only shift and scale, as in LDR-SD and Toeplitz-like, by doubling.

    M_j     = sum_{l < j} A^l E (C^l)^T,  E = G^T H
    M_{i+j} = M_i + A^i M_j (C^i)^T,      (A^i X (C^i)^T)_ab = W_i[a, b] X[a - i, b - i]

with indices modulo m and n, so about log2 k passes over the m n entries give M = M_k, whatever the rank. W_i
holds the products a_p c_q along diagonals. A and C are never raised to powers apart: those may overflow where
every product is an ordinary number. Nothing is divided and no value is read: right for every operator, and
fit for vmap, tracing and CUDA graphs.
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
        Shape (..., m, n). 4 log2 k passes over m n entries at most.

    The same, slowly: the sum of `krylov_reference(A, g, k) @ krylov_reference(C, h, k).mT`.
    """
    step = lower_A.unsqueeze(-1) * lower_C.unsqueeze(-2)
    M, W, j = E, step, 1  # M holds the first j terms, W the weights of j steps
    bits = f"{int(k):b}"[1:]  # a size that a compiler keeps open is fixed here
    for i, bit in enumerate(bits, 1):
        M, last = M + W * M.roll((j, j), (-2, -1)), i == len(bits)
        if not last:
            W = W * W.roll((j, j), (-2, -1))
        j *= 2
        if bit == "1":
            M = E + step * M.roll((1, 1), (-2, -1))
            if not last:
                W = step * W.roll((1, 1), (-2, -1))
            j += 1
    return M
