"""How the entries of a structured matrix depend on its parameters: total degrees, class by class.

The entries of M are polynomials N_ij of the parameters, or rational functions N_ij / Q with one common
denominator. What the VC bound needs of a class is the degree of N and of Q:

    dense, circulant, block-circulant       M is linear                              1
    low-rank, fixed operators, ACDC,        bilinear in G and H, or A and D          2
      Monarch, Kronecker
    Fastfood, BLAST                         S, D and B, or G, S and H, each once     3
    Krylov products, k = min(m, n)          K_k(A, g) K_k(C, h)^T: k from each side  2k
    learned nodes, Vandermonde-like         nodes^(n-1) times g h                    n + 1
    solution of A M - M B = G^T H           Cramer's rule in m n unknowns            (m n + 1) / (m n)

The last line is the paper's rational case: the system has the matrix I (x) A - B^T (x) I, whose
determinant Q has degree m n; a cofactor has m n - 1, the right hand side 2. Cauchy-like matrices with
learned nodes are the special case of diagonal operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torchldr.matrices import StructuredMatrix, get_structure


class Degree(NamedTuple):
    """Degrees of a matrix's entries in its parameters.

    Attributes:
        numerator: total degree of every N_ij.
        denominator: total degree of the common Q; 0 for polynomials.
        exponent: c_2 of the paper's form c_1 n^{c_2} of this degree.
    """

    numerator: int
    denominator: int = 0
    exponent: int = 0

    @property
    def rational(self) -> bool:
        return self.denominator > 0

    def step(self, bias: bool) -> int:
        """What a layer of this degree adds to the degree of its input, its bias included."""
        return max(self.numerator, self.denominator + bias)


def sylvester_degree(out_features: int, in_features: int) -> Degree:
    """Of the solution M of A M - M B = G^T H in the entries of A, B, G and H: any operators."""
    unknowns = out_features * in_features
    return Degree(unknowns + 1, unknowns, exponent=2)


def _krylov(m: int, n: int, options: Mapping[str, Any]) -> Degree:
    if options.get("normalize"):
        raise ValueError(
            "entry_degree: ldr_td with normalize=True divides by a largest row sum, which is no "
            "polynomial of the parameters: the theorem does not cover it."
        )
    return Degree(2 * min(m, n), exponent=1)


def _vandermonde(m: int, n: int, options: Mapping[str, Any]) -> Degree:
    return Degree(n + 1, exponent=1) if options.get("learn_nodes") else Degree(2)


def _cauchy(m: int, n: int, options: Mapping[str, Any]) -> Degree:
    return sylvester_degree(m, n) if options.get("learn_nodes") else Degree(2)


# A number, or a function of (m, n, options).
_DEGREES: dict[str, int | Callable[[int, int, Mapping[str, Any]], Degree]] = {
    "dense": 1,
    "circulant": 1,
    "block_circulant": 1,
    "low_rank": 2,
    "toeplitz_like": 2,
    "hankel_like": 2,
    "acdc": 2,
    "monarch": 2,
    "kronecker": 2,
    "fastfood": 3,
    "blast": 3,
    "vandermonde_like": _vandermonde,
    "cauchy_like": _cauchy,
    "ldr_sd": _krylov,
    "ldr_td": _krylov,
}


def entry_degree(
    structure: str | type[StructuredMatrix], out_features: int, in_features: int, **options: Any
) -> Degree:
    """The degree of a class's entries in its parameters.

    Args:
        structure: name of a structured class, or the class.
        out_features, in_features: shape (m, n) of the matrix.
        **options: the class's options.

    Raises:
        ValueError: for a class whose degree is not known here, or an option that is no polynomial.

    >>> entry_degree("ldr_sd", 512, 784).numerator
    1024
    """
    cls = get_structure(structure)
    if cls.name not in _DEGREES:
        raise ValueError(
            f"entry_degree: the degree of the structure {cls.name!r} is not known here; give the layer's "
            f"own `degree=Degree(...)`. Known: {', '.join(_DEGREES)}."
        )
    chosen, known = cls.check_options(options), _DEGREES[cls.name]
    return Degree(known) if isinstance(known, int) else known(out_features, in_features, chosen)
