"""The VC dimension of structured networks: the theorem of the paper's appendix D, with its constants.

A network of L layers with real output; W_l parameters up to layer l, n_l units, activations with p
breakpoints and degree k. On a region of the parameter space where no unit changes its piece, the units of
layer l are polynomials of the parameters of degree at most

    d_l = k d_{l-1} + c_l,  d_0 = 0,        c_l the degree of the layer's own entries,

so by Warren's lemma m inputs cut each region into at most 2 (2 e m N_l d_l / W_l)^{W_l} smaller ones, with
N_l = p n_l polynomials an input (N_L = 1: the output's sign), where m >= W. The network has then at most

    log2 K(m) = sum_l [1 + W_l log2(2 e m N_l d_l / W_l)]

sign patterns, and 2^m <= K(m) for the m of the VC dimension. Rational entries N / Q have
sign(N / Q - t) = sign((N - t Q) Q): d_l becomes 2 d_l. Three bounds follow, each weaker and simpler:

    bound     the largest m with m <= log2 K(m)
    closed    L + V log2(2 R log2 R),  V = sum_l W_l,  R = 2 e sum_l N_l d_l   (Jensen, and Lemma 16 of
              Bartlett, Harvey, Liaw, Mehrabian 2017)
    theorem   the same with R = 2 e c_1 p U^{2 + c_2} k^L: the paper's O(L W log(p U)) for k = 1

How many samples then suffice follows from two classical inequalities, for m samples and a class with at most
(2 e m / d)^d patterns on 2 m inputs (Sauer's lemma):

    realisable    P(some function is right on the sample and wrong with probability > epsilon)
                  <= 2 (2 e m / d)^d 2^{-epsilon m / 2},  m >= 8 / epsilon
    agnostic      P(some function's error differs by more than epsilon / 2 from that on the sample)
                  <= 4 (2 e m / d)^d exp(-epsilon^2 m / 32)

A network that fits the sample (in the first case), or that is the best on it (in the second), is then with
probability 1 - delta within epsilon of the best of its class. The m returned is the smallest from which on
the right hand side stays below delta: O((d log(1 / epsilon) + log(1 / delta)) / epsilon) in the first case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil, e, log, log2

from .network import Layer


@dataclass(frozen=True)
class VCBound:
    """What `vc_bound` found.

    Attributes:
        bound: an upper bound of the VC dimension: the largest m that the count of sign patterns allows.
        closed: the same in closed form; at least `bound`.
        theorem: as the theorem states it, from the number of units alone; at least `closed`.
        depth: L.
        parameters: W.
        effective_depth: sum_l W_l / W, between 1 and L.
        units: U, inputs included.
        degrees: d_1 .. d_L.
        rational: whether some layer's entries are rational functions.
        terms: (W_l, N_l d_l) of each layer that cuts regions, d_l doubled where rational.
    """

    bound: int
    closed: int
    theorem: int
    depth: int
    parameters: int
    effective_depth: float
    units: int
    degrees: tuple[int, ...]
    rational: bool
    terms: tuple[tuple[int, int], ...]

    def log2_patterns(self, samples: int) -> float:
        """log2 K(m): what the proof allows m inputs; m itself below W, where Warren's lemma is silent."""
        if samples < self.parameters:
            return float(samples)
        return min(_log2_patterns(self.terms, samples), float(samples))


def vc_bound(layers: Sequence[Layer]) -> VCBound:
    """Bound the VC dimension of the sign of a network.

    Args:
        layers: from input to output; the last has one unit and the identity for its activation.

    Raises:
        ValueError: where the layers do not fit together or the last one is no single number.

    >>> from torchldr_paper.theory import structured_layer
    >>> hidden = structured_layer(784, 784, "ldr_sd", 1, bias=False)
    >>> vc_bound([hidden, structured_layer(784, 1, phi="identity")]).parameters
    3921
    """
    _check(layers)
    degrees, degree, cut, rational = [], 0, [], False
    power = 1  # degree of the activation behind the layer before
    for layer in layers:
        rational = rational or layer.degree.rational
        degree = power * degree + layer.degree.step(layer.bias)
        power = layer.activation.degree
        degrees.append(degree)
        cut.append(degree * (2 if rational else 1))
    cumulative = list(accumulate(layer.parameters for layer in layers))
    polynomials = [layer.polynomials for layer in layers[:-1]] + [1]
    terms = tuple((W, N * d) for W, N, d in zip(cumulative, polynomials, cut, strict=True) if W > 0 and N > 0)
    W, V, L = cumulative[-1], sum(cumulative), len(layers)
    units = layers[0].in_features + sum(layer.out_features for layer in layers)
    # Warren's lemma holds for m >= W, and log2 K(W) >= W: log2 K is concave, so that it is crossed once.
    bound = _first(lambda m: m > _log2_patterns(terms, m), W) - 1
    return VCBound(
        bound=bound,
        closed=_growth_to_dimension(L, V, 2 * e * sum(size for _, size in terms)),
        theorem=_growth_to_dimension(L, V, _theorem_ratio(layers, units, rational)),
        depth=L, parameters=W, effective_depth=V / W, units=units, degrees=tuple(degrees),
        rational=rational, terms=terms,
    )  # fmt: skip


def _log2_patterns(terms: Sequence[tuple[int, int]], samples: int) -> float:
    return sum(1 + W * log2(2 * e * samples * size / W) for W, size in terms)


def _first(holds: Callable[[int], bool], start: int) -> int:
    """The first number from `start` on for which something holds that goes on to hold."""
    end = start
    while not holds(end):
        start, end = end, 2 * end
    while start < end:  # not `bisect`, which takes no more than 2^63 numbers
        middle = (start + end) // 2
        start, end = (start, middle) if holds(middle) else (middle + 1, end)
    return start


def _growth_to_dimension(t: int, w: int, r: float) -> int:
    """2^m <= 2^t (m r / w)^w with r >= 16 and w >= t gives m <= t + w log2(2 r log2 r)."""
    r = max(r, 16.0)
    w = max(w, t)
    return ceil(t + w * log2(2 * r * log2(r)))


def _theorem_ratio(layers: Sequence[Layer], units: int, rational: bool) -> float:
    """R of the theorem; c_1 and c_2 are the largest of the layers', for n_{l-1} the larger U."""
    c_1 = max(2 if layer.degree.exponent else layer.degree.step(layer.bias) for layer in layers)
    c_2 = max(layer.degree.exponent for layer in layers)
    p = max([1.0] + [layer.activation.breakpoints + (layer.pool - 1) / 2 for layer in layers[:-1]])
    k = max(layer.activation.degree for layer in layers)
    return (2 if rational else 1) * 2 * e * c_1 * p * float(units) ** (2 + c_2) * float(k) ** len(layers)


def _check(layers: Sequence[Layer]) -> None:
    if not layers:
        raise ValueError("vc_bound: a network has at least one layer, got none.")
    for i, (first, second) in enumerate(pairwise(layers)):
        if first.features != second.in_features:
            raise ValueError(
                f"vc_bound: layer {i} gives {first.features} numbers, but layer {i + 1} takes "
                f"{second.in_features}."
            )
    last = layers[-1]
    if last.out_features != 1 or last.polynomials or last.activation.degree != 1:
        raise ValueError(
            "vc_bound: the last layer must have one unit and the identity for its activation (one class "
            f"against the others), got {last.out_features} units and {last.activation}."
        )
    if sum(layer.parameters for layer in layers) == 0:
        raise ValueError("vc_bound: a network without parameters has no VC dimension to bound.")


def pac_sample_size(
    vc_dimension: int, epsilon: float = 0.1, delta: float = 0.05, *, agnostic: bool = False
) -> int:
    """The number of samples that suffices for error epsilon with probability 1 - delta.

    Args:
        vc_dimension: d, or an upper bound of it.
        epsilon: excess error, between 0 and 1.
        delta: probability of failure, between 0 and 1.
        agnostic: whether no function of the class need be right everywhere.

    >>> pac_sample_size(10, 0.1, 0.05) < pac_sample_size(20, 0.1, 0.05)
    True
    """
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0 < value < 1:
            raise ValueError(f"pac_sample_size: {name} must lie between 0 and 1, got {value}.")
    if vc_dimension < 1:
        raise ValueError(f"pac_sample_size: the VC dimension must be at least 1, got {vc_dimension}.")
    d = vc_dimension
    # log2 of the right hand side over delta is start + d log2(2 e m / d) - rate m.
    start = (2 if agnostic else 1) - log2(delta)
    rate = epsilon**2 / 32 * log2(e) if agnostic else epsilon / 2
    least = max(d / rate / log(2), d, 0.0 if agnostic else 8 / epsilon)

    # It falls from d / (rate ln 2) on.
    return _first(lambda m: start + d * log2(2 * e * m / d) <= rate * m, ceil(least))
