"""Dense matrices sum_i K(A, g_i) K(C, h_i)^T of LDR-TD layers on a GPU: Krylov matrices, then their product.

Both operators come in one tensor of rings, (..., 2, 3 + r, m): upper, lower, diagonal and start vectors.
Products that need not be right to all digits of float32 are made of bfloat16 ones, for which a GPU has units:
each factor is the sum of two such numbers, and the product of both remainders is left out. That is right to
some 2^-16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..kernels import cuda
from ..kernels.cuda import halves, krylov
from . import tridiagonal
from .later import Later
from .operator import Operator


def takes(G: Tensor) -> bool:
    """Whether matrices of these start vectors, (.., r, m), are made here: on a GPU, by their sizes."""
    (r, m), count = G.shape[-2:], G.shape[:-2].numel()
    return G.is_cuda and 2 * count * r * m * m <= krylov.MOST


def _serves(rings: Tensor, *rest: Any) -> bool:
    r, m = rings.shape[-2] - 3, rings.shape[-1]
    return cuda.reads(rings) and rings[..., 0, 0].numel() * r * m * m <= krylov.most()


def krylov_dense(rings: Tensor, dtype: torch.dtype, *, rough: bool) -> Tensor:
    """The matrices of both operators in a dtype.

    Args:
        rings: shape (..., 2, 3 + r, m): of A with G and of C with H, in any dtype.
        dtype: of the result. All is computed in float32 or wider, in float64 where float32 would lose it.
        rough: whether products of matrices in float32 may be off by some 2^-16.

    Returns:
        Shape (..., m, m), differentiable any number of times. Of sizes that `takes` says yes to.
    """
    return KRYLOV_DENSE(rings, dtype, rough and _multiplies_bfloat16(rings.device))


@cache
def _multiplies_bfloat16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


def _plain(rings: Tensor, dtype: torch.dtype, rough: bool = False) -> Tensor:
    m = rings.shape[-1]
    wide = rings.to(torch.float64 if tridiagonal.lost(rings, m) else _wide(rings))
    wide = torch.cat((wide[..., :3, :] * _balance(wide), wide[..., 3:, :]), -2)
    upper, lower, diagonal = wide[..., :3, :].unbind(-2)
    K = tridiagonal.krylov_of_ring(lower, diagonal, upper, wide[..., 3:, :], m).flatten(-3, -2)
    return (K[..., 0, :, :].mT @ K[..., 1, :, :]).to(dtype)


def _wide(rings: Tensor) -> torch.dtype:
    return torch.promote_types(rings.dtype, torch.float32)


def _balance(rings: Tensor) -> Tensor:
    """What takes out a scale that A has and C takes back, (..., 2, 1, 1): see `tridiagonal.balanced`."""
    size = tridiagonal.log_size(rings[..., :3, :])
    return tridiagonal.common_scale(size.flip(-1), size, rings.shape[-1]).exp2()[..., None, None]


def _terms(t: Tensor, rough: bool) -> list[Tensor]:
    """What to multiply for t: itself, or bfloat16 numbers whose sum it is, to 16 binary digits."""
    return [t] if not rough or t.dtype == torch.bfloat16 else list(halves.split(t.float()))


def _multiply(a: list[Tensor], b: list[Tensor], out: Tensor) -> None:
    """The product of two sums of stacked matrices. Autocast leaves what is written to `out` alone."""
    kind: Any = {} if a[0].dtype == out.dtype else {"out_dtype": out.dtype}
    torch.bmm(a[0], b[0], **kind, out=out)
    for p, q in [(p, b[0]) for p in a[1:]] + [(a[0], q) for q in b[1:]]:
        torch.baddbmm(out, p, q, **kind, out=out)


def _sides(K: Tensor, rough: bool) -> tuple[list[Tensor], ...]:
    """The `_terms` of all Krylov matrices of A, (s / 2, r m, m), and those of C."""
    terms = [t.view(-1, 2, K.shape[1] * K.shape[2], K.shape[3]).unbind(1) for t in _terms(K, rough)]
    return tuple([term[side] for term in terms] for side in (0, 1))


def _kernel(rings: Tensor, dtype: torch.dtype, rough: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The matrices, the Krylov matrices, and what was seen of these: on the CPU, or NaN if nothing was."""
    m, wide = rings.shape[-1], _wide(rings)
    given = rings.to(wide)
    given = torch.cat((given[..., :3, :] * _balance(given), given[..., 3:, :]), -2).flatten(0, -3)
    found = rings.new_zeros(_looked_at(rings), dtype=wide)
    if tridiagonal.lost(given, m) and not tridiagonal.has_values(given):
        given = given.double()
        found.fill_(torch.nan)
    while True:
        K = cuda.krylov_columns(given, m)
        seen = Later(tridiagonal.sizes(K)) if tridiagonal.lost(given, m) else None
        A, C = _sides(K, rough and K.dtype == torch.float32)
        made = K.new_empty(len(K) // 2, m, m)
        _multiply([a.mT for a in A], C, made)
        if seen is not None:
            found = seen.read()
        if seen is None or not tridiagonal.lost(given, m, [found]):
            return made.view(*rings.shape[:-3], m, m).to(dtype), K.to(wide), found
        del K, A, C, made  # others twice as large follow
        given = given.double()


def _looked_at(rings: Tensor) -> tuple[int, int, int]:
    """The shape of `tridiagonal.sizes` of all Krylov matrices."""
    (*lead, rows, m) = rings.shape
    return math.prod(lead), rows - 3, -(-m // tridiagonal.LOOK)


def _fake(rings: Tensor, dtype: torch.dtype, rough: bool) -> tuple[Tensor, Tensor, Tensor]:
    (*lead, _, rows, m), wide = rings.shape, _wide(rings)
    matrix = rings.new_empty(*lead, m, m, dtype=dtype)
    K = rings.new_empty(2 * matrix.shape[:-2].numel(), rows - 3, m, m, dtype=wide)
    return matrix, K, rings.new_empty(_looked_at(rings), dtype=wide)


def _gradient(
    D: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor]:
    rings, _, rough = arguments
    (K, found), m, given = saved, rings.shape[-1], rings.to(_wide(rings))
    K = K.flatten(0, -4)  # vmap puts an axis in front
    wide = tridiagonal.lost(K, m, [found])
    given = given.to(torch.float64 if wide else K.dtype)
    scale = _balance(given)
    given = torch.cat((given[..., :3, :] * scale, given[..., 3:, :]), -2)
    if wide:  # those that were kept are rounded
        K = cuda.krylov_columns(given.flatten(0, -3), m)
    rough, dK = rough and K.dtype == torch.float32, torch.empty_like(K)
    (A, C), ((dA,), (dC,)) = _sides(K, rough), _sides(dK, False)
    terms = _terms((D if rough else D.to(K.dtype)).reshape(-1, m, m), rough)
    _multiply(C, [d.mT for d in terms], dA)
    _multiply(A, terms, dC)
    found = cuda.krylov_adjoint(given.flatten(0, -3), K, dK).view_as(given)
    return [torch.cat((found[..., :3, :] * scale, found[..., 3:, :]), -2).to(rings.dtype)]


def _samples() -> Iterator[tuple[Any, ...]]:
    yield torch.rand(2, 5, 4), torch.float32, False
    yield torch.rand(3, 2, 4, 6), torch.float32, False


KRYLOV_DENSE = Operator(
    "krylov_dense",
    "Tensor rings, ScalarType dtype, bool rough",
    plain=_plain,
    kernel=_kernel,
    fake=_fake,
    gradient=_gradient,
    serves=_serves,
    samples=_samples,
)
