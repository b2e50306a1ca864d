"""torchldr: weight matrices with low displacement rank for PyTorch."""

from .matrices import (
    ACDC,
    BlockCirculant,
    CauchyLike,
    Circulant,
    Dense,
    Fastfood,
    HankelLike,
    LDRSubdiagonal,
    LDRTridiagonal,
    LinearMap,
    LowRank,
    StructuredMatrix,
    ToeplitzLike,
    VandermondeLike,
    get_structure,
    structures,
)
from .nn import StructuredLinear

__version__ = "0.1.0"

__all__ = [
    "ACDC",
    "BlockCirculant",
    "CauchyLike",
    "Circulant",
    "Dense",
    "Fastfood",
    "HankelLike",
    "LDRSubdiagonal",
    "LDRTridiagonal",
    "LinearMap",
    "LowRank",
    "StructuredLinear",
    "StructuredMatrix",
    "ToeplitzLike",
    "VandermondeLike",
    "get_structure",
    "structures",
]
