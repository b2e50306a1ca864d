"""The algebra of displacement: displacement, closure rules, blocks, recompression, equivariance."""

from . import lazy, members, recompress  # their rules are found once imported
from .blocks import block
from .convert import convert
from .displacement import displacement, displacement_rank, from_displacement, generators
from .equivariance import LearnedOperators, equivariance_error, learned_operators
from .known import KnownDisplacement, Operators, known_displacement
from .scipy_operator import as_scipy
from .structure import DisplacementStructure

_RULES = lazy, members, recompress

__all__ = [
    "DisplacementStructure",
    "KnownDisplacement",
    "LearnedOperators",
    "Operators",
    "as_scipy",
    "block",
    "convert",
    "displacement",
    "displacement_rank",
    "equivariance_error",
    "from_displacement",
    "generators",
    "known_displacement",
    "learned_operators",
]
