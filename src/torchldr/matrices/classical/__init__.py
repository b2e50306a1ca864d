"""Classical matrices of low displacement rank: Toeplitz and its kin, transforms, convolutions."""

from .convolution import Convolution2d, convolution1d
from .families import Cauchy, Hankel, Toeplitz, Vandermonde
from .transforms import DCT2, DFT, Chebyshev, Legendre, OrthogonalPolynomials

__all__ = [
    "DCT2",
    "DFT",
    "Cauchy",
    "Chebyshev",
    "Convolution2d",
    "Hankel",
    "Legendre",
    "OrthogonalPolynomials",
    "Toeplitz",
    "Vandermonde",
    "convolution1d",
]
