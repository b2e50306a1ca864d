"""How many samples suffice to learn a class of VC dimension d.

Two classical inequalities, for m samples and a class with at most (2 e m / d)^d patterns on 2 m inputs
(Sauer's lemma):

    realisable    P(some function is right on the sample and wrong with probability > epsilon)
                  <= 2 (2 e m / d)^d 2^{-epsilon m / 2},  m >= 8 / epsilon
    agnostic      P(some function's error differs by more than epsilon / 2 from that on the sample)
                  <= 4 (2 e m / d)^d exp(-epsilon^2 m / 32)

A network that fits the sample (in the first case), or that is the best on it (in the second), is then with
probability 1 - delta within epsilon of the best of its class. The m returned is the smallest from which on
the right hand side stays below delta: O((d log(1 / epsilon) + log(1 / delta)) / epsilon) in the first case.
"""

from __future__ import annotations

from math import ceil, e, log, log2


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

    def fails(m: int) -> bool:
        return start + d * log2(2 * e * m / d) - rate * m > 0

    low = high = ceil(least)  # it falls from d / (rate ln 2) on
    if not fails(low):
        return low
    while fails(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return high
