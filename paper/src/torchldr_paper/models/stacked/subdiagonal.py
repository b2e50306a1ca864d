"""LDR-SD for many replicas: the whole layer as one function with a hand-written backward.

With the scales P of A and Q of C (see `functional.subdiagonal`), f = corner * last scale and * for a
linear convolution,

    z_i = correlation of (Q x, f_C Q x) with h_i / Q
    y   = P (t + f_A t')    where (t, t') = sum_i z_i * (g_i / P)

in float64 throughout: right while max|P| / min|P| stays far from 10^15 in each operator, which the fleet
watches once an epoch. The library's own products do the same for one operator at a time; here both
operators of all replicas go through the same few transforms, some 60 kernels forward and backward, none
of which reads a value. The tests hold values and gradients to the library's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchldr.functional.fft import fast_length


def square_convolution_product(s: Tensor, corner: Tensor, V: Tensor, x: Tensor) -> Tensor:
    """sum_i K(A, g_i) K(C, h_i)^T x for R replicas of a square LDR-SD layer.

    Args:
        s: subdiagonals of A and C, shape (2, R, n - 1).
        corner: their corners, shape (2, R).
        V: G and H, shape (2, R, r, n).
        x: shape (b, n), common to all replicas, or (R, b, n).

    Returns:
        Shape (R, b, n), in the dtype of x.
    """
    return _Convolution.apply(s.double(), corner.double(), V.double(), x)[0].to(x.dtype)


def _unfolded(P: Tensor, f: Tensor, u: Tensor, length: int) -> Tensor:
    """The transform of (P u, f P u), shape (R, b, length // 2 + 1)."""
    R, n = P.shape
    long = P.new_zeros(R, u.shape[-2], length)
    torch.mul(P.unsqueeze(1), u, out=long[..., :n])
    torch.mul(f.view(R, 1, 1), long[..., : n - 1], out=long[..., n : 2 * n - 1])
    return torch.fft.rfft(long)


def _folded(P: Tensor, f: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """P_i (t_i + f t_{n+i}), and P_i t_{n+i} for i < n - 1."""
    n = P.shape[-1]
    high = P[:, None, : n - 1] * t[..., n : 2 * n - 1]
    y = P.unsqueeze(1) * t[..., :n]
    y[..., : n - 1].addcmul_(f.view(-1, 1, 1), high)
    return y, high


def _contracted(a: Tensor, b: Tensor) -> Tensor:
    """sum_i a[R, b, i, f] b[R, i, f] over the rank."""
    total = a[:, :, 0] * b[:, None, 0]
    for i in range(1, b.shape[1]):
        total.addcmul_(a[:, :, i], b[:, None, i])
    return total


class _Convolution(torch.autograd.Function):
    """(s, corner, V, x) to y, followed by what the backward needs again."""

    @staticmethod
    def forward(s: Tensor, corner: Tensor, V: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        n = V.shape[-1]
        length = fast_length(2 * n - 1)
        P = torch.cat((torch.ones_like(corner).unsqueeze(-1), s.cumprod(-1)), -1)
        f = corner * P[..., -1]
        hats = torch.fft.rfft(V / P.unsqueeze(2), length)
        x_hat = _unfolded(P[1], f[1], x, length)
        z_hat = torch.fft.irfft(x_hat.unsqueeze(2) * hats[1].conj().unsqueeze(1), length)[..., :n]
        z_hat = torch.fft.rfft(z_hat, length)
        y, high = _folded(P[0], f[0], torch.fft.irfft(_contracted(z_hat, hats[0]), length))
        return y, high, P, f, hats, x_hat, z_hat

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # their gradients would be filled with zeros
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, u: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        s, corner, V, x, y, high_A, P, f, hats, x_hat, z_hat = ctx.saved_tensors
        n = V.shape[-1]
        length = fast_length(2 * n - 1)
        u_hat = _unfolded(P[0], f[0], u, length)
        dz = torch.fft.irfft(u_hat.unsqueeze(2) * hats[0].conj().unsqueeze(1), length)[..., :n]
        dz_hat = torch.fft.rfft(dz, length)
        dx, high_C = _folded(P[1], f[1], torch.fft.irfft(_contracted(dz_hat, hats[1]), length))
        # Correlations over the batch: with v_i for A and with the transposed product for C.
        dV_hat = torch.stack(
            [(z_hat.conj() * u_hat.unsqueeze(2)).sum(1), (dz_hat.conj() * x_hat.unsqueeze(2)).sum(1)]
        )
        dV = torch.fft.irfft(dV_hat, length)[..., :n] / P.unsqueeze(2)
        ends = torch.stack([(u * y).sum(1), (x * dx).sum(1)])
        dc = torch.stack([(v[..., : n - 1] * h).sum((1, 2)) for v, h in ((u, high_A), (x, high_C))])
        dc = dc * P[..., -1]
        # What flows over edge l changes from one edge to the next by what starts there less what ends.
        flow = ((V * dV).sum(2) - ends)[..., :-1].cumsum(-1) + (corner * dc).unsqueeze(-1)
        grad_x = None
        if ctx.needs_input_grad[3]:
            grad_x = (dx if x.ndim == 3 else dx.sum(0)).to(x.dtype)
        return flow / s, dc, dV, grad_x
