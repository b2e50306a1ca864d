"""Rules of linear maps and structured classes.

A rule is a small function, registered for an operation and the exact classes of its operands. A family stands
for all its subclasses (`LinearMap` for every map). The most specific rule that applies gives the result; a
rule that does not apply returns None. The rules of a class are in its folder; your own class can register its
own:

    @rule("add", MyClass, MyClass)
    def _(M, N): ...

`of_class` and `by_class` look up rules for a class instead of a matrix.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

Rule = TypeVar("Rule", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

RULES: dict[tuple[Any, ...], Callable[..., Any]] = {}
FAMILIES: set[type] = {Tensor}  # its subclasses, such as parameters, are matrices too


def family(cls: Class) -> Class:
    """Make rules for this class apply to its subclasses too."""
    FAMILIES.add(cls)
    return cls


def rule(operation: str, *classes: type) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of an operation for operands of these classes."""

    def register(function: Rule) -> Rule:
        RULES[operation, *classes] = function
        return function

    return register


def first(operation: str, *operands: Any, **options: Any) -> Any:
    """The result of the first rule that applies, or None.

    Raises:
        TypeError: for a matrix with leading axes, because rules are written for one matrix.
    """
    for operand in operands:
        if getattr(operand, "leading", ()):
            raise TypeError(
                f"{type(operand).__name__}: {operation!r} takes one matrix, not a stack of shape "
                f"{tuple(operand.shape)}; take its matrices one by one, M[i]."
            )
    for classes in itertools.product(*map(_classes, operands)):
        found = RULES.get((operation, *classes))
        result = found(*operands, **options) if found is not None else None
        if result is not None:
            return result
    return None


def _classes(operand: Any) -> list[type]:
    exact, *bases = type(operand).__mro__
    return [exact, *(base for base in bases if base in FAMILIES)]


def apply(operation: str, *operands: Any, **options: Any) -> Any:
    """`first`, with an error if no rule applies.

    Raises:
        TypeError: if no rule applies.
    """
    result = first(operation, *operands, **options)
    if result is None:
        kinds = " and ".join(type(operand).__name__ for operand in operands)
        raise TypeError(f"no rule of the algebra gives {operation!r} for {kinds}.")
    return result


def of_class(operation: str, cls: type) -> Callable[..., Any] | None:
    """The rule of a class for this operation, or None."""
    return RULES.get((operation, cls))


_PRODUCT = "factors", "_matmul"


def of_product(operation: str, cls: type) -> Callable[..., Any] | None:
    """The rule for a class's product: its own, or one inherited together with the product."""
    for base in cls.__mro__:
        found = of_class(operation, base)
        if found is not None and all(getattr(cls, name) is getattr(base, name) for name in _PRODUCT):
            return found
    return None


def by_class(operation: str) -> dict[type, Callable[..., Any]]:
    """Every class with a rule for this operation, in the order of registration."""
    return {key[1]: found for key, found in RULES.items() if key[0] == operation and len(key) == 2}
