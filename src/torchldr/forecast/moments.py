"""Moments of all windows of a series: everything that a ridge forecaster is computed from.

A window w has M = past + horizon values. With m its centre (its last past value, the mean of its past, or
0), the Gram matrix of the centred windows w - m is

    B_c = B - 1 c^T - c 1^T,    B = mean w w^T,   b = mean m w,   c = b - mean(m^2) / 2,

and B follows from one of its columns and the ends of the series:

    B[i+1, j+1] - B[i, j] = (last_i last_j - first_i first_j) / count,

`first` and `last` being the first and the last M - 1 values. So a few correlations, by FFTs, replace all
windows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..functional.fft import fast_length

CENTERS = ("last", "mean", None)


@dataclass(frozen=True)
class Moments:
    """Sums over the windows of each group of series; a group (axis b) shares one forecaster.

    count: windows, (b,). columns: of sum w w^T, by their index: 0, L - 1, L, M - 1, each (b, M).
    centre: sum m w, (b, M). square: sum m^2, (b,). first, last: ends of the c series of a group,
    (b, c, M - 1).
    """

    past: int
    horizon: int
    center: str | None
    count: Tensor
    columns: dict[int, Tensor]
    centre: Tensor
    square: Tensor
    first: Tensor
    last: Tensor

    @property
    def window(self) -> int:
        return self.past + self.horizon

    @property
    def c(self) -> Tensor:
        """c of the header, (b, M); zero without centring."""
        return (self.centre - self.square[:, None] / 2) / self.count[:, None]

    def column(self, p: int) -> Tensor:
        """Column p of B_c, (b, M)."""
        c = self.c
        return self.columns[p] / self.count[:, None] - c - c[:, p, None]

    def scale(self) -> Tensor:
        """The mean square of a centred past value: what a ridge is compared with, (b,)."""
        steps = (self.last.square() - self.first.square())[..., : self.past - 1].sum(-2).cumsum(-1)
        B = (self.columns[0][:, 0] + steps.sum(-1) / self.past) / self.count  # the diagonal's mean
        return torch.maximum(B - 2 * self.c[:, : self.past].mean(-1), torch.finfo(B.dtype).eps * B)

    def steps(self) -> tuple[Tensor, Tensor]:
        """Q (b, q, M - 1) and J (b, q, q) with B_c[i+1, j+1] - B_c[i, j] = (Q^T J Q)[i, j]."""
        ends = torch.cat((self.last, self.first), -2)
        weights = (1 / self.count)[:, None].expand(-1, self.last.shape[-2])
        J = torch.diag_embed(torch.cat((weights, -weights), -1))
        if self.center is None:
            return ends, J
        delta = self.c.diff(dim=-1)[:, None]
        Q = torch.cat((ends, torch.ones_like(delta), delta), -2)
        J = torch.nn.functional.pad(J, (0, 2, 0, 2))
        J[:, -1, -2] = J[:, -2, -1] = -1
        return Q, J

    def __getitem__(self, z: int) -> Moments:
        """Of one group."""
        one = slice(z, z + 1)
        columns = {p: column[one] for p, column in self.columns.items()}
        parts = {name: getattr(self, name)[one] for name in ("count", "centre", "square", "first", "last")}
        return replace(self, columns=columns, **parts)

    def __add__(self, other: Moments) -> Moments:
        """Of both: other series of the same groups."""
        return replace(
            self._sum(other),
            first=torch.cat((self.first, other.first), -2),
            last=torch.cat((self.last, other.last), -2),
        )

    def continued(self, values: Tensor) -> Moments:
        """With further values (b, c, t) of the same series; only windows that end in them are new."""
        more = moments(torch.cat((self.last, values), -1), self.past, self.horizon, self.center)
        return replace(self._sum(more), first=self.first, last=more.last)

    def _sum(self, other: Moments) -> Moments:
        return replace(
            self,
            count=self.count + other.count,
            columns={p: column + other.columns[p] for p, column in self.columns.items()},
            centre=self.centre + other.centre,
            square=self.square + other.square,
        )


def moments(z: Tensor, past: int, horizon: int, center: str | None) -> Moments:
    """The moments of series z (b, c, time), float64, of at least past + horizon values; horizon may be 0.

    Cost: seven FFTs of the series' length, and memory for as many copies of it.
    """
    M = past + horizon
    b, c, time = z.shape
    count = time - M + 1
    size = fast_length(time)
    spectrum = torch.fft.rfft(z, size)

    def correlate(v: Tensor) -> Tensor:
        """sum_t z[t + i] v[t] for the M values of i, summed over the group."""
        product = spectrum * torch.fft.rfft(v, size).conj()
        return torch.fft.irfft(product.sum(1), size)[:, :M]

    columns = {p: correlate(z[..., p : p + count]) for p in sorted({0, past - 1, past, M - 1}) if p < M}
    if center is None:
        centre, square = z.new_zeros(b, M), z.new_zeros(b)
    elif center == "last":
        centre, square = columns[past - 1], columns[past - 1][:, past - 1]
    else:
        means = (
            z.unfold(-1, past, 1).mean(-1)[..., :count] if past < 64 else _moving_mean(z, past)[..., :count]
        )
        centre, square = correlate(means), means.square().sum((1, 2))
    counts = z.new_full((b,), float(c * count))
    return Moments(past, horizon, center, counts, columns, centre, square, z[..., : M - 1], z[..., count:])


def _moving_mean(z: Tensor, past: int) -> Tensor:
    sums = torch.nn.functional.pad(z.cumsum(-1), (1, 0))
    return (sums[..., past:] - sums[..., :-past]) / past
