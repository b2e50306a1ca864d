"""Where linear maps find the rules of their algebra.

A rule is a small function, registered for an operation and the exact classes of its operands. `LinearMap`
in place of a class stands for every map. The most special rule that applies is taken: one that returns
None does not apply, and the next is asked. So the maps know the operations, the modules of `algebra`
the rules, and a class of one's own may bring its own:

    @rule("add", MyClass, MyClass)
    def _(M, N): ...
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

Rule = TypeVar("Rule", bound=Callable[..., Any])

RULES: dict[tuple[Any, ...], Callable[..., Any]] = {}


def rule(operation: str, *classes: type) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of an operation for operands of these classes."""

    def register(function: Rule) -> Rule:
        RULES[operation, *classes] = function
        return function

    return register


def first(operation: str, anything: type, *operands: Any, **options: Any) -> Any:
    """The result of the first rule that applies, or None; `anything` stands for every map."""
    for classes in itertools.product(*((type(operand), anything) for operand in operands)):
        found = RULES.get((operation, *classes))
        result = found(*operands, **options) if found is not None else None
        if result is not None:
            return result
    return None


def apply(operation: str, anything: type, *operands: Any, **options: Any) -> Any:
    """As `first`, where some rule must apply.

    Raises:
        TypeError: where none does.
    """
    result = first(operation, anything, *operands, **options)
    if result is None:
        kinds = " and ".join(type(operand).__name__ for operand in operands)
        raise TypeError(f"no rule of the algebra gives {operation!r} for {kinds}.")
    return result
