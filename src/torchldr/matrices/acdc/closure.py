"""Closure rules of ACDC."""

from __future__ import annotations

from ...algebra.known import KnownDisplacement, Operators
from ...algebra.members import scales_rows
from ...core.rules import rule
from ...operators import Tridiagonal
from ..classical.transforms import DCT2
from . import ACDC

scales_rows(ACDC, "A")


@rule("known_displacement", ACDC)
def _(M: ACDC) -> KnownDisplacement:
    m, n = M.shape
    if bool((M.A.detach() == 0).any()):
        zero = int((M.A == 0).nonzero()[0])
        raise ValueError(f"ACDC: S = A T A^{{-1}} needs a diagonal A without zeros, but A[{zero}] is 0.")
    T = DCT2(max(m, n), orthonormal=True, dtype=M.dtype, device=M.device).operators().A
    assert isinstance(T, Tridiagonal)
    S = _leading(T, m)
    scaled = Tridiagonal(S.sub * M.A[1:] / M.A[:-1], S.diag, S.super * M.A[:-1] / M.A[1:])
    return KnownDisplacement(Operators(scaled, _leading(T, n)), min(2 if m == n else 3, m, n))


def _leading(T: Tridiagonal, n: int) -> Tridiagonal:
    """The leading n x n part, without corners."""
    return Tridiagonal(T.sub[: n - 1], T.diag[:n], T.super[: n - 1])
