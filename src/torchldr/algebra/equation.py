"""Solving the displacement equations M - A M B = G^T H and A M - M B = G^T H.

If A or B is nilpotent, M = sum_j A^j G^T H B^j is a finite sum of products of Krylov matrices. For diagonal
operators each entry is a division. Otherwise one operator is diagonalised, which leaves one linear system for
each eigenvalue. Refinement corrects for an ill-conditioned eigenbasis, or for that of a nearby operator if
there is none. The derivative solves the adjoint equation in every case.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ..operators import Diagonal, Operator, Shift, Subdiagonal, TransposedOperator
from .multiply import real_dtype
from .structure import Form

_CHUNK = 1 << 24  # numbers in the batch of systems that is factorised at a time
_REFINEMENTS = 4


def solve_displacement_equation(A: Operator, B: Operator, G: Tensor, H: Tensor, form: Form) -> Tensor:
    """M, shape (m, n), from its displacement by A and B.

    Raises:
        ValueError: where the spectra meet.
    """
    if form == "stein" and (is_nilpotent(A) or is_nilpotent(B)):
        k = min(X.n for X in (A, B) if is_nilpotent(X))
        left, right = A.krylov(G, k), B.T.krylov(H, k)  # (r, m, k), (r, n, k)
        dtype = torch.promote_types(left.dtype, right.dtype)
        return torch.einsum("rik,rjk->ij", left.to(dtype), right.to(dtype))
    check_spectra(A, B, form, G.dtype)
    R = G.mT.to(_common(G.dtype, H.dtype)) @ H.to(_common(G.dtype, H.dtype))
    if isinstance(A, Diagonal) and isinstance(B, Diagonal):
        a, b = A.d.unsqueeze(-1), B.d
        return R / (1 - a * b if form == "stein" else a - b)
    dtype = _common(A.dtype, B.dtype, R.dtype)
    # On a CPU: a GPU's eigenvectors need a library that torch may not have.
    P, Q = (X.dense_in(dtype).cpu() for X in (A, B))
    M: Tensor = _Equation.apply(P, Q, R.to("cpu", dtype), form)
    return M.to(R.device)


def is_nilpotent(A: Operator) -> bool:
    """Whether a power of A is known to vanish: a shift without a corner, or with a zero in its chain."""
    if isinstance(A, TransposedOperator):
        return is_nilpotent(A.of)
    if isinstance(A, Shift | Subdiagonal):
        weights = A.s if isinstance(A, Subdiagonal) else A.corner.new_ones(1)
        return bool((A.corner == 0) | ((weights == 0).any() if A.n > 1 else False))
    rows, columns, values = A.entries()
    away = values != 0
    return bool((rows[away] > columns[away]).all() or (rows[away] < columns[away]).all())


def check_spectra(A: Operator, B: Operator, form: Form, dtype: torch.dtype) -> None:
    """Raise if the equation has no unique solution in the precision of this dtype.

    Raises:
        ValueError: naming the closest pair of eigenvalues.
    """
    with torch.no_grad():
        a, b = (spectrum(X).to("cpu", torch.complex128) for X in (A, B))
        if form == "stein":
            gap, size = (1 - a.unsqueeze(-1) * b).abs(), 1 + (a.unsqueeze(-1) * b).abs()
        else:
            gap, size = (a.unsqueeze(-1) - b).abs(), a.abs().unsqueeze(-1) + b.abs()
        ratio = gap / size.clamp(min=torch.finfo(torch.float64).tiny)
        place = int(ratio.argmin())
        i, j = divmod(place, b.shape[0])
        precision = torch.finfo(real_dtype(dtype)).eps
        if float(ratio.flatten()[place]) > 10 * precision * max(A.n, B.n):
            return
    condition = "their product is 1" if form == "stein" else "they are the same"
    raise ValueError(
        f"from_displacement: the spectra meet, so M is not determined by its displacement ({form} form). "
        f"The closest pair of eigenvalues is {_show(a[i])} of A and {_show(b[j])} of B: {condition} up to "
        f"{float(gap[i, j]):.1e}."
    )


def spectrum(A: Operator) -> Tensor:
    """The eigenvalues of an operator, computed if they are not known."""
    try:
        return A.eigenvalues()
    except NotImplementedError:
        return torch.linalg.eigvals(A.dense_in(torch.promote_types(A.dtype, torch.float64)))


class _Equation(torch.autograd.Function):
    """M from A, B and R, with M - A M B = R or A M - M B = R.

    The adjoint: L - A^H L B^H = dM, or A^H L - L B^H = dM; then dR = L, and dA, dB are products with M.
    """

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, R: Tensor, form: Form) -> Tensor:
        M = refined(A, B, R, form)
        ctx.save_for_backward(A, B, M)
        ctx.form = form
        return M

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        A, B, M = ctx.saved_tensors
        L = _Equation.apply(A.mH, B.mH, gradients[0], ctx.form)
        if ctx.form == "stein":
            return L @ (M @ B).mH, (A @ M).mH @ L, L, None
        return -L @ M.mH, M.mH @ L, L, None


def refined(A: Tensor, B: Tensor, R: Tensor, form: Form) -> Tensor:
    """A solution to working precision, refined while that helps.

    If both operators are defective, like Jordan blocks, neither has an eigenbasis. Then an operator near A
    takes the place of A, and refinement uses the residual of A itself.

    Raises:
        ValueError: if that fails too.
    """

    def residual(M: Tensor) -> Tensor:
        return R - (M - A @ M @ B) if form == "stein" else R - (A @ M - M @ B)

    norm, eps = torch.linalg.norm, torch.finfo(R.dtype).eps

    def attempt(level: float) -> tuple[float, Tensor]:
        """The backward error (inf for none) and M, with an operator at this distance from A."""
        near = A
        if level:
            generator = torch.Generator().manual_seed(0)
            noise = torch.randn(A.shape, generator=generator, dtype=torch.float64, device="cpu").to(A)
            near = A + level * norm(A) / A.shape[0] * noise
        solver = _Diagonalised(near, B, form)
        M = solver.solve(R)
        left = residual(M)
        for _ in range(_REFINEMENTS):
            better = M + solver.solve(left)
            after = residual(better)
            if not bool(norm(after) < 0.5 * norm(left)):
                break
            M, left = better, after
        scale = 1 + norm(A) * norm(B) if form == "stein" else norm(A) + norm(B)
        error = float(norm(left) / (scale * norm(M) + norm(R)).clamp(min=torch.finfo(R.dtype).tiny))
        return math.inf if math.isnan(error) else error, M

    error, M = attempt(0.0)
    if not bool(R.isfinite().all()):
        return M
    if error > eps**0.75:
        error, M = min((error, M), attempt(eps**0.5), key=lambda found: found[0])
    if error > eps**0.5:
        raise ValueError(
            f"from_displacement: the equation ({form} form) is too ill-conditioned to solve: neither A nor B "
            "has an eigenbasis, as Jordan blocks have none."
        )
    return M


def solved(A: Tensor, b: Tensor) -> Tensor:
    """A^-1 b, not finite if A is singular; the caller measures the residual."""
    return torch.linalg.solve_ex(A, b)[0]


class _Diagonalised:
    """The equation in an eigenbasis of A or of B, whichever is the better conditioned.

    With A = V diag(a) V^-1 row i of V^-1 M solves x (I - a_i B) = row i of V^-1 R, or x (a_i - B) = that.
    """

    def __init__(self, A: Tensor, B: Tensor, form: Form) -> None:
        (a, V), (b, W) = torch.linalg.eig(A), torch.linalg.eig(B.mT)
        self.flipped = bool(torch.linalg.cond(W) < torch.linalg.cond(V))
        if self.flipped:  # transposed: M^T - B^T M^T A^T = R^T, or B^T M^T - M^T A^T = -R^T
            A, B, a, V = B.mT, A.mT, b, W
        self.sign = -1.0 if self.flipped and form == "sylvester" else 1.0
        self.V, self.values, self.other, self.form = V, a, B.to(a.dtype), form

    def solve(self, R: Tensor) -> Tensor:
        right = solved(self.V, self.sign * (R.mT if self.flipped else R).to(self.V.dtype))
        n = self.other.shape[0]
        eye, count = torch.eye(n, dtype=self.V.dtype, device=R.device), max(1, _CHUNK // n**2)
        rows = []
        for a, part in zip(self.values.split(count), right.split(count), strict=True):
            a = a[:, None, None]
            system = eye - a * self.other if self.form == "stein" else a * eye - self.other
            rows.append(solved(system.mT, part))
        M = self.V @ torch.cat(rows)
        M = M.mT if self.flipped else M
        return M if R.is_complex() else M.real


def _common(*dtypes: torch.dtype) -> torch.dtype:
    return reduce(torch.promote_types, dtypes, torch.float32)


def _show(value: Tensor) -> str:
    z = complex(value.item())
    return f"{z.real:.6g}" if abs(z.imag) <= 1e-12 * abs(z) else f"{z:.6g}"
