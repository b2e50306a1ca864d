"""Which solvers serve which class, in the order in which they are tried.

    class                      by
    circulant, ACDC, ..        a formula of its inverse: see `solver_formulas`
    LDR-SD, r = 1              its two Krylov factors: triangular where the operator is nilpotent
    Toeplitz- .. Cauchy-like   GKO; LDR-SD too, while its scales stay within `SCALES`
    compositions, inverses     their parts
    what has Z-like operators  GKO, by the generators that the closure rules give
    everything                 GMRES or the dense matrix: `general`

A class of one's own brings a rule for "solvers" that returns a list of `Candidate`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...core import rules
from ...core.linear_map import LinearMap
from ...core.rules import rule
from ...functional.subdiagonal.guard import scales
from ...functional.triangular import ring_solve
from ..cauchy_like import CauchyLike
from ..hankel_like import HankelLike
from ..ldr_sd import LDRSubdiagonal
from ..ldr_td import LDRTridiagonal
from ..toeplitz_like import ToeplitzLike
from ..vandermonde_like import VandermondeLike
from .cauchy_forms import CauchyForm, complex_toeplitz_form, gko, real_toeplitz_form, vandermonde_form
from .closure import displaced
from .constructors import Cauchy, Hankel, Toeplitz, Vandermonde
from .lazy import Composition, Inverse, Scaled, Transposed
from .multiply import multiply, rmultiply
from .operators import Shift
from .solvers import (
    Candidate,
    Formula,
    RealSolver,
    Solver,
    Swapped,
    dense,
    formula,
    general,
    last_resort,
)

# Up to here Gaussian elimination on the dense matrix is as fast as on generators.
GKO_FROM = 192
# How far apart the scales of an LDR-SD matrix may be: GKO mixes rows, so their ratio costs digits.
SCALES = 1e6

Map = Callable[[Tensor], Tensor]


def candidates(M: LinearMap) -> list[Candidate]:
    """The solvers for a square map in float64 or complex128, in the order in which they are tried."""
    return rules.apply("solvers", LinearMap, M)


def _by_generators(M: LinearMap, rank: int, forms: list[Candidate]) -> list[Candidate]:
    """GKO where it pays, the dense matrix where that is small; each the other's second opinion."""
    if M.in_features < max(GKO_FROM, 8 * rank):
        return [dense(M), *forms]
    return [*forms, *last_resort(M)]


def _toeplitz_candidates(P: Tensor, Q: Tensor) -> list[Candidate]:
    return [
        gko("gko", lambda: real_toeplitz_form(P, Q)),
        _real(gko("gko, complex nodes", lambda: complex_toeplitz_form(P, Q))),
    ]


def _around(of: Candidate, before: tuple[Map, Map], after: tuple[Map, Map]) -> Candidate:
    """A solver of L M R, given one of M and the maps L^-1, L^-T and R^-1, R^-T of rows."""

    def make() -> Solver:
        solver = of.make()
        return Formula(
            lambda b: after[0](solver.solve(before[0](b))),
            lambda b: before[1](solver.solve(after[1](b), transposed=True)),
            solver,
        )

    return Candidate(of.name, make)


def _keep(x: Tensor) -> Tensor:
    return x


def _flip(x: Tensor) -> Tensor:
    return x.flip(-1)


@rule("solvers", LinearMap)
def _(M: LinearMap) -> list[Candidate]:
    n = M.in_features
    own = M.displacement_structure() if n >= GKO_FROM else None
    if own is None or M.dtype.is_complex or own.A.dtype.is_complex or own.B.dtype.is_complex:
        return general(M)
    shifts = Shift(n, 1.0, dtype=torch.float64), Shift(n, -1.0, dtype=torch.float64).T
    found = displaced(M, *shifts, "stein")
    if found is None or 8 * found.rank > n:
        return general(M)
    P, Q = (v.detach().double() for v in found.reduced().generators())
    return [*_toeplitz_candidates(P, Q), *general(M)]


@rule("solvers", ToeplitzLike)
def _(M: ToeplitzLike) -> list[Candidate]:
    # Z_1^n = I and Z_{-1}^n = -I: the displacement is twice G^T H.
    return _by_generators(M, 2 * M.G.shape[0], _toeplitz_candidates(2 * M.G, M.H))


@rule("solvers", HankelLike)
def _(M: HankelLike) -> list[Candidate]:
    forms = [_around(c, (_flip, _flip), (_keep, _keep)) for c in _toeplitz_candidates(2 * M.G, M.H)]
    return _by_generators(M, 2 * M.G.shape[0], forms)


def _toeplitz_displacement(M: Toeplitz) -> tuple[Tensor, Tensor]:
    """P and Q of M - Z_1 M Z_{-1}^T, which has one row and one column."""
    column, row = M.column.double(), M.row.double()
    first = torch.zeros_like(column)
    first[0] = 1
    down = torch.cat((2 * column[:1], column[1:] + row[1:].flip(0)))
    across = torch.cat((torch.zeros_like(row[:1]), row[1:] - column[1:].flip(0)))
    return torch.stack((down, first)), torch.stack((first, across))


@rule("solvers", Toeplitz)
def _(M: Toeplitz) -> list[Candidate] | None:
    if M.dtype.is_complex:
        return None
    return _by_generators(M, 4, _toeplitz_candidates(*_toeplitz_displacement(M)))


@rule("solvers", Hankel)
def _(M: Hankel) -> list[Candidate] | None:
    if M.dtype.is_complex:
        return None
    upside_down = Toeplitz(M.column.flip(0), M.last_row)
    forms = _toeplitz_candidates(*_toeplitz_displacement(upside_down))
    return _by_generators(M, 4, [_around(c, (_flip, _flip), (_keep, _keep)) for c in forms])


@rule("solvers", VandermondeLike)
def _(M: VandermondeLike) -> list[Candidate]:
    def form() -> CauchyForm:
        last = torch.zeros(M.in_features, dtype=M.dtype, device=M.device)
        last[-1] = 1
        return vandermonde_form(M.nodes, M.G, M.H, M.matmul(last))

    return _by_generators(M, 2 * M.G.shape[0] + 2, [_real(gko("gko", form))])


@rule("solvers", Vandermonde)
def _(M: Vandermonde) -> list[Candidate]:
    n = M.in_features
    one = torch.ones(1, n, dtype=torch.float64, device=M.device)
    first = torch.zeros_like(one)
    first[0, 0] = 1
    nodes = M.nodes.to(torch.complex128 if M.nodes.is_complex() else torch.float64)
    form = gko("gko", lambda: vandermonde_form(nodes, one, first, nodes ** (n - 1)))
    return _by_generators(M, 4, [form if M.nodes.is_complex() else _real(form)])


def _real(of: Candidate) -> Candidate:
    """The same for a real matrix, whose solutions come with imaginary parts that are rounding errors."""
    real = lambda x: x.real if x.is_complex() else x
    return _around(of, (_keep, real), (real, _keep))


@rule("solvers", CauchyLike)
def _(M: CauchyLike) -> list[Candidate]:
    form = gko("gko", lambda: CauchyForm(M.s, M.t, M.G, M.H))
    return _by_generators(M, M.G.shape[0], [form])


@rule("solvers", Cauchy)
def _(M: Cauchy) -> list[Candidate]:
    s, t = M.s.double(), M.t.double()
    one = torch.ones_like(s).unsqueeze(0)
    return _by_generators(M, 1, [gko("gko", lambda: CauchyForm(s, t, one, one))])


@rule("solvers", LDRSubdiagonal)
def _(M: LDRSubdiagonal) -> list[Candidate]:
    P, Q = scales(M.subdiagonal_A), scales(M.subdiagonal_C)
    if not bool(torch.isfinite(torch.cat((P, Q, 1 / P, 1 / Q))).all()):
        return general(M)
    f, e = (M.corner_A * P[-1]).item(), (M.corner_C * Q[-1]).item()
    G, H = M.G / P, M.H / Q
    found = []
    if G.shape[0] == 1:  # M = diag(P) F_f(g) F_e(h)^T diag(Q)
        found.append(
            formula(
                "krylov factors",
                lambda b: ring_solve(H[0], e, ring_solve(G[0], f, b / P), transposed=True) / Q,
                lambda b: ring_solve(G[0], f, ring_solve(H[0], e, b / Q), transposed=True) / P,
            )
        )
    if M.in_features >= max(GKO_FROM, 16 * (G.shape[0] + 2)) and all(
        bool(v.abs().max() <= SCALES * v.abs().min()) for v in (P, Q)
    ):
        divide = (lambda b: b / P, lambda b: b / P), (lambda b: b / Q, lambda b: b / Q)
        forms = _toeplitz_candidates(*_closed_displacement(M, G, H, P, Q, f, e))
        found += [_around(form, *divide) for form in forms]
    return [*found, *general(M)]


def _closed_displacement(
    M: LDRSubdiagonal, G: Tensor, H: Tensor, P: Tensor, Q: Tensor, f: float, e: float
) -> tuple[Tensor, Tensor]:
    """Generators of T - Z_1 T Z_{-1}^T for M = diag(P) T diag(Q), T = sum_i K(Z_f, g_i) K(Z_e, h_i)^T.

    T - Z_f T Z_e^T = (1 - f e) G^T H, and Z_1 and Z_{-1} differ from Z_f and Z_e in a corner each, which
    brings in the last row and the last column of T.
    """
    first, last = torch.zeros_like(P), torch.zeros_like(P)
    first[0], last[-1] = 1, 1
    column, row = M.matmul(last) / P / Q[-1], M.rmatmul(last) / Q / P[-1]
    down = (1 + e) * column.roll(1)
    across = -(1 - f) * torch.cat((e * row[-1:], row[:-1]))
    left = torch.cat(((1 - f * e) * G, first.unsqueeze(0), down.unsqueeze(0)))
    right = torch.cat((H, across.unsqueeze(0), first.unsqueeze(0)))
    return left, right


@rule("solvers", LDRTridiagonal)
def _(M: LDRTridiagonal) -> list[Candidate] | None:
    """Where training starts the operators are subdiagonal, and so this is an LDR-SD matrix."""
    tensors = {"G": M.G, "H": M.H}
    for side in "AC":
        lower, diagonal, upper = M._ring(side)
        if bool(diagonal.any()) or bool(upper.any()) or M.in_features == 1:
            return None
        tensors |= {f"subdiagonal_{side}": lower[1:], f"corner_{side}": lower[:1]}
    options = LDRSubdiagonal.check_options({})
    return candidates(LDRSubdiagonal.unchecked(M.out_features, M.in_features, tensors, options))


# Of lazy maps, their parts are asked.


@rule("solvers", Transposed)
def _(M: Transposed) -> list[Candidate]:
    swapped = lambda of: Candidate(of.name, lambda: Swapped(of.make()))
    return [swapped(of) for of in candidates(M.of)]


@rule("solvers", Scaled)
def _(M: Scaled) -> list[Candidate]:
    divide = lambda b: b / M.scalar
    real = lambda of: Candidate(of.name, lambda: _for_any(M.of, of))
    return [_around(real(of), (divide, divide), (_keep, _keep)) for of in candidates(M.of)]


def _for_any(M: LinearMap, of: Candidate) -> Solver:
    """The candidate for M, made to take complex right-hand sides too."""
    return of.make() if M.dtype.is_complex else RealSolver(of.make())


@rule("solvers", Inverse)
def _(M: Inverse) -> list[Candidate]:
    return [formula("product", lambda b: multiply(M.of, b), lambda b: rmultiply(M.of, b))]


@rule("solvers", Composition)
def _(M: Composition) -> list[Candidate] | None:
    if M.left.out_features != M.left.in_features:
        return None

    def make() -> Solver:
        left, right = (_for_any(part, candidates(part)[0]) for part in (M.left, M.right))
        return Formula(
            lambda b: right.solve(left.solve(b)),
            lambda b: left.solve(right.solve(b, transposed=True), transposed=True),
            left,
            right,
        )

    return [Candidate("parts", make), *general(M)]
