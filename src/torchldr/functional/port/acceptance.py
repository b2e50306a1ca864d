"""When the port product may be taken: a bound on the error of the layer's product, for every input.

Let S = sum |K_k(A, g_i)| |K_k(C, h_i)|^T, the factors' absolute values multiplied out. `judge` accepts where

    |y - M x|_max <= 10 tolerance max_i (S |x|)_i    for every x, and
    |y - M x|_max <= tolerance max_i (S |x|)_i       for every x that a search finds,

with y as it is computed, truncation and rounding included, before it is rounded to the layer's dtype. How,
with the proofs in docs/tridiagonal.md:

    sizes       d = S^T p, with weights p_i >= 0 whose sum is 1. The largest entry of S |x| is at least their
                mean, p^T S |x| = sum_j d_j |x_j| = |D x|_1, so |y - M x|_max <= tolerance |D x|_1 is enough.
                Passes of the stencil find p, larger for rows where much of A^t g is, and d.
    plan        what the plan holds, rounded and cut, is one fixed linear map. Its distance E from M D^-1 is
                a matrix whose rows are bounded by random inputs, which a pass of the stencil multiplies in
                float64 (the lemma in `rounding`): |E x|_i <= |E_i|_2 |x|_2 and |x|_2 <= |x|_1.
    search      the input that E is worst for is a unit vector: the largest entry of E. It is looked for in
                the `ROWS` largest rows of E, which a pass of the transposed stencil gives.
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

CANDIDATES = 2, 4, 8
CERTAIN = 10  # times the tolerance: what no input can be off by
ROWS = 8
TILE = 256
FAINT = 1e-12  # terms of the sum over t that have faded to this share do not matter for scales
RANGE = 1e250  # of sizes: times any float32 they must not leave float64


class Verdict(NamedTuple):
    """What was found for a pair of operators."""

    ports: PreparedPorts | None  # the product that was judged, where it is accepted
    bound: float  # on the error, as a share of max_i (S |x|)_i; infinite where it is not known
    reason: str  # in words
    found: float = math.inf  # the largest share that a search came upon


def tolerance(n: int) -> float:
    """The largest share of max_i (S |x|)_i that an accepted product is off by, as far as a search finds.

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
    inputs = torch.randn(rounding.PROBES, n, generator=generator, dtype=torch.float64).to(sizes.device) * seen
    exact, fading = stencil_product(A, C, inputs, sizes)
    terms = (growth * others).sum(0)
    matter = terms > FAINT * terms.cummax(0).values
    rate = _rate(growth, matter)
    scaling = Scaling(rate, max(0.0, rate + _rate(fading, matter)), sizes, seen)
    for c in candidates:
        ports = PreparedPorts(A, C, scaling, c)
        off = (ports.of_scaled(inputs) - exact).abs().amax(0).nan_to_num(nan=math.inf)
        held = rounding.FACTOR * float(off.amax())
        found = searched(A, C, ports, scaling, off) if held <= CERTAIN * most / 2 else math.inf
        if found <= most:
            break
    else:
        worst, allowed = (held, CERTAIN * most) if math.isinf(found) else (found, most)
        return Verdict(
            None,
            held,
            f"off by up to {worst:.0e} of |factors||x| at c = {c}, {allowed:.0e} is allowed",
            found,
        )
    bound = held + rounding_of(*scaling.of(A, C), k, ports, generator)
    if not bound <= CERTAIN * most:
        reason = f"rounding of up to {bound:.0e} of |factors||x|, {CERTAIN * most:.0e} is allowed"
        return Verdict(None, bound, reason, found)
    return Verdict(ports, bound, f"c = {c}, within {bound:.0e} of |factors||x|", found)


def searched(A: Operator, C: Operator, ports: PreparedPorts, scaling: Scaling, off: Tensor) -> float:
    """The largest entry of the rows of M D^-1 where a plan is off most, over all entries of inputs."""
    rows = off.topk(min(ROWS, len(off))).indices
    units = torch.zeros(len(rows), len(off), dtype=off.dtype, device=off.device)
    units[torch.arange(len(rows)), rows] = 1
    exact, _ = stencil_product(C, A, units, torch.ones_like(off))
    error = ports.transposed_to_scaled(units) - exact / scaling.sizes
    return float((error * scaling.seen).abs().amax().nan_to_num(nan=math.inf))


def rounding_of(A: Operator, C: Operator, k: int, ports: PreparedPorts, generator: torch.Generator) -> float:
    """The bound of `rounding` for both scaled operators together."""
    total = 0.0
    for operator, other in ((C, ports.left), (A, ports.right)):
        half = rounding.HalfWithNoise(operator, k, ports.oversampling, generator)
        total += rounding.rounding_bound(half, ports.weights, other.matmul)
    return total


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


def fingerprint(*tensors: Tensor) -> int:
    """A number that changes when a bit of the tensors does; waits for the device."""
    digest = hashlib.blake2b(digest_size=8)
    for t in tensors:
        digest.update(t.detach().cpu().contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True)
