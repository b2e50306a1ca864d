"""Krylov matrices of tridiagonal operators with corners, as one operator: the stencil of LDR-TD.

    K[.., i, j, :] = A^j v_i,  (A x)_i = lower_i x_{i-1} + diagonal_i x_i + upper_i x_{i+1}, indices modulo m

By C on a CPU, by kernels on a GPU. Powers that grow and then fall leave rounding errors behind: such matrices
are computed in float64 and rounded (`tridiagonal.lost`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels import cuda
from ..kernels.cpu import krylov as loops
from ..kernels.cuda.krylov import most
from . import tridiagonal
from .operator import Operator


def krylov_matrices(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    """The Krylov matrices K_k(A, v_i), transposed.

    Args:
        lower, diagonal, upper: the ring, shape (..., m) each.
        V: start vectors, shape (..., r, m).
        k: how many columns.

    Returns:
        Shape (..., r, k, m), in the dtype of V (float32 or float64). Differentiable.
    """
    return KRYLOV(lower, diagonal, upper, V, k)


def _plain(*arguments: Any) -> Tensor:
    """Without a look at values: in float64 where float32 might lose them."""
    *tensors, k = arguments
    dtype = tensors[-1].dtype
    wide = torch.float64 if tridiagonal.lost(tensors[-1], k) else dtype
    return tridiagonal.krylov_of_ring(*[*(t.to(wide) for t in tensors), k]).to(dtype)


def _fake(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    return V.new_empty(*V.shape[:-1], k, V.shape[-1])


def _serves(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> bool:
    tensors = lower, diagonal, upper, V
    return loops.serves(*tensors) or cuda.serves(min(k * V.numel(), most()), *tensors)


def _kernel(*arguments: Any) -> Tensor:
    *tensors, k = arguments
    V = tensors[-1]
    if tridiagonal.lost(V, k) and not tridiagonal.has_values(V):
        return _columns(*(t.double() for t in tensors), k).to(V.dtype)
    K = _columns(*tensors, k)
    if tridiagonal.lost(V, k) and tridiagonal.lost(V, k, [tridiagonal.sizes(K)]):
        del K  # another twice as large follows
        return _columns(*(t.double() for t in tensors), k).to(V.dtype)
    return K


def _flat(tensors: Sequence[Tensor]) -> list[Tensor]:
    """With one axis in front."""
    *ring, V = tensors
    count = V.shape[:-2].numel()
    return [t.reshape(count, *t.shape[V.ndim - 2 :]).contiguous() for t in (*ring, V)]


def _columns(*arguments: Any, out: Tensor | None = None) -> Tensor:
    *tensors, k = arguments
    V = tensors[-1]
    lower, diagonal, upper, starts = _flat(tensors)
    if V.is_cuda:
        K = cuda.krylov_columns(_rings(lower, diagonal, upper, starts), k)
    else:
        K = loops.columns(lower, diagonal, upper, starts, k, out)
    return K.view(*V.shape[:-1], k, V.shape[-1])


def _rings(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor) -> Tensor:
    """Operators as a GPU's kernels take them, (R, 3 + r, m)."""
    return torch.cat((torch.stack((upper, lower, diagonal), 1), V), 1)


def _gradient(
    dK: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor]:
    *tensors, k = arguments
    (K,), V = saved, tensors[-1]
    wide = tridiagonal.lost(V, k)
    wide = wide and (not tridiagonal.has_values(K) or tridiagonal.lost(V, k, [tridiagonal.sizes(K)]))
    dtype = torch.float64 if wide else V.dtype
    found = adjoint(*(t.to(dtype) for t in (*tensors, K, dK)))
    return [g.to(t.dtype) for g, t in zip(found, tensors, strict=True)]


def adjoint(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, K: Tensor, dK: Tensor) -> list[Tensor]:
    """Gradients of sum(dK K) in the ring and in the start vectors, given the matrices K; no gradient."""
    parts = _flat((lower, diagonal, upper, V))
    K, dK = (t.reshape(-1, *t.shape[-3:]).contiguous() for t in (K, dK))
    if V.is_cuda:
        of = cuda.krylov_adjoint(_rings(*parts), K, dK)
        found: Sequence[Tensor] = of[:, 1], of[:, 2], of[:, 0], of[:, 3:]
    else:
        found = loops.adjoint(*[*parts, K, dK])
    return [g.reshape(t.shape) for g, t in zip(found, (lower, diagonal, upper, V), strict=True)]


def _samples() -> Iterator[tuple[Any, ...]]:
    for lead, r, m, k in (((), 2, 5, 5), ((2,), 1, 6, 3)):
        ring = (torch.rand(*lead, m) for _ in range(3))
        yield *ring, torch.randn(*lead, r, m), k


KRYLOV = Operator(
    "krylov",
    "Tensor lower, Tensor diagonal, Tensor upper, Tensor V, int k",
    plain=_plain,
    kernel=_kernel,
    fake=_fake,
    gradient=_gradient,
    serves=_serves,
    samples=_samples,
)
