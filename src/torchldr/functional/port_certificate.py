"""The certificate of the port product: the tails of its series and a bound on its error.

Write |f| for the sum of the absolute coefficients of a series, and |f|_s for the sum of |f_t| s^t. Both are
submultiplicative, so a formula of sums, products and 1 / (1 - g) bounds the norm of its value by the same
formula in the norms of its arguments, finite where the norm of every g is below 1. `join` and `close` are
such formulas. Three facts make the bound; each level turns what is known of its blocks into what is known of
the joined ones.

1.  What folds back. Blocks are held as polynomials X of N/2 coefficients, known exactly. Their join J = F(X)
    has coefficients beyond N, which fold onto the first N and are cut off. For every s > 1

        sum_{t >= N} |J_t| <= s^-N |J|_s <= s^-N F(|X|_s):

    series that have died out before their end weigh little even at a large s^N, and a tail that has not
    weighs up to s^{N/2}. So the tails decide; where F(|X|_s) is infinite for all s tried, so is the bound.
    Folding and cutting together change J by at most twice this, in the sum of absolute values.
2.  What earlier errors become. With |X - X_true| <= e, products obey
    |ab - a'b'| <= e_a (|b| + e_b) + |a| e_b, and loops
    |1/(1-g) - 1/(1-g')| <= e_g / ((1 - |g|)(1 - |g| - e_g)): the arithmetic of `Ball`. The formulas are
    linear in u and in v, for which the root of the sum of squares serves as norm and is smaller: a factor f
    raises it |f| times at most, and a coefficient of u times v is at most the product of the two.
3.  Leaves. For a leaf's matrix A, N = g q and theta the largest row sum of |A^N|, by
    w^T A^{jN + qi + l} v = (w^T A^{qi}) (A^N)^j (A^l v) all beyond N steps is at most theta / (1 - theta)
    times the sum over i < g of |w^T A^{qi}|_1 times the sum over l < q of |A^l v|_max.

The top is closed likewise with s on both sides of 1: an error e in the series reads at coefficient t as at
most s^-t times its ball at s, and at N roots of radius rho the coefficients beyond N fold back with
(rho / s)^{jN}.

Rounding is a model, not a theorem: a transform, a join or a dense product of the leaves changes a series by
at most eps (8 + log2 N) times its norm. The part without rounding is proven for the numbers at hand; it is
given beside the whole, and more oversampling lowers it, down to what the radius of the closing leaves where
there are corners. Both hold for each coefficient u^T A^t v, t < k. They are infinite for operators that do
not forget (sub = super = 1/2) and for those whose powers grow inside a block (divide those by
`row_sum_scale`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .port import Series, close, join, observed_rmatmul

DECADES = 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28  # log10 of s^N: more where series die out early
CLOSING_DECADES = 4, 2, 1, 0.3, 0, -0.3, -0.6, -1, -2, -3, -4, -6  # log10 of s^k


class Certificate(NamedTuple):
    """What the series of a port product say about its result."""

    tails: Tensor  # (levels + 1,): largest share of a series' last quarter in its norm, leaves first
    bound: Tensor  # (b, r), float64: no coefficient is further from the exact one; infinite where unknown
    truncation: Tensor  # (b, r): the part of the bound that is not rounding


def certified_port_rmatmul(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, U: Tensor, k: int, *, oversampling: int = 4
) -> tuple[Tensor, Certificate]:
    """`port_rmatmul` and its certificate.

    Args:
        lower, diagonal, upper, V, U, k, oversampling: as for `port_rmatmul`.

    Returns:
        The products, (b, r, k), and a `Certificate`: tails (levels + 1,), bound and truncation (b, r). It
        costs weighted sums over every series and no transform, does not wait for the device and is not
        differentiable.
    """
    watch = _Watch(V.dtype)
    result = observed_rmatmul(lower, diagonal, upper, V, U, k, oversampling, watch)
    truncation, bound = torch.nan_to_num(watch.bound, nan=math.inf, posinf=math.inf).unbind(-1)
    return result, Certificate(torch.stack(watch.tails), bound, truncation)


class Ball:
    """Series known by the sum of their absolute coefficients and by how far they are from the true ones."""

    def __init__(self, norm: Tensor, error: Tensor) -> None:
        self.norm, self.error = norm, error

    def __add__(self, other: Ball) -> Ball:
        return Ball(self.norm + other.norm, self.error + other.error)

    def __mul__(self, other: Ball) -> Ball:
        error = self.error * (other.norm + other.error) + self.norm * other.error
        return Ball(self.norm * other.norm, error)

    def __getitem__(self, index: tuple[slice, ...]) -> Ball:
        return Ball(self.norm[index], self.error[index])

    def __iter__(self):  # type: ignore[no-untyped-def]
        return (Ball(*pair) for pair in zip(self.norm, self.error, strict=True))

    def loop(self) -> Ball:
        """1 / (1 - self)."""
        far, near = 1 - self.norm, 1 - self.norm - self.error
        error = torch.where(near > 0, self.error / (far * near), math.inf)
        return Ball(_loop(self.norm), error)

    @staticmethod
    def stack(parts: tuple[Ball, ...]) -> Ball:
        norms = torch.stack(torch.broadcast_tensors(*(x.norm for x in parts)))
        return Ball(norms, torch.stack(torch.broadcast_tensors(*(x.error for x in parts))))


def _loop(g: Tensor) -> Tensor:
    """The norm of 1 / (1 - g) from that of g."""
    return torch.where(g < 1, 1 / (1 - g), math.inf)


class _Watch:
    """Follows the errors of a port product from the leaves to the top.

    Errors and bounds have two entries at the end, without and with rounding.
    """

    errors: Series  # (.., J, 2)
    bound: Tensor  # (b, r, 2)

    def __init__(self, dtype: torch.dtype) -> None:
        self.eps = torch.finfo(dtype).eps
        self.tails: list[Tensor] = []

    def _rounding(self, N: int, like: Tensor) -> Tensor:
        return torch.tensor((0, self.eps * (8 + math.log2(N))), dtype=torch.float64, device=like.device)

    def _see(self, blocks: Series) -> None:
        """Note the largest tail of a level."""
        shares = []
        for x in (x.detach().double() for x in blocks):  # squares of float32 overflow early
            last = x[..., x.shape[-1] * 3 // 4 :].norm(dim=-1)
            whole = x.norm(dim=-1).clamp(min=torch.finfo(x.dtype).tiny)
            shares.append((last / whole).amax())
        self.tails.append(torch.stack(shares).amax().nan_to_num(nan=math.inf))

    @torch.no_grad()
    def leaves(self, power: Tensor, rows: Tensor, columns: Tensor) -> None:
        """Fact 3: A^N (J, m, m), rows (J, 2 + b, g, m) and columns (J, m, 2 + r, q) with N = g q."""
        N = rows.shape[2] * columns.shape[3]
        theta = power.double().abs().sum(-1).amax(-1, keepdim=True)
        share = torch.where(theta < 1, theta / (1 - theta), math.inf) + self._rounding(N, theta)  # (J, 2)
        outputs = rows.double().abs().sum(-1).sum(-1)  # (J, 2 + b)
        inputs = columns.double().abs().amax(1).sum(-1)  # (J, 2 + r)
        weighed = torch.einsum("jw,jo,ji->oijw", share, outputs, inputs)
        self.errors = Series(weighed[:2, :2].flatten(0, 1), weighed[:2, 2:], weighed[2:, :2].transpose(0, 1))
        self.bound = weighed[2:, 2:].sum(2)

    @torch.no_grad()
    def level(self, blocks: Series, s: Tensor, p: Tensor) -> None:
        """Facts 1 and 2 for one level: series (.., J, N / 2), couplings (J / 2, 1)."""
        self._see(blocks)
        N = 2 * blocks.ports.shape[-1]
        s, p, rounding = s.double().abs(), p.double().abs(), self._rounding(N, s)
        decades = torch.tensor(DECADES, dtype=torch.float64, device=s.device)
        radii = 10 ** (decades / N)
        joined, heard = join(_norms(blocks, radii), s * radii, p * radii, _loop)
        folded = [_least(x * 10**-decades) for x in joined]
        self.bound = self.bound + _least(_heard(heard) * 10**-decades)
        norms = _norms(blocks, torch.ones_like(radii[:1]), squares=True)
        balls = Series(*(Ball(x, e + rounding * x) for x, e in zip(norms, self.errors, strict=True)))
        none = torch.zeros_like(s)
        joined, heard = join(balls, Ball(s, none), Ball(p, none), Ball.loop)
        self.errors = Series(*(x.error + 2 * far for x, far in zip(joined, folded, strict=True)))
        self.bound = (
            self.bound + _heard_error(heard) + rounding * _heard([(u.norm, v.norm) for u, v in heard])
        )

    @torch.no_grad()
    def top(self, block: Series, a: Tensor, b: Tensor, k: int, N: int, radius: float) -> None:
        """The closing of the ring: series (.., M) of which k coefficients count, at N roots."""
        self._see(block)
        block = Series(*(x[..., :k].unsqueeze(-2) for x in block))
        a, b = (x.double().abs().reshape(1, 1) for x in (a, b))
        decades = torch.tensor(CLOSING_DECADES, dtype=torch.float64, device=a.device)
        radii = 10 ** (decades / k)
        worst = 10 ** (-decades).clamp(min=0)  # of s^-t, t < k
        total = _heard(close(_norms(block, radii), a * radii, b * radii, _loop)) * worst
        folds = (radius / radii) ** N
        folds = torch.where(folds < 1, folds / (1 - folds), math.inf)
        last = self.eps * _least(total) * torch.tensor((0, 1), device=a.device)
        self.bound = self.bound + _least(total * folds) + last
        # Errors were bounded at radius 1; at s they weigh at most s^k more.
        norms, zero = _norms(block, radii, squares=True), torch.zeros_like(radii)
        carried = []
        for kind in (0, 1):
            errors = (e[..., kind : kind + 1] * (10**decades).clamp(min=1) for e in self.errors)
            balls = Series(*(Ball(x, e) for x, e in zip(norms, errors, strict=True)))
            heard = close(balls, Ball(a * radii, zero), Ball(b * radii, zero), Ball.loop)
            carried.append(_least(_heard_error(heard) * worst))
        self.bound = self.bound + torch.cat(carried, -1)
        # Rounding happens in float64 at the radius of the roots, and is divided by radius^t.
        eps = torch.finfo(torch.float64).eps * (8 + math.log2(N)) * torch.tensor((0, 1), device=a.device)
        norms = _norms(block, torch.full_like(radii[:1], radius), squares=True)
        balls = Series(*(Ball(x, eps * x) for x in norms))
        a, b = a * radius, b * radius
        heard = close(balls, Ball(a, eps * a), Ball(b, eps * b), Ball.loop)
        closed = _heard_error(heard) + eps * _heard([(u.norm, v.norm) for u, v in heard])
        self.bound = self.bound + closed * radius**-k


def _norms(blocks: Series, radii: Tensor, squares: bool = False) -> Series:
    """The weighted norms of series (.., J, N) at all radii, (.., J, radii); u and v by squares if asked."""
    steps = torch.arange(blocks.ports.shape[-1], dtype=torch.float64, device=radii.device)
    weights = radii ** steps.unsqueeze(-1)
    ports, v, u = (x.double().abs() for x in blocks)
    if squares:
        return Series(ports @ weights, *((x.square() @ weights.square()).sqrt() for x in (v, u)))
    return Series(ports @ weights, v @ weights, u @ weights)


def _heard(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The sum over pairs and blocks of norms (b, J, w) times norms (r, J, w), (b, r, w)."""
    (u, v), (u_back, v_back) = pairs
    return torch.einsum("bjw,rjw->brw", u, v) + torch.einsum("bjw,rjw->brw", u_back, v_back)


def _heard_error(pairs: list[tuple[Ball, Ball]]) -> Tensor:
    """The error of what is heard, (b, r, w)."""
    first = _heard([(u.error, v.norm + v.error) for u, v in pairs])
    return first + _heard([(u.norm, v.error) for u, v in pairs])


def _least(x: Tensor) -> Tensor:
    """The smallest over the radii, (.., radii) to (.., 1); 0 times infinity knows nothing."""
    return torch.nan_to_num(x, nan=math.inf, posinf=math.inf).amin(-1, keepdim=True)
