"""What to ask for where nobody can look at the subdiagonals, as in a captured graph: the caller vouches."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from . import LDRSubdiagonal


@rule("capture_options", LDRSubdiagonal)
def _() -> dict[str, Any]:
    return {"product": "convolution"}
