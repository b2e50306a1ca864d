"""Structured matrices as Cauchy-like ones among the eigenvectors of their operators, ready for GKO.

    class               between                                            nodes      rank
    Cauchy-like         nothing to do                                      real       r
    Toeplitz-like       modes of Z_1 + Z_1^T, of Z_{-1} + Z_{-1}^T         real       2r
                        or the Fourier modes of Z_1, of Z_{-1}             complex    r
    Hankel-like         the same, rows reversed
    Vandermonde-like    nothing, the Fourier modes of Z_{-i}               complex    r + 1
    LDR-SD              diagonal scales around a Toeplitz-like matrix      real       2 (r + 2)

All transforms are unitary, so the transformed system has the same condition number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..functional.gko.elimination import CauchyFactors, factor
from ..functional.modes import (
    anticyclic_modes,
    anticyclic_synthesis,
    cauchy_like_of_toeplitz_like,
    cyclic_modes,
    cyclic_synthesis,
    shift_back,
)
from .solvers import Candidate, Solver


class Modes(NamedTuple):
    """A unitary transform of rows and its inverse."""

    analyse: Callable[[Tensor], Tensor]
    synthesise: Callable[[Tensor], Tensor]


PLAIN = Modes(lambda x: x, lambda x: x)
CYCLIC = Modes(cyclic_modes, cyclic_synthesis)
ANTICYCLIC = Modes(anticyclic_modes, anticyclic_synthesis)


class CauchyForm(NamedTuple):
    """M x = b as rows.analyse(b) = C columns.analyse(x), C[i, j] = g_i . h_j / (s_i - t_j)."""

    s: Tensor
    t: Tensor
    G: Tensor
    H: Tensor
    rows: Modes = PLAIN
    columns: Modes = PLAIN


class CauchySolver(Solver):
    """Elimination on the generators of a Cauchy form, which also solves the first systems.

    It runs on the CPU: starting each of the n small steps on a GPU would take longer than the step itself.
    """

    def __init__(self, form: CauchyForm) -> None:
        self.rows, self.columns = form.rows, form.columns
        self.s, self.t, self.G, self.H = (v.cpu() for v in form[:4])
        self.factors: CauchyFactors | None = None

    def solve(self, b: Tensor, *, transposed: bool = False) -> Tensor:
        # With M = rows^-1 C columns and unitary transforms, M^T = columns^T C^T conj(rows).
        b = self.columns.analyse(b.conj()).conj().resolve_conj() if transposed else self.rows.analyse(b)
        x = self._among_modes(b.to("cpu", self.G.dtype), transposed).to(b.device)
        if transposed:
            return self.rows.synthesise(x.conj()).conj().resolve_conj()
        return self.columns.synthesise(x)

    def _among_modes(self, b: Tensor, transposed: bool) -> Tensor:
        if self.factors is None:
            found = factor(self.s, self.t, self.G, self.H, b if not transposed else b[:0])
            if found is None:
                return torch.full_like(b, math.nan)
            self.factors, x = found
            if not transposed:
                return x
        return self.factors.solve(b, transposed=transposed)


def gko(name: str, make: Callable[[], CauchyForm]) -> Candidate:
    return Candidate(name, lambda: CauchySolver(make()), stepwise=True)


def real_toeplitz_form(P: Tensor, Q: Tensor) -> CauchyForm:
    """The Cauchy form of T with T - Z_1 T Z_{-1}^T = P^T Q, P and Q (r, n), in real arithmetic."""
    return CauchyForm(*cauchy_like_of_toeplitz_like(P, Q), CYCLIC, ANTICYCLIC)


def complex_toeplitz_form(P: Tensor, Q: Tensor) -> CauchyForm:
    """The Cauchy form of the same T with the roots of 1 and of -1 as nodes.

    T Z_{-1} - Z_1 T = P^T (Q Z_{-1}). The nodes lie farther apart than their real parts do (1 / n, not
    1 / n^2), so fewer digits are lost; it takes nearly twice as long.
    """
    n = P.shape[-1]
    s, t = (_roots(n, angle, P.device) for angle in (0.0, -math.pi))
    rows, columns = _fourier(n, 0.0), _fourier(n, -math.pi)
    G, H = rows.analyse(-P), columns.analyse(shift_back(Q, -1)).conj()
    return CauchyForm(s, t, G, H, rows, columns)


def vandermonde_form(nodes: Tensor, G: Tensor, H: Tensor, last: Tensor) -> CauchyForm:
    """The Cauchy form of a square M with M - diag(nodes) M Z_0^T = G^T H, given its last column.

    Z_0 is closed to Z_i, whose eigenvalues keep a distance of 1 / n from all real nodes and from the n-th
    roots of 1 and -1: diag(nodes) M - M Z_{-i} = (-G^T H + i diag(nodes) last e_1^T) Z_{-i}.
    """
    n = nodes.shape[0]
    first = torch.zeros(1, n, dtype=torch.complex128, device=nodes.device)
    first[0, 0] = 1
    left = torch.cat((-G.to(first.dtype), 1j * (nodes * last).to(first.dtype).unsqueeze(0)))
    right = shift_back(torch.cat((H.to(first.dtype), first)), -1j)
    modes = _fourier(n, -math.pi / 2)
    # Rows h of the right-hand side become h W^-1, which is conj(W conj(h)) for a unitary W.
    right = modes.analyse(right.conj()).conj()
    s, t = nodes.to(first.dtype), _roots(n, -math.pi / 2, nodes.device)
    return CauchyForm(s, t, left, right, PLAIN, modes)


def _roots(n: int, angle: float, device: torch.device) -> Tensor:
    """The eigenvalues of Z_f, f = exp(i angle), in the order of `_fourier`: exp(i (angle - 2 pi k) / n)."""
    k = torch.arange(n, dtype=torch.float64, device=device)
    turn = (angle - 2 * math.pi * k) / n
    return torch.polar(torch.ones_like(turn), turn)


def _fourier(n: int, angle: float) -> Modes:
    """The eigenvectors of Z_f, f = exp(i angle): a Fourier transform after a twist."""

    def twist(device: torch.device) -> Tensor:
        j = torch.arange(n, dtype=torch.float64, device=device)
        return torch.polar(torch.ones_like(j), j * (angle / n))

    return Modes(
        lambda x: torch.fft.fft(x * twist(x.device), norm="ortho"),
        lambda X: torch.fft.ifft(X, norm="ortho") * twist(X.device).conj(),
    )
