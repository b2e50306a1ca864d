"""The structured classes, one a folder, and the registry that finds them by name."""

from ..core.linear_map import LinearMap
from ..core.matrix import StructuredMatrix
from ..core.registry import get_structure, structures
from .acdc import ACDC
from .algebra import (
    BlockDiagonal,
    DenseOperator,
    Diagonal,
    Displacement,
    Operator,
    Power,
    Shift,
    Subdiagonal,
    TransposedOperator,
    Tridiagonal,
    block,
    displacement,
    displacement_rank,
    from_displacement,
    generators,
    same,
)
from .algebra.condition import condition_estimate
from .algebra.constructors import Cauchy, Hankel, Toeplitz, Vandermonde, block_circulant, circulant
from .algebra.constructors_convolution import Convolution2d, convolution1d
from .algebra.constructors_exact import to_hankel_like, to_ldr_td, to_toeplitz_like
from .algebra.constructors_known import known_displacement
from .algebra.equivariance import LearnedOperators, equivariance_error, learned_operators
from .algebra.scipy_operator import as_scipy
from .algebra.solve import IllConditionedWarning, solve, solvers
from .algebra.transforms import DCT2, DFT, Chebyshev, Legendre, OrthogonalPolynomials
from .block_circulant import BlockCirculant
from .cauchy_like import CauchyLike
from .circulant import Circulant
from .dense import Dense
from .fastfood import Fastfood
from .hankel_like import HankelLike
from .ldr_sd import LDRSubdiagonal
from .ldr_td import LDRTridiagonal
from .low_rank import LowRank
from .projection import Projection, from_dense
from .toeplitz_like import ToeplitzLike
from .vandermonde_like import VandermondeLike

__all__ = [
    "ACDC",
    "DCT2",
    "DFT",
    "BlockCirculant",
    "BlockDiagonal",
    "Cauchy",
    "CauchyLike",
    "Chebyshev",
    "Circulant",
    "Convolution2d",
    "Dense",
    "DenseOperator",
    "Diagonal",
    "Displacement",
    "Fastfood",
    "Hankel",
    "HankelLike",
    "IllConditionedWarning",
    "LDRSubdiagonal",
    "LDRTridiagonal",
    "LearnedOperators",
    "Legendre",
    "LinearMap",
    "LowRank",
    "Operator",
    "OrthogonalPolynomials",
    "Power",
    "Projection",
    "Shift",
    "StructuredMatrix",
    "Subdiagonal",
    "Toeplitz",
    "ToeplitzLike",
    "TransposedOperator",
    "Tridiagonal",
    "Vandermonde",
    "VandermondeLike",
    "as_scipy",
    "block",
    "block_circulant",
    "circulant",
    "condition_estimate",
    "convolution1d",
    "displacement",
    "displacement_rank",
    "equivariance_error",
    "from_dense",
    "from_displacement",
    "generators",
    "get_structure",
    "known_displacement",
    "learned_operators",
    "same",
    "solve",
    "solvers",
    "structures",
    "to_hankel_like",
    "to_ldr_td",
    "to_toeplitz_like",
]
