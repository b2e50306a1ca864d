"""A bound on the rounding of the port product while it runs, for every input.

Products of a plan are FFTs, pointwise products with kept spectra, and sums. An FFT of length N changes a
vector by at most 4 u (log2 N + 2) of its norm, u = 2^-53. So its rounding is a small change of rows of
`levels`, and what becomes of that is known: it passes through the rest of the product as the rows
themselves do. With

    sigma   the norm of the map from the input to the rows of one block at one port,
    tau     the norm of the map from these rows to the result of the layer,

roundings at this place change the result by at most eta sigma tau |x|, and blocks of a level, which see
different parts of x, add by squares. The product of two norms is all that is lost: nothing is multiplied
along the tree. A product and its transpose have the same bound, as a map and its transpose have one norm.

Norms of linear maps are found by `PROBES` random inputs: for a matrix T and independent standard normal
w_1 .. w_q, |T|_2 <= alpha sqrt(2 / pi) max_i |T w_i|_2, but with probability alpha^-q, whatever T is (Halko,
Martinsson and Tropp 2011, Lemma 4.1). Here alpha^-q = 2^-48.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.fft import irfft, rfft

from ..tridiagonal import Operator
from . import levels
from .series import lengthened
from .sweep import Closing, TorchSweep

PROBES, ALPHA = 48, 2.0
FACTOR = ALPHA * math.sqrt(2 / math.pi)
UNIT = 2.0**-53

Ring = tuple[Tensor, Tensor, Tensor]


class ObservedHalf(TorchSweep):
    """The products of one operator, in float64, which note the norms of all that is rounded on the way."""

    def __init__(self, operator: Operator, k: int, oversampling: int) -> None:
        lower, diagonal, upper, V = operator
        super().__init__(lower, diagonal, upper, V, oversampling, keep=False)
        self._operator, self._k = operator, k
        corners = bool(lower[0] != 0) or bool(upper[-1] != 0)
        self._closing = Closing(self.top, lower[0], upper[-1], k) if corners else None

    @torch.no_grad()
    def up(self, U: Tensor) -> Tensor:
        """K_k(A, v_i)^T u, (b, r, k)."""
        k, N = self._k, self._N
        rows = (self._dealt(U) @ self._K).view(-1, len(U), 2 + self.r, N)
        u, z = rows[:, :, :2].permute(2, 1, 0, 3), lengthened(rows[:, :, 2:].sum(0), k)
        self._sigma, self._heard_closing = [_largest(u)], list[Tensor]()
        self._heard = [_largest(rows[:, :, 2:].flatten(2).transpose(0, 1)).norm() * len(rows) * UNIT]
        for B, _, _ in self._levels:
            N, at_cut = 2 * N, levels.rows_at_cut(u)
            part = lengthened(irfft(levels.heard(at_cut, B), n=N), k)
            terms = [_largest(at_cut[s] * x, N) for s in (0, 1) for x in B[s, 2:]]
            summed = UNIT * (4 + 2 * at_cut.shape[2]) * torch.stack(terms).norm()
            self._heard.append(_eta(N) * _largest(part.flatten(1)) + summed)
            z, u = z + part, levels.rows_up(u, at_cut, B)
            self._sigma.append(_largest(u))
        if self._closing is not None:
            at_ports, weights = u[:, :, 0], self._closing.weights
            self._sigma_closing = _largest((lengthened(at_ports, k) * weights).unsqueeze(-2))
            for one in torch.eye(2, dtype=u.dtype, device=u.device):
                part = self._closing.add(at_ports * one.view(2, 1, 1))
                self._heard_closing.append(_largest((part * weights).flatten(1)))
                z = z + part
        return z

    @torch.no_grad()
    def down(self, w: Tensor) -> Tensor:
        """K_k(A, v_i) w, (b, n)."""
        N = self._N << len(self._levels)
        du = w.new_zeros(2, len(w), 1, N)
        if self._closing is not None:
            du = self._closing.transpose(w).unsqueeze(2)
            self._tau_closing = _largest(self._closing.down(w), self._closing.roots).sum(-1)
        self._tau, self._tau_at_cut = [_largest(du)], list[Tensor]()
        for B, _, _ in reversed(self._levels):
            sources = torch.cat(
                (rfft(du), self._spectra(w, N).transpose(0, 1).expand(-1, -1, B.shape[2], -1))
            )
            sizes = []
            for conjugate in B.conj():
                terms = sources * conjugate.unsqueeze(1)
                sizes.append(_eta(N) * _largest(terms.sum(0), N) + 4 * UNIT * _largest(terms, N).sum(0))
            self._tau_at_cut.insert(0, torch.stack(sizes))
            du, N = levels.rows_down(du, self._spectra(w, N), B), N // 2
            self._tau.insert(0, _largest(du))
        silent = w.new_zeros(len(w), self.n)
        self._onward = self._states(self._apart(), silent, du, lengthened(w, self._N))
        return self._from_leaves(w, du)

    def rounding(self, beyond: Tensor, probes: Tensor) -> Tensor:
        """What rounding changes the result of the layer by, as a share of |x|; after `up` and `down`.

        Args:
            beyond: (q, r, k). Their largest norm bounds that of the map from K_k(A, v_i)^T u, (r, k), to the
                result, and so with weights for each t.
            probes: standard normal vectors (q, n), for the states of the leaves.
        """
        after = beyond.flatten(1).norm(dim=-1).amax()
        total = self._in_leaves(probes) + self._heard[0] * after
        N = self._N
        for level, heard in enumerate(self._heard[1:]):
            N *= 2
            left, right = self._sigma[level]
            meeting, own = torch.stack((right[0::2], left[1::2])), torch.stack((left[0::2], right[1::2]))
            joined = ((self._sigma[level + 1] + own) * self._tau[level + 1]).sum(0)
            total = total + (meeting * self._tau_at_cut[level]).norm() + _eta(N) * joined.norm()
            total = total + heard * after
        if self._closing is None:
            return total
        weighted = (beyond / self._closing.weights).flatten(1).norm(dim=-1).amax()
        closed = (self._sigma_closing[:, 0] * self._tau_closing).sum() + sum(self._heard_closing) * weighted
        return total + _eta(self._closing.roots) * closed

    def _in_leaves(self, probes: Tensor) -> Tensor:
        """Of N steps of the stencil in every leaf.

        A step changes the state of a leaf by at most 4 u |A| |state|. So what becomes of that is bounded by
        the norms of the map from the entries of a leaf to all its states and of that from them to the result.
        """
        size = [x.abs() for x in self._operator[:3]]
        rows = (size[0] + size[1] + size[2]).amax()
        columns = (size[0].roll(-1) + size[1] + size[2].roll(1)).amax()
        lower, diagonal, upper = self._apart()
        states = self._states((upper.roll(1), diagonal, lower.roll(-1)), probes)
        return 4 * UNIT * (rows * columns).sqrt() * (states * self._onward).norm()

    def _apart(self) -> Ring:
        """The operator without what leaves hear of each other."""
        lower, upper = (t.clone() for t in (self._operator[0], self._operator[2]))
        lower[self._layout.first], upper[self._layout.first - 1] = 0, 0
        return lower, self._operator[1], upper

    def _states(self, ring: Ring, x: Tensor, du: Tensor | None = None, w: Tensor | None = None) -> Tensor:
        """The norm of the map to the N states of a leaf from x, or from what is added at each step, (J,).

        du, w: cotangents (2, b, J, N) of rows and (b, r, N) of what is heard, added from last to first.
        """
        lower, diagonal, upper = ring
        first, last = self._layout.first, self._layout.ends - 1
        squares = torch.zeros_like(x)
        for t in reversed(range(self._N)):
            if du is not None and w is not None:
                x[:, first] += du[0, ..., t]
                x[:, last] += du[1, ..., t]
                x.addmm_(w[..., t], self._operator[3])
            squares.addcmul_(x, x)
            following = diagonal * x
            following[:, 1:].addcmul_(lower[1:], x[:, :-1])
            following[:, :-1].addcmul_(upper[:-1], x[:, 1:])
            x = following
        return FACTOR * self._dealt(squares).sum(-1).amax(-1).sqrt()


def _largest(x: Tensor, N: int | None = None) -> Tensor:
    """Norms of maps from their values for all probes, (.., b, J, numbers) to (.., J), or (b, numbers) to ().

    N: the length, of spectra as rfft gives them.
    """
    if N is not None:
        x = torch.view_as_real(x).flatten(-2) * math.sqrt(2 / N)
    return FACTOR * x.norm(dim=-1).amax(-2 if x.dim() > 2 else -1)


def _eta(N: int) -> float:
    """What an FFT of length N and a pointwise product with a spectrum change, as a share of the norm."""
    return UNIT * (4 * (math.log2(N) + 2) + 4)
