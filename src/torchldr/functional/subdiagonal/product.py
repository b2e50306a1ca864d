"""Products with M = sum_i K_k(A, g_i) K_k(C, h_i)^T, A and C subdiagonal with a corner, as one operator.

On a CPU the operator looks at the operators' values: where they allow convolutions (`guard`) C takes those,
with all gradients; else it makes the dense matrix by a scan. The plain form is the dense matrix too: right
for every operator. A GPU takes `trained_pair` where values can be looked at and allow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...kernels.cpu import convolution as by_c
from ...kernels.cpu import library
from ...kernels.cpu.tables import half_length
from ..operator import Operator
from ..stein import STEIN, stein_matrix
from . import trained_pair
from .convolution import Constants, prepare
from .guard import RANGE, Side


def product(A: Side, C: Side, x: Tensor) -> Tensor:
    """sum_i K_k(A, g_i) K_k(C, h_i)^T x, k = min(m, n).

    Args:
        A, C: subdiagonal, corner and start vectors, (m - 1,), () and (r, m) for A, likewise n for C.
        x: vectors, shape (b, n).

    Returns:
        Shape (b, m), in the dtype of `x` (float32, float64, or what `trained_pair` reads). Differentiable.
    """
    if trained_pair.takes(A[2].shape[-1], C[2].shape[-1], x) and trained_pair.may_look(x):
        y = trained_pair.product(A, C, x, RANGE)
        if y is not None:
            return y
    parts = x, A[2], C[2], A[1].unsqueeze(-1), A[0], C[1].unsqueeze(-1), C[0]
    if x.dtype.itemsize < 4:
        return SUBDIAGONAL(*(t.float() for t in parts)).to(x.dtype)
    return SUBDIAGONAL(*parts)


def _dense(
    G: Tensor, H: Tensor, corner_A: Tensor, lower_A: Tensor, corner_C: Tensor, lower_C: Tensor
) -> Tensor:
    return stein_matrix((corner_A, lower_A), (corner_C, lower_C), G, H)


def _plain(x: Tensor, *parts: Tensor) -> Tensor:
    G, H, corner_A, lower_A, corner_C, lower_C = parts
    if G.shape[-1] > H.shape[-1]:
        return x @ STEIN.plain(H, G, corner_C, lower_C, corner_A, lower_A, 0, 0, x.dtype)
    return x @ STEIN.plain(G, H, corner_A, lower_A, corner_C, lower_C, 0, 0, x.dtype).mT


def _fake(x: Tensor, G: Tensor, H: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    """y, both profiles, both spectra, and what `by_c.forward` saves."""
    lead, (r, m), n, rows = tuple(G.shape[:-2]), G.shape[-2:], H.shape[-1], tuple(x.shape[:-1])
    k, y = min(m, n), x.new_empty(*rows, m)
    if x.device.type != "cpu":
        return y, *(x.new_empty(*lead, 0) for _ in range(4)), *(x.new_empty(*rows, 0) for _ in range(3))
    size = 2 * half_length(max(m, n) + k - 1)
    constants = (*lead, m + 2), (*lead, n + 2), (*lead, r, size), (*lead, r, size)
    saved = (*rows, size), (*rows, r, size), (*rows, m + k)
    return y, *(x.new_empty(shape) for shape in (*constants, *saved))


def _prepared(x: Tensor, *parts: Tensor) -> Constants | None:
    G, H, corner_A, lower_A, corner_C, lower_C = parts
    if not library.serves(x, *parts):
        return None
    found = prepare((lower_A, corner_A.squeeze(-1), G), (lower_C, corner_C.squeeze(-1), H))
    return None if isinstance(found, str) else found


def _kernel(x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    """y and what its gradients need: zeros where it was made in another dtype, or by the dense matrix."""
    _, *kept = _fake(x, *parts)
    found = _prepared(x, *parts)
    if found is not None and found.A.dtype == x.dtype:
        saved = by_c.Saved(*kept[4:])
        return by_c.forward(*found, x.contiguous(), saved)[0], *found, *saved
    if found is None:
        y = x @ _dense(*parts).mT
    else:
        y = by_c.product(*found, x.to(found.A.dtype).contiguous()).to(x.dtype)
    return y, *(t.zero_() for t in kept)


def _gradient(
    u: Tensor, arguments: Sequence[Any], kept: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    x, *parts = arguments
    if not library.serves(x, *parts):
        return _dense_gradient(u, x, parts, wanted)
    constants, saved = Constants(*kept[:4]), by_c.Saved(*kept[4:])
    # A profile begins with 1. Under vmap a product may not have been mapped as its gradient is.
    if saved.x_hat.shape[:-1] != x.shape[:-1] or not constants.A.any():
        found = _prepared(x, *parts)
        if found is None:
            return _dense_gradient(u, x, parts, wanted)
        x = x.to(found.A.dtype).contiguous()
        constants, saved = found, by_c.forward(*found, x)[1]
    operators = [t.to(x.dtype).contiguous() for t in parts]
    gradients = by_c.backward(u.to(x.dtype).contiguous(), x.contiguous(), *constants, saved, *operators)
    return [None if t is None else t.to(u.dtype) for t in gradients]


def _dense_gradient(
    u: Tensor, x: Tensor, parts: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in parts]
        M = _dense(*leaves)
    dx = u @ M.detach() if wanted[0] else None
    return [dx, *torch.autograd.grad(M, leaves, u.mT @ x)]


def _serves(x: Tensor, *parts: Tensor) -> bool:
    return x.ndim >= 2


def _samples() -> Iterator[tuple[Any, ...]]:
    for lead, r, m, n in (((), 1, 5, 5), ((), 2, 4, 7), ((3,), 2, 9, 3)):
        a, c = torch.rand(*lead, m) + 0.5, torch.rand(*lead, n) + 0.5
        G, H = torch.randn(*lead, r, m), torch.randn(*lead, r, n)
        yield torch.randn(*lead, 3, n), G, H, a[..., :1], a[..., 1:], c[..., :1], c[..., 1:]


def _batched(info: Any, dims: Sequence[int | None], apply: Any, arguments: Sequence[Any]) -> Any:
    """Mapped vectors join the rows; mapped operators get leading axes."""
    if dims[0] is not None and all(dim is None for dim in dims[1:]):
        x = arguments[0].movedim(dims[0], 0 if arguments[0].ndim == 3 else -3)
        if x.ndim == 3:
            y, *kept = apply(x.flatten(0, 1), *arguments[1:])
            return (y.unflatten(0, x.shape[:2]), *kept), (0, *[None] * len(kept))
    front = [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(arguments, dims, strict=True)
    ]
    y, *kept = apply(*front)
    return (y, *kept), (0, *[None] * len(kept))


SUBDIAGONAL = Operator(
    "subdiagonal",
    "Tensor x, Tensor G, Tensor H, Tensor corner_A, Tensor lower_A, Tensor corner_C, Tensor lower_C",
    plain=_plain,
    kernel=_kernel,
    fake=_fake,
    gradient=_gradient,
    serves=_serves,
    samples=_samples,
    batched=_batched,
)
