"""The dense matrices of LDR-SD layers, and all their gradients, by recurrences along diagonals.

    matrix        M = sum_{t < m} A^t E (C^t)^T,  A m x m, C n x n, m <= n, both subdiagonal with corners
    weights       w_i = a_i c_j of a step into entry (i, j), a = (corner_A, subdiagonal_A), c likewise

A diagonal s has the entries (i, s + i) for i = 0 .. m - 1, columns modulo n. A path starts at an entry of E
and takes t < m steps down its diagonal; from the last row it goes on, through A's corner, in row 0 of
diagonal s + m (for a square that is s again). It never gets further than the row above its start, so

    x_i = w_i x_{i-1} + e_i                        paths on the diagonal alone
    M_i = x_i + W_i k S_i                          and those from diagonal s - m, through the corner

with W_i = w_1 .. w_i, k = a_0 c_s the weight of the corner and S_i = sum_{p > i} e_p w_{p+1} .. w_{m-1},
taken on diagonal s - m. With D the gradient of M, V_i = w_{i+1} .. w_{m-1} and B_i = sum_{q < i} D_q W_q,

    l_i = w_{i+1} l_{i+1} + D_i                    dE_i = l_i + V_i k' B'_i
    t_i = w_{i+1} t_{i+1} + D_i S_i                r_i = w_i r_{i-1} + e_i B'_i
    dw_i = l_i x_{i-1} + W_{i-1} k t_i + V_i k' r_{i-1},    dw_0 = t_0

where ' is for diagonal s + m: what flows over a step, by the paths that stay on the diagonal, came through
the corner, and will go through it. All of it is sums of products: no division and no difference, so that
every operator is served whose products the dtype can hold; zeros and underflow do no harm.

With a diagonal C instead, diagonals become columns: that is a Vandermonde-like matrix, transposed, with A
the shift. `straight` asks for it.

Work O(m n) for any rank, which a GPU does in a few passes over its memory: diagonals are cut into segments,
whose sums are computed at once, then chained (`kernels.cuda.scan`). On a CPU the same is done row by row;
there it is the oracle of the kernels. The tests hold both to the definition.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..kernels.cuda import unavailable
from ..kernels.cuda.scan import Form, launch, parts, states


class Gradients(NamedTuple):
    """Of `stein_scan` in its arguments."""

    a: Tensor  # (R, m)
    c: Tensor  # (R, n)
    e: Tensor  # (R, m, n)


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors."""
    first = tensors[0]
    if not first.is_cuda or first.dtype not in (torch.float32, torch.float64) or unavailable():
        return False
    return all(t.dtype == first.dtype and t.device == first.device for t in tensors)


def stein_scan(a: Tensor, c: Tensor, e: Tensor, straight: bool = False) -> Tensor:
    """The matrices sum_{t < m} A^t E (C^t)^T of stacked layers.

    Args:
        a: corner and subdiagonal of A, shape (R, m).
        c: likewise of C, shape (R, n), n >= m; where `straight`, C is diagonal and c its diagonal.
        e: the matrices E, shape (R, m, n).
        straight: whether C is diagonal. A must then have no corner, and m may exceed n.

    Returns:
        Shape (R, m, n). No gradient: `stein_scan_gradients` are its own.

    The same, slowly: the sum over t.
    """
    return _scan(a, c, e, Form(straight=straight))


def stein_scan_adjoint(a: Tensor, c: Tensor, D: Tensor, straight: bool = False) -> Tensor:
    """sum_{t < m} (A^t)^T D C^t, the adjoint of `stein_scan` in e: the same, from the other end."""
    c = c if straight else c.roll(-1, 1)
    return _scan(a.roll(-1, 1).flip(1), c.flip(1), D, Form(back=True, straight=straight))


def stein_scan_gradients(a: Tensor, c: Tensor, e: Tensor, D: Tensor) -> Gradients:
    """Gradients of sum(D * stein_scan(a, c, e)), shapes as there."""
    if serves(a, c, e, D):
        a, c, e, D = (t.contiguous() for t in (a, c, e, D))
        dw, dE, form = torch.empty_like(e), torch.empty_like(e), Form(graded=True)
        for part in parts(e):
            given = a[part], c[part], e[part], D[part]
            launch("gradients", form, e[part], [*given, states(*given, form), dw[part], dE[part]])
    else:
        dw, dE = _plain_gradients(a, c, e, D)
    with torch.autocast(e.device.type, enabled=False):
        da = (dw @ c.unsqueeze(-1)).squeeze(-1)
        dc = (a.unsqueeze(-2) @ dw).squeeze(-2)
    return Gradients(da, dc, dE)


def _scan(a: Tensor, c: Tensor, e: Tensor, form: Form) -> Tensor:
    if serves(a, c, e):
        a, c, e = a.contiguous(), c.contiguous(), e.contiguous()
        M = torch.empty_like(e)
        for part in parts(e):
            given = a[part], c[part], e[part]
            launch("fill", form, e[part], [*given, states(*given, e[part], form), M[part]])
        return M
    M = _plain_scan(a, c, e.flip(1, 2) if form.back else e, form.straight)
    return M.flip(1, 2) if form.back else M


# Row by row.


def _plain_scan(a: Tensor, c: Tensor, e: Tensor, straight: bool) -> Tensor:
    d = _Diagonals(a, c, e, straight)
    e = d.take(e)
    x = _recurrence(d.w, e)
    S = _after(e * d.V)
    return d.put(x + d.W * d.corner * d.from_before(S))


def _plain_gradients(a: Tensor, c: Tensor, e: Tensor, D: Tensor) -> tuple[Tensor, Tensor]:
    """Those of the weights w and of e."""
    d = _Diagonals(a, c, e, False)
    e, D = d.take(e), d.take(D)
    S, B = d.from_before(_after(e * d.V)), d.from_next(_before(D * d.W))
    x, r = _recurrence(d.w, e), _recurrence(d.w, e * B)
    down = d.w.roll(-1, 1).flip(1)
    lam, t = (_recurrence(down, source.flip(1)).flip(1) for source in (D, D * S))
    through = d.V * d.from_next(d.corner)
    dw = lam[:, 1:] * x[:, :-1] + d.W[:, :-1] * d.corner * t[:, 1:] + through[:, 1:] * r[:, :-1]
    return d.put(torch.cat((t[:, :1], dw), 1)), d.put(lam + through * B)


class _Diagonals:
    """By row and diagonal, (R, m, n): the weights w and their products W and V; corner (R, 1, n)."""

    def __init__(self, a: Tensor, c: Tensor, e: Tensor, straight: bool) -> None:
        m, n = e.shape[-2:]
        rows = torch.arange(m, device=e.device).unsqueeze(-1) * (not straight)
        columns = torch.arange(n, device=e.device)
        self._taken, self._put = (columns + rows) % n, (columns - rows) % n
        self._step = 0 if straight else m
        w = a.unsqueeze(-1) * c[:, self._taken]
        self.corner = w[:, :1]
        self.w = torch.cat((torch.ones_like(self.corner), w[:, 1:]), 1)
        self.W = self.w.cumprod(1)
        self.V = torch.cat((self.w[:, 1:], torch.ones_like(self.corner)), 1).flip(1).cumprod(1).flip(1)

    def take(self, e: Tensor) -> Tensor:
        return e.gather(-1, self._taken.expand_as(e))

    def put(self, x: Tensor) -> Tensor:
        return x.gather(-1, self._put.expand_as(x))

    def from_before(self, x: Tensor) -> Tensor:
        return x.roll(self._step, -1)

    def from_next(self, x: Tensor) -> Tensor:
        return x.roll(-self._step, -1)


def _recurrence(w: Tensor, sources: Tensor) -> Tensor:
    """x_i = w_i x_{i-1} + source_i from 0, down the rows."""
    x, rows = torch.zeros_like(sources[:, 0]), []
    for weight, source_row in zip(w.unbind(1), sources.unbind(1), strict=True):
        x = torch.addcmul(source_row, weight, x)
        rows.append(x)
    return torch.stack(rows, 1)


def _before(t: Tensor) -> Tensor:
    """Sums of the rows above each."""
    return torch.nn.functional.pad(t[:, :-1].cumsum(1), (0, 0, 1, 0))


def _after(t: Tensor) -> Tensor:
    """Sums of the rows below each."""
    return _before(t.flip(1)).flip(1)
