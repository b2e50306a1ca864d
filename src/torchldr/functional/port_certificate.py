"""The certificate of the port product: the tails of its series and a bound on its error.

In exact arithmetic both port products multiply by the same matrix, whose columns differ from A^t v by what
folds back and by nothing else. The certificate bounds that difference, column by column:

    |K~ e_t - A^t v|_2 <= truncation,    t < k,

from which |K~^T u - K^T u|_max <= truncation |u|_2 for every u, and |K~ w - K w|_2 <= truncation |w|_1 for
every w: one number for the product, its transpose and any input.

Write |f| for the sum of the absolute coefficients of a series, |f|_s for the sum of |f_t| s^t and ||f||_s for
the root of the sum of (f_t s^t)^2. The first two are submultiplicative, ||f g||_s <= |f|_s ||g||_s, and a
coefficient of f g is at most s^-t ||f||_s ||g||_s. So a formula of sums, products and 1 / (1 - g) bounds the
norm of its value by the same formula in the norms of its arguments, finite where the norm of every loop g is
below 1. `join` and `close` are such formulas, linear in u and in v; ports are measured by |.|, u and v by
||.||. For u stand all unit vectors e_i of a block together, measured by the root of the sum over i of
||e_i^T R e_L||^2 (likewise R): rows of one half of a joined block and of the other are different i, so the
squares of the halves add. Three facts make the bound; each level turns what is known of its blocks into what
is known of the joined ones.

1.  What folds back. Blocks are held as polynomials X of N/2 coefficients, known exactly. Their join J = F(X)
    has coefficients beyond N, which fold onto the first N and are cut off. For every s > 1

        sum_{t >= N} |J_t| <= s^-N |J|_s <= s^-N F(|X|_s):

    series that have died out before their end weigh little even at a large s^N, and a tail that has not
    weighs up to s^{N/2}. So the tails decide; where F(|X|_s) is infinite for all s tried, so is the bound.
    Folding and cutting together change J by at most twice this. For ||.||, where what folds j times is
    measured alone, s^-N + s^-2N + .. stands for s^-N. The rows e_i^T R e_L are nowhere at hand, so F bounds
    their norms from level to level. Folding may raise them: by what folds, weighed by s^N at most, or, since
    part j of J comes back with s^-jN, by the factor (1 - s^-2N)^(-1/2); the smaller is taken.
2.  What earlier errors become. With |X - X_true| <= e, products obey
    |ab - a'b'| <= e_a (|b| + e_b) + |a| e_b, and loops
    |1/(1-g) - 1/(1-g')| <= e_g / ((1 - |g|)(1 - |g| - e_g)): the arithmetic of `Ball`.
3.  Leaves. With a_t = |A^t x|_2 for a leaf's matrix A and theta = |A^N|_F, all beyond N steps is at most
    theta / (1 - theta) times the sum of a_t over t < N.

The top is closed likewise with s on both sides of 1: an error e in the series reads at coefficient t as at
most s^-t times its ball at s, and at N roots of radius rho the coefficients beyond N fold back with
(rho / s)^{jN}.

Rounding is a model, not a theorem: a transform, a join or a dense product of the leaves changes a series by
at most eps (8 + log2 N) times its norm. The part without rounding is proven for the numbers at hand; it is
given beside the whole, and more oversampling lowers it, down to what the radius of the closing leaves where
there are corners. Both are infinite for operators that do not forget (sub = super = 1/2) and for those whose
powers grow inside a block (`port_choice` divides by their growth).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .port_series import (
    Leaves,
    Series,
    close,
    join,
    laid_out,
    leaf_blocks,
    leaf_columns,
    leaf_size,
    observed_rmatmul,
)

DECADES = 2, 4, 7, 10, 13, 16, 20, 24, 28  # log10 of s^N: more where series die out early
CLOSING_DECADES = 4, 2, 1, 0.3, 0, -0.3, -0.6, -1, -2, -3, -4, -6  # log10 of s^k
_LEAVES = 16  # whose columns are held at a time
_FOLDS = 1 / (1 - 10 ** -DECADES[0])  # s^-N + s^-2N + .. over s^-N, at most


class Certificate(NamedTuple):
    """What the series of a port product say about its result."""

    tails: Tensor  # (levels + 1,): largest share of a series' last quarter in its norm, leaves first
    bound: Tensor  # (b, r), float64: no coefficient is further from the exact one; infinite where unknown
    truncation: Tensor  # (b, r): the part of the bound that is not rounding


class ColumnCertificate(NamedTuple):
    """What the series say about the matrix that both port products multiply by."""

    tails: Tensor  # as above
    bound: Tensor  # (r,), float64: no column is further from A^t v, in the root of the sum of squares
    truncation: Tensor  # (r,): the part of the bound that is not rounding


def certified_port_rmatmul(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, U: Tensor, k: int, *, oversampling: int = 4
) -> tuple[Tensor, Certificate]:
    """`port_rmatmul` and its certificate.

    Args:
        lower, diagonal, upper, V, U, k, oversampling: as for `port_rmatmul`.

    Returns:
        The products, (b, r, k), and a `Certificate`: tails (levels + 1,), bound and truncation (b, r). It
        costs weighted sums over every series and the leaves' columns, no transform, does not wait for the
        device and is not differentiable.
    """
    result, columns = observed_columns(lower, diagonal, upper, V, U, k, oversampling=oversampling)
    norms = U.detach().double().norm(dim=-1, keepdim=True)
    return result, Certificate(columns.tails, columns.bound * norms, columns.truncation * norms)


def observed_columns(
    lower: Tensor,
    diagonal: Tensor,
    upper: Tensor,
    V: Tensor,
    U: Tensor,
    k: int,
    *,
    oversampling: int = 4,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, ColumnCertificate]:
    """`port_rmatmul` and what its series say about both products of this operator, for every input.

    Args:
        lower, diagonal, upper, V, U, k, oversampling: as for `port_rmatmul`.
        dtype: whose rounding the bound shall hold; that of `V` if not given. In float64 the series are known
            without noise, so that is the dtype to observe the operator of a float32 layer in.

    Returns:
        The products, (b, r, k), and a `ColumnCertificate`: multiplied by |u|_2 its bound holds for each
        coefficient of `port_rmatmul`, by |w|_1 for the norm of `port_matmul`.
    """
    eps = torch.finfo(dtype or V.dtype).eps
    watch = _Watch([x.detach() for x in (lower, diagonal, upper)], V.detach(), k, oversampling, eps)
    result = observed_rmatmul(lower, diagonal, upper, V, U, k, oversampling, watch)
    truncation, bound = torch.nan_to_num(watch.bound, nan=math.inf, posinf=math.inf).unbind(-1)
    return result, ColumnCertificate(torch.stack(watch.tails), bound, truncation)


class Ball:
    """Series known by their norm and by how far they are from the true ones."""

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

    Norms have radii at their end: 1, those of the closing, and those of every level still to come. Errors and
    bounds have two entries there, without and with rounding. Rows (2, 1, J, .) are all e_i^T R e_L, e_i^T R
    e_R of a block together.
    """

    rows: Tensor  # (2, 1, J, radii): their norms
    errors: Series  # (.., J, 2)
    bound: Tensor  # (r, 2)

    def __init__(self, ring: list[Tensor], V: Tensor, k: int, oversampling: int, eps: float) -> None:
        self.ring, self.V, self.eps = [x.double() for x in ring], V.double(), eps
        self.tails: list[Tensor] = []
        leaf = leaf_size(oversampling, V.device)
        levels = max(0, math.ceil(math.log2(V.shape[-1] / leaf)))
        lengths = [oversampling * leaf << level for level in range(levels + 1)]
        exponents = [0.0, *(d / k for d in CLOSING_DECADES)]
        exponents += [d / N for N in lengths[1:] for d in DECADES]
        self.radii = 10 ** _sent(exponents, V)
        self.kept = 1 + len(CLOSING_DECADES)  # radii that are there to the end
        self.leaf, self.length = leaf, lengths[0]

    def _rounding(self, N: int) -> Tensor:
        return _sent((0, self.eps * (8 + math.log2(N))), self.V)

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
        """Fact 3: A^N of every leaf, (J, m, m)."""
        lengths = _leaf_lengths(self.ring, self.V, self.leaf, self.length)
        weights = self.radii ** torch.arange(self.length, device=self.V.device).unsqueeze(-1)
        squares = lengths[:, :2].square() @ weights.square()  # (J, 2, radii)
        self.rows = squares.sqrt().transpose(0, 1).unsqueeze(1)
        theta = power.double().flatten(1).norm(dim=-1).unsqueeze(-1)
        share = torch.where(theta < 1, theta / (1 - theta), math.inf) + self._rounding(self.length)  # (J, 2)
        total = lengths.sum(-1).mT.unsqueeze(-1)  # (2 + r, J, 1)
        beyond = torch.where(total == 0, 0, total * share)
        ports, v = beyond[:2], beyond[2:]
        self.errors = Series(ports.repeat(2, 1, 1), v.expand(2, *v.shape), ports.unsqueeze(1))
        self.bound = v.square().sum(1).sqrt()

    @torch.no_grad()
    def level(self, blocks: Series, s: Tensor, p: Tensor) -> None:
        """Facts 1 and 2 for one level: series (.., J, N / 2), couplings (J / 2, 1)."""
        self._see(blocks)
        N = 2 * blocks.ports.shape[-1]
        s, p, rounding = s.double().abs(), p.double().abs(), self._rounding(N)
        now = slice(self.kept, self.kept + len(DECADES))
        shrink = 10 ** -_sent(DECADES, s)
        ports, v = _norms(blocks, self.radii)
        joined, heard = join(Series(ports, v, _halves(self.rows)), s * self.radii, p * self.radii, _loop)
        folded = [_least(x[..., now] * shrink) * _FOLDS for x in (*joined[:2], _length(joined.u))]
        self.bound = self.bound + _least(_heard(heard)[..., now] * shrink) * _FOLDS
        one = slice(1)
        norms = ports[..., one], v[..., one], _halves(self.rows[..., one])
        errors = *self.errors[:2], _halves(self.errors.u)
        balls = Series(*(Ball(x, e + rounding * x) for x, e in zip(norms, errors, strict=True)))
        none = torch.zeros_like(s)
        changed, across = join(balls, Ball(s, none), Ball(p, none), Ball.loop)
        gone = changed.ports.error, changed.v.error, _length(changed.u.error)
        self.errors = Series(*(e + 2 * far for e, far in zip(gone, folded, strict=True)))
        self.bound = self.bound + _heard_error(across)
        self.bound = self.bound + rounding * _heard([(u.norm, v.norm) for u, v in across])
        rows = _folded_rows(_length(joined.u), folded[2], self.radii, N)
        self.rows, self.radii = (
            torch.cat((x[..., : now.start], x[..., now.stop :]), -1) for x in (rows, self.radii)
        )

    @torch.no_grad()
    def top(self, block: Series, a: Tensor, b: Tensor, k: int, N: int, radius: float) -> None:
        """The closing of the ring: series (.., M) of which k coefficients count, at N roots."""
        self._see(block)
        block = Series(*(x[..., :k].unsqueeze(-2) for x in block))
        a, b = (x.double().abs().reshape(1, 1) for x in (a, b))
        decades = _sent(CLOSING_DECADES, a)
        radii, rows = self.radii[1 : self.kept], self.rows[..., 1 : self.kept]
        worst = 10 ** (-decades).clamp(min=0)  # of s^-t, t < k
        norms = Series(*_norms(block, radii), rows)
        total = _heard_by_all(close(norms, a * radii, b * radii, _loop)) * worst
        folds = (radius / radii) ** N
        folds = torch.where(folds < 1, folds / (1 - folds), math.inf)
        last = self.eps * _least(total) * _sent((0, 1), a)
        self.bound = self.bound + _least(total * folds) + last
        # Errors were bounded at radius 1; at s they weigh at most s^k more.
        zero, carried = torch.zeros_like(radii), []
        for kind in (0, 1):
            errors = (e[..., kind : kind + 1] * (10**decades).clamp(min=1) for e in self.errors)
            balls = Series(*(Ball(x, e) for x, e in zip(norms, errors, strict=True)))
            heard = close(balls, Ball(a * radii, zero), Ball(b * radii, zero), Ball.loop)
            carried.append(_least(_heard_error_by_all(heard) * worst))
        self.bound = self.bound + torch.cat(carried, -1)
        # Rounding happens in float64 at the radius of the roots, and is divided by radius^t.
        eps = torch.finfo(torch.float64).eps * (8 + math.log2(N)) * _sent((0, 1), a)
        at_roots = Series(*_norms(block, torch.full_like(radii[:1], radius)), self.rows[..., :1])
        balls = Series(*(Ball(x, eps * x) for x in at_roots))
        a, b = a * radius, b * radius
        heard = close(balls, Ball(a, eps * a), Ball(b, eps * b), Ball.loop)
        closed = _heard_error_by_all(heard) + eps * _heard_by_all([(u.norm, v.norm) for u, v in heard])
        self.bound = self.bound + closed * radius**-k


def _sent(numbers: Sequence[float], like: Tensor) -> Tensor:
    """These numbers in float64 on a device, without waiting for what it does."""
    return torch.tensor(numbers, dtype=torch.float64).to(like.device, non_blocking=True)


def _leaf_lengths(ring: list[Tensor], V: Tensor, leaf: int, N: int) -> Tensor:
    """|A^t x|_2 in every leaf for t < N and x = e_L, e_R, v_1, .., (J, 2 + r, N), some leaves at a time."""
    lower, diagonal, upper = ring
    blocks = leaf_blocks(lower, diagonal, upper, laid_out(V.shape[-1], leaf, V.device))
    parts = (x.split(_LEAVES) for x in blocks)
    return torch.cat([leaf_columns(Leaves(*some), V, N).norm(dim=1) for some in zip(*parts, strict=True)])


def _norms(blocks: Series, radii: Tensor) -> tuple[Tensor, Tensor]:
    """The weighted norms of the ports' and of v's series (.., J, N) at all radii, (.., J, radii)."""
    weights = radii ** torch.arange(blocks.ports.shape[-1], device=radii.device).unsqueeze(-1)
    ports, v = blocks.ports.double().abs(), blocks.v.double().square()
    return ports @ weights, (v @ weights.square()).sqrt()


def _halves(rows: Tensor) -> Tensor:
    """(2, 1, J, .) to (2, 2, J, .): the rows of even blocks, zeros for the others, and the other way."""
    even = torch.arange(rows.shape[2], device=rows.device).unsqueeze(-1) % 2 == 0
    return torch.cat((torch.where(even, rows, 0), torch.where(even, 0, rows)), 1)


def _length(halves: Tensor) -> Tensor:
    """The norm of both halves' rows, (2, 1, J, .)."""
    return halves.square().sum(1, keepdim=True).sqrt()


def _folded_rows(rows: Tensor, beyond: Tensor, radii: Tensor, N: int) -> Tensor:
    """Norms of rows after what lies beyond N has folded back; `beyond` bounds that part at radius 1."""
    added = rows + (radii**N).clamp(min=1) * beyond
    shifted = rows * torch.where(radii > 1, (1 - radii ** (-2 * N)).rsqrt(), math.inf)
    return torch.minimum(*(torch.nan_to_num(x, nan=math.inf, posinf=math.inf) for x in (added, shifted)))


def _heard(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The norm over all rows of norms (2, J, w) times norms (r, J, w), (r, w).

    A row is of one block alone, and hears the other across the cut by one of the pairs.
    """
    (u, v), (u_back, v_back) = pairs
    here, there = u[:1] * v, u_back[1:] * v_back
    return (here.square() + there.square()).sum(1).sqrt()


def _heard_error(pairs: list[tuple[Ball, Ball]]) -> Tensor:
    """The error of what is heard, (r, w)."""
    first = _heard([(u.error, v.norm + v.error) for u, v in pairs])
    return first + _heard([(u.norm, v.error) for u, v in pairs])


def _heard_by_all(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """As `_heard`, where every row hears by both pairs and there is one block."""
    (u, v), (u_back, v_back) = pairs
    return (u * v + u_back * v_back).squeeze(-2)


def _heard_error_by_all(pairs: list[tuple[Ball, Ball]]) -> Tensor:
    first = _heard_by_all([(u.error, v.norm + v.error) for u, v in pairs])
    return first + _heard_by_all([(u.norm, v.error) for u, v in pairs])


def _least(x: Tensor) -> Tensor:
    """The smallest over the radii, (.., radii) to (.., 1); 0 times infinity knows nothing."""
    return torch.nan_to_num(x, nan=math.inf, posinf=math.inf).amin(-1, keepdim=True)
