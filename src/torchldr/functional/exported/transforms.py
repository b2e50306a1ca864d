"""Transforms of real polynomials modulo X^{2N} + 1, as an exported graph computes them.

A real polynomial modulo X^{2N} + 1 is fixed by its values at N complex points, the powers
exp(i pi / 2N) exp(-2 pi i k / N) with X^N = i: one complex DFT of length N after a twist,

    values_k = sum_{j < N} (x_j + i x_{j+N}) exp(i pi j / 2N) exp(-2 pi i j k / N).

Runtimes know no complex numbers, so both transforms here keep real and imaginary parts apart, and everything
that depends on lengths alone is a constant, computed in float64.

    FourierTransform    the DFT operator; N is a power of two, since other lengths are slow and wrong in the
                        fourth digit in onnxruntime
    MatmulTransform     N = p q: a DFT of length p, turns, and a DFT of length q, as two matrix products with
                        constants of size p^2 and q^2; the values stay in the order (k mod p, k div p)
                        that comes out, for they are multiplied point by point and transformed back
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

Array = np.ndarray


class Transform(nn.Module):
    """Values of polynomials modulo X^{2N} + 1.

    Args:
        points: N.
        taken: how many coefficients an input has, at most 2N; the others are zero.
        given: how many coefficients of a result are wanted.
        dtype: of the constants.
    """

    points: int

    def __init__(self, points: int, taken: int, given: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.points, self.taken, self.given, self.dtype = points, taken, given, dtype

    def constant(self, name: str, value: Array) -> None:
        self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(value)).to(self.dtype))

    def spectra(self, coefficients: Array) -> Array:
        """The constants (i, j, ...) of polynomials (i, j, 2N), as `contract` takes them."""
        raise NotImplementedError

    def analyse(self, x: Tensor) -> Tensor:
        """(b, j, taken) to values (b, j, ...)."""
        raise NotImplementedError

    def contract(self, values: Tensor, spectra: Tensor) -> Tensor:
        """sum_j spectra_ij values_j: values (b, j, ...) to (b, i, ...)."""
        raise NotImplementedError

    def synthesise(self, values: Tensor) -> Tensor:
        """Values (b, i, ...) to (b, i, given)."""
        raise NotImplementedError

    def _natural(self, coefficients: Array) -> Array:
        """The complex values (.., N) of polynomials (.., 2N)."""
        low, high = coefficients[..., : self.points], coefficients[..., self.points :]
        return np.fft.fft((low + 1j * high) * _turns(self.points, 4 * self.points))


class FourierTransform(Transform):
    """Values are (.., 2N), all real parts before all imaginary ones, which runtimes multiply several times
    faster than pairs; only the DFT itself is given pairs."""

    twist: Tensor
    cosines: Tensor
    sines: Tensor

    def __init__(self, points: int, taken: int, given: int, dtype: torch.dtype) -> None:
        super().__init__(points, taken, given, dtype)
        twist = _turns(points, 4 * points)
        low_taken, low_given = taken <= points, given <= points
        if low_taken or low_given:
            self.constant("twist", np.concatenate((twist.real, twist.imag)))
        if not (low_taken and low_given):
            self.constant("cosines", np.tile(twist.real, 2))
            self.constant("sines", np.concatenate((-twist.imag, twist.imag)))

    def spectra(self, coefficients: Array) -> Array:
        values = self._natural(coefficients)
        return np.concatenate((values.real, values.imag), -1)

    def analyse(self, x: Tensor) -> Tensor:
        N = self.points
        if self.taken <= N:
            x = _longer(x, N)
            z = torch.cat((x, x), -1) * self.twist
        else:
            x = _longer(x, 2 * N)
            z = x * self.cosines + self._swapped(x) * self.sines
        return self._pairwise(torch.fft.fft, z)

    def contract(self, values: Tensor, spectra: Tensor) -> Tensor:
        N, (i, j) = self.points, spectra.shape[:2]
        values, spectra = _aligned(values, spectra)
        real, imaginary = spectra[..., :N], spectra[..., N:]
        turned = self._swapped(values) * torch.cat((-imaginary, imaginary), -1)
        product = values * torch.cat((real, real), -1) + turned
        return product.sum(-2, keepdim=i == 1) if j > 1 else product

    def synthesise(self, values: Tensor) -> Tensor:
        z = self._pairwise(torch.fft.ifft, values)
        N, given = self.points, self.given
        if given <= N:
            z = z * self.twist
            return z[..., :given] + z[..., N : N + given]
        z = z * self.cosines - self._swapped(z) * self.sines
        return z[..., :given] if given < 2 * N else z

    def _swapped(self, z: Tensor) -> Tensor:
        return torch.cat((z[..., self.points :], z[..., : self.points]), -1)

    def _pairwise(self, transform: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
        shape = -1, z.shape[1], 2, self.points
        pairs = torch.view_as_complex(z.reshape(shape).transpose(-1, -2).contiguous())
        return torch.view_as_real(transform(pairs)).transpose(-1, -2).reshape(-1, z.shape[1], 2 * self.points)


class MatmulTransform(Transform):
    """See the module. A number z is followed by iz where a complex constant c multiplies it next: then
    c z = Re(c) z + Im(c) (iz) is one product and one sum."""

    enter: Tensor
    turn: Tensor
    forward_matrix: Tensor
    backward_matrix: Tensor
    turn_back: Tensor
    leave: Tensor

    def __init__(self, points: int, taken: int, given: int, dtype: torch.dtype) -> None:
        super().__init__(points, taken, given, dtype)
        self.p, self.q = p, q = factors(points)
        self.low_taken, self.low_given = taken <= points, given <= points
        j1, j2 = np.arange(p), np.arange(q)
        first, second = _dft(p), _dft(q)
        fine = _turns(q, 4 * points) * np.exp(-2j * math.pi / points * np.outer(j1, j2))  # (k1, j2)
        coarse = np.exp(1j * math.pi * j1 * q / (2 * points))
        if p == 1:
            second = second * fine.reshape(q, 1)
        else:
            enter = (first * coarse[:, None]).T  # k1, j1
            enter = np.concatenate((enter, 1j * enter), 1)  # k1, (c, j1)
            enter = enter[:, :p] if self.low_taken else enter
            both = np.stack((enter, 1j * enter))  # z, k1, (c, j1)
            rows = np.stack((both.real, both.imag), 2)  # z, k1, parts, (c, j1)
            self.constant("enter", rows.reshape(4 * p, -1))
            self.constant("turn", np.stack((fine.real, fine.imag))[:, :, None])  # (2, p, 1, q)
            back = (first.conj() * coarse.conj()[:, None]) / points  # j1, k1
            leave = np.stack((_parts(back, -1), _parts(1j * back, -1)), -1)  # j1, k1, parts of the result, c
            leave = leave.transpose(2, 0, 1, 3).reshape(2 * p, 2 * p)
            self.constant("leave", leave[:p] if self.low_given else leave)
            self.constant("turn_back", np.stack((fine.real, -fine.imag), 1)[:, :, None])  # (p, 2, 1, q)
        forward = _real_columns(second, 2)
        self.constant("forward_matrix", forward[:q] if p == 1 and self.low_taken else forward)
        inverse = second.conj().T if p > 1 else second.conj().T / points
        backward = _real_columns(inverse, 2 if p > 1 else 1)
        self.constant("backward_matrix", backward[:, :q] if p == 1 and self.low_given else backward)

    def spectra(self, coefficients: Array) -> Array:
        values = self._natural(coefficients)
        values = values.reshape(*values.shape[:-1], self.q, self.p).swapaxes(-1, -2)  # k = k1 + p k2
        return np.stack((values.real, values.imag), -2)[..., None, :]  # (i, j, p, 2, 1, q)

    def analyse(self, x: Tensor) -> Tensor:
        p, q, j = self.p, self.q, x.shape[1]
        halves = 1 if self.low_taken else 2
        x = _longer(x, halves * p * q)
        if p > 1:
            x = self.enter @ x.reshape(-1, j, halves * p, q)
            x = (x.reshape(-1, j, 2, p, 2, q) * self.turn).sum(2)
            halves = 2
        x = x.reshape(-1, j, p, halves * q) @ self.forward_matrix
        return x.reshape(-1, j, p, 2, 2, q)

    def contract(self, values: Tensor, spectra: Tensor) -> Tensor:
        i, j = spectra.shape[:2]
        values, spectra = _aligned(values, spectra)
        product = (values * spectra).sum(-3)
        return product.sum(-4, keepdim=i == 1) if j > 1 else product

    def synthesise(self, values: Tensor) -> Tensor:
        p, q, i = self.p, self.q, values.shape[1]
        z = values.reshape(-1, i, p, 2 * q) @ self.backward_matrix
        if p > 1:
            z = (z.reshape(-1, i, p, 2, 2, q) * self.turn_back).sum(3)
            z = self.leave @ z.reshape(-1, i, 2 * p, q)
        size = (1 if self.low_given else 2) * p * q
        z = z.reshape(-1, i, size)
        return z[..., : self.given] if self.given < size else z


def _aligned(values: Tensor, spectra: Tensor) -> tuple[Tensor, Tensor]:
    """(b, j, ..) and (i, j, ..) in shapes that multiply to (b, i, j, ..), i or j left out where it is 1."""
    i, j = spectra.shape[:2]
    if i > 1 and j > 1:
        return values.unsqueeze(1), spectra
    return values, spectra.squeeze(1 if i > 1 else 0)


def factors(points: int) -> tuple[int, int]:
    """p <= q with p q = N, as near to each other as can be; p = 1 for a prime.

    >>> factors(512), factors(392), factors(7)
    ((16, 32), (14, 28), (1, 7))
    """
    p = math.isqrt(points)
    while points % p:
        p -= 1
    return p, points // p


def make(kind: str, least: int, taken: int, given: int, dtype: torch.dtype, count: int = 1) -> Transform:
    """The transform of this kind ("fft" or "matmul") with 2N >= least.

    `count` is how many polynomials will be kept as constants: a longer transform costs each of them.
    """
    least = max(least, 2)
    half = -(-least // 2)
    if kind == "fft":
        return FourierTransform(1 << (half - 1).bit_length(), taken, given, dtype)

    def numbers(points: int) -> int:
        p, q = factors(points)
        return 16 * (p * p + q * q) + 2 * points * (count + 2)

    return MatmulTransform(min(range(half, half + half // 4 + 8), key=numbers), taken, given, dtype)


def is_exact(kind: str, length: int) -> bool:
    """Whether polynomials modulo X^length + 1 themselves have a transform of this kind."""
    return length % 2 == 0 and (kind == "matmul" or length & (length - 1) == 0)


def make_exact(kind: str, length: int, taken: int, given: int, dtype: torch.dtype) -> Transform:
    """The transform modulo X^length + 1 itself."""
    cls = FourierTransform if kind == "fft" else MatmulTransform
    return cls(length // 2, taken, given, dtype)


def _longer(t: Tensor, count: int) -> Tensor:
    """(.., n) to (.., count), zeros behind."""
    return pad(t, (0, count - t.shape[-1])) if t.shape[-1] < count else t


def _turns(n: int, whole: int) -> Array:
    """exp(2 pi i j / whole) for j < n."""
    return np.exp(2j * math.pi / whole * np.arange(n))


def _dft(n: int) -> Array:
    """exp(-2 pi i j k / n), the product j k reduced first."""
    k = np.arange(n)
    return np.exp(-2j * math.pi / n * (np.outer(k, k) % n))


def _parts(z: Array, axis: int = -2) -> Array:
    """Real and imaginary parts on an axis of their own."""
    return np.stack((z.real, z.imag), axis)


def _real_columns(F: Array, copies: int) -> Array:
    """The real matrix of z to z F, rows (parts, j) to columns (parts, k); with two copies z F and i z F."""
    columns = np.stack((F, 1j * F))  # part, j, k
    columns = np.stack([1j**copy * columns for copy in range(copies)], 2)  # part, j, copy, k
    columns = np.stack((columns.real, columns.imag), 3)  # part, j, copy, parts, k
    return columns.reshape(2 * F.shape[0], -1)
