"""Solving with square linear maps: `solve`, the solvers that it chooses from, condition numbers."""

from .condition import condition_estimate
from .solve import IllConditionedWarning, solve, solvers

__all__ = ["IllConditionedWarning", "condition_estimate", "solve", "solvers"]
