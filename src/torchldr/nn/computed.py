"""Errors for assigning to a computed `weight`."""

from __future__ import annotations

from torch import nn


class ComputedWeight(nn.Module):
    """A layer with a computed `weight`: assigning or pruning it raises an error that says what to do instead.

    If the structure has a parameter of this name, as the dense class has, it stays a parameter.
    """

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if name in ("weight", "weight_orig"):  # the latter by pruning
            self._check_weight_is_learned()
        super().register_parameter(name, param)

    def _check_weight_is_learned(self) -> None:
        if "weight" in getattr(self, "_learned", ()):
            return
        names = ", ".join(name for name, _ in self.named_parameters() if name != "bias")
        raise AttributeError(
            f"{type(self).__name__}: weight is computed from {names} and cannot be set or pruned. Set or "
            "prune these, or make the layer dense with materialize_(model) first."
        )
