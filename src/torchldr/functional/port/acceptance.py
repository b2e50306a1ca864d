"""When the port product may be taken: a bound on the error of the layer's product, for every input.

Let S = sum |K_k(A, g_i)| |K_k(C, h_i)|^T, the factors' absolute values multiplied out. `judge` accepts where

    |y - M x|_max <= tolerance max_i (S |x|)_i    for every x,

with y as it is computed, truncation and rounding included, before it is rounded to the layer's dtype. How,
with the proofs in docs/tridiagonal.md:

    sizes       d = S^T p, with weights p_i >= 0 whose sum is 1. The largest entry of S |x| is at least their
                mean, p^T S |x| = sum_j d_j |x_j| >= |D x|_2, so |y - M x|_2 <= tolerance |D x|_2 is enough.
                Passes of the stencil find p, larger for rows where much of A^t g is, and d.
    plan        what the plan holds, rounded and cut, is one fixed linear map. Its distance from M D^-1 is the
                norm of a matrix, bounded by `PROBES` random inputs, which a second pass of the stencil
                multiplies in float64 (the lemma in `rounding`, with probability 1 - 14^-8).
    rounding    of the products with the plan: `rounding`.

Random inputs are drawn from a seed that the operators' own bits make: the same operators are judged alike.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import stencil, tridiagonal
from ..tridiagonal import Operator
from . import rounding
from .layer import PreparedPorts, Scaling

CANDIDATES = 2, 4, 8, 16
PROBES, ALPHA = 8, 14.0
FACTOR = ALPHA * math.sqrt(2 / math.pi)
TILE = 256
FAINT = 1e-12  # terms of the sum over t that have faded to this share do not matter for scales
RANGE = 1e250  # of sizes: times any float32 they must not leave float64


class Verdict(NamedTuple):
    """What was found for a pair of operators."""

    ports: PreparedPorts | None  # the product that was judged, where it is accepted
    bound: float  # the largest error, as a share of max_i (S |x|)_i; infinite where it is not known
    reason: str  # in words


def tolerance(n: int) -> float:
    """The largest share of max_i (S |x|)_i that an accepted product may be off by.

    Half of what `torchldr.testing` allows every product in float32: 25 eps (1 + log2 n).
    """
    return 25 * torch.finfo(torch.float32).eps * (1 + math.log2(n))


@torch.no_grad()
@np.errstate(all="ignore")  # what overflows is refused
def judge(A: Operator, C: Operator, candidates: Sequence[int] = CANDIDATES) -> Verdict:
    """Judge the port product of a layer, for inputs of any size.

    Args:
        A, C: lower, diagonal, upper and start vectors, (m,) thrice and (r, m) for A, likewise n for C.
        candidates: oversamplings to try, the smallest first.

    Returns:
        A `Verdict`. Costs some passes of the stencil in float64; waits for the device.
    """
    m, n = A[3].shape[-1], C[3].shape[-1]
    most, k = tolerance(max(m, n)), min(m, n)
    A, C = _wide(A), _wide(C)
    growth, others, sizes = profile(A, C, k)
    seen = touched(A, C, k) if (sizes == 0).any() else torch.ones_like(sizes, dtype=torch.bool)
    known = sizes[seen]
    if not (growth.isfinite().all() and (known > 1 / RANGE).all() and (known < RANGE).all()):
        return Verdict(None, math.inf, "the columns of |factors| leave the range of float64")
    if not len(known):
        return Verdict(None, math.inf, "the matrix is zero")
    sizes = _filled(sizes, seen)
    generator = torch.Generator().manual_seed(fingerprint(*A, *C))
    draw = lambda q, size: torch.randn(q, size, generator=generator, dtype=torch.float64).to(sizes.device)
    inputs = draw(rounding.PROBES, n) * seen
    exact, fading = stencil_product(A, C, inputs[:PROBES], sizes)
    terms = (growth * others).sum(0)
    matter = terms > FAINT * terms.cummax(0).values
    rate = _rate(growth, matter)
    scaling = Scaling(rate, max(0.0, rate + _rate(fading, matter)), sizes, seen)
    for c in candidates:
        ports = PreparedPorts(A, C, scaling, c)
        held = FACTOR * float(_norm(ports.of_scaled(inputs[:PROBES]) - exact))
        if held <= most / 2:
            break
    else:
        return Verdict(
            None, held, f"off by up to {held:.0e} of |factors||x| at c = {c}, {most:.0e} is allowed"
        )
    rounded = rounding_of(*scaling.of(A, C), k, c, growth, scaling, inputs, draw(len(inputs), m))
    bound = held + rounded
    if not bound <= most:
        return Verdict(None, bound, f"rounding of up to {bound:.0e} of |factors||x|, {most:.0e} is allowed")
    return Verdict(ports, bound, f"c = {c}, within {bound:.0e} of |factors||x|")


def rounding_of(
    A: Operator, C: Operator, k: int, c: int, growth: Tensor, scaling: Scaling, x: Tensor, y: Tensor
) -> float:
    """The bound of `rounding` for both scaled operators together, with probes x (q, n) and y (q, m)."""
    left, right = (rounding.ObservedHalf(operator, k, c) for operator in (A, C))
    weights, steps = scaling.weights(k), torch.arange(k, device=growth.device)
    after = (growth * (-scaling.rate * steps).exp() * weights).unsqueeze(0)  # by Cauchy and Schwarz
    z = right.up(x) * weights
    left.down(z)
    right.down(left.up(y) * weights)
    return float(right.rounding(after, x) + left.rounding(rounding.FACTOR * z, y))


# Passes of the stencil.


def profile(A: Operator, C: Operator, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """|A^t g_i|_2 and |C^t h_i|_2, (r, k) each, and d, (n,)."""
    growth, density = [], torch.zeros_like(A[1])
    for left in _columns(A, k):
        growth.append(left.norm(dim=-1))
        shares = torch.where(growth[-1] > 0, 1 / growth[-1], 0).unsqueeze(-1) * left
        density += shares.square().sum((0, 1))
    weights = (1 / len(density) + density / density.sum().clamp(min=1)) / 2
    others, sizes = [], torch.zeros_like(C[1])
    for left, right in zip(_columns(A, k), _columns(C, k), strict=True):
        others.append(right.norm(dim=-1))
        for K_A, K_C in zip(left.abs(), right.abs(), strict=True):
            sizes += (K_A @ weights) @ K_C
    return torch.cat(growth, 1), torch.cat(others, 1), sizes


def touched(A: Operator, C: Operator, k: int) -> Tensor:
    """Which entries of an input the result depends on at all, (n,)."""
    found = torch.zeros_like(C[1], dtype=torch.bool)
    for left, right in zip(_columns(A, k), _columns(C, k), strict=True):
        found |= ((left != 0).any(-1, keepdim=True) & (right != 0)).flatten(0, 1).any(0)
    return found


def growth_rate(operator: Operator, k: int) -> float:
    """The mean growth of log |A^t v| over t < k."""
    return _rate(torch.cat([columns.norm(dim=-1) for columns in _columns(_wide(operator), k)], 1))


def stencil_product(A: Operator, C: Operator, x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """M D^-1 x, (b, m), and |D^-1 C^t h_i|_2, (r, k), for D = diag(sizes)."""
    k = min(A[3].shape[-1], C[3].shape[-1])
    y, fading = x.new_zeros(len(x), A[3].shape[-1]), []
    for left, right in zip(_columns(A, k), _columns(C, k), strict=True):
        scaled = right / sizes
        fading.append(scaled.norm(dim=-1))
        for K_A, K_C in zip(left, scaled, strict=True):
            y.addmm_(x @ K_C.mT, K_A)
    return y, torch.cat(fading, 1)


def _columns(operator: Operator, k: int) -> Iterator[Tensor]:
    """The Krylov columns, (r, some, n) at a time, in one memory."""
    if not stencil.serves(*operator):
        for _, block in tridiagonal._column_blocks(*operator, k):
            yield block.permute(2, 1, 0)
        return
    run, state = stencil.Stencil(*operator, TILE), operator[3]
    for start in range(0, k, TILE):
        width = min(TILE, k - start)
        run.run(state, width)
        yield run.columns(width)
        state = run.following(width)


def _wide(operator: Operator) -> Operator:
    lower, diagonal, upper, V = (x.detach().double() for x in operator)
    return lower, diagonal, upper, V


def _rate(growth: Tensor, matter: Tensor | None = None) -> float:
    """The slope of the logarithms of norms, (r, k), over those t that matter."""
    norms = growth.norm(dim=0)
    at = (norms if matter is None else norms * matter).nonzero().flatten()
    if len(at) < 2:
        return 0.0
    logs, steps = norms[at].log(), at - at.double().mean()
    return float((steps * logs).sum() / steps.square().sum())


def _filled(sizes: Tensor, seen: Tensor) -> Tensor:
    """Sizes of entries that do not matter taken from a neighbour before, or else from the first that does."""
    at = torch.arange(len(sizes), device=sizes.device)
    last = torch.where(seen, at, -1).cummax(0).values
    return sizes[torch.where(last < 0, seen.to(torch.uint8).argmax(), last)]


def _norm(x: Tensor) -> Tensor:
    """The largest norm of a row; infinite where it is not a number."""
    return x.norm(dim=-1).amax().nan_to_num(nan=math.inf)


def fingerprint(*tensors: Tensor) -> int:
    """A number that changes when a bit of the tensors does; waits for the device."""
    digest = hashlib.blake2b(digest_size=8)
    for t in tensors:
        digest.update(t.detach().cpu().contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)
