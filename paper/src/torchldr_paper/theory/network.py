"""A network as the theorem sees it: a list of layers, each with its sizes, parameters and degrees.

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
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from torch import nn

from torchldr.matrices import StructuredMatrix, get_structure
from torchldr.nn import StructuredLinear

from ..messages import unknown


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
    "vandermonde_like": lambda m, n, o: Degree(n + 1, exponent=1) if o.get("learn_nodes") else Degree(2),
    "cauchy_like": lambda m, n, o: sylvester_degree(m, n) if o.get("learn_nodes") else Degree(2),
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


LINEAR = Degree(1)  # the entries of M are parameters themselves


class Activation(NamedTuple):
    """A piecewise polynomial, applied to each unit.

    Attributes:
        breakpoints: p, one less than its pieces.
        degree: k, the largest degree of a piece.
    """

    breakpoints: int
    degree: int


ACTIVATIONS = {
    "identity": Activation(0, 1),
    "relu": Activation(1, 1),
    "leaky_relu": Activation(1, 1),
    "relu6": Activation(2, 1),
    "hardtanh": Activation(2, 1),
    "hardsigmoid": Activation(2, 1),
    "hardswish": Activation(2, 2),
    "square": Activation(0, 2),
    "squared_relu": Activation(1, 2),
}
"""Activations that are known by name."""

_MODULES: dict[type[nn.Module], str] = {
    nn.Identity: "identity",
    nn.ReLU: "relu",
    nn.LeakyReLU: "leaky_relu",
    nn.ReLU6: "relu6",
    nn.Hardtanh: "hardtanh",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Hardswish: "hardswish",
}


@dataclass(frozen=True)
class Layer:
    """y = phi(M x + b), of which the bound needs sizes and degrees alone.

    Attributes:
        in_features: n_{l-1}, numbers that come in.
        out_features: n_l, units before the activation.
        parameters: how many numbers are learned here, biases included.
        degree: of the entries of M in them.
        bias: whether a bias is learned.
        activation: of the units.
        pool: window of a max-pooling behind the activation; 1 for none. Each window is told apart by
            its pool (pool - 1) / 2 comparisons.
    """

    in_features: int
    out_features: int
    parameters: int
    degree: Degree = LINEAR
    bias: bool = True
    activation: Activation = ACTIVATIONS["relu"]
    pool: int = 1

    def __post_init__(self) -> None:
        for name, least in (("in_features", 1), ("out_features", 1), ("parameters", 0), ("pool", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"Layer: {name} must be an integer of at least {least}, got {value!r}.")
        if self.out_features % self.pool:
            raise ValueError(
                f"Layer: pool={self.pool} must divide out_features={self.out_features}: windows are disjoint."
            )

    @property
    def polynomials(self) -> int:
        """How many polynomials of the parameters decide, for one input, which piece each unit is on."""
        comparisons = self.out_features * (self.pool - 1) // 2
        return self.activation.breakpoints * self.out_features + comparisons

    @property
    def features(self) -> int:
        """How many numbers come out."""
        return self.out_features // self.pool


def activation(of: str | Activation) -> Activation:
    """An activation by name, or as given."""
    if isinstance(of, Activation):
        return of
    if of not in ACTIVATIONS:
        raise ValueError(
            f"{unknown('activation', of, ACTIVATIONS)} The theorem speaks of piecewise polynomials; for "
            "another one give Activation(breakpoints, degree)."
        )
    return ACTIVATIONS[of]


def structured_layer(
    in_features: int,
    out_features: int,
    structure: str | type[StructuredMatrix] = "dense",
    rank: int | None = None,
    *,
    bias: bool = True,
    phi: str | Activation = "relu",
    **options: Any,
) -> Layer:
    """The layer of a structured class, its parameters counted and its degree looked up."""
    cls = get_structure(structure)
    chosen = cls.check_options(options)
    shapes = cls.check_shapes(out_features, in_features, rank, chosen, "structured_layer")
    count = sum(prod(shape) for shape in shapes.values()) + bias * out_features
    degree = entry_degree(cls, out_features, in_features, **options)
    return Layer(in_features, out_features, count, degree, bias, activation(phi))


def convolution_layer(
    in_channels: int,
    out_channels: int,
    height: int,
    width: int,
    kernel: int,
    *,
    pool: int = 1,
    bias: bool = True,
    phi: str | Activation = "relu",
) -> Layer:
    """A square convolution that keeps the image's size: each weight stands in many entries of M.

    Args:
        pool: side of the max-pooling windows; it must divide height and width.
    """
    if height % pool or width % pool:
        raise ValueError(f"convolution_layer: pool={pool} must divide the image's {height} x {width} pixels.")
    pixels = height * width
    count = out_channels * (in_channels * kernel**2 + bias)
    return Layer(
        in_channels * pixels, out_channels * pixels, count, LINEAR, bias, activation(phi), pool * pool
    )


def layers_of(model: nn.Sequential) -> list[Layer]:
    """The layers of a sequential network of linear and structured layers and activations.

    Raises:
        TypeError: for a module that the theorem does not cover, such as nn.Tanh.
    """
    layers: list[Layer] = []
    for module in model:
        if isinstance(module, StructuredLinear | nn.Linear):
            kind: dict[str, Any] = {"bias": module.bias is not None, "phi": "identity"}
            if isinstance(module, StructuredLinear):
                kind |= {"structure": module.structure, "rank": module.rank, **module.options}
            layers.append(structured_layer(module.in_features, module.out_features, **kind))
        elif isinstance(module, nn.Flatten | nn.Dropout):
            continue  # moves numbers, or is switched off
        elif type(module) in _MODULES and layers and layers[-1].activation == ACTIVATIONS["identity"]:
            layers[-1] = replace(layers[-1], activation=ACTIVATIONS[_MODULES[type(module)]])
        else:
            known = ", ".join(kind.__name__ for kind in _MODULES)
            raise TypeError(
                f"layers_of: no rule for {type(module).__name__} at this place; linear and structured "
                f"layers, each with at most one of {known} behind it, are known."
            )
    return layers
