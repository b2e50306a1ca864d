"""Structured matrices for SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..core.linear_map import LinearMap
from ..core.rules import rule
from .multiply import multiply, rmultiply


@rule("as_scipy", LinearMap)
def as_scipy(M: LinearMap) -> Any:
    """A `scipy.sparse.linalg.LinearOperator` that multiplies by M, for SciPy's solvers and eigensolvers.

    Vectors go through the fast products on M's device and in M's precision, without gradients. For bfloat16
    and float16 the results are float32 with that rounding.

    Raises:
        ImportError: if SciPy is not installed.
    """
    try:
        from scipy.sparse.linalg import LinearOperator
    except ImportError as error:
        raise ImportError("as_scipy needs SciPy: pip install scipy") from error

    def wide(t: torch.Tensor) -> torch.Tensor:
        return t.to(torch.promote_types(t.dtype, torch.float32))

    @torch.no_grad()
    def through(product: Any, x: Any) -> Any:
        """(n,), (n, 1) or (n, k): products act on the last axis, SciPy's vectors are columns."""
        columns = torch.as_tensor(np.array(x, order="C"), device=M.device)  # torch has no negative strides
        y = product(M, columns) if columns.ndim == 1 else product(M, columns.mT).mT
        return wide(y.cpu()).numpy()

    def adjoint(N: LinearMap, y: torch.Tensor) -> torch.Tensor:
        return rmultiply(N, y.conj().resolve_conj()).conj().resolve_conj()

    return LinearOperator(
        shape=tuple(M.shape),
        matvec=lambda x: through(multiply, x),
        rmatvec=lambda y: through(adjoint, y),
        matmat=lambda x: through(multiply, x),
        rmatmat=lambda y: through(adjoint, y),
        dtype=wide(torch.empty(0, dtype=M.dtype)).numpy().dtype,
    )
