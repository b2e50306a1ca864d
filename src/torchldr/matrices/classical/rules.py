"""Rules of classical matrices: closure; solving by iteration, elimination, or the transform itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...core.linear_map import LinearMap, Number
from ...core.rules import rule
from ...linalg.candidates import by_generators, real, rows_reversed, toeplitz_candidates
from ...linalg.cauchy_forms import CauchyForm, gko, vandermonde_form
from ...linalg.residual_iteration import residual_iteration
from ...linalg.solvers import Candidate, formula
from .families import Cauchy, Diagonals, Hankel, Toeplitz, Vandermonde
from .transforms import DCT2, DFT, Chebyshev

# Closure: results that stay in the family.
#
# Toeplitz, Hankel        multiples and sums keep their class
# Vandermonde, DFT, ..    multiples are lazy, as for every map
# Cauchy                  C(s, t)^T = C(-t, -s)


def _scaled(M: Diagonals, scalar: Number) -> LinearMap:
    return M.with_entries(scalar * M.entries)


def _sum(M: Diagonals, N: Diagonals) -> LinearMap | None:
    return M.with_entries(M.entries + N.entries) if M.dtype == N.dtype else None


for _class in (Toeplitz, Hankel):
    rule("scale", _class)(_scaled)
    rule("add", _class, _class)(_sum)


rule("transpose", Toeplitz)(lambda M: Toeplitz(M.row, M.column))


@rule("transpose", Hankel)
def _(M: Hankel) -> Hankel:
    m, n = M.shape
    return Hankel(M.entries[:n], M.entries[max(n - 1, 0) :][:m])


rule("transpose", Cauchy)(lambda M: Cauchy(-M.t, -M.s))


# Solving: elimination on generators, and transforms that are their own solvers.
#
# DFT                     F^-1 = conj(F) / n
# DCT-II, Chebyshev       at the zeros of T_n the rows are orthogonal


def _toeplitz_displacement(M: Toeplitz) -> tuple[Tensor, Tensor]:
    """P and Q of M - Z_1 M Z_{-1}^T, which has one row and one column."""
    column, row = M.column.double(), M.row.double()
    first = torch.zeros_like(column)
    first[0] = 1
    down = torch.cat((2 * column[:1], column[1:] + row[1:].flip(0)))
    across = torch.cat((torch.zeros_like(row[:1]), row[1:] - column[1:].flip(0)))
    return torch.stack((down, first)), torch.stack((first, across))


rule("solvers", Toeplitz)(lambda M: None if M.dtype.is_complex else _toeplitz_solvers(M, M))


@rule("solvers", Hankel)
def _(M: Hankel) -> list[Candidate] | None:
    if M.dtype.is_complex:
        return None
    upside_down = Toeplitz(M.column.flip(0), M.last_row)
    return _toeplitz_solvers(M, upside_down, rows_reversed)


def _toeplitz_solvers(
    M: LinearMap, T: Toeplitz, become: Callable[[list[Candidate]], list[Candidate]] = list
) -> list[Candidate]:
    """Of M, given a Toeplitz matrix T and what makes solvers of M from those of T."""
    eliminations = toeplitz_candidates(lambda: _toeplitz_displacement(T))
    return [*become(residual_iteration(T.column, T.row)), *by_generators(M, 4, become(eliminations))]


@rule("solvers", Vandermonde)
def _(M: Vandermonde) -> list[Candidate]:
    n = M.in_features
    one = torch.ones(1, n, dtype=torch.float64, device=M.device)
    first = torch.zeros_like(one)
    first[0, 0] = 1
    nodes = M.nodes.to(torch.complex128 if M.nodes.is_complex() else torch.float64)
    form = gko("gko", lambda: vandermonde_form(nodes, one, first, nodes ** (n - 1)))
    return by_generators(M, 4, [form if M.nodes.is_complex() else real(form)])


@rule("solvers", Cauchy)
def _(M: Cauchy) -> list[Candidate]:
    s, t = M.s.double(), M.t.double()
    one = torch.ones_like(s).unsqueeze(0)
    return by_generators(M, 1, [gko("gko", lambda: CauchyForm(s, t, one, one))])


@rule("solvers", DFT)
def _(M: DFT) -> list[Candidate]:
    def inverse(b: Tensor) -> Tensor:
        return torch.fft.ifft(b, norm=M.norm)

    return [formula("fft", inverse, inverse)]  # symmetric


def _by_cosines(M: Chebyshev) -> list[Candidate] | None:
    """M M^T is diagonal at the zeros of T_n: M^-1 = M^T (M M^T)^-1."""
    if not M.at_zeros:
        return None
    n = M.in_features
    lengths = (n / 2 * (1 + (torch.arange(n, device=M.device) == 0))) * M.scale.square()
    return [formula("cosine transform", lambda b: M.rmatmul(b / lengths), lambda b: M.matmul(b) / lengths)]


rule("solvers", Chebyshev)(_by_cosines)
rule("solvers", DCT2)(_by_cosines)
