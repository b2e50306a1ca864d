"""Products with Krylov matrices of a subdiagonal operator by one convolution, with hand-written gradients.

    (K(A, v) w)_i = P_i (t_i + f t_{m+i}),  t = (v / P) * w,  f = c P_{m-1}

See the package for the notation and `guard` for when this is right. Derivatives of derivatives and
forward mode go through the Krylov matrix itself, made by doubling. The tests hold everything to
`krylov_reference(subdiagonal_reference(s, c), v, k)`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._twin import applied, plain_backward, plain_jvp
from ..fft import conjugate, contract_rank, fast_length
from ..ring import Ring, ring
from .guard import Scales, Side, balanced


class PreparedSide(NamedTuple):
    """K_k(A, v_i) for all i: a Krylov matrix of Z_f, f = c P_{m-1}, between scalings."""

    scale: Tensor  # P, (m,)
    ring: Ring
    spectra: Tensor  # of v / P, (r, ..)


def product(A: Side, C: Side, x: Tensor, scales: Scales) -> Tensor:
    """sum_i K_k(A, g_i) K_k(C, h_i)^T x, k = min(m, n).

    Args:
        A, C: subdiagonal, corner and start vectors, (m - 1,), () and (r, m) for A, likewise n for C.
        x: vectors, shape (b, n).
        scales: what `guard` found.

    Returns:
        Shape (b, m), in the dtype of `x` (float32 or float64). 2r + 2 real FFTs a vector and 2r more, of
        lengths m + k and n + k. Differentiable in every tensor but the scales, any number of times; vmap and
        jvp hold.
    """
    k = min(A[2].shape[-1], C[2].shape[-1])
    A, C = balanced(A, C, scales.factor)
    return matmul(*A, rmatmul(*C, x, k, scales.C), scales.A)


def matmul(s: Tensor, corner: Tensor, V: Tensor, w: Tensor, P: Tensor) -> Tensor:
    """Multiply by the Krylov matrices of a subdiagonal operator: sum_i K_k(A, v_i) w_i.

    Args:
        s: subdiagonal, shape (m - 1,).
        corner: top right entry, shape ().
        V: start vectors, shape (r, m).
        w: coefficients, shape (b, r, k) with k <= m.
        P: the scales, in the dtype to compute in.

    Returns:
        Shape (b, m), in the dtype of `w`.

    The same, slowly: `sum(krylov_reference(subdiagonal_reference(s, corner), v, k) @ w)`.
    """
    wide = (t.to(P.dtype) for t in (s, corner, V, w))
    return applied(_Convolution, *wide, P, w.shape[-1], False)[0].to(w.dtype)


def rmatmul(s: Tensor, corner: Tensor, V: Tensor, u: Tensor, k: int, P: Tensor) -> Tensor:
    """Multiply by the transposed Krylov matrices: K_k(A, v_i)^T u for every i, (b, m) to (b, r, k)."""
    wide = (t.to(P.dtype) for t in (s, corner, V, u))
    return applied(_Convolution, *wide, P, k, True)[0].to(u.dtype)


def prepare(A: Side, C: Side, scales: Scales) -> tuple[PreparedSide, PreparedSide]:
    """The constants of `product`: the transforms of the start vectors over their scales."""
    k = min(A[2].shape[-1], C[2].shape[-1])
    A, C = balanced(A, C, scales.factor)
    left, right = _prepared(A, k, scales.A), _prepared(C, k, scales.C)
    return left, right._replace(spectra=conjugate(right.spectra))


def _prepared(side: Side, k: int, P: Tensor) -> PreparedSide:
    _, corner, V = side
    of = ring(V.shape[-1], k, corner * P[-1] if corner.item() != 0 else 0.0)
    return PreparedSide(P, of, of.analyse(V / P))


def prepared_product(K: tuple[PreparedSide, PreparedSide], x: Tensor) -> Tensor:
    """`product` for prepared constants; differentiable in x."""
    (P_A, left, g_hat), (P_C, right, h_hat) = K
    z = right.fold(right.unfold(x * P_C).unsqueeze(-2) * h_hat)
    return (left.synthesise(contract_rank(left.analyse(z), g_hat)) * P_A).to(x.dtype)


def krylov_matrices(s: Tensor, corner: Tensor, V: Tensor, k: int) -> Tensor:
    """The Krylov matrices K_k(A, v_i), transposed, (r, k, m): by doubling, K_2j = [K_j, A^j K_j].

    Plain torch operations, right for every operator.
    """
    lower = torch.cat((corner.reshape(1), s))
    K, weights, j = V.unsqueeze(1), lower, 1
    while j < k:
        K = torch.cat((K, weights * K.roll(j, -1)), 1)
        weights, j = weights * weights.roll(j, -1), 2 * j
    return K[:, :k]


def _plain(s: Tensor, corner: Tensor, V: Tensor, given: Tensor, *, k: int, transposed: bool) -> Tensor:
    """K w for w (b, r, k), or K^T u for u (b, m)."""
    K = krylov_matrices(s, corner, V, k)
    if transposed:
        return (given @ K.flatten(0, 1).mT).unflatten(1, K.shape[:2])
    return given.flatten(1) @ K.flatten(0, 1)


def _length(m: int, k: int) -> int:
    return fast_length(m + k - 1)


def _unfolded(P: Tensor, corner: Tensor, u: Tensor, k: int) -> Tensor:
    """The transform of (P u, f P u): adjoint of folding and scaling."""
    u = P * u
    u = torch.cat((u, corner * P[-1] * u[..., : k - 1]), -1)
    return torch.fft.rfft(u, _length(P.shape[0], k))


def _folded(P: Tensor, corner: Tensor, t: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """K w = P_i t_i + c high_i, and high_i = P_i P_{m-1} t_{m+i} (zero from row k - 1 on)."""
    m = P.shape[0]
    high = P[: k - 1] * P[-1] * t[..., m : m + k - 1]
    return P * t[..., :m] + pad(corner * high, (0, m - k + 1)), high


def _correlated(u_hat: Tensor, v_hat: Tensor, length: int, k: int) -> Tensor:
    """K^T u, from the spectra of what `_unfolded` makes of u and of v / P."""
    return torch.fft.irfft(u_hat.unsqueeze(-2) * conjugate(v_hat), length)[..., :k]


def _gradients(
    s: Tensor,
    corner: Tensor,
    V: Tensor,
    u: Tensor,
    k: int,
    P: Tensor,
    w_hat: Tensor,
    u_hat: Tensor,
    t: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the form u^T K(A, v) w, summed over the batch, in s, c and v; and K w.

    That of v is a correlation. That of s_l is the flow over edge l, the sum over all paths k -> i
    that cross it, divided by s_l; from one edge to the next the flow changes by what starts there
    less what ends there, v_l dv_l - u_l y_l, so one cumulative sum gives all of them.
    """
    spectrum = (w_hat * conjugate(u_hat).unsqueeze(-2)).sum(0)
    dV = torch.fft.irfft(conjugate(spectrum), t.shape[-1])
    dV = dV[..., : V.shape[-1]] / P
    y, high = _folded(P, corner, t, k)
    dc = (u[..., : k - 1] * high).sum()
    if k == 1:  # nothing moves; the difference below would leave rounding errors for zero
        return torch.zeros_like(s), dc, dV, y
    flow = ((V * dV).sum(0) - (u * y).sum(0))[:-1].cumsum(0) + corner * dc
    return flow / s, dc, dV, y


class _Convolution(torch.autograd.Function):
    """(s, corner, V, w or u, P, k, whether it is u) to K w or K^T u, and what its backward needs again.

    Both are derivatives of the form u^T K w, which the gradient that comes in makes whole.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        s: Tensor, corner: Tensor, V: Tensor, given: Tensor, P: Tensor, k: int, transposed: bool
    ) -> tuple[Tensor, ...]:
        length = _length(V.shape[-1], k)
        v_hat = torch.fft.rfft(V / P, length)
        if transposed:
            u_hat = _unfolded(P, corner, given, k)
            return _correlated(u_hat, v_hat, length, k).contiguous(), v_hat, u_hat, V.new_empty(0)
        w_hat = torch.fft.rfft(given, length)
        t = torch.fft.irfft(contract_rank(w_hat, v_hat), length)
        return _folded(P, corner, t, k)[0], v_hat, w_hat, t

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.k, ctx.transposed = inputs
        ctx.mark_non_differentiable(*output[1:])
        # Both save the same: the generated vmap rule asks for it.
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.save_for_forward(*tensors, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *others: Any) -> tuple[Tensor | None, ...]:
        s, corner, V, given, P, v_hat, hat, t = ctx.saved_tensors
        k, transposed, length = ctx.k, ctx.transposed, _length(V.shape[-1], ctx.k)
        if torch.is_grad_enabled():
            plain = partial(_plain, k=k, transposed=transposed)
            return *plain_backward(plain, (s, corner, V, given), gradient), None, None, None
        if transposed:
            u, u_hat, w_hat = given, hat, torch.fft.rfft(gradient, length)
            t = torch.fft.irfft(contract_rank(w_hat, v_hat), length)
        else:
            u, u_hat, w_hat = gradient, _unfolded(P, corner, gradient, k), hat
        ds, dc, dV, y = _gradients(s, corner, V, u, k, P, w_hat, u_hat, t)
        return ds, dc, dV, y if transposed else _correlated(u_hat, v_hat, length, k), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        plain = partial(_plain, k=ctx.k, transposed=ctx.transposed)
        return plain_jvp(plain, ctx.saved_tensors[:4], tangents[:4]), None, None, None
