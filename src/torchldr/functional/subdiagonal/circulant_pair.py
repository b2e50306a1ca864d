"""A whole square LDR-SD product with FFTs of length n, for inference.

With A = D_A Z_f D_A^{-1} and C = D_C Z_e D_C^{-1} (see the package) the matrix between the scalings,

    M' = D_A^{-1} M D_C^{-1} = sum_i K(Z_f, g_i) K(Z_e, h_i)^T,      g = G / P_A,  h = H / P_C,

needs linear convolutions, FFTs of length 2n, because f and e are not 1 and -1. But Z_a differs from Z_f,
and Z_b from Z_e, by one entry each, so the displacement of M' with respect to that pair has only two
more terms, made of the last row and the last column of M':

    M' - Z_a M' Z_b^T = (1 - f e) G^T H + e_0 p^T + q e_0^T,
    p = (f - a) Z_e row,   q = (e - b) Z_f column - (f - a) (e - b) M'_{last, last} e_0,

and, as K(Z_a, e_0) and K(Z_b, e_0) are the identity, for any a and b with a b != 1

    (1 - a b) M' = (1 - f e) sum_i K(Z_a, g_i) K(Z_b, h_i)^T + K(Z_b, p)^T + K(Z_a, q).

With a = 1 and b = -1 that is 2r + 4 FFTs of length n a vector instead of 2r + 2 of length 2n: a quarter less
work at rank one, nearly half at high rank. The constants are computed in float64 once.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import stencil
from ..fft import conjugate, contract_rank, fast_length
from ..ring import Ring, ring
from .guard import Side, balanced


class CirculantPair(NamedTuple):
    """M prepared: scalings, and spectra of (h_1 .. h_r, p) and of (g_1 .. g_r, q)."""

    P_A: Tensor
    P_C: Tensor
    forward: Ring  # of Z_1
    backward: Ring  # of Z_{-1}
    right: Tensor  # (r + 1, f), conjugated
    left: Tensor  # (r + 1, f)


@torch.no_grad()
def prepare(A: Side, C: Side, dtype: torch.dtype) -> CirculantPair:
    """Prepare M = sum_i K(A, g_i) K(C, h_i)^T, square, for products in a dtype."""
    n = A[2].shape[-1]
    forward, backward = ring(n, n, 1), ring(n, n, -1)
    (P_A, P_C), (left, right) = (t.to(dtype) for t in generators(*balanced(A, C), 1.0, -1.0))
    return CirculantPair(
        P_A, P_C, forward, backward, conjugate(backward.analyse(right)), forward.analyse(left)
    )


def generators(A: Side, C: Side, a: float, b: float) -> tuple[Tensor, Tensor]:
    """P of both operators, (2, n), and left and right, (2, r + 1, n), of a square M with respect to Z_a, Z_b:

    M = D_A (sum_{i < r} K(Z_a, left_i) K(Z_b, right_i)^T + K(Z_a, left_r) + K(Z_b, right_r)^T) D_C.

    In float64. Differentiable, where no entry of a subdiagonal is 0.
    """
    s, corner, V = map(torch.stack, zip(A, C, strict=True))
    if not torch.is_grad_enabled():  # as where a plan is made, which may be inside a transformation of torch
        return _plain(s, corner.flatten(), V, a=a, b=b)
    found: tuple[Tensor, Tensor] = _Generators.apply(s, corner.flatten(), V, a, b)
    return found


class _Scaled(NamedTuple):
    """Both operators between their scalings, in float64, and what the last column and row of M' are made of.

    Powers of a shift bring every entry to the last place, so the last column is sum_i K(Z_f, g_i) h_i^-, h^-
    from the last entry to the first. Row and column have the correlations of g and h, of all lags.
    """

    P: Tensor  # (2, n)
    v: Tensor  # (2, r, n): g and h
    corners: Tensor  # (2,): f and e
    spectra: Tensor  # of v, (2, r, ..)
    last: Tensor  # the correlation of lag 0, (1,)
    after: Tensor  # of lags 1 to n - 1
    before: Tensor  # of lags 1 - n to -1


def _scaled(s: Tensor, corner: Tensor, V: Tensor) -> _Scaled:
    n, length = V.shape[-1], _length(V)
    P = pad(s.double(), (1, 0), value=1.0).cumprod(-1)
    v = V / P.unsqueeze(1)
    spectra = torch.fft.rfft(v, length)
    t = torch.fft.irfft((spectra[0] * conjugate(spectra[1])).sum(0), length)
    return _Scaled(P, v, corner * P[:, -1], spectra, t[:1], t[1:n], t[length - n + 1 :])


def _length(V: Tensor) -> int:
    """Of transforms that hold correlations of all lags."""
    return fast_length(2 * V.shape[-1] - 1)


def _made(of: _Scaled, a: float, b: float) -> Tensor:
    """Left and right, (2, r + 1, n)."""
    (f, e), factor = of.corners, 1 / (1 - a * b)
    q = torch.cat((a * of.last, torch.addcmul(of.before, f, of.after))) * ((e - b) * factor)
    p = torch.cat((e * of.last, torch.addcmul(of.after, e, of.before).flip(0))) * ((f - a) * factor)
    left = torch.cat((of.v[0] * ((1 - f * e) * factor), q.unsqueeze(0)))
    return torch.stack((left, torch.cat((of.v[1], p.unsqueeze(0)))))


def _plain(s: Tensor, corner: Tensor, V: Tensor, *, a: float, b: float) -> tuple[Tensor, Tensor]:
    of = _scaled(s, corner, V)
    return of.P, _made(of, a, b)


class _Generators(torch.autograd.Function):
    """Of subdiagonals (2, n - 1), corners (2,) and start vectors (2, r, n): P and the generators.

    The gradient is written out, because a GPU waits for the hundreds of small operations that autograd makes
    of it, and the one of torch's cumprod waits for the GPU.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, corner: Tensor, V: Tensor, a: float, b: float) -> tuple[Tensor, Tensor]:
        of = _scaled(s, corner, V)
        ctx.ends = a, b
        ctx.save_for_backward(s, corner, V, *of)
        if not ctx.needs_input_grad[0]:  # the scales of subdiagonals that are constants are constants
            ctx.mark_non_differentiable(of.P)
        return of.P, _made(of, a, b)

    @staticmethod
    def backward(ctx: Any, dP: Tensor, dmade: Tensor) -> tuple[Tensor | None, ...]:
        s, corner, V, *of = ctx.saved_tensors
        a, b = ctx.ends
        if torch.is_grad_enabled() or not (stencil.is_plain(dP) and stencil.is_plain(dmade)):
            _, pullback = torch.func.vjp(partial(_plain, a=a, b=b), s, corner, V)
            return *pullback((dP, dmade)), None, None
        P, v, corners, spectra, last, after, before = _Scaled(*of)
        (f, e), factor, n, length = corners, 1 / (1 - a * b), V.shape[-1], _length(V)
        dv, (dq, dp) = dmade[:, :-1], factor * dmade[:, -1]
        dq_0, dp_0, dq, dp = dq[:1], dp[:1], dq[1:], dp[1:].flip(0)
        # Of q = (e - b) (a last, before + f after), p = (f - a) (e last, after + e before), and (1 - f e) g.
        dproduct = factor * (v[0] * dv[0]).sum()
        q_last, p_last = torch.stack((dq_0, dp_0)) @ last
        (q_before, q_after), (p_before, p_after) = torch.stack((dq, dp)) @ torch.stack((before, after), 1)
        df = (e - b) * q_after + e * (p_last + p_before - dproduct) + p_after
        de = (f - a) * (p_last + p_before) + f * (q_after - dproduct) + q_before + a * q_last
        dq, dp, dlast = (e - b) * dq, (f - a) * dp, (a * (e - b)) * dq_0 + (e * (f - a)) * dp_0
        dt = torch.cat((dlast, f * dq + dp, dq.new_zeros(length - 2 * n + 1), dq + e * dp))
        spectrum = torch.fft.rfft(dt)
        of_v = torch.stack((spectra[1] * spectrum, spectra[0] * conjugate(spectrum)))
        direct = torch.stack((dv[0] * ((1 - f * e) * factor), dv[1]))
        dv = direct + torch.fft.irfft(of_v, length)[..., :n]
        dcorners = torch.stack((df, de))
        ds = None
        if ctx.needs_input_grad[0]:
            flow = dP * P - (dv * v).sum(1)
            flow[:, -1] += dcorners * corners
            ds = flow[:, 1:].flip(-1).cumsum(-1).flip(-1) / s
        return ds, dcorners * P[:, -1], dv / P.unsqueeze(1), None, None


def matmul(K: CirculantPair, x: Tensor) -> Tensor:
    """M x for prepared M: (b, n) to (b, n), in the dtype of `x`."""
    scaled = x * K.P_C
    z = K.backward.fold(K.backward.unfold(scaled).unsqueeze(-2) * K.right)
    inner = torch.cat((z[:, :-1], scaled.unsqueeze(1)), 1)
    y = K.forward.synthesise(contract_rank(K.forward.analyse(inner), K.left)) + z[:, -1]
    return (y * K.P_A).to(x.dtype)
