"""Layers of many replicas on a GPU through their dense matrices, which `functional.scan` makes.

    ldr_sd              A and C subdiagonal with corners
    toeplitz_like       the same with A = Z_a and C = Z_{-a}; hankel_like: its outputs reversed
    vandermonde_like    transposed, A the shift and C the diagonal of nodes

At the sizes of these networks the matrices of all replicas are 30 to 50 MB, which the GPU makes, uses and
differentiates in a fraction of a millisecond, whatever the rank, and no value is read on the way: no
range of the operators has to be watched, and an entry of 0 is like any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from torchldr.functional.doubling import operator_weights, shift_weights
from torchldr.functional.stein_scan import column_scan, stein_matrix
from torchldr.matrices.toeplitz_like import corner_sign

Tensors = Mapping[str, Tensor]

STRUCTURES = ("ldr_sd", "toeplitz_like", "hankel_like", "vandermonde_like")


def scan_product(name: str, tensors: Tensors, x: Tensor) -> Tensor:
    """The product of a layer: (b, n) or (R, b, n) to (R, b, m)."""
    G, H = tensors["G"], tensors["H"]
    if name == "vandermonde_like":
        return x @ column_scan(tensors["nodes"].expand(len(G), -1), H.mT @ G)
    if name == "ldr_sd":
        a, c = (operator_weights(tensors, side) for side in "AC")
    else:
        m, n = G.shape[-1], H.shape[-1]
        sign = float(corner_sign(m, n))
        a, c = (shift_weights(G, *which).expand(len(G), -1) for which in ((m, sign), (n, -sign)))
    # The matrix comes first: its gradient then lies in memory as the scan likes it.
    y = (stein_matrix(a, c, G.mT @ H) @ x.mT).mT
    return y.flip(-1) if name == "hankel_like" else y
