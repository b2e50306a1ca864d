"""The structured classes, a file or a folder each, and the registry that finds them by name.

A small class is one file. A folder holds the class itself, its rules for the algebra, for solving and
for exporting (`rules`), and how to project onto it (`project`). To delete a class, delete that and its line
below. A class of your own registers itself and its rules wherever it is defined.
"""

from importlib import import_module
from pkgutil import iter_modules

from ..core.linear_map import LinearMap
from ..core.matrix import Projection, StructuredMatrix
from ..core.structures import get_structure, structures
from .acdc import ACDC
from .blast import Blast
from .block_circulant import BlockCirculant
from .cauchy_like import CauchyLike
from .circulant import Circulant
from .dense import Dense
from .fastfood import Fastfood
from .hankel_like import HankelLike
from .kronecker import Kronecker
from .ldr_sd import LDRSubdiagonal
from .ldr_td import LDRTridiagonal
from .low_rank import LowRank
from .monarch import Monarch
from .toeplitz_like import ToeplitzLike
from .vandermonde_like import VandermondeLike

__all__ = [
    "ACDC",
    "Blast",
    "BlockCirculant",
    "CauchyLike",
    "Circulant",
    "Dense",
    "Fastfood",
    "HankelLike",
    "Kronecker",
    "LDRSubdiagonal",
    "LDRTridiagonal",
    "LinearMap",
    "LowRank",
    "Monarch",
    "Projection",
    "StructuredMatrix",
    "ToeplitzLike",
    "VandermondeLike",
    "get_structure",
    "structures",
]


def _load_rules() -> None:
    """Import what lies beside the classes: rules are found once imported."""
    for folder in iter_modules(__path__):
        for module in iter_modules([f"{path}/{folder.name}" for path in __path__]):
            import_module(f".{folder.name}.{module.name}", __name__)


_load_rules()
