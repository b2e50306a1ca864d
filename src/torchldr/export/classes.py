"""The products of the classes that are no Krylov pairs, each with everything but the input constant.

Modules take (b, n) to (b, m). `form` says in a few words how; a form that begins with "made" computes the
dense matrix from parameters in nodes that do not depend on the input, which onnxruntime runs when it loads.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..functional.orthogonal import hadamard_reference
from .convolution import Convolution, numbers, toeplitz
from .transforms import Array

_SMALL_BLOCK = 64  # circulant blocks up to here may take the DFT matrix itself
_RADIX = 32  # of a factor of the Hadamard matrix


class DenseProduct(nn.Module):
    """x W^T."""

    form = "dense"
    weight: Tensor

    def __init__(self, weight: Tensor, form: str = "dense") -> None:
        super().__init__()
        self.form = form
        self.register_buffer("weight", weight.detach().clone().contiguous())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


class LowRankProduct(nn.Module):
    """x H^T G."""

    form = "two matrix products"
    G: Tensor
    H: Tensor

    def __init__(self, G: Tensor, H: Tensor) -> None:
        super().__init__()
        self.register_buffer("G", G.detach().clone())
        self.register_buffer("H", H.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.H.mT) @ self.G


class MadeAtLoad(nn.Module):
    """x M^T with M^T = the product of all unit vectors, made in the graph."""

    form = "made by its fast product when loaded"
    ones: Tensor

    def __init__(self, product: nn.Module, in_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.product = product
        self.register_buffer("ones", torch.ones(in_features, 1, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        n = self.ones.shape[0]
        units = pad(self.ones, (0, n)).reshape(1, n * (n + 1))[:, : n * n].reshape(n, n)
        return x @ self.product(units)


class CauchyProduct(nn.Module):
    """x M^T with M = (G^T H) / (s_i - t_j), made in the graph."""

    form = "made from its parameters when loaded"
    G: Tensor
    H: Tensor
    s: Tensor
    t: Tensor

    def __init__(self, G: Tensor, H: Tensor, s: Tensor, t: Tensor) -> None:
        super().__init__()
        for name, value in (("G", G), ("H", H), ("s", s), ("t", t)):
            self.register_buffer(name, value.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ ((self.H.mT @ self.G) / (self.s - self.t.unsqueeze(-1)))


class VandermondeProduct(nn.Module):
    """sum_i diag(g_i) V T_i x: Toeplitz products, then polynomials at the nodes.

    V[i, j] = node_i^j with j = w a + b is node_i^{w a} node_i^b: a matrix product with small powers, then
    sums with large ones, from constants of m (w + n / w) numbers.
    """

    form = "convolutions, then polynomials at the nodes"
    G: Tensor
    small: Tensor
    large: Tensor

    def __init__(self, kind: str, G: Tensor, H: Tensor, nodes: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        n = H.shape[-1]
        self.width, self.n = math.isqrt(n - 1) + 1, n
        self.steps = -(-n // self.width)
        symbol = H.detach().double().cpu().numpy()[:, None, ::-1]
        self.toeplitz = toeplitz(kind, symbol, 1 - n, n, n, dtype)
        points = nodes.detach().double()
        exponents = torch.arange(self.width, dtype=torch.float64)
        self.register_buffer("small", (points ** exponents.unsqueeze(-1)).to(dtype))  # (w, m)
        steps = torch.arange(self.steps, dtype=torch.float64) * self.width
        self.register_buffer("large", (points ** steps.unsqueeze(-1)).to(dtype))  # (n / w, m)
        self.register_buffer("G", G.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        z = self.toeplitz(x.unsqueeze(1))  # (b, r, n)
        z = pad(z, (0, self.steps * self.width - self.n))
        values = z.reshape(-1, self.G.shape[0], self.steps, self.width) @ self.small
        y = (values * self.large).sum(2) * self.G
        return y.sum(1)


class FastfoodProduct(nn.Module):
    """S Had D Perm Had B x, Had as a few small matrix products."""

    form = "small Hadamard matrices"
    S: Tensor
    D: Tensor
    B: Tensor
    permutation: Tensor

    def __init__(self, S: Tensor, D: Tensor, B: Tensor, permutation: Tensor) -> None:
        super().__init__()
        for name, value in (("S", S), ("D", D), ("B", B), ("permutation", permutation)):
            self.register_buffer(name, value.detach().clone())
        self.size = 1 << (D.shape[0] - 1).bit_length()
        self.radices = []
        left = self.size
        while left > 1:
            self.radices.append(min(_RADIX, left))
            left //= self.radices[-1]
        for radix in sorted(set(self.radices)):
            self.register_buffer(f"hadamard_{radix}", hadamard_reference(radix).to(S.dtype))

    def forward(self, x: Tensor) -> Tensor:
        y = self._hadamard(x * self.B).index_select(-1, self.permutation) * self.D
        return self._hadamard(y)[:, : self.S.shape[0]] * self.S

    def _hadamard(self, x: Tensor) -> Tensor:
        y, done = pad(x, (0, self.size - x.shape[-1])), 1
        for radix in self.radices:
            H = self.get_buffer(f"hadamard_{radix}")
            if done == 1:
                y = y.reshape(-1, self.size // radix, radix) @ H
            else:
                y = H @ y.reshape(-1, self.size // (radix * done), radix, done)
            done *= radix
        return y.reshape(-1, self.size)


class CosineProduct(nn.Module):
    """A C D C^T x for the cosine transform C, the leading m x n part, as one convolution.

    cos(a) cos(b) = (cos(a - b) + cos(a + b)) / 2, so with c_0 = sqrt(1/N), c_k = sqrt(2/N)

        M[i, k] = A_i c_i (t_{i-k} + t_{i+k}) c_k,      t_l = sum_j D_j cos(pi l (2j + 1) / 2N) / 2:

    a Toeplitz product with c x continued evenly to both sides. t_{l + 2N} = -t_l.
    """

    form = "one convolution"
    before: Tensor
    after: Tensor

    def __init__(self, kind: str, A: Tensor, D: Tensor, n: int, dtype: torch.dtype) -> None:
        super().__init__()
        scale, diagonal = (t.detach().double().cpu().numpy() for t in (A, D))
        m, N = len(scale), len(diagonal)
        weights = np.full(N, math.sqrt(2 / N))
        weights[0] = math.sqrt(1 / N)
        symbol = _cosine_symbol(diagonal, m + 2 * n - 2, 1 - n)[None, None]
        self.toeplitz = toeplitz(kind, symbol, 2 - 2 * n, 2 * n - 1, m, dtype, period=2 * N)
        inputs = weights[:n] * np.where(np.arange(n) == 0, 2.0, 1.0)
        self.register_buffer("before", torch.from_numpy(inputs).to(dtype))
        self.register_buffer("after", torch.from_numpy(scale * weights[:m]).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.before
        even = torch.cat((x[:, 1:].flip(-1), x), -1).unsqueeze(1)
        return self.toeplitz(even).squeeze(1) * self.after


def _cosine_symbol(diagonal: Array, count: int, first: int) -> Array:
    """t_l for l = first, .., first + count - 1, by one FFT of length 4N of D at the odd places."""
    N = len(diagonal)
    odd = np.zeros(4 * N)
    odd[1 : 2 * N : 2] = diagonal / 2
    return np.fft.fft(odd).real[np.arange(first, first + count) % (4 * N)]


class CirculantProduct(nn.Module):
    """A grid of circulant blocks (rows, columns, b), cropped to m x n, by convolutions of long blocks."""

    form = "convolutions"

    def __init__(self, kind: str, column: Tensor, m: int, n: int, dtype: torch.dtype) -> None:
        super().__init__()
        values = column.detach().double().cpu().numpy()
        self.m, self.n = m, n
        self.rows, self.columns, self.block = rows, columns, block = values.shape
        taken, given = (n if columns == 1 else block), (m if rows == 1 else block)
        symbol = values[..., np.arange(1 - taken, given) % block]
        self.toeplitz: Convolution = toeplitz(kind, symbol, 1 - taken, taken, given, dtype)

    def forward(self, x: Tensor) -> Tensor:
        if self.columns > 1:
            x = pad(x, (0, self.columns * self.block - self.n))
            x = x.reshape(-1, self.columns, self.block)
        else:
            x = x.unsqueeze(1)
        y = self.toeplitz(x)
        return y.squeeze(1) if self.rows == 1 else y.flatten(1)[:, : self.m]


class SmallCirculantProduct(nn.Module):
    """A grid of short circulant blocks: the DFT of every block, and a matrix product for every frequency.

    The DFT is its matrix, or the operator where the kind asks for it and b is a power of two.
    """

    analysis: Tensor
    synthesis: Tensor
    spectra: Tensor

    def __init__(self, kind: str, column: Tensor, m: int, n: int, dtype: torch.dtype) -> None:
        super().__init__()
        values = column.detach().double().cpu().numpy()
        self.m, self.n = m, n
        self.rows, self.columns, self.block = rows, columns, b = values.shape
        self.operator = kind == "fft" and b & (b - 1) == 0
        self.form = "DFTs of the blocks" if self.operator else "DFT matrices of the blocks"
        self.frequencies = F = b // 2 + 1
        spectra = np.fft.rfft(values).transpose(2, 1, 0)  # (f, columns, rows)
        weights = np.where((np.arange(F) == 0) | (2 * np.arange(F) == b), 1.0, 2.0) / b
        if self.operator:
            spectra = spectra * (weights * b)[:, None, None]
        else:
            turns = np.exp(-2j * math.pi / b * (np.outer(np.arange(b), np.arange(F)) % b))
            both = np.stack((turns, 1j * turns), 1)  # j, copy, f
            analysis = np.stack((both.real, both.imag), 2)  # j, copy, parts, f
            self.register_buffer("analysis", torch.from_numpy(analysis.reshape(b, 4 * F)).to(dtype))
            back = np.stack((turns.real, turns.imag)) * weights  # parts, j, f; the conjugate's real part
            synthesis = back.transpose(0, 2, 1).reshape(2 * F, b)
            self.register_buffer("synthesis", torch.from_numpy(synthesis).to(dtype))
        stacked = np.stack((spectra.real, spectra.imag), 1).reshape(F, 2 * columns, rows)
        self.register_buffer("spectra", torch.from_numpy(stacked).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        b, F, rows, columns = self.block, self.frequencies, self.rows, self.columns
        blocks = pad(x, (0, columns * b - self.n)).reshape(-1, columns, b)
        if self.operator:
            z = torch.view_as_complex(pad(blocks.unsqueeze(-1), (0, 1)))
            values = torch.view_as_real(torch.fft.fft(z))[:, :, :F]  # (B, columns, f, parts)
            turned = torch.stack((-values[..., 1], values[..., 0]), -1)
            values = torch.stack((values, turned), 1).permute(3, 0, 4, 1, 2)  # f, B, parts, copy, columns
        else:
            values = (blocks @ self.analysis).reshape(-1, columns, 2, 2, F).permute(4, 0, 3, 2, 1)
        y = values.reshape(F, -1, 2 * columns) @ self.spectra  # (f, (B, parts), rows)
        y = y.reshape(F, -1, 2, rows)
        if self.operator:
            z = torch.view_as_complex(pad(y.permute(1, 3, 0, 2), (0, 0, 0, b - F)).contiguous())
            y = torch.view_as_real(torch.fft.ifft(z))[..., 0]
        else:
            y = y.permute(1, 3, 2, 0).reshape(-1, rows, 2 * F) @ self.synthesis
        return y.reshape(-1, rows * b)[:, : self.m]


def circulant_product(kind: str, column: Tensor, m: int, n: int, dtype: torch.dtype) -> nn.Module:
    """The product of a grid of circulant blocks (rows, columns, b), by the smaller of both forms."""
    long = CirculantProduct(kind, column, m, n, dtype)
    if column.shape[-1] > _SMALL_BLOCK:
        return long
    return min(SmallCirculantProduct(kind, column, m, n, dtype), long, key=numbers)
