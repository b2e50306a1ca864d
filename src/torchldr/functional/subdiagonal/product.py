"""Products with M = sum_i K_k(A, g_i) K_k(C, h_i)^T, A and C subdiagonal with a corner, as one operator.

Inside, the operator looks at the operators' values: where they allow convolutions (`guard`) it takes those, else
the dense matrix by a scan, or the stencil where that would be too large. The plain form is the dense matrix, which
is right for every operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..operator import Operator
from ..stein import STEIN, stein_matrix
from .guard import Side


def product(A: Side, C: Side, x: Tensor) -> Tensor:
    """sum_i K_k(A, g_i) K_k(C, h_i)^T x, k = min(m, n).

    Args:
        A, C: subdiagonal, corner and start vectors, (m - 1,), () and (r, m) for A, likewise n for C.
        x: vectors, shape (b, n).

    Returns:
        Shape (b, m), in the dtype of `x` (float32 or float64).
    """
    return SUBDIAGONAL(x, A[2], C[2], A[1].unsqueeze(-1), A[0], C[1].unsqueeze(-1), C[0])


def _dense(
    G: Tensor, H: Tensor, corner_A: Tensor, lower_A: Tensor, corner_C: Tensor, lower_C: Tensor
) -> Tensor:
    return stein_matrix((corner_A, lower_A), (corner_C, lower_C), G, H)


def _plain(x: Tensor, *parts: Tensor) -> Tensor:
    G, H, corner_A, lower_A, corner_C, lower_C = parts
    if G.shape[-1] > H.shape[-1]:
        return x @ STEIN.plain(H, G, corner_C, lower_C, corner_A, lower_A, 0, 0, x.dtype)
    return x @ STEIN.plain(G, H, corner_A, lower_A, corner_C, lower_C, 0, 0, x.dtype).mT


def _kernel(x: Tensor, *parts: Tensor) -> Tensor:
    return x @ _dense(*parts).mT


def _gradient(
    u: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    x, *parts = arguments
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in parts]
        M = _dense(*leaves)
    dx = u @ M.detach() if wanted[0] else None
    return [dx, *torch.autograd.grad(M, leaves, u.mT @ x)]


def _fake(x: Tensor, G: Tensor, *rest: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], G.shape[-1])


def _serves(x: Tensor, *parts: Tensor) -> bool:
    return x.ndim == 2


def _samples() -> Iterator[tuple[Any, ...]]:
    for r, m, n in ((1, 5, 5), (2, 4, 7), (2, 9, 3)):
        a, c = torch.rand(m) + 0.5, torch.rand(n) + 0.5
        yield torch.randn(3, n), torch.randn(r, m), torch.randn(r, n), a[:1], a[1:], c[:1], c[1:]


def _batched(info: Any, dims: Sequence[int | None], apply: Any, arguments: Sequence[Any]) -> Any:
    """Vectors alone join the rows; stacked operators multiply as dense matrices."""
    if dims[0] is not None and all(dim is None for dim in dims[1:]):
        x = arguments[0].movedim(dims[0], 0)
        y = apply(x.flatten(0, 1), *arguments[1:])[0]
        return (y.unflatten(0, x.shape[:2]),), (0,)
    front = [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(arguments, dims, strict=True)
    ]
    return (front[0] @ _dense(*front[1:]).mT,), (0,)


SUBDIAGONAL = Operator(
    "subdiagonal",
    "Tensor x, Tensor G, Tensor H, Tensor corner_A, Tensor lower_A, Tensor corner_C, Tensor lower_C",
    plain=_plain,
    kernel=_kernel,
    fake=_fake,
    gradient=_gradient,
    serves=_serves,
    samples=_samples,
    batched=_batched,
)
