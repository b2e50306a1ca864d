"""Solving with square linear maps: `solve`, its solvers, and condition numbers."""

from .solve import IllConditionedWarning, condition_estimate, solve, solvers

__all__ = ["IllConditionedWarning", "condition_estimate", "solve", "solvers"]
