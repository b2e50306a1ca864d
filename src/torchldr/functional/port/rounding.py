"""A bound on the rounding of the port product while it runs, for every input.

Products of a plan are FFTs, pointwise products with kept spectra, and sums. An FFT of length N changes a
vector by at most eta = 4 u (log2 N + 2) of its norm, u = 2^-53. So its rounding is a small change of rows of
`levels`, and what becomes of that is known: it passes through the rest of the product as the rows
themselves do. Let x = sum_j x_j e_j be the input, |x|_1 = sum_j |x_j|, and of the rows of block B

    sigma_B     the largest norm that a unit vector e_j gives them, so that they are at most sigma_B |x|_1
    T_i         the map from the rows of all blocks of a level, those of B times sigma_B, to entry i of the
                result

Then roundings at this level change entry i by at most eta |T_i|_2 |x|_1: no block has more than its part of
|x|_1. Nothing is multiplied along the tree, and a level costs the product of two norms of rows of matrices,
not of matrices. A product and its transpose have the same bound: for roundings in the second half of a
layer's product exchange inputs and results.

Both norms are found by noise. With w_1 .. w_q independent standard normal vectors and t a row of a matrix,
|t|_2 <= alpha sqrt(2 / pi) max_i |t w_i|, but with probability alpha^-q (t w_i is normal with deviation
|t|_2, and a standard normal number is below s with a probability of at most s sqrt(2 / pi)). One product
with noise bounds all rows of a matrix at once. Here q = `PROBES`, alpha^-q = 2^-48.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.fft import irfft

from ..tridiagonal import Operator
from . import levels
from .series import leaf_blocks, lengthened
from .sweep import Closing, TorchSweep

PROBES, ALPHA = 24, 4.0
FACTOR = ALPHA * math.sqrt(2 / math.pi)
UNIT = 2.0**-53
APART = 10.0  # weight of the pointwise products' noise, which is small, beside that of the FFTs


def rounding_bound(first: HalfWithNoise, weights: Tensor, second: Callable[[Tensor], Tensor]) -> float:
    """What roundings in first(x), (b, r, k), change second(weights first(x)) by, at most, over |x|_1.

    By transposition also that of what they change the transpose of this map by.
    """
    beyond = lambda z: FACTOR * second(z * weights).abs().amax()
    heard = first.noise(first.r, first.k)
    total = beyond(first.from_leaves()) + beyond(heard) * first.heard_roundings()
    sizes = first.sizes(0)
    came = torch.zeros_like(sizes)
    for level in range(first.depth):
        total = total + beyond(first.from_level(level, sizes, came))
        joined = first.sizes(level + 1)
        came, sizes = _eta(first.length(level + 1)) * (joined + sizes.view(-1, 2).amax(1)), joined
    if first.closing is not None:
        total = total + beyond(first.from_top(came)) + beyond(first.from_closing())
        total = total + first.closing_roundings() * beyond(heard / first.closing.weights)
    return float(total)


class HalfWithNoise(TorchSweep):
    """The products of one operator, in float64, and what noise at any place of them becomes."""

    @torch.no_grad()
    def __init__(self, operator: Operator, k: int, oversampling: int, generator: torch.Generator) -> None:
        lower, diagonal, upper, V = operator
        super().__init__(lower, diagonal, upper, V, oversampling)
        self._operator, self.k, self._generator = operator, k, generator
        self.depth = len(self._arriving)
        corners = bool(lower[0] != 0) or bool(upper[-1] != 0)
        self.closing = Closing(self.top, lower[0], upper[-1], k) if corners else None

    def noise(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """(q, *shape), in float64."""
        return torch.randn(PROBES, *shape, generator=self._generator, dtype=dtype).to(self._K)

    def length(self, level: int) -> int:
        """Of the series of a level."""
        return self._N << level

    # What inputs amount to: how large rows and sums are for unit vectors, by noise that is taken down.

    def sizes(self, level: int) -> Tensor:
        """sigma of the blocks of a level, (J,)."""
        return self._largest(level, self._rows_noise(level))

    def state_sizes(self) -> Tensor:
        """The root of the sum of |state|^2 over N steps of the stencil in each leaf, (J,).

        For a unit vector it is on the diagonal of sum_t A^t (A^t)^T.
        """
        power = leaf_blocks(*self._operator[:3], self._layout).A
        total, steps = torch.eye(power.shape[-1], dtype=power.dtype, device=power.device), 1
        while steps < self._N:
            total = total + power @ total @ power.mT
            power, steps = power @ power, 2 * steps
        return total.diagonal(dim1=-2, dim2=-1).amax(-1).sqrt()

    def heard_roundings(self) -> float:
        """What is heard, level by level, times its roundings: of an FFT and of the sum over cuts."""
        heard = self.noise(self.r, self.k)
        of_leaves = self._from_leaves(heard, heard.new_zeros(2, PROBES, len(self._K), self._N))
        total = FACTOR * of_leaves.abs().amax() * UNIT * len(self._K)
        for level, B in enumerate(self._arriving):
            N, cuts = self.length(level + 1), B.shape[2]
            silent = heard.new_zeros(2, PROBES, cuts, N)
            du = levels.rows_down(silent, self._spectra(heard, N), B)
            total = total + self._largest(level, du).amax() * (_eta(N) + UNIT * (4 + 2 * cuts))
        return float(total)

    def closing_roundings(self) -> float:
        """What the corners add, at the radius, times its rounding."""
        assert self.closing is not None
        du = self.closing.transpose(self.noise(self.r, self.k) * self.closing.weights)
        return float(self._largest(self.depth, du.unsqueeze(2)).amax()) * _eta(self.closing.roots)

    def _largest(self, level: int, du: Tensor) -> Tensor:
        """The largest row, for each block of a level, of a matrix whose products with noise are given.

        du: cotangents of the rows of the level, (2, q, J, N).
        """
        N = self.length(level)
        silent = du.new_zeros(PROBES, self.r, N)
        for B in reversed(self._arriving[:level]):
            du, N = levels.rows_down(du, self._spectra(silent, N), B), N // 2
        entries = self._dealt(self._from_leaves(silent, du)).abs()
        return FACTOR * entries.reshape(len(self._K) >> level, -1).amax(1)

    # What is heard, (q, r, k), of noise as large as roundings can be.

    def from_leaves(self) -> Tensor:
        """Of the states of all leaves, which each step changes by at most 4 u |A| |state|."""
        lower, diagonal, upper = self._operator[:3]
        a, b, c = lower.abs(), diagonal.abs(), upper.abs()
        norm = ((a + b + c).amax() * (a.roll(-1) + b + c.roll(1)).amax()).sqrt()
        scale = (4 * UNIT * norm * self.state_sizes()).unsqueeze(-1).expand(-1, self._K.shape[1])
        scale = scale.reshape(-1)[self._layout.places]
        first, last = self._layout.first, self._layout.ends - 1
        to_right, to_left = upper.clone(), lower.clone()  # of the transpose, within leaves
        to_right[last], to_left[first] = 0, 0
        x = self.noise(self.n) * scale
        u, heard = x.new_empty(2, PROBES, len(first), self._N), x.new_empty(PROBES, self.r, self._N)
        for t in range(self._N):
            u[0, ..., t], u[1, ..., t] = x[:, first], x[:, last]
            heard[..., t] = x @ self._operator[3].mT
            following = torch.addcmul(diagonal * x, self.noise(self.n, dtype=torch.float32), scale)
            following[:, 1:] += (to_right * x)[:, :-1]
            following[:, :-1] += (to_left * x)[:, 1:]
            x = following
        return self._heard_from(0, u, heard)

    def from_level(self, level: int, sizes: Tensor, came: Tensor) -> Tensor:
        """Of the rows of a level, which go to FFTs and pointwise products.

        Args:
            sizes: of the rows, (J,).
            came: the roundings that they came with, (J,).
        """
        B, N = self._arriving[level], self.length(level)
        u = self._rows_noise(level) * (came + _eta(2 * N) * sizes).unsqueeze(-1)
        common, apart = levels.rows_at_cut(u), math.sqrt(APART) * 4 * UNIT * sizes.unsqueeze(-1)
        own = lambda: common + levels.rows_at_cut(self._rows_noise(level) * apart)
        targets = [_arrived(own(), B[:, i]) for i in range(2 + self.r)]
        joined = irfft(torch.stack(targets[:2]), n=2 * N)
        joined[0, :, :, :N] += u[0, :, 0::2]
        joined[1, :, :, :N] += u[1, :, 1::2]
        heard = irfft(torch.stack([x.sum(1) for x in targets[2:]], 1), n=2 * N)
        return math.sqrt(1 + (2 + self.r) / APART) * self._heard_from(level + 1, joined, heard)

    def from_top(self, came: Tensor) -> Tensor:
        """Of the rows of the whole, where there are corners."""
        u = self._rows_noise(self.depth) * came.unsqueeze(-1)
        return self._heard_from(self.depth, u, u.new_zeros(PROBES, self.r, 0))

    def from_closing(self) -> Tensor:
        """Of the rows of the whole at the closing radius."""
        assert self.closing is not None
        cut = lengthened(self._rows_noise(self.depth), self.k)
        sizes = self._largest(self.depth, lengthened(cut * self.closing.weights, self.length(self.depth)))
        at_radius = cut[:, :, 0] * (sizes * _eta(self.closing.roots)) / self.closing.weights
        return self.closing.add(at_radius)

    def _heard_from(self, level: int, u: Tensor, heard: Tensor) -> Tensor:
        """K_k(A, v_i)^T u for rows of a level, and what was heard already, (b, r, some)."""
        z, N = lengthened(heard, self.k), self.length(level)
        for B in self._arriving[level:]:
            N, at_cut = 2 * N, levels.rows_at_cut(u)
            z = z + lengthened(irfft(levels.heard(at_cut, B), n=N), self.k)
            if self.length(self.depth) > N or self.closing is not None:
                u = levels.rows_up(u, at_cut, B)
        return z if self.closing is None else z + self.closing.add(u[:, :, 0])

    def _rows_noise(self, level: int) -> Tensor:
        """(2, q, J, N)."""
        return self.noise(2, len(self._K) >> level, self.length(level)).transpose(0, 1)


def _arrived(at_cut: Tensor, B: Tensor) -> Tensor:
    """Of rows at the cuts (2, b, .) with the spectra of one target (2, .)."""
    return torch.addcmul(at_cut[0] * B[0], at_cut[1], B[1])


def _eta(N: int) -> float:
    """What an FFT of length N and a pointwise product with a spectrum change, as a share of the norm."""
    return UNIT * (4 * (math.log2(N) + 2) + 4)
