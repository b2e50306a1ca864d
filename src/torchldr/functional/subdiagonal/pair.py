"""Products with prepared square LDR matrices by a pair of skew-circulant ones, as one operator.

    M = leave (sum_{i < r} T(left_i) between T(right_i)^T enter + T(left_r) beside) + aside T(right_r)^T enter

for diagonal scalings and T(v) the skew-circulant matrix of size n that has the spectrum v; M^T is of the same
form, with left and right, enter and leave, beside and aside exchanged. `generators` has the vectors, for
a = -1 and b = -1/2: Z_{-1} takes complex FFTs of length n / 2, and so does Z_{-1/2} after a scaling
D = diag(2^{j/n}). That is 2r + 4 of them a row: by C on a CPU where n is a power of two, and in a kernel or
two on a GPU for even n without large factors. The scaling costs a bit of precision at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...kernels.cpu import library
from ...kernels.cpu import pair as by_c
from ...kernels.cuda import pair as by_cuda
from ...kernels.cuda import unavailable
from ..constants import kept
from ..fft import conjugate, is_fast_length
from ..operator import Operator
from ..ring import twist
from .generators import generators
from .guard import Side

SMALLEST = 64


def serves(m: int, n: int, device: torch.device) -> bool:
    """Whether kernels multiply by m x n matrices on a device, by their sizes."""
    if m != n or n < SMALLEST:
        return False
    if device.type == "cuda":
        return fits_a_block(n, device)
    return n & (n - 1) == 0 and device.type == "cpu" and library.why_not() is None


def fits_a_block(n: int, device: torch.device) -> bool:
    """Whether a GPU's kernels take rows of n numbers."""
    if n % 2 or not is_fast_length(n) or unavailable() is not None:
        return False
    return by_cuda.fits(n // 2, device)


@torch.no_grad()
def prepare(A: Side, C: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Scalings (5, n), left and right spectra (r + 1, n), real parts first, of sum_i K(A, g_i) K(C, h_i)^T.

    In float64; operators without zeros.
    """
    n, half = A[2].shape[-1], A[2].shape[-1] // 2
    (P_A, P_C), (left, right), _ = generators(A, C, -1.0, -0.5)
    D = growth(n, torch.float64, P_A.device)
    scalings = torch.stack((P_C * D, P_C, 1 / D, P_A / half, P_A / D / half))
    right = _split(analyse(right / D))
    right[:-1] /= half
    return scalings, _split(analyse(left)), right


def product(x: Tensor, scalings: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The product with prepared constants: (b, n) to (b, n). Differentiable.

    All are of one dtype, or as `reads` says.
    """
    return PAIR(x, scalings, left, right, False)


def reads(x: Tensor, scalings: Tensor) -> bool:
    """Whether a GPU's kernels take these rows as they are."""
    return x.is_cuda and x.dtype in by_cuda.READ and scalings.dtype == torch.float32


def analyse(v: Tensor) -> Tensor:
    """The spectrum of real vectors modulo X^n + 1: (.., n) to complex (.., n / 2)."""
    h = v.shape[-1] // 2
    return torch.fft.fft(torch.complex(v[..., :h], v[..., h:]) * twist(2 * h, v.dtype, v.device, 1))


def synthesise(spectrum: Tensor) -> Tensor:
    """n / 2 times the vectors that have these spectra."""
    v = torch.fft.ifft(spectrum, norm="forward")
    v = v * twist(2 * v.shape[-1], v.real.dtype, v.device, -1)
    return torch.cat((v.real, v.imag), -1)


@kept(64)
def growth(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """D: 2^{j/n} for j < n."""
    return (2.0 ** (torch.arange(n, dtype=torch.float64, device=device) / n)).to(dtype)


def _split(v: Tensor) -> Tensor:
    return torch.cat((v.real, v.imag), -1)


def joined(v: Tensor) -> Tensor:
    """Complex numbers of their real parts and, behind, their imaginary ones."""
    return torch.complex(*v.chunk(2, -1))


def _exchanged(
    scalings: Tensor, left: Tensor, right: Tensor, transposed: bool
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    enter, beside, between, leave, aside = scalings.unbind(-2)
    if transposed:
        return (leave, aside, between, enter, beside), right, left
    return (enter, beside, between, leave, aside), left, right


def _plain(x: Tensor, scalings: Tensor, left: Tensor, right: Tensor, transposed: bool) -> Tensor:
    """Leading axes are allowed: gradients under vmap have them."""
    given = scalings.unsqueeze(-3), joined(left).unsqueeze(-3), joined(right).unsqueeze(-3)
    (enter, beside, between, leave, aside), left, right = _exchanged(*given, transposed)
    z = synthesise(analyse(x * enter).unsqueeze(-2) * conjugate(right))
    each = analyse(z[..., :-1, :] * between.unsqueeze(-2))
    Q = (each * left[..., :-1, :]).sum(-2) + analyse(x * beside) * left[..., -1, :]
    return (leave * synthesise(Q) + aside * z[..., -1, :]).to(x.dtype)


def _kernel(x: Tensor, scalings: Tensor, left: Tensor, right: Tensor, transposed: bool) -> Tensor:
    x = x.contiguous().resolve_neg()
    if not x.is_cuda:
        return by_c.product(scalings, left, right, x, transposed=transposed)
    (_, beside, _, _, aside), left, right = _exchanged(scalings, left, right, transposed)
    if not len(x):
        return torch.empty_like(x)
    return by_cuda.multiply(constants(beside, aside, joined(left), joined(right)), x)


def constants(beside: Tensor, aside: Tensor, left: Tensor, right: Tensor) -> by_cuda.Constants:
    """M as the kernels take it, from spectra over n / 2 in their own order."""
    h, device = left.shape[-1], left.device
    left, right = torch.stack((left, right))[..., order(h, device)]
    return by_cuda.Constants(beside, aside, _tables(h, device), right, left)


@kept(64)
def order(h: int, device: torch.device) -> Tensor:
    return by_cuda.order(h, device)


@kept(64)
def _tables(h: int, device: torch.device) -> Tensor:
    return by_cuda.tables(h, device)


def _serves(x: Tensor, scalings: Tensor, left: Tensor, right: Tensor, transposed: bool) -> bool:
    n = x.shape[-1]
    if x.ndim != 2 or any(t.dtype is not scalings.dtype for t in (left, right)):
        return False
    if x.is_cuda:
        return reads(x, scalings) and fits_a_block(n, x.device)
    return x.dtype is scalings.dtype and library.serves(x) and n >= SMALLEST and n & (n - 1) == 0


def _gradient(
    u: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    x, scalings, left, right, transposed = arguments
    if any(wanted[1:]):  # constants as a rule
        pull = torch.func.vjp(partial(_plain, transposed=transposed), x, scalings, left, right)[1]
        return list(pull(u))
    return [_kernel(u, scalings, left, right, not transposed), None, None, None]


def _batched(info: Any, dims: Sequence[int | None], apply: Any, arguments: Sequence[Any]) -> Any:
    """Mapped vectors join the rows."""
    *tensors, transposed = arguments
    if all(dim is None for dim in dims[1:]):
        x = tensors[0].movedim(dims[0], 0)
        y = apply(x.flatten(0, -2), *arguments[1:])[0]
        return (y.unflatten(0, x.shape[:-1]),), (0,)
    y = torch.vmap(partial(_plain, transposed=transposed), in_dims=tuple(dims[:-1]))(*tensors)
    return (y,), (0,)


def _samples() -> Iterator[tuple[Any, ...]]:
    for n, r, transposed in ((64, 2, False), (128, 1, True)):
        A, C = ((1 + 0.01 * torch.randn(n - 1), torch.rand(()), torch.randn(r, n)) for _ in range(2))
        yield torch.randn(3, n), *(t.float() for t in prepare(A, C)), transposed


PAIR = Operator(
    "pair",
    "Tensor x, Tensor scalings, Tensor left, Tensor right, bool transposed",
    plain=_plain,
    kernel=_kernel,
    fake=lambda x, *rest: torch.empty_like(x, memory_format=torch.contiguous_format),
    gradient=_gradient,
    serves=_serves,
    samples=_samples,
    batched=_batched,
)
