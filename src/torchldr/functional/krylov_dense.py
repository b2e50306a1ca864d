"""Dense matrices sum_i K(A, g_i) K(C, h_i)^T of LDR-TD layers on a GPU: Krylov matrices, then their product.

Both operators come in one tensor of rings, (..., 2, 3 + r, m): upper, lower, diagonal and start vectors.
Products that need not be right to all digits of float32 are made of bfloat16 ones, for which a GPU has units:
each factor is the sum of two such numbers, and the product of both remainders is left out. That is right to
some 2^-16.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ..kernels import cuda
from ..kernels.cuda import halves, krylov
from . import stencil, tridiagonal
from ._twin import applied, plain_backward, plain_jvp
from .later import Later


def serves(G: Tensor) -> bool:
    """Whether the kernels make the matrices of these start vectors, (.., r, m)."""
    (r, m), count = G.shape[-2:], G.shape[:-2].numel()
    return cuda.reads(G) and count * krylov.entries(r, m, m) <= krylov.most()


def krylov_dense(rings: Tensor, dtype: torch.dtype, *, rough: bool) -> Tensor:
    """The matrices of both operators in a dtype.

    Args:
        rings: shape (..., 2, 3 + r, m): of A with G and of C with H, in any dtype.
        dtype: of the result. All is computed in float32 or wider, in float64 where float32 would lose it.
        rough: whether products of matrices in float32 may be off by some 2^-16.

    Returns:
        Shape (..., m, m), differentiable any number of times. For tensors that `serves` says yes to.
    """
    made: Tensor = applied(_Dense, rings, dtype, rough and _multiplies_bfloat16(rings.device))[0]
    return made


@cache
def _multiplies_bfloat16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


def _plain(rings: Tensor, dtype: torch.dtype) -> Tensor:
    m = rings.shape[-1]
    lost = tridiagonal.lost(rings, m)
    wide = rings.to(torch.float64 if lost else torch.promote_types(rings.dtype, torch.float32))
    K = tridiagonal.plain_krylov(wide.flatten(0, -3), m).flatten(1, 2)
    return (K[::2].mT @ K[1::2]).view(*rings.shape[:-3], m, m).to(dtype)


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


class _Dense(torch.autograd.Function):
    """Of the rings, the dtype of the result and whether products may be rough; and all Krylov matrices."""

    @staticmethod
    def forward(rings: Tensor, dtype: torch.dtype, rough: bool) -> tuple[Tensor, Tensor]:
        m = rings.shape[-1]
        wide = rings.flatten(0, -3).to(torch.promote_types(rings.dtype, torch.float32))
        if tridiagonal.lost(wide, m) and not tridiagonal.has_values(wide):
            wide = wide.double()
        while True:
            K = cuda.krylov_columns(wide, m)
            seen = Later(tridiagonal.sizes(K)) if tridiagonal.lost(wide, m) else None
            A, C = _sides(K, rough and K.dtype == torch.float32)
            made = K.new_empty(len(K) // 2, m, m)
            _multiply([a.mT for a in A], C, made)
            if seen is None or not tridiagonal.lost(wide, m, [seen.read()]):
                return made.view(*rings.shape[:-3], m, m).to(dtype), K
            del K, A, C, made  # others twice as large follow
            wide = wide.double()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        rings, ctx.dtype, ctx.rough = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(rings, output[1])
        ctx.save_for_forward(rings)

    @staticmethod
    def backward(ctx: Any, D: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        if D is None:
            return None, None, None
        rings, K = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.is_plain(D):
            return *plain_backward(partial(_plain, dtype=ctx.dtype), (rings,), D), None, None
        K = K.contiguous()  # hooks may have given another back
        rough, dK = ctx.rough and K.dtype == torch.float32, torch.empty_like(K)
        (A, C), ((dA,), (dC,)) = _sides(K, rough), _sides(dK, False)
        given = D if rough else D.to(K.dtype)
        terms = _terms(given.reshape(-1, *D.shape[-2:]), rough)
        _multiply(C, [d.mT for d in terms], dA)
        _multiply(A, terms, dC)
        found = cuda.krylov_adjoint(rings.flatten(0, -3).to(K.dtype), K, dK)
        return found.view_as(rings).to(rings.dtype), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        return plain_jvp(partial(_plain, dtype=ctx.dtype), ctx.saved_tensors[:1], tangents[:1]), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, ...], rings: Tensor, *rest: Any) -> Any:
        W, K = _Dense.apply(rings.movedim(in_dims[0], 0), *rest)
        return (W, K), (0, None)
