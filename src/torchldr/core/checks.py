"""Common checks of arguments. An error names the function, the rule and the value."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn


def check_model(who: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{who}: model must be an nn.Module, got {type(model).__name__}.")


def as_int(value: Any) -> Any:
    """An integer of another kind, such as one of NumPy, as an int; everything else as it is.

    Narrow integers would overflow in products of sizes, and JSON knows only Python's.
    """
    return value if isinstance(value, bool) or not isinstance(value, Integral) else int(value)


def checked_int(
    who: str, name: str, value: object, least: int = 1, most: int | None = None, why: str = ""
) -> int:
    """An int of at least `least`, and at most `most`; `why` explains the bound."""
    value = as_int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{who}: {name} must be an int, got {value!r}.")
    if most is None and value < least:
        raise ValueError(f"{who}: {name} must be at least {least}, got {value}{why and '; '}{why}.")
    if most is not None and not least <= value <= most:
        bound = f"{most} ({why})" if why else most
        raise ValueError(f"{who}: {name} must be between {least} and {bound}, got {value}.")
    return value


def check_cut(who: str, name: str, value: object, out_features: int, in_features: int) -> None:
    """An option that cuts a matrix into parts: from 1 to its larger side, or None for the default."""
    if value is not None:
        why = f"the larger of out_features={out_features} and in_features={in_features}"
        checked_int(who, name, value, most=max(out_features, in_features), why=why)


def check_flags(who: str, **flags: object) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{who}: {name} must be True or False, got {flag!r}.")


def check_dtype(who: str, dtype: object) -> None:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{who}: dtype must be one of torch, such as torch.float32, got {dtype!r}.")
    if not dtype.is_floating_point:
        raise TypeError(f"{who}: dtype must be real floating point, got {dtype}.")


def check_choices(who: str, **choices: tuple[str, Iterable[str]]) -> None:
    """Each argument with the names that it may be."""
    for name, (choice, known) in choices.items():
        if choice not in known:
            raise ValueError(f"{who}: {name} must be one of {', '.join(known)}, got {choice!r}.")


def checked_vector(t: Tensor, who: str, name: str, *, least: int = 1) -> Tensor:
    """A vector of at least so many entries, floating point or complex, or an error."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{who}: {name} must be a tensor, got {type(t).__name__}.")
    if t.ndim != 1 or t.shape[0] < least:
        wanted = "a vector of at least one entry" if least else "a vector"
        raise ValueError(f"{who}: {name} must be {wanted}, got shape {tuple(t.shape)}.")
    if not (t.is_floating_point() or t.is_complex()):
        raise TypeError(f"{who}: {name} must be floating point or complex, got {t.dtype}.")
    return t
