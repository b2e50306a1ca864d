"""The structured classes, one a file, and the registry that finds them by name."""

from .acdc import ACDC
from .base import Constant, StructuredMatrix
from .cauchy_like import CauchyLike
from .circulant import BlockCirculant, Circulant
from .dense import Dense
from .fastfood import Fastfood
from .ldr_sd import LDRSubdiagonal
from .ldr_td import LDRTridiagonal
from .linear_map import LinearMap
from .low_rank import LowRank
from .registry import get_structure, structures
from .toeplitz_like import HankelLike, ToeplitzLike
from .vandermonde_like import VandermondeLike

__all__ = [
    "ACDC",
    "BlockCirculant",
    "CauchyLike",
    "Circulant",
    "Constant",
    "Dense",
    "Fastfood",
    "HankelLike",
    "LDRSubdiagonal",
    "LDRTridiagonal",
    "LinearMap",
    "LowRank",
    "StructuredMatrix",
    "ToeplitzLike",
    "VandermondeLike",
    "get_structure",
    "structures",
]
