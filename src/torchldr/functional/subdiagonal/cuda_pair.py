"""A whole square LDR-SD product on a GPU: the circulant pair in a kernel or two, and its gradients in one.

As in `compiled_pair` both shifts are Z_{-1} after a scaling by D = diag(2^{j/n}), so that a real row of n
numbers is one complex row of h = n / 2, x_j + i x_{j+h}, and every transform is a complex FFT of length
h:

    U = F T (P_C D x),  S = F T (P_C x)             T the turns e^{i pi j / n}, F the DFT of length h
    z_i = D^{-1} T^{-1} F^{-1} (conj(right_i) U)    i = 1 .. r + 1, `left` and `right` spectra
    Q = sum_{i <= r} left_i F T z_i + left_{r+1} S
    y = P_A (T^{-1} F^{-1} Q + z_{r+1})

2r + 4 of them a row, or 4 where few rows leave room for blocks that take the ranks apart. No row meets
another, so one that is not finite, or much larger, does not harm the others.

Gradients take 4r + 6 more: every step is linear and T^{-1} F^{-1} (unscaled) is adjoint to F T, so dQ = F T
(P_A dy) goes back through the same steps. Those of left_i are sums of dQ times the conjugate of F T z_i over
all rows, those of right_i likewise; P_A and P_C multiply y and x entry by entry, so theirs are sums of dy y
and x dx over P. From there on, to the vectors and operators that all this was made from, autograd goes on.
The tests hold the kernels, run as C++, to the definition of M.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...kernels.cuda import pair, unavailable
from ...kernels.cuda.pair import Constants
from .. import stencil
from .._twin import plain_backward
from ..constants import kept
from ..fft import conjugate, is_fast_length
from ..kept import KeptProduct, Product
from ..later import Later
from ..ring import twist
from .circulant_pair import generators
from .guard import Side, ranges


def takes(m: int, n: int) -> bool:
    """Whether there are transforms for m x n matrices."""
    return m == n and is_fast_length(n)


def why_not(shape: torch.Size, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why a matrix cannot be multiplied by, or None."""
    if device.type != "cuda":
        return "for GPUs"
    if (reason := unavailable()) is not None:
        return reason
    if not takes(*shape):
        return "for square matrices of an even size that is a product of 2, 3, 5 and 7"
    if pair.shared_bytes(shape[0] // 2) > pair.shared_most(device):
        return "a row does not fit in the memory of a block of threads"
    return "for float32 and fewer digits" if dtype == torch.float64 else None


class KeptPair(KeptProduct):
    """Multiply by M = sum_i K(A, g_i) K(C, h_i)^T in the dtype of x or of autocast, and add a bias.

    Where `reversed`, the product's entries come from the last to the first. Differentiable in both.
    """

    def __init__(self, A: Side, C: Side, *, reversed: bool = False) -> None:
        def prepared(transposed: bool) -> Product:
            if not transposed:
                return partial(matmul, prepare(A, C), reversed=reversed)
            K = prepare(C, A)
            return lambda y: matmul(K, y.flip(-1) if reversed else y)

        super().__init__(prepared)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
            y = biased(super().__call__(rows.to(_dtype(x))), bias)
        else:
            y = self._products[False](rows, bias, _dtype(x))
        return y if x.ndim == 2 else y.reshape(x.shape)


def product(
    A: Side, C: Side, x: Tensor, bias: Tensor | None = None, limit: float = math.inf
) -> Tensor | None:
    """M x + bias for rows of x, in the dtype of x or of autocast; differentiable in every tensor.

    None where the range of both operators, which `guard` explains, is above a limit. That is looked at when
    all is queued.
    """
    rows = x.reshape(-1, x.shape[-1]).to(_dtype(x))
    if not len(rows):  # gradients of nothing are those of a row of zeros, which is dropped again
        rows = torch.nn.functional.pad(rows, (0, 0, 0, 1))
    P, made = _generators(A, C)
    seen = None if limit == math.inf else Later(_reach(P, A, C))
    y = _Pair.apply(P, made, rows)
    if seen is not None and not float(seen.read()) <= limit:
        return None
    y = y if x.numel() else y[:0]
    if bias is None and P.requires_grad:  # y itself is saved, and what a layer returns may be edited in place
        y = y.clone()
    return biased(y, bias).reshape(x.shape)


@torch.no_grad()
def _reach(P: Tensor, A: Side, C: Side) -> Tensor:
    return ranges(P, torch.stack((A[1], C[1])).flatten()).prod()


def _dtype(x: Tensor) -> torch.dtype:
    """Of the result."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def biased(y: Tensor, bias: Tensor | None) -> Tensor:
    """y + bias in the dtype of y."""
    return y if bias is None else (y + bias).to(y.dtype)


@torch.no_grad()
def prepare(A: Side, C: Side) -> Constants:
    """Prepare M = sum_i K(A, g_i) K(C, h_i)^T."""
    return _constants(*_generators(A, C))


def _generators(A: Side, C: Side) -> tuple[Tensor, Tensor]:
    return generators(A, C, -1.0, -0.5)


def _constants(P: Tensor, made: Tensor) -> Constants:
    n, device = P.shape[-1], P.device
    D, turn = _growth(n, torch.float32, device), twist(n, torch.float32, device, 1)
    left, right = _spectra(made / _divisors(n, device)).to(torch.complex64)
    P_A, P_C = P.float()
    return Constants(P_C * D, P_C, 1 / D, P_A, P_A / D, turn, right, left, _roots(n, device))


def _spectra(v: Tensor) -> Tensor:
    """F T v."""
    h = v.shape[-1] // 2
    return torch.fft.fft(torch.complex(v[..., :h], v[..., h:]) * twist(2 * h, v.dtype, v.device, 1))


def _row(spectrum: Tensor) -> Tensor:
    """T^{-1} F^{-1} v, without a division by the length."""
    v = torch.fft.ifft(spectrum, norm="forward")
    v = v * twist(2 * v.shape[-1], v.real.dtype, v.device, -1)
    return torch.cat((v.real, v.imag), -1)


@kept(64)
def _growth(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """D: 2^{j/n} for j < n."""
    return (2.0 ** (torch.arange(n, dtype=torch.float64, device=device) / n)).to(dtype)


@kept(64)
def _divisors(n: int, device: torch.device) -> Tensor:
    """What generators are divided by, left and right: 1 and D, and the length of the transforms."""
    D = _growth(n, torch.float64, device)
    return torch.stack((torch.ones_like(D), D)).unsqueeze(1) * (n // 2)


@kept(64)
def _roots(n: int, device: torch.device) -> Tensor:
    """e^{-2 pi i j / h} for j < h = n / 2."""
    angle = torch.arange(n // 2, dtype=torch.float64, device=device) * (-4 * math.pi / n)
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)


def matmul(
    K: Constants,
    x: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    *,
    reversed: bool = False,
) -> Tensor:
    """M x for prepared M, plus a bias: (b, n) to (b, n) in a dtype, by default that of x."""
    dtype = dtype or x.dtype
    x, wanted = _known(x), dtype if dtype in pair.READ else torch.float32
    out = torch.empty(x.shape, dtype=wanted, device=x.device)
    if len(x):
        pair.multiply(K, x, None if bias is None else _known(bias), out, reversed)
    return out if out.dtype is dtype else out.to(dtype)


def _known(t: Tensor) -> Tensor:
    """The same in a dtype that the kernels read, contiguous and not only noted to be negated."""
    return (t if t.dtype in pair.READ else t.float()).contiguous().resolve_neg()


class _Pair(torch.autograd.Function):
    """Of P and of left and right, as `generators` has them, and of rows x."""

    @staticmethod
    def forward(ctx: Any, P: Tensor, made: Tensor, x: Tensor) -> Tensor:
        constants = _constants(P, made)
        y = matmul(constants, x)
        ctx.save_for_backward(P, made, x, y if ctx.needs_input_grad[0] else None, *constants)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        P, made, x, y, *constants = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.is_plain(dy):
            return plain_backward(_plain, (P, made, x), dy)
        y = None if y is None else _known(y)
        known = Constants(*(t.contiguous() for t in constants))  # hooks may have given others back
        found = pair.gradients(known, _known(x), y, _known(dy))
        dmade = _row(found.spectra.to(torch.complex128)) / _divisors(P.shape[-1], P.device)
        return None if found.products is None else found.products / P, dmade, found.x


def _plain(P: Tensor, made: Tensor, x: Tensor) -> Tensor:
    """The same in torch's operations, in float64."""
    D = _growth(P.shape[-1], P.dtype, P.device)
    (P_A, P_C), (left, right) = P, _spectra(made / _divisors(P.shape[-1], P.device))
    scaled = x.double() * P_C
    U, S = _spectra(scaled * D), _spectra(scaled)
    z = _row(U.unsqueeze(-2) * conjugate(right)) / D
    Q = (_spectra(z[..., :-1, :]) * left[:-1]).sum(-2) + S * left[-1]
    return (P_A * (_row(Q) + z[..., -1, :])).to(x.dtype)
