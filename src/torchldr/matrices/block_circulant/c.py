"""Block-circulant matrices in C."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from ..circulant.c import circulant_grid
from . import BlockCirculant


@rule("c", BlockCirculant)
def _(M: BlockCirculant, c: Any) -> str:
    rows, columns, b = M.column.shape
    return circulant_grid(M, c, rows, columns, b)
