"""What was tried on a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..checkpoint.plan import structure_to_dict
from ..structure import Structure


@dataclass(frozen=True)
class Trial:
    """A structure that was tried on a weight.

    `residual` is |W - M| / |W| (by activations, where these were given): of a quick projection, or of a
    full one where `refined`.
    """

    structure: Structure
    parameters: int
    residual: float
    refined: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            **structure_to_dict(self.structure),
            "parameters": self.parameters,
            "residual": self.residual,
            "refined": self.refined,
        }


@dataclass(frozen=True)
class WeightAnalysis:
    """A weight, everything that was tried on it, and the best for each budget (None where nothing fits)."""

    name: str
    kind: str
    shape: tuple[int, int]
    matrices: int
    parameters: int
    trials: tuple[Trial, ...]
    best: tuple[Trial | None, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "matrices": self.matrices,
            "parameters": self.parameters,
            "best": [None if trial is None else trial.to_dict() for trial in self.best],
            "trials": [trial.to_dict() for trial in self.trials],
        }
