"""The parameters of a forecaster: what they may be, and scikit-learn's manners with them."""

from __future__ import annotations

import inspect
from numbers import Real
from typing import Any, Self

from ..core.checks import as_int, check_choices, check_flags, checked_int
from .moments import CENTERS
from .series import GAPS

WHO = "LinearForecaster"


class Parameters:
    """Arguments of `__init__` kept as attributes: `get_params`, `set_params`, and their check."""

    past: int
    horizon: int
    rank: int | None
    ridge: float | str
    center: str | None
    per_channel: bool
    gaps: str
    holdout: float
    sweeps: int | None

    @classmethod
    def _names(cls) -> list[str]:
        return list(inspect.signature(cls).parameters)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self, **params: Any) -> Self:
        for name, value in params.items():
            if name not in self._names():
                raise ValueError(f"{WHO}: unknown parameter {name!r}. Known: {', '.join(self._names())}.")
            setattr(self, name, as_int(value))
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import (
            InputTags,
            RegressorTags,
            Tags,
            TargetTags,
        )  # scikit-learn alone asks for them

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=False),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(allow_nan=self.gaps == "split"),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_factors")

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [f"{k}={v!r}" for k, v in self.get_params().items() if v != defaults[k].default]
        return f"{WHO}({', '.join(changed)})"

    def check(self) -> None:
        """Raise for parameters out of range; as in scikit-learn, `fit` calls it, not `__init__`."""
        checked_int(WHO, "past", self.past)
        checked_int(WHO, "horizon", self.horizon)
        if self.rank is not None:
            checked_int(
                WHO,
                "rank",
                self.rank,
                most=min(self.past, self.horizon),
                why="the smaller of past and horizon",
            )
        if self.sweeps is not None:
            checked_int(WHO, "sweeps", self.sweeps, least=0)
        if self.center not in CENTERS:
            raise ValueError(f"{WHO}: center must be 'last', 'mean' or None, got {self.center!r}.")
        check_choices(WHO, gaps=(self.gaps, GAPS))
        check_flags(WHO, per_channel=self.per_channel)
        if not is_number(self.holdout) or not 0 <= self.holdout < 1:
            raise ValueError(f"{WHO}: holdout must be at least 0 and below 1, got {self.holdout!r}.")
        if not isinstance(self.ridge, str) or self.ridge != "auto":
            check_ridge(WHO, self.ridge, "'auto' or ")
        elif not self.holdout:
            raise ValueError(f"{WHO}: ridge='auto' needs holdout above 0, got {self.holdout!r}.")


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_ridge(who: str, ridge: Any, other: str = "") -> None:
    if not is_number(ridge) or not 0 <= ridge < float("inf"):
        raise ValueError(f"{who}: ridge must be {other}a number of at least 0, got {ridge!r}.")
