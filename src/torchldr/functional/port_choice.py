"""When the port product may be taken: scaling, oversampling, and what it costs against the stencil.

Three questions, asked of an operator once and kept while it changes little:

    scale           by which gamma to divide it, so that its powers neither overflow nor fade (`growth_rate`)
    oversampling    the least c at which the certificate and a trial are content (`measure`, `accepted`)
    cost            whether that c is cheaper than the stencil (`port_is_cheaper`)

A product with A / gamma is one with A once coefficient t is multiplied by gamma^t. In a layer,
sum_t A^t g (C^t h)^T, a factor taken from A may be given to C: both are balanced to the same growth, and
only what both grow by is left to weights (`balanced`). Shrinking powers need nothing: what has shrunk below
rounding in both is nothing to the sum.

Truncation is proven (`port_certificate`, in float64). Rounding is tried: random inputs are multiplied in
float32 and in float64, and the difference, times eps / eps of float32, stands for the rounding of the dtype.
Both are measured against the root of the mean square of |A^t v|_2 over t < k.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .port import port_rmatmul
from .port_certificate import observed_columns

TOLERANCE = {torch.float32: 2e-5, torch.float64: 2e-9}
CANDIDATES = 2, 4, 8, 16, 32
PROBES = 2  # random inputs of a trial
WINDOWS = 16  # in which growth is followed
FIRST_STEPS = 64  # of the stencil, for a first guess of the growth
LEFT_ALONE = 1.0  # a growth of e in k steps is not worth rounding the operator once more
_FAINT = 1e-10  # sizes of windows below this share of the largest are noise


class Trial(NamedTuple):
    """One oversampling tried on one operator; all shares of the root mean square of |A^t v|_2."""

    oversampling: int
    truncation: float  # no column is further off, but for rounding
    rounding: float  # as measured
    tail: float  # the largest of all series

    @property
    def error(self) -> float:
        return self.truncation + self.rounding


def tolerance(dtype: torch.dtype, k: int) -> float:
    """The largest share of an error that is accepted: 2e-5 in float32 and 2e-9 in float64.

    It is held against a bound, which exceeds the error by orders of magnitude where a ring is closed. Above
    k = 8192 it rises with the root of k, as the roundings of k steps of a stencil do.
    """
    return TOLERANCE[dtype] * max(1.0, (k / 8192) ** 0.5)


@torch.no_grad()
def growth_rate(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int, *, guess: Tensor | float | None = None
) -> Tensor:
    """The mean rate of log |A^t v| over t < k.

    Args:
        lower, diagonal, upper, V: the ring and start vectors, as for `port_rmatmul`.
        k: how many columns.
        guess: the rate as it was; without one, that of the first steps of the stencil.

    Returns:
        A scalar in float64, on the device of `V`, without waiting for it. A line through the logarithms of
        sizes in windows of t, of the port product at the last guess, twice.
    """
    lower, diagonal, upper, V = (x.detach().double() for x in (lower, diagonal, upper, V))
    if guess is None:
        rate = _first_rate(lower, diagonal, upper, V, k)
    else:
        rate = torch.as_tensor(guess, dtype=V.dtype).to(V.device, non_blocking=True)
    U = _probes(V)
    for _ in range(2 if guess is None else 1):
        by = torch.exp(-rate)
        rate = rate + _slope(port_rmatmul(lower * by, diagonal * by, upper * by, V, U, k))
    return rate


def balanced(rate_A: Tensor, rate_C: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The logarithms of the two operators' scales: their growth is made equal, and at most none."""
    differs, both = (rate_A - rate_C) / 2, (rate_A + rate_C) / 2
    differs = torch.where(differs.abs() * k <= LEFT_ALONE, 0, differs)
    both = torch.where(both * k <= LEFT_ALONE, 0, both)
    return both + differs, both - differs


@torch.no_grad()
def measure(
    lower: Tensor,
    diagonal: Tensor,
    upper: Tensor,
    V: Tensor,
    k: int,
    log_scale: Tensor | float,
    dtype: torch.dtype,
    oversampling: int,
) -> Tensor:
    """Truncation, rounding and tail at an oversampling, (3,) in float64: see `Trial`. Does not wait.

    Args:
        lower, diagonal, upper, V, k: as for `port_rmatmul`.
        log_scale: log gamma.
        dtype: that products will run in.
        oversampling: c.
    """
    scale = torch.as_tensor(log_scale, dtype=torch.float64).to(V.device, non_blocking=True).exp()
    lower, diagonal, upper = ((x.detach().double() / scale).to(dtype) for x in (lower, diagonal, upper))
    V = V.detach().to(dtype)
    tensors = lower, diagonal, upper, V, _probes(V)

    def product(dtype: torch.dtype) -> Tensor:
        lower, diagonal, upper, V, U = (x.float().to(dtype) for x in tensors)
        return port_rmatmul(lower, diagonal, upper, V, U, k, oversampling=oversampling).double()

    lower, diagonal, upper, V, U = (x.double() for x in tensors)
    heard, certificate = observed_columns(
        lower, diagonal, upper, V, U, k, oversampling=oversampling, dtype=dtype
    )
    size = heard.square().mean((0, 2)).sqrt()  # (r,)
    exact = heard if dtype == torch.float32 else product(torch.float64)
    off = (product(torch.float32) - exact).square().mean((0, 2)).sqrt()
    rounding = off * (torch.finfo(dtype).eps / torch.finfo(torch.float32).eps)
    shares = torch.stack((certificate.truncation, rounding)) / size
    shares = torch.where(torch.stack((certificate.truncation, rounding)) == 0, 0, shares)
    shares = torch.nan_to_num(shares, nan=math.inf, posinf=math.inf).amax(-1)
    return torch.cat((shares, certificate.tails.amax().reshape(1)))


def verdict(trial: Trial, dtype: torch.dtype, k: int) -> str:
    """What a trial says: "take" this c, "more" may help, or "stencil".

    The truncation is held to an eighth of the tolerance, which leaves room for training to move the operator.
    """
    most = tolerance(dtype, k)
    if not trial.rounding <= most:  # no c helps
        return "stencil"
    return "take" if trial.truncation <= most / 8 else "more"


class Choice(NamedTuple):
    """What was found for an operator: its scale, and the trial that was accepted, or the last one."""

    log_scale: float
    trial: Trial
    accepted: bool


def choose_port(
    lower: Tensor,
    diagonal: Tensor,
    upper: Tensor,
    V: Tensor,
    k: int,
    dtype: torch.dtype | None = None,
    *,
    log_scale: float | None = None,
    first: int = CANDIDATES[0],
    most: int = CANDIDATES[-1],
) -> Choice:
    """Scale and oversampling for the port products of an operator.

    Args:
        lower, diagonal, upper, V, k: as for `port_rmatmul`.
        dtype: that products will run in; that of `V` if not given.
        log_scale: log gamma; by default the growth rate of the powers where they grow, else 0.
        first, most: the smallest and the largest oversampling to try.

    Returns:
        A `Choice`. Where `accepted`, `port_rmatmul` and `port_matmul` of the ring divided by
        gamma = exp(log_scale), at `trial.oversampling`, are products with gamma^-t A^t v within the tolerance
        of the dtype. Else no candidate was, and the stencil is to be taken. Waits for the device at every
        candidate.
    """
    dtype = dtype or V.dtype
    if log_scale is None:
        rate = growth_rate(lower, diagonal, upper, V, k)
        log_scale = float(balanced(rate, rate, k)[0])
    for c in (c for c in CANDIDATES if c >= first):
        trial = Trial(c, *measure(lower, diagonal, upper, V, k, log_scale, dtype, c).tolist())
        says = verdict(trial, dtype, k)
        if says != "more" or 2 * c > most:
            break
    return Choice(log_scale, trial, says == "take")


class Costs(NamedTuple):
    """Nanoseconds on a device, for each operator, fitted to measured products.

    A port product takes start + (c + 1.5) n log2(n) (fixed + rank r + batch b + pair r b), a stencil
    n k r (column + vector b).
    """

    start: float
    fixed: float
    rank: float
    batch: float
    pair: float
    column: float
    vector: float


COSTS = {
    "cpu": Costs(1e6, 21, 10.5, 8, 1, 1.25, 0.06),
    "cuda": Costs(3e6, 0.1, 0.1, 0.1, 0.01, 0.2, 0.0005),
}


def port_is_cheaper(
    sizes: tuple[int, int], r: int, b: int, oversampling: tuple[int, int], device: str
) -> bool:
    """Whether products with two operators of these sizes, k = min(sizes), cost less than by the stencil."""
    costs, k = COSTS[device], min(sizes)
    port = stencil = 0.0
    for n, c in zip(sizes, oversampling, strict=True):
        entry = costs.fixed + costs.rank * r + costs.batch * b + costs.pair * r * b
        port += costs.start + (c + 1.5) * n * math.log2(max(n, 2)) * entry
        stencil += n * k * r * (costs.column + costs.vector * b)
    return port < stencil


# Growth.


def _probes(V: Tensor) -> Tensor:
    """The same random inputs at every call; the caller's generator is not ours to move."""
    generator = torch.Generator(device=V.device).manual_seed(0)
    return torch.randn(PROBES, V.shape[-1], generator=generator, dtype=V.dtype, device=V.device)


def _first_rate(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    """From the norms of A^t v halfway and after some steps."""
    steps = min(FIRST_STEPS, k)
    X = halfway = V
    for t in range(steps):
        if t == steps // 2:
            halfway = X
        X = lower * X.roll(1, -1) + diagonal * X + upper * X.roll(-1, -1)
    rate = (X.norm() / halfway.norm()).log() / max(1, steps - steps // 2)
    return torch.where(rate.isfinite(), rate, 0)


def _slope(heard: Tensor) -> Tensor:
    """The slope of log sizes over t, of coefficients (b, r, k)."""
    k = heard.shape[-1]
    if k < 2:
        return heard.new_zeros(())
    parts = heard.square().mean((0, 1)).tensor_split(min(WINDOWS, k))
    sizes = torch.stack([part.mean() for part in parts]).sqrt()
    sizes = torch.where(sizes.isfinite(), sizes, 0)
    seen = (sizes > _FAINT * sizes.amax()).to(sizes)
    logs = torch.where(seen > 0, sizes.log(), 0)
    at = (torch.arange(len(parts), device=heard.device) + 0.5).to(sizes) * (k / len(parts))
    weight = seen.sum().clamp(min=1)
    at = at - (at * seen).sum() / weight
    logs = logs - (logs * seen).sum() / weight
    spread = (at.square() * seen).sum()
    return torch.where(spread > 0, (at * logs * seen).sum() / spread, 0)
