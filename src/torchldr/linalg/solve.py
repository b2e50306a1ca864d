"""Solving with square structured matrices: `solve(M, b)`, behind `M.solve(b)` and `M.inverse()`."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import torch
from torch import Tensor

from ..algebra.multiply import multiply, rmultiply
from ..core.linear_map import LinearMap, show
from ..core.registry import near
from ..core.rules import rule
from ..torch_private import forward_mode, in_forward_mode
from .candidates import candidates
from .certificate import Certified, Product, certified, condition_by, random_rows
from .solvers import ACCEPTED, DENSE_LIMIT, Candidate, IterativeSolver, Solver, dense
from .widening import may_require_grad, widened

LinAlgError: type[RuntimeError] = torch.linalg.LinAlgError  # type: ignore[attr-defined] # not in its stubs

TOLERANCE = 1e-10  # target of |b - M x| / |b|, as far as rounding allows
ILL_CONDITIONED = 1e8


class IllConditionedWarning(UserWarning):
    """The solution of a system may have lost most of its digits; the message says how many."""


@rule("solve", LinearMap)
def solve(M: LinearMap, b: Tensor, *, tol: float | None = None, method: str | None = None) -> Tensor:
    """Solve M x = b for a square structured matrix.

    Args:
        M: a square linear map.
        b: shape (n,), or (..., n, k) for k right-hand sides in columns, as for `torch.linalg.solve`.
        tol: target of |b - M x| / |b|, by default 1e-10. Iterative refinement stops there, or where rounding
            errors of M x prevent more.
        method: the name of a solver from `solvers(M)`; by default they are tried in order.

    Returns:
        x in the shape and dtype of b, differentiable (once) in b and in the tensors of M.

    Computed in float64 or complex128. For condition numbers up to 1e8 the residual |b - M x| is at most
    1e-10 (|M| |x| + |b|), usually a few rounding units of it. Cost: O(n log n) for circulant and similar
    matrices, and for each step on well-conditioned `Toeplitz` and `Hankel`; O(n^2 r) operations and O(n r)
    memory for Toeplitz-, Hankel-, Vandermonde- and Cauchy-like matrices. Others use GMRES or the dense
    matrix. Under `torch.compile` it runs eagerly, at the cost of one graph break.

    Warns:
        IllConditionedWarning: if the estimated condition number is above 1e8.

    Raises:
        torch.linalg.LinAlgError: if M is singular to working precision, or x is out of range.
        ValueError: if M is not square or sizes do not fit.

    The same, slowly: `torch.linalg.solve(M.to_dense(), b)`.

    >>> import torch, torchldr
    >>> M = torchldr.ToeplitzLike.random(8, 8, rank=2, dtype=torch.float64)
    >>> x = torch.randn(8, dtype=torch.float64)
    >>> torch.allclose(torchldr.solve(M, M @ x), x)
    True
    """
    if torch.compiler.is_compiling():  # its steps depend on values
        alone: Tensor = torch.compiler.disable(solve)(M, b, tol=tol, method=method)
        return alone
    if getattr(M, "leading", ()):  # a stack: its systems are solved one by one
        return M.solve(b, tol=tol, method=method)
    _check(M, b)
    if tol is not None and not tol >= 0:
        raise ValueError(f"solve: tol must be 0 or more, got {tol}.")
    n = M.in_features
    rows = b.unsqueeze(0) if b.ndim == 1 else b.mT.reshape(math.prod(b.shape) // max(n, 1), n)
    dtype = torch.promote_types(b.dtype, M.dtype) if M.dtype.is_complex else b.dtype
    x = solve_rows(M, rows, tol=tol, method=method).to(dtype)
    return x[0] if b.ndim == 1 else x.reshape(b.mT.shape).mT


def solvers(M: LinearMap) -> list[str]:
    """The names of the methods for M, in the order in which `solve` tries them."""
    if M.out_features != M.in_features:
        raise ValueError(f"{type(M).__name__}: only square systems can be solved, got {show(M)}.")
    with torch.no_grad():
        return [candidate.name for candidate in candidates(widened(M))]


def solve_rows(M: LinearMap, b: Tensor, *, tol: float | None = None, method: str | None = None) -> Tensor:
    """`solve` for rows (p, n), in float64 or complex128."""
    wide = torch.complex128 if b.is_complex() or M.dtype.is_complex else torch.float64
    b, system = b.to(wide), widened(M)
    if not b.numel():
        return b.clone()
    unknown = ~b.isfinite().all(-1, keepdim=True)
    if bool(unknown.any()):  # these have no solution: only the others are solved and measured
        known = solve_rows(M, b.masked_fill(unknown, 0), tol=tol, method=method)
        return known.masked_fill(unknown, torch.nan)
    with torch.no_grad(), forward_mode(False):
        solver, x = _chosen(M, system, b.detach(), tol, method)
    forward = in_forward_mode()
    if forward or (torch.is_grad_enabled() and (b.requires_grad or may_require_grad(M))):
        left = b - multiply(system, x)
        if forward or left.requires_grad:
            return _Implicit.apply(left, x, system, solver, tol)
    return x


class _Implicit(torch.autograd.Function):
    """x as a function of b - M x, which is zero: dx = M^-1 d(b - M x) with x held fixed."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, x: Tensor, *how: Any) -> Tensor:
        ctx.how = how
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # with x held fixed a second derivative would be wrong
            raise RuntimeError("solve: a solution is differentiable once, without create_graph=True.")
        return _again(dx.conj().resolve_conj(), *ctx.how, transposed=True).conj(), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dleft: Tensor, *_: Any) -> Tensor:
        with torch.no_grad(), forward_mode(False):
            return _again(dleft, *ctx.how, transposed=False)


def _again(b: Tensor, system: LinearMap, solver: Solver, tol: float | None, *, transposed: bool) -> Tensor:
    """Solve again with the solver of an earlier system, or with its transpose."""
    rows = _as_real(b, system)
    product, adjoint = products(system, transposed=transposed)
    found = certified(product, adjoint, solver, rows, transposed=transposed, tol=_tolerance(tol))
    if not _is_accepted(solver, found, tol):
        found = certified_by(system, rows, tol=tol, transposed=transposed)[1]
    return _as_complex(found.x, b)


def _as_real(b: Tensor, M: LinearMap) -> Tensor:
    """Complex rows for a real matrix as twice as many real ones."""
    return torch.cat((b.real, b.imag)) if b.is_complex() and not M.dtype.is_complex else b


def _as_complex(x: Tensor, b: Tensor) -> Tensor:
    """The solutions for b from those for `_as_real(b)`."""
    return torch.complex(*x.chunk(2)) if b.is_complex() and not x.is_complex() else x


def _chosen(
    M: LinearMap, system: LinearMap, b: Tensor, tol: float | None, method: str | None
) -> tuple[Solver, Tensor]:
    """The first certified solution and its solver. Warnings and errors name M."""
    rows = _as_real(b, M)
    solver, found = certified_by(system, rows, tol=tol, method=method)
    name, n = type(M).__name__, M.in_features
    if found.condition == torch.inf:
        if (size := _size_of_solution(system, rows, method)) is not None:
            raise LinAlgError(
                f"solve: x leaves the range of {b.dtype}: its largest entry is about 1e{size:.0f}. {name} of "
                f"{n} x {n} is not singular, so a smaller b can be solved for."
            )
        raise LinAlgError(f"solve: {name} of {n} x {n} is singular to working precision.")
    if found.backward_error > ACCEPTED and found.residual > (tol or 0):
        raise LinAlgError(
            f"solve: no method reached a residual below {found.residual:.1e} |b| for {name} of "
            f"{n} x {n}: it is singular or too ill-conditioned."
        )
    if found.condition > ILL_CONDITIONED:
        _warn(f"{name} of {n} x {n}", system, solver, found)
    return solver, _as_complex(found.x, b)


def _size_of_solution(M: LinearMap, b: Tensor, method: str | None) -> float | None:
    """The decimal exponent of the largest entry of M^-1 b, from b scaled to unit size; None if that fails too
    or x is within the range."""
    largest = b.abs().amax(-1, keepdim=True)
    unit = b / torch.where(largest > 0, largest, 1)
    found = certified_by(M, unit, method=method)[1]
    if not math.isfinite(found.condition):
        return None
    size = (found.x.abs().amax(-1, keepdim=True).log10() + largest.log10()).max().item()
    return size if size >= math.log10(torch.finfo(b.dtype).max) else None


def _warn(name: str, M: LinearMap, solver: Solver, found: Certified) -> None:
    """Warn that M is ill-conditioned, unless a better estimate says otherwise."""
    condition = found.condition
    if solver.exact:  # the first estimate counts all small singular values, so it may be too large
        condition = condition_by(*products(M), solver, M.in_features, found.x, steps=4)
    if condition > ILL_CONDITIONED:
        warnings.warn(
            f"solve: {name} has an estimated condition number of {condition:.1e}: of 16 digits of x about "
            f"{math.log10(condition):.0f} may be lost. The residual is {found.backward_error:.1e} of "
            "|M| |x| + |b|.",
            IllConditionedWarning,
            stacklevel=_frames_of_this_package(),
        )


def certified_by(
    M: LinearMap,
    b: Tensor,
    *,
    tol: float | None = None,
    method: str | None = None,
    transposed: bool = False,
    steady: bool = False,
) -> tuple[Solver, Certified]:
    """The first solver with an accepted solution, and the solution; else the last ones.

    `steady` skips solvers that may give up on the next right-hand side.
    """
    product, adjoint = products(M, transposed=transposed)
    for candidate in _possible(M, b, method, steady=steady):
        solver = candidate.make()
        if tol is not None and isinstance(solver, IterativeSolver):
            solver.tol = tol
        found = certified(product, adjoint, solver, b, transposed=transposed, tol=_tolerance(tol))
        if _is_accepted(solver, found, tol) or solver.final:
            break
    return solver, found


def _tolerance(tol: float | None) -> float:
    return TOLERANCE if tol is None else tol


def _is_accepted(solver: Solver, found: Certified, tol: float | None) -> bool:
    return found.backward_error <= solver.accepted or found.residual <= (tol or 0)


def _possible(M: LinearMap, b: Tensor, method: str | None, *, steady: bool) -> list[Candidate]:
    """The solvers to try for these right-hand sides, or the named one."""
    n, known = M.in_features, candidates(M)
    if method is not None:
        names = [candidate.name for candidate in known]
        if method not in names:
            hint = near(method, dict.fromkeys(names))
            raise ValueError(f"solve: unknown method {method!r} for {type(M).__name__}{hint}.")
        return [known[names.index(method)]]
    sure = [candidate for candidate in known if candidate.largest is None]
    if 4 * b.shape[0] >= n and n <= DENSE_LIMIT and sure[0].name.startswith("gko"):
        return [dense(M)]  # b itself is of the dense matrix's size, and elimination is faster for many
    fit = lambda candidate: candidate.largest is None or b.numel() <= candidate.largest
    return sure if steady else [candidate for candidate in known if fit(candidate)]


def products(M: LinearMap, *, transposed: bool = False) -> tuple[Product, Product]:
    """Products of rows by M and by its conjugate transpose; if `transposed`, by M^T and conj(M)."""
    product, other = (rmultiply, multiply) if transposed else (multiply, rmultiply)
    return lambda x: product(M, x), lambda y: other(M, y.conj().resolve_conj()).conj().resolve_conj()


def _frames_of_this_package() -> int:
    """The stack level at which a warning points to the user's line."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("torchldr."):
        level, frame = level + 1, frame.f_back
    return level


def _check(M: LinearMap, b: Tensor) -> None:
    if not isinstance(M, LinearMap):
        raise TypeError(f"solve: M must be a structured matrix, got {type(M).__name__}.")
    name, n = type(M).__name__, M.in_features
    if M.out_features != n:
        raise ValueError(f"solve: only square systems can be solved, got {name} of {show(M)}.")
    if not isinstance(b, Tensor):
        raise TypeError(f"solve: b must be a tensor, got {type(b).__name__}.")
    if not (b.is_floating_point() or b.is_complex()):
        raise TypeError(f"solve: b must be floating point or complex, got {b.dtype}.")
    if b.ndim < 1 or (b.shape[0] if b.ndim == 1 else b.shape[-2]) != n:
        raise ValueError(
            f"solve: b must have shape ({n},) or (..., {n}, k) for {name} of {show(M)}, got {tuple(b.shape)}."
        )
    if b.device != M.device:
        raise ValueError(f"solve: b is on {b.device}, {name} on {M.device}; move one of them.")


@torch.no_grad()
def condition_estimate(M: LinearMap, *, steps: int = 8) -> float:
    """The condition number |M| |M^-1| in the 2-norm, estimated from below.

    Args:
        M: a square linear map.
        steps: of the power iterations for |M| and |M^-1|. The estimate grows with them towards the
            condition number; 8 steps are nearly always within a factor of 2.

    Returns:
        The estimate; inf if M is singular to working precision.

    Cost: 2 steps products, and as many solutions by one elimination. The same, slowly:
    `torch.linalg.cond(M.to_dense())`.

    >>> import torch, torchldr
    >>> M = torchldr.Dense(3, 3, weight=torch.diag(torch.tensor([4.0, 2.0, 1.0])))
    >>> round(torchldr.linalg.condition_estimate(M), 2)
    4.0
    """
    if M.out_features != M.in_features:
        raise ValueError(f"condition_estimate: M must be square, got {type(M).__name__} of {show(M)}.")
    system, n = widened(M), M.in_features
    like = torch.empty(0, dtype=torch.complex128 if M.dtype.is_complex else torch.float64, device=M.device)
    solver, found = certified_by(system, random_rows(1, n, like), steady=True)
    if not found.backward_error <= 1e-6:
        return torch.inf
    return condition_by(*products(system), solver, n, like, steps=steps)
