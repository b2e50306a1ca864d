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
        Shape (b, m), in the dtype of `x` (float32 or float64). Differentiable.
    """
    if trained_pair.may_look(x) and trained_pair.serves(A[2].shape[-1], C[2].shape[-1], x):
        y = trained_pair.product(A, C, x, RANGE)
        if y is not None:
            return y
    return SUBDIAGONAL(x, A[2], C[2], A[1].unsqueeze(-1), A[0], C[1].unsqueeze(-1), C[0])


def _dense(
    G: Tensor, H: Tensor, corner_A: Tensor, lower_A: Tensor, corner_C: Tensor, lower_C: Tensor
) -> Tensor:
    return stein_matrix((corner_A, lower_A), (corner_C, lower_C), G, H)


def _plain(x: Tensor, *parts: Tensor) -> Tensor:
    G, H, corner_A, lower_A, corner_C, lower_C = parts
    if G.shape[-1] > H.shape[-1]:
        return x @ STEIN.plain(H, G, corner_C, lower_C, corner_A, lower_A, 0, 0, x.dtype)
    return x @ STEIN.plain(G, H, corner_A, lower_A, corner_C, lower_C, 0, 0, x.dtype).mT


# What a product leaves for its gradients is one piece of memory: its dtype is known once the operators are.


def _shapes(x: Tensor, G: Tensor, H: Tensor) -> list[tuple[int, ...]]:
    """Of both profiles, both spectra, and what `by_c.forward` saves."""
    lead, (r, m), n = tuple(G.shape[:-2]), G.shape[-2:], H.shape[-1]
    k, rows = min(m, n), tuple(x.shape[:-1])
    size = 2 * half_length(max(m, n) + k - 1)
    constants = [(*lead, m + 2), (*lead, n + 2), (*lead, r, size), (*lead, r, size)]
    return [*constants, (*rows, size), (*rows, r, size), (*rows, m + k)]


def _bytes(shapes: Sequence[tuple[int, ...]]) -> int:
    """In float64, each piece from a multiple of 64 bytes on, behind the first 64."""
    return 64 + sum(_rounded(shape, 8) for shape in shapes)


def _rounded(shape: tuple[int, ...], itemsize: int) -> int:
    return -(-torch.Size(shape).numel() * itemsize // 64) * 64


def _pieces(memory: Tensor, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    at, pieces = 64, []
    for shape in shapes:
        count = torch.Size(shape).numel() * dtype.itemsize
        pieces.append(memory[at : at + count].view(dtype).view(shape))
        at += _rounded(shape, dtype.itemsize)
    return pieces


def _fake(x: Tensor, G: Tensor, H: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    y = x.new_empty(*x.shape[:-1], G.shape[-1])
    if x.device.type != "cpu":
        return y, x.new_empty(0, dtype=torch.uint8)
    return y, x.new_zeros(_bytes(_shapes(x, G, H)), dtype=torch.uint8)


def _kernel(x: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:
    G, H, corner_A, lower_A, corner_C, lower_C = parts
    memory = _fake(x, *parts)[1]
    flag = memory[:8].view(torch.int64)
    if library.serves(x, *parts):
        sides = (lower_A, corner_A.squeeze(-1), G), (lower_C, corner_C.squeeze(-1), H)
        found = prepare(*sides)
        if not isinstance(found, str):
            dtype = found.A.dtype
            pieces = _pieces(memory, _shapes(x, G, H), dtype)
            for piece, t in zip(pieces, found, strict=False):
                piece.copy_(t)
            flag.fill_(dtype.itemsize)
            saved = by_c.Saved(*pieces[4:])
            y = by_c.forward(*found, x.to(dtype).contiguous(), saved)[0]
            return y.to(x.dtype), memory
        flag.zero_()
    return x @ _dense(*parts).mT, memory


def _gradient(
    u: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    x, *parts = arguments
    (memory,) = saved
    if memory.ndim > 1:  # under vmap: of all matrices, or of a product that was not mapped as its gradient is
        whole = memory.shape[-1] == _bytes(_shapes(x, *parts[:2]))
        memory = memory[0] if whole else _kernel(x, *parts)[1]
    itemsize = int(memory[:8].view(torch.int64)) if library.serves(x, *parts) else 0
    if itemsize == 0:
        return _dense_gradient(u, x, parts, wanted)
    dtype = torch.float32 if itemsize == 4 else torch.float64
    pieces = _pieces(memory, _shapes(x, *parts[:2]), dtype)
    given = [t.to(dtype).contiguous() for t in (u, x)]
    operators = [t.to(dtype).contiguous() for t in parts]
    found = by_c.backward(*given, *Constants(*pieces[:4]), by_c.Saved(*pieces[4:]), *operators)
    return [None if t is None else t.to(x.dtype) for t in found]


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
    """Vectors alone join the rows; stacked operators have leading axes."""
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
