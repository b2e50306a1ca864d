"""The loops of `recurrence.SEQUENCE` on a CPU: all steps of an LSTM or a GRU, and their gradients.

One product with W_ih serves all steps, before the loop, and one product each gives the gradients of W_ih,
W_hh and the input, after it. A step is the product with W_hh and a few operations in place. With a the
arguments of the gates, d a their gradients, and dh, dc those that come from the steps after:

    LSTM    dc += dh o (1 - tanh(c')^2),  d a_i = dc g i (1 - i),  d a_f = dc c f (1 - f),
            d a_g = dc i (1 - g^2),  d a_o = dh tanh(c') o (1 - o);  dc f and W_hh^T d a go to the step before
    GRU     d a_n = dh (1 - z) (1 - n^2),  d a_z = dh (h - n) z (1 - z),  d a_r = d a_n p r (1 - r)  with
            p = W_hn h + b_hn, whose gradient is d a_n r;  dh z and W_hh^T (d a_r, d a_z, d a_n r) go back

bfloat16 and float16 are computed in float32 and rounded at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input


def kept(x: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, ...]:
    """Empty tensors for what the gradient needs again, each (steps, b, ..): the gates of all steps; of an
    LSTM c after each step; of a GRU W_hn h + b_hn and h after each step."""
    (steps, b), size = x.shape[:2], h.shape[1]
    sizes = (3 * size, size, size) if c is None else (4 * size, size)
    dtype = torch.promote_types(h.dtype, torch.float32)
    return tuple(h.new_empty(steps, b, each, dtype=dtype) for each in sizes)


def forward(
    x: Tensor,
    h: Tensor,
    c: Tensor | None,
    W_ih: Tensor,
    W_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
) -> tuple[Tensor, ...]:
    """h after every step and an LSTM's last c, (steps (+ 1), b, hidden); then what `kept` describes."""
    dtype = h.dtype
    x, h, W_ih, W_hh = (_wide(t) for t in (x, h, W_ih, W_hh))
    b_ih, b_hh = (None if t is None else _wide(t) for t in (b_ih, b_hh))
    W = W_hh.t().contiguous()  # products of few rows are faster by it
    if c is not None:
        gates = linear(x, W_ih, None if b_ih is None or b_hh is None else b_ih + b_hh)
        y, cells = _lstm(gates, h, _wide(c), W)
        return y.to(dtype), gates, cells
    gates = linear(x, W_ih, b_ih)
    y, products = _gru(gates, h, W, b_hh)
    return y.to(dtype, copy=True), gates, products, y


def _lstm(gates: Tensor, h: Tensor, c: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Input products become gates, in place; h after every step and the last c, and c after every step."""
    size, y, cells = h.shape[1], h.new_empty(len(gates) + 1, *h.shape), h.new_empty(len(gates), *h.shape)
    for a, after, cell in zip(gates, y, cells, strict=False):
        i, f, g, o = a.addmm_(h, W).split(size, -1)
        a[:, : 2 * size].sigmoid_()
        g.tanh_()
        o.sigmoid_()
        c = torch.mul(f, c, out=cell).addcmul_(i, g)
        h = torch.tanh(c, out=after).mul_(o)
    y[-1] = c
    return y, cells


def _gru(gates: Tensor, h: Tensor, W: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Input products become gates, in place; h and W_hn h + b_hn of every step."""
    size, hidden = h.shape[1], torch.empty_like(gates[0])
    y, products = (h.new_empty(len(gates), *h.shape) for _ in range(2))  # apart: compilers take no aliases
    for a, after, product in zip(gates, y, products, strict=True):
        torch.mm(h, W, out=hidden)
        if bias is not None:
            hidden += bias
        product.copy_(hidden[:, 2 * size :])
        a[:, : 2 * size].add_(hidden[:, : 2 * size]).sigmoid_()
        r, z, n = a.split(size, -1)
        n.addcmul_(r, product).tanh_()
        h = torch.lerp(n, h, z, out=after)
    return y, products


def backward(
    grad: Tensor, tensors: Sequence[Tensor | None], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of x, h, c, W_ih, W_hh, b_ih, b_hh, given that of the result of `forward`."""
    x, h, W_ih, W_hh = (_wide(t) for t in (*tensors[:2], *tensors[3:5]) if t is not None)
    c = None if tensors[2] is None else _wide(tensors[2])
    grad, gates = _wide(grad), saved[0]
    dc: Tensor | None = None
    if c is not None:
        dp, y, dh, dc = _lstm_back(grad, gates, saved[1], c, W_hh)
    else:
        _, products, y = saved
        dp, dn, dh = _gru_back(grad, gates, products, y, h, W_hh)
    rows, size = dp.flatten(0, 1), h.shape[1]
    found: list[Tensor | None] = [None, dh, dc, *[None] * 4]
    bias = rows.sum(0) if wanted[6] or (wanted[5] and c is not None) else None
    if wanted[4]:
        before = torch.cat((h.unsqueeze(0), y[: len(gates) - 1]))
        found[4] = rows.t() @ before.flatten(0, 1)
    found[6] = bias
    if c is None:  # the gradients of the products with W_ih, in the same memory
        dp[..., 2 * size :] = dn
        bias = rows.sum(0) if wanted[5] else None
    if wanted[0]:
        found[0] = (rows @ W_ih).view(x.shape)
    if wanted[3]:
        found[3] = rows.t() @ x.flatten(0, 1)
    found[5] = bias.clone() if bias is not None and bias is found[6] else bias
    return [None if t is None or f is None else f.to(t.dtype) for t, f in zip(tensors, found, strict=True)]


def _lstm_back(
    grad: Tensor, gates: Tensor, cells: Tensor, c: Tensor, W: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the arguments of all gates; h after every step; gradients of the first h and c."""
    size, da, y, th = c.shape[1], torch.empty_like(gates), torch.empty_like(cells), torch.empty_like(c)
    dh, dc = torch.zeros_like(c), grad[-1].clone()
    for t in reversed(range(len(gates))):
        i, f, g, o = gates[t].split(size, -1)
        to_i, to_f, to_g, to_o = da[t].split(size, -1)
        dh += grad[t]
        torch.tanh(cells[t], out=th)
        torch.mul(o, th, out=y[t])
        torch.mul(dh, th, out=to_o)
        dc += _tanh_back(dh.mul_(o), th, grad_input=dh)
        torch.mul(dc, g, out=to_i)
        torch.mul(dc, cells[t - 1] if t else c, out=to_f)
        torch.mul(dc, i, out=to_g)
        dc *= f
        _sigmoid_back(to := da[t, :, : 2 * size], gates[t, :, : 2 * size], grad_input=to)
        _tanh_back(to_g, g, grad_input=to_g)
        _sigmoid_back(to_o, o, grad_input=to_o)
        torch.mm(da[t], W, out=dh)
    return da, y, dh, dc


def _gru_back(
    grad: Tensor, gates: Tensor, products: Tensor, y: Tensor, h: Tensor, W: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the products with W_hh; of the argument of n, which is not that of its; of the first h."""
    size, dp, dn = h.shape[1], torch.empty_like(gates), torch.empty_like(y)
    dh, through = torch.zeros_like(h), torch.empty_like(h)
    for t in reversed(range(len(gates))):
        r, z, n = gates[t].split(size, -1)
        to_r, to_z, to_n = dp[t].split(size, -1)
        dh += grad[t]
        torch.sub(y[t - 1] if t else h, n, out=to_z).mul_(dh)
        torch.mul(dh, z, out=through)
        _tanh_back(torch.sub(dh, through, out=dn[t]), n, grad_input=dn[t])
        torch.mul(dn[t], r, out=to_n)
        torch.mul(dn[t], products[t], out=to_r)
        _sigmoid_back(to := dp[t, :, : 2 * size], gates[t, :, : 2 * size], grad_input=to)
        torch.addmm(through, dp[t], W, out=dh)
    return dp, dn, dh


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))
