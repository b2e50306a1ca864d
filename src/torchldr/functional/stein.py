"""Dense matrices of LDR-SD, Toeplitz- and Hankel-like layers, as one operator.

    matrix        M = sum_{t < m} A^t G^T H (C^t)^T,  A m x m, C n x n, both subdiagonal with corners
    recurrence    M[i, j] = a_i c_j M[i-1, j-1] + (G^T H)[i, j], indices modulo m and n with corners

By C on a CPU and by kernels on a GPU, both along diagonals and in O(m n) work beside the product G^T H; in
plain torch by doubling. All three are right for every operator whose products a_i c_j along diagonals the
dtype can hold: nothing is divided, and A and C are never raised to powers apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..kernels.cpu import library, stein
from ..kernels.cuda.numbers import NAMES
from . import scan
from .doubling import shifted_sum
from .operator import Operator

Ring = tuple[Tensor | int, Tensor | None]
"""An operator: corner (..., 1) and subdiagonal (..., m - 1); 1, -1 or 0 and None for a shift."""


def stein_matrix(A: Ring, C: Ring, G: Tensor, H: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The matrices sum_{t < min(m, n)} A^t G^T H (C^t)^T.

    Args:
        A: (A v)_i = a_i v_{i-1}, indices modulo m: corner (..., 1) and subdiagonal (..., m - 1).
        C: the same for n.
        G: shape (..., r, m), of as many axes in front as A and C.
        H: shape (..., r, n).
        dtype: of the result, by default that of G. All is computed in float32 or wider.

    Returns:
        Shape (..., m, n), differentiable in every tensor, any number of times. No value is read.

    The same, slowly: the sum over t.
    """
    if G.shape[-1] > H.shape[-1]:
        return stein_matrix(C, A, H, G, dtype).mT
    (corner_A, lower_A), (corner_C, lower_C) = A, C
    dtype = dtype or G.dtype
    if isinstance(corner_A, Tensor):
        return STEIN(G, H, corner_A, lower_A, corner_C, lower_C, 0, 0, dtype)
    return STEIN(G, H, None, None, None, None, corner_A, corner_C, dtype)


def _plain(
    G: Tensor,
    H: Tensor,
    corner_A: Tensor | None,
    lower_A: Tensor | None,
    corner_C: Tensor | None,
    lower_C: Tensor | None,
    f_A: int,
    f_C: int,
    dtype: torch.dtype,
) -> Tensor:
    wide = _wide(G)
    E = G.to(wide).mT @ H.to(wide)
    m, n = E.shape[-2:]
    return shifted_sum(E, _ring(corner_A, lower_A, f_A, m, E), _ring(corner_C, lower_C, f_C, n, E), m).to(
        dtype
    )


def _ring(corner: Tensor | None, lower: Tensor | None, f: int, size: int, like: Tensor) -> Tensor:
    """The corner, then the subdiagonal, ones for a shift: (..., size)."""
    if corner is None or lower is None:
        return torch.cat((like.new_full((1,), f), like.new_ones(size - 1)))
    return torch.cat((corner, lower), -1).to(like.dtype)


def _wide(G: Tensor) -> torch.dtype:
    return torch.promote_types(G.dtype, torch.float32)


def _fake(G: Tensor, H: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    dtype, wide = rest[-1], _wide(G)
    shape = (*G.shape[:-2], G.shape[-1], H.shape[-1])
    M = G.new_empty(shape, dtype=dtype)
    return (M, G.new_empty(shape, dtype=wide)) if _keeps_both(G, dtype) else (M,)


def _keeps_both(G: Tensor, dtype: torch.dtype) -> bool:
    """Whether the gradient needs the matrix in more digits than the result has: by C."""
    return G.device.type != "cuda" and dtype != _wide(G)


def _serves(G: Tensor, H: Tensor, *rest: Any) -> bool:
    *operators, _, _, dtype = rest
    tensors = [t for t in (G, H, *operators) if t is not None]
    if G.is_cuda:
        return dtype in NAMES and scan.serves(*tensors)
    return G.device.type == "cpu" and G.dtype.is_floating_point and library.available()


def _operators(operators: Sequence[Tensor | None], f_A: int, f_C: int) -> scan.Operators:
    if operators[0] is None:
        return scan.Operators(f_A, None, f_C, None)
    return scan.Operators(*operators)  # type: ignore[arg-type]


def _kernel(G: Tensor, H: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *operators, f_A, f_C, dtype = rest
    if G.is_cuda:
        return (scan.stein_scan(_operators(operators, f_A, f_C), G, H, dtype),)
    M = stein.fill(*_wide_arguments(G, H, operators, f_A, f_C))
    return (M.to(dtype), M) if _keeps_both(G, dtype) else (M,)


def _wide_arguments(
    G: Tensor, H: Tensor, operators: Sequence[Tensor | None], f_A: int, f_C: int
) -> list[Any]:
    """The arguments of the kernels, in the dtype of the computation."""
    wide = _wide(G)
    inputs = (G, H, f_A, None, f_C, None) if operators[0] is None else (G, H, *operators)
    return [_as(t, wide).contiguous() if isinstance(t, Tensor) else t for t in inputs]


def _as(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t if t.dtype == dtype else t.to(dtype)


def _gradient(
    D: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    G, H, *operators, f_A, f_C, _ = arguments
    graded = any(wanted[2:])
    if G.is_cuda:
        return _gradient_on_gpu(D, G, H, _operators(operators, f_A, f_C), wanted)
    D, M = (_as(t, _wide(G)).contiguous() for t in (D, saved[-1]))
    found = stein.gradients(D, M, *_wide_arguments(G, H, operators, f_A, f_C), graded)  # type: ignore[call-arg]
    return [None if t is None else _as(t, G.dtype) for t in found]


def _gradient_on_gpu(
    D: Tensor, G: Tensor, H: Tensor, of: scan.Operators, wanted: Sequence[bool]
) -> list[Tensor | None]:
    found: Sequence[Any] = (None,) * 4
    if any(wanted[2:]):
        found, dE = scan.stein_scan_gradients(of, G, H, D)
    else:
        dE = scan.stein_scan_adjoint(of, D, G.dtype)
    dG = (H.to(D.dtype) @ dE.mT).to(G.dtype) if wanted[0] else None
    dH = (G.to(D.dtype) @ dE).to(H.dtype) if wanted[1] else None
    return [dG, dH, *found]


def _samples() -> Iterator[tuple[Any, ...]]:
    for lead, r, m, n in (((), 1, 5, 5), ((2,), 3, 4, 7), ((2, 3), 2, 1, 6)):
        G, H = torch.randn(*lead, r, m), torch.randn(*lead, r, n)
        yield G, H, None, None, None, None, 1, -1, torch.float32
        a, c = (torch.rand(*lead, size) + 0.5 for size in (m, n))
        yield G, H, a[..., :1], a[..., 1:], c[..., :1], c[..., 1:], 0, 0, torch.float32


STEIN = Operator(
    "stein",
    "Tensor G, Tensor H, Tensor? corner_A, Tensor? lower_A, Tensor? corner_C, Tensor? lower_C, "
    "int f_A, int f_C, ScalarType dtype",
    plain=_plain,
    kernel=_kernel,
    fake=_fake,
    gradient=_gradient,
    serves=_serves,
    samples=_samples,
)
