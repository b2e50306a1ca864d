"""Products with Krylov matrices of a subdiagonal operator with a corner.

A has s_1 .. s_{m-1} below the diagonal and c in the top right corner. With P_i = s_1 .. s_i,

    matrix        K(A, v) w = sum_j w_j A^j v
    similarity    A = D Z_f D^{-1},  D = diag(P),  f = c P_{m-1}
    convolution   (K(A, v) w)_i = P_i (t_i + f t_{m+i}),  t = (v / P) * w

so one FFT convolution does what the paper's algorithm does with 8 log2(n) of them. Dividing by P
costs digits in proportion to max|P| / min|P|, and everything when an entry is 0. Hence two products
and a guard: the convolution where that ratio is at most `RANGE`, else the split product (`split`),
which is right for every operator. The tests hold both to
`krylov_reference(subdiagonal_reference(s, c), v, k)`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._twin import plain_backward, plain_jvp
from .fft import contract_rank, fast_length
from .ring import Ring
from .split import SplitKrylov, split_matmul, split_prepare, split_rmatmul

RANGE = 32.0  # digits that the convolution may lose: five bits


class ConvolutionKrylov(NamedTuple):
    """K_k(A, v_i) for all i, prepared for the single convolution."""

    scale: Tensor  # P, (m,)
    ring: Ring
    spectra: Tensor  # (r, length // 2 + 1): transforms of v / P


def scales(s: Tensor) -> Tensor:
    """P_0 = 1, P_i = s_1 .. s_i, shape (m,)."""
    return torch.cat((s.new_ones(1), s.cumprod(-1)))


def fits_convolution(s: Tensor) -> bool:
    """The guard: whether the range of the scales lets the single convolution keep its digits.

    Reads values, so where there are none to read (tracing, vmap over operators, capture of a CUDA
    graph) the answer is no: the split product is always right.
    """
    if torch.compiler.is_compiling() or (s.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    low, high = scales(s.detach()).abs().aminmax()
    try:
        return bool(high <= RANGE * low)
    except RuntimeError:  # vmap and fake tensors refuse to turn a tensor into a bool
        return False


def krylov_prepare(s: Tensor, corner: Tensor, V: Tensor, k: int) -> ConvolutionKrylov | SplitKrylov:
    """Prepare the Krylov matrices K_k(A, v_i) of a subdiagonal operator for many products.

    Args:
        s: subdiagonal, shape (m - 1,).
        corner: top right entry, shape ().
        V: start vectors, shape (r, m).
        k: how many columns, at most m.

    Returns:
        What `prepared_matmul` and `prepared_rmatmul` take: constants of about 2 r m numbers for the
        single convolution, O(r m log m) for the split product.
    """
    if not fits_convolution(s):
        return split_prepare(s, corner, V, k)
    P = scales(s)
    ring = Ring(V.shape[-1], k, corner * P[-1])
    return ConvolutionKrylov(P, ring, ring.analyse(V / P))


def prepared_matmul(K: ConvolutionKrylov | SplitKrylov, w: Tensor) -> Tensor:
    """sum_i K_k(A, v_i) w_i for prepared matrices: (b, r, k) to (b, m)."""
    if isinstance(K, SplitKrylov):
        return split_matmul(K, w)
    return K.scale * K.ring.synthesise(contract_rank(K.ring.analyse(w), K.spectra))


def prepared_rmatmul(K: ConvolutionKrylov | SplitKrylov, u: Tensor) -> Tensor:
    """K_k(A, v_i)^T u for every i, for prepared matrices: (b, m) to (b, r, k)."""
    if isinstance(K, SplitKrylov):
        return split_rmatmul(K, u)
    return K.ring.fold(K.ring.unfold(K.scale * u).unsqueeze(-2) * K.spectra.conj())


def krylov_matmul(s: Tensor, corner: Tensor, V: Tensor, w: Tensor) -> Tensor:
    """Multiply by the Krylov matrices of a subdiagonal operator: sum_i K_k(A, v_i) w_i.

    Args:
        s: subdiagonal, shape (m - 1,).
        corner: top right entry, shape ().
        V: start vectors, shape (r, m).
        w: coefficients, shape (b, r, k) with k <= m.

    Returns:
        Shape (b, m), in the dtype of `w` (float32 or float64).

    b r + r + b real FFTs of length about m + k, or the split product (see the module). Differentiable
    in every argument, any number of times; vmap, jvp and tracing hold.

    The same, slowly: `sum(krylov_reference(subdiagonal_reference(s, corner), v, k) @ w)`.
    """
    if fits_convolution(s):
        return _ConvolutionMatmul.apply(s, corner, V, w)[0]
    return _plain_matmul(s, corner, V, w)


def krylov_rmatmul(s: Tensor, corner: Tensor, V: Tensor, u: Tensor, k: int) -> Tensor:
    """Multiply by the transposed Krylov matrices: K_k(A, v_i)^T u for every i.

    Args:
        s: subdiagonal, shape (m - 1,).
        corner: top right entry, shape ().
        V: start vectors, shape (r, m).
        u: vectors, shape (b, m).
        k: how many columns, at most m.

    Returns:
        Shape (b, r, k). Costs and rules as for `krylov_matmul`.
    """
    if fits_convolution(s):
        return _ConvolutionRmatmul.apply(s, corner, V, u, k)[0]
    return _plain_rmatmul(s, corner, V, u, k)


def _plain_matmul(s: Tensor, corner: Tensor, V: Tensor, w: Tensor) -> Tensor:
    return split_matmul(split_prepare(s, corner, V, w.shape[-1]), w)


def _plain_rmatmul(s: Tensor, corner: Tensor, V: Tensor, u: Tensor, k: int) -> Tensor:
    return split_rmatmul(split_prepare(s, corner, V, k), u)


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
    return P * t[..., :m] + torch.nn.functional.pad(corner * high, (0, m - k + 1)), high


def _gradients(
    s: Tensor, corner: Tensor, V: Tensor, u: Tensor, k: int, P: Tensor, w_hat: Tensor, u_hat: Tensor, t: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the form u^T K(A, v) w, summed over the batch, in s, c and v; and K w.

    That of v is a correlation. That of s_l is the flow over edge l, the sum over all paths k -> i
    that cross it, divided by s_l; from one edge to the next the flow changes by what starts there
    less what ends there, v_l dv_l - u_l y_l, so one cumulative sum gives all of them.
    """
    dV = torch.fft.irfft((w_hat.conj() * u_hat.unsqueeze(-2)).sum(0), t.shape[-1])
    dV = dV[..., : V.shape[-1]] / P
    y, high = _folded(P, corner, t, k)
    dc = (u[..., : k - 1] * high).sum()
    flow = ((V * dV).sum(0) - (u * y).sum(0))[:-1].cumsum(0) + corner * dc
    return flow / s, dc, dV, y


class _ConvolutionMatmul(torch.autograd.Function):
    """(s, corner, V, w) to K w, followed by what its backward needs again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(s: Tensor, corner: Tensor, V: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        P, k = scales(s), w.shape[-1]
        length = _length(V.shape[-1], k)
        v_hat, w_hat = torch.fft.rfft(V / P, length), torch.fft.rfft(w, length)
        t = torch.fft.irfft(contract_rank(w_hat, v_hat), length)
        return _folded(P, corner, t, k)[0], P, v_hat, w_hat, t

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, u: Tensor, *_: Any) -> tuple[Tensor, ...]:
        s, corner, V, w, P, v_hat, w_hat, t = ctx.saved_tensors
        if torch.is_grad_enabled():
            return plain_backward(_plain_matmul, (s, corner, V, w), u)
        k = w.shape[-1]
        u_hat = _unfolded(P, corner, u, k)
        ds, dc, dV, _ = _gradients(s, corner, V, u, k, P, w_hat, u_hat, t)
        dw = torch.fft.irfft(u_hat.unsqueeze(-2) * v_hat.conj(), t.shape[-1])[..., :k]
        return ds, dc, dV, dw

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return plain_jvp(_plain_matmul, ctx.saved_tensors, tangents), None, None, None, None


class _ConvolutionRmatmul(torch.autograd.Function):
    """(s, corner, V, u, k) to K^T u, followed by what its backward needs again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(s: Tensor, corner: Tensor, V: Tensor, u: Tensor, k: int) -> tuple[Tensor, ...]:
        P = scales(s)
        length = _length(V.shape[-1], k)
        v_hat, u_hat = torch.fft.rfft(V / P, length), _unfolded(P, corner, u, k)
        z = torch.fft.irfft(u_hat.unsqueeze(-2) * v_hat.conj(), length)[..., :k].contiguous()
        return z, P, v_hat, u_hat

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.k = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, w: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        s, corner, V, u, P, v_hat, u_hat = ctx.saved_tensors
        k = ctx.k
        if torch.is_grad_enabled():
            plain = partial(_plain_rmatmul, k=k)
            return *plain_backward(plain, (s, corner, V, u), w), None
        length = _length(V.shape[-1], k)
        w_hat = torch.fft.rfft(w, length)
        t = torch.fft.irfft(contract_rank(w_hat, v_hat), length)
        ds, dc, dV, du = _gradients(s, corner, V, u, k, P, w_hat, u_hat, t)
        return ds, dc, dV, du, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        plain = partial(_plain_rmatmul, k=ctx.k)
        return plain_jvp(plain, ctx.saved_tensors, tangents[:-1]), None, None, None
