"""What a recurrent layer asks of its arguments."""

from __future__ import annotations

import warnings
from collections.abc import Sequence


def check_sizes(who: str, input_size: int, hidden_size: int, num_layers: int, proj_size: int) -> None:
    sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
    for name, value in {**sizes, "proj_size": proj_size}.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{who}: {name} must be an int, got {value!r}.")
        if value < (least := 1 if name in sizes else 0):
            raise ValueError(f"{who}: {name} must be at least {least}, got {value}.")
    if proj_size >= hidden_size:
        raise ValueError(f"{who}: proj_size must be below hidden_size={hidden_size}, got {proj_size}.")


def check_flags(who: str, **flags: bool) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{who}: {name} must be True or False, got {flag!r}.")


def check_choices(who: str, **choices: tuple[str, Sequence[str]]) -> None:
    for name, (choice, known) in choices.items():
        if choice not in known:
            raise ValueError(f"{who}: {name} must be one of {', '.join(known)}, got {choice!r}.")


def check_dropout(who: str, dropout: float, num_layers: int, *, above: int) -> None:
    """`above`: how far the user's line is from the call of this."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout <= 1:
        raise ValueError(f"{who}: dropout must be a probability between 0 and 1, got {dropout!r}.")
    if dropout > 0 and num_layers == 1:
        warnings.warn(
            f"{who}: dropout acts between layers, so dropout={dropout} has no effect with one layer.",
            stacklevel=2 + above,
        )
