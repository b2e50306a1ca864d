"""Solving with square linear maps: `solve`, the solvers that it chooses from, condition numbers."""

from .solve import IllConditionedWarning, condition_estimate, solve, solvers

__all__ = ["IllConditionedWarning", "condition_estimate", "solve", "solvers"]
