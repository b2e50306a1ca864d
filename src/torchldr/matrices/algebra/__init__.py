"""The algebra of displacement: operators, displacement, closure rules."""

# Their rules are found once imported.
from . import closure_classes, closure_structures, constructors_rules, lazy, recompress
from .blocks import block
from .displacement import displacement, displacement_rank, from_displacement, generators
from .operators import (
    BlockDiagonal,
    DenseOperator,
    Diagonal,
    Operator,
    Power,
    Shift,
    Subdiagonal,
    TransposedOperator,
    Tridiagonal,
    same,
)
from .structure import Displacement

__all__ = [
    "BlockDiagonal",
    "DenseOperator",
    "Diagonal",
    "Displacement",
    "Operator",
    "Power",
    "Shift",
    "Subdiagonal",
    "TransposedOperator",
    "Tridiagonal",
    "block",
    "closure_classes",
    "closure_structures",
    "constructors_rules",
    "displacement",
    "displacement_rank",
    "from_displacement",
    "generators",
    "lazy",
    "recompress",
    "same",
]
