"""Products with Krylov matrices of a subdiagonal operator with a corner.

A has s_1 .. s_{m-1} below the diagonal and c in the top right corner. With P_i = s_1 .. s_i,

    matrix        K(A, v) w = sum_j w_j A^j v
    similarity    A = D Z_f D^{-1},  D = diag(P),  f = c P_{m-1}
    convolution   (K(A, v) w)_i = P_i (t_i + f t_{m+i}),  t = (v / P) * w

so one FFT convolution does what the paper's algorithm does with 8 log2(n) of them. Dividing by P
costs digits in proportion to max|P| / min|P|, and everything when an entry is 0. Hence a guard and two
products: the convolution where that range is at most 32, in float64 where it is larger but a float32
result keeps its digits all the same, and else the split product (`split`), which is right for every
operator. The tests hold them to `krylov_reference(subdiagonal_reference(s, c), v, k)`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import stencil
from ._twin import plain_backward, plain_jvp
from .arrays import as_array
from .fft import conjugate, contract_rank, fast_length
from .split import SplitKrylov, split_matmul, split_prepare, split_rmatmul

Side = tuple[Tensor, Tensor, Tensor]  # of an operator: subdiagonal (m - 1,), corner (), start vectors (r, m)

PRODUCTS = ("auto", "convolution", "split")
RANGE = 2.0**5  # the convolution may lose five bits of its own dtype ..
RANGE_FLOAT64 = 2.0**24  # .. and in float64 these, for a result and its gradients in float32


class ConvolutionKrylov(NamedTuple):
    """K_k(A, v_i) for all i, prepared for the single convolution of length `length`.

    `corner` is f = c P_{m-1} where the ring is closed, and None where c is 0 and nothing is folded.
    """

    k: int
    length: int
    scale: Tensor  # P, (m,)
    corner: Tensor | None
    spectra: Tensor  # (r, length // 2 + 1): transforms of v / P
    conjugates: Tensor


def scales(s: Tensor) -> Tensor:
    """P_0 = 1, P_i = s_1 .. s_i, shape (m,)."""
    return torch.cat((s.new_ones(1), s.cumprod(-1)))


def convolution_scales(s: Tensor, product: str = "auto") -> Tensor | None:
    """The guard: the scales P in a dtype that keeps the convolution's digits, or None for the split product.

    "auto" reads the range of the scales. Where there are no values to read (tracing, vmap over
    operators, capture of a CUDA graph) it answers None: the split product is always right.
    "convolution" answers in float64 unseen, for callers that watch the range themselves.
    """
    s = s.detach()
    if product == "convolution":
        return scales(s.double())
    if product == "split" or torch.compiler.is_compiling():
        return None
    if s.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    if stencil.serves(s) and stencil.is_plain(s):
        from .compiled_kernels import scales as compiled_scales  # imports numba

        values, low, high = compiled_scales(as_array(s.contiguous()))
        P, reach = torch.from_numpy(values), high / low if low else math.inf
    else:
        P = scales(s)
        low, high = P.abs().aminmax()
        try:
            reach = (high / low).item()
        except RuntimeError:  # vmap and fake tensors have no values
            return None
    if reach <= RANGE:
        return P.to(s.dtype)
    if s.dtype == torch.float32 and reach <= RANGE_FLOAT64:
        return P if P.dtype == torch.float64 else scales(s.double())
    return None


def krylov_prepare(
    s: Tensor, corner: Tensor, V: Tensor, k: int, product: str = "auto"
) -> ConvolutionKrylov | SplitKrylov:
    """Prepare the Krylov matrices K_k(A, v_i) of a subdiagonal operator for many products.

    Args:
        s: subdiagonal, shape (m - 1,).
        corner: top right entry, shape ().
        V: start vectors, shape (r, m).
        k: how many columns, at most m.
        product: "auto", "convolution" or "split", see `convolution_scales`.

    Returns:
        What `prepared_matmul` and `prepared_rmatmul` take: constants of about 2 r m numbers for the
        single convolution, O(r m log m) for the split product.
    """
    P = convolution_scales(s, product)
    closed = corner.item() != 0
    if P is None:
        return split_prepare(s, corner, V, k, closed=closed)
    length = _length(V.shape[-1], k)
    spectra = torch.fft.rfft(V / P, length)
    return ConvolutionKrylov(k, length, P, corner * P[-1] if closed else None, spectra, conjugate(spectra))


def prepared_matmul(K: ConvolutionKrylov | SplitKrylov, w: Tensor) -> Tensor:
    """sum_i K_k(A, v_i) w_i for prepared matrices: (b, r, k) to (b, m)."""
    if isinstance(K, SplitKrylov):
        return split_matmul(K, w)
    m, dtype = K.scale.shape[0], w.dtype
    w_hat = torch.fft.rfft(w.to(K.scale.dtype), K.length)
    t = torch.fft.irfft(contract_rank(w_hat, K.spectra), K.length)
    y = t[..., :m]
    if K.corner is not None:
        y = y + pad(K.corner * t[..., m : m + K.k - 1], (0, m - K.k + 1))
    return (y * K.scale).to(dtype)


def prepared_rmatmul(K: ConvolutionKrylov | SplitKrylov, u: Tensor) -> Tensor:
    """K_k(A, v_i)^T u for every i, for prepared matrices: (b, m) to (b, r, k)."""
    if isinstance(K, SplitKrylov):
        return split_rmatmul(K, u)
    scaled = u * K.scale
    if K.corner is not None:
        scaled = torch.cat((scaled, K.corner * scaled[..., : K.k - 1]), -1)
    u_hat = torch.fft.rfft(scaled, K.length).unsqueeze(-2)
    return torch.fft.irfft(u_hat * K.conjugates, K.length)[..., : K.k].to(u.dtype)


def krylov_matmul(s: Tensor, corner: Tensor, V: Tensor, w: Tensor, product: str = "auto") -> Tensor:
    """Multiply by the Krylov matrices of a subdiagonal operator: sum_i K_k(A, v_i) w_i.

    Args:
        s: subdiagonal, shape (m - 1,).
        corner: top right entry, shape ().
        V: start vectors, shape (r, m).
        w: coefficients, shape (b, r, k) with k <= m.
        product: "auto", "convolution" or "split", see `convolution_scales`.

    Returns:
        Shape (b, m), in the dtype of `w` (float32 or float64).

    b r + r + b real FFTs of length about m + k, or the split product (see the module). Differentiable
    in every argument, any number of times; vmap, jvp and tracing hold.

    The same, slowly: `sum(krylov_reference(subdiagonal_reference(s, corner), v, k) @ w)`.
    """
    return matmul_by(convolution_scales(s, product), s, corner, V, w)


def matmul_by(P: Tensor | None, s: Tensor, corner: Tensor, V: Tensor, w: Tensor) -> Tensor:
    """`krylov_matmul` with the guard's answer given: the scales, or None for the split product."""
    if P is None:
        return _plain_matmul(s, corner, V, w)
    wide = (t.to(P.dtype) for t in (s, corner, V, w))
    return _ConvolutionMatmul.apply(*wide, P)[0].to(w.dtype)


def krylov_rmatmul(s: Tensor, corner: Tensor, V: Tensor, u: Tensor, k: int, product: str = "auto") -> Tensor:
    """Multiply by the transposed Krylov matrices: K_k(A, v_i)^T u for every i.

    Args:
        s: subdiagonal, shape (m - 1,).
        corner: top right entry, shape ().
        V: start vectors, shape (r, m).
        u: vectors, shape (b, m).
        k: how many columns, at most m.
        product: "auto", "convolution" or "split", see `convolution_scales`.

    Returns:
        Shape (b, r, k). Costs and rules as for `krylov_matmul`.
    """
    return rmatmul_by(convolution_scales(s, product), s, corner, V, u, k)


def rmatmul_by(P: Tensor | None, s: Tensor, corner: Tensor, V: Tensor, u: Tensor, k: int) -> Tensor:
    """`krylov_rmatmul` with the guard's answer given."""
    if P is None:
        return _plain_rmatmul(s, corner, V, u, k)
    wide = (t.to(P.dtype) for t in (s, corner, V, u))
    return _ConvolutionRmatmul.apply(*wide, P, k)[0].to(u.dtype)


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
    return P * t[..., :m] + pad(corner * high, (0, m - k + 1)), high


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


class _ConvolutionMatmul(torch.autograd.Function):
    """(s, corner, V, w, P) to K w, followed by what its backward needs again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(s: Tensor, corner: Tensor, V: Tensor, w: Tensor, P: Tensor) -> tuple[Tensor, ...]:
        k = w.shape[-1]
        length = _length(V.shape[-1], k)
        v_hat, w_hat = torch.fft.rfft(V / P, length), torch.fft.rfft(w, length)
        t = torch.fft.irfft(contract_rank(w_hat, v_hat), length)
        return _folded(P, corner, t, k)[0], v_hat, w_hat, t

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        # Both save the same: the generated vmap rule asks for it.
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.save_for_forward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, u: Tensor, *others: Any) -> tuple[Tensor | None, ...]:
        s, corner, V, w, P, v_hat, w_hat, t = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *plain_backward(_plain_matmul, (s, corner, V, w), u), None
        k = w.shape[-1]
        u_hat = _unfolded(P, corner, u, k)
        ds, dc, dV, _ = _gradients(s, corner, V, u, k, P, w_hat, u_hat, t)
        dw = torch.fft.irfft(u_hat.unsqueeze(-2) * conjugate(v_hat), t.shape[-1])[..., :k]
        return ds, dc, dV, dw, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return plain_jvp(_plain_matmul, ctx.saved_tensors[:4], tangents[:4]), None, None, None


class _ConvolutionRmatmul(torch.autograd.Function):
    """(s, corner, V, u, P, k) to K^T u, followed by what its backward needs again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(s: Tensor, corner: Tensor, V: Tensor, u: Tensor, P: Tensor, k: int) -> tuple[Tensor, ...]:
        length = _length(V.shape[-1], k)
        v_hat, u_hat = torch.fft.rfft(V / P, length), _unfolded(P, corner, u, k)
        z = torch.fft.irfft(u_hat.unsqueeze(-2) * conjugate(v_hat), length)[..., :k].contiguous()
        return z, v_hat, u_hat

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.k = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.save_for_forward(*tensors, *output[1:])

    @staticmethod
    def backward(ctx: Any, w: Tensor, *others: Any) -> tuple[Tensor | None, ...]:
        s, corner, V, u, P, v_hat, u_hat = ctx.saved_tensors
        k = ctx.k
        if torch.is_grad_enabled():
            plain = partial(_plain_rmatmul, k=k)
            return *plain_backward(plain, (s, corner, V, u), w), None, None
        length = _length(V.shape[-1], k)
        w_hat = torch.fft.rfft(w, length)
        t = torch.fft.irfft(contract_rank(w_hat, v_hat), length)
        ds, dc, dV, du = _gradients(s, corner, V, u, k, P, w_hat, u_hat, t)
        return ds, dc, dV, du, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        plain = partial(_plain_rmatmul, k=ctx.k)
        return plain_jvp(plain, ctx.saved_tensors[:4], tangents[:4]), None, None
