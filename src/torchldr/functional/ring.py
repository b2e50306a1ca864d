"""Products with Krylov matrices of the f-circulant shift Z_f.

Z_f moves every entry one place down and brings the last one to the top, times f. Three views of
K(Z_f, v) w:

    matrix        sum_j w_j Z_f^j v, the f-circulant matrix with first column v times w
    polynomial    v(X) w(X) mod X^m - f
    convolution   t = v * w, folded: y_i = t_i + f t_{m+i}

For f = 1 and f = -1 the polynomial view gives FFTs of length m (half of that for f = -1: mod
X^m + 1 a real polynomial is a complex one mod X^{m/2} - i). Every other f, and every length that
FFTs do not like, takes the padded linear convolution and folds it, unless f is 0 and nothing comes back. A
transform of either kind is a `Ring`; its four maps are adjoint to each other in pairs, so the transposed
product multiplies by the conjugate spectrum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .constants import kept
from .fft import conjugate, contract_rank, fast_length, is_fast_length


class Ring(NamedTuple):
    """Real polynomials of degree below m modulo X^m - f, by their spectra; made by `ring`.

    `analyse` takes coefficients (..., at most m) to a spectrum and `synthesise` takes a product of two
    spectra back to m coefficients; `unfold` and `fold` are their adjoints, for the transposed product
    with k columns.
    """

    m: int
    k: int
    f: float | Tensor
    kind: str  # "cyclic" or "half" at length m, "padded" by linear convolution, "open" where f is 0
    length: int

    def analyse(self, v: Tensor) -> Tensor:
        """The spectrum of coefficients v, shape (..., at most m)."""
        if self.kind == "half":
            if v.shape[-1] < self.m:
                v = pad(v, (0, self.m - v.shape[-1]))
            low, high = v[..., : self.m // 2], v[..., self.m // 2 :]
            return torch.fft.fft(torch.complex(low, high) * twist(self.m, v.dtype, v.device, 1))
        return torch.fft.rfft(v, self.length)

    def synthesise(self, spectrum: Tensor) -> Tensor:
        """The m coefficients of a product of two spectra."""
        if self.kind == "cyclic":
            return torch.fft.irfft(spectrum, self.m)
        if self.kind == "half":
            y = torch.fft.ifft(spectrum)
            y = y * twist(self.m, y.real.dtype, y.device, -1)
            return torch.cat((y.real, y.imag), -1)
        t = torch.fft.irfft(spectrum, self.length)
        if self.kind == "open":
            return t[..., : self.m]
        low, high = t[..., : self.m], t[..., self.m : self.m + self.k - 1]
        return low + pad(self.f * high, (0, self.m - self.k + 1))

    def unfold(self, u: Tensor) -> Tensor:
        """The spectrum of u for the transposed product: adjoint of `synthesise`."""
        if self.kind != "padded":
            return self.analyse(u)
        return torch.fft.rfft(torch.cat((u, self.f * u[..., : self.k - 1]), -1), self.length)

    def fold(self, spectrum: Tensor) -> Tensor:
        """The first k coefficients of a transposed product: adjoint of `analyse`."""
        if self.kind in ("cyclic", "half"):
            return self.synthesise(spectrum)[..., : self.k]
        return torch.fft.irfft(spectrum, self.length)[..., : self.k]


def ring(m: int, k: int, f: float | Tensor) -> Ring:
    """The ring of X^m - f, by the transform that suits m and f, for products with k columns."""
    if isinstance(f, Tensor) or abs(f) != 1 or not is_fast_length(m):
        kind = "padded" if isinstance(f, Tensor) or f else "open"
        return Ring(m, k, f, kind, fast_length(m + k - 1))
    if f == 1:
        return Ring(m, k, f, "cyclic", m)
    return Ring(m, k, f, "half", m)


def shift_krylov_matmul(V: Tensor, w: Tensor, f: float | Tensor) -> Tensor:
    """Multiply by the Krylov matrices of Z_f and sum over the rank: sum_i K_k(Z_f, v_i) w_i.

    Args:
        V: start vectors, shape (r, m).
        w: coefficients, shape (..., r, k) with k <= m.
        f: the corner of Z_f.

    Returns:
        Shape (..., m).

    Two FFTs a vector and rank, one for the sum. The same, slowly:
    `sum(krylov_reference(shift_reference(m, f), v, k) @ w)`.
    """
    of = ring(V.shape[-1], w.shape[-1], f)
    return of.synthesise(contract_rank(of.analyse(w), of.analyse(V)))


def shift_krylov_rmatmul(V: Tensor, u: Tensor, f: float | Tensor, k: int) -> Tensor:
    """Multiply by the transposed Krylov matrices of Z_f: K_k(Z_f, v_i)^T u for every i.

    Args:
        V: start vectors, shape (r, m).
        u: vectors, shape (..., m).
        f: the corner of Z_f.
        k: how many columns the Krylov matrices have.

    Returns:
        Shape (..., r, k).
    """
    of = ring(V.shape[-1], k, f)
    return of.fold(of.unfold(u).unsqueeze(-2) * conjugate(of.analyse(V)))


@kept(64)
def twist(m: int, dtype: torch.dtype, device: torch.device, sign: int) -> Tensor:
    """exp(+- i pi j / m) for j < m / 2."""
    angle = torch.arange(m // 2, dtype=torch.float64, device=device) * (sign * math.pi / m)
    turn = torch.polar(torch.ones_like(angle), angle)
    return turn.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
