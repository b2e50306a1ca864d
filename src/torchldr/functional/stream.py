"""Products with LDR-TD matrices that are too large to hold, as one operator.

    y = sum_i K_k(A, g_i) K_k(C, h_i)^T x,  k = min(m, n)

Both Krylov matrices are computed in tiles of columns, which multiply the rows and are discarded. The
gradient computes them again, from the states before each tile. Memory is O(r k b) beside a tile, never k (m +
n).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from . import krylov, tridiagonal
from .krylov import krylov_matrices
from .operator import Operator
from .tridiagonal import Operator as Side

HELD = 1 << 26  # entries of both Krylov matrices that are held, to multiply by
WIDTH = 128  # columns of a tile


def product(A: Side, C: Side, x: Tensor) -> Tensor:
    """sum_i K_k(A, g_i) K_k(C, h_i)^T x.

    Args:
        A, C: lower, diagonal, upper (..., m) and start vectors (..., r, m) of A; of C with n for m.
        x: vectors, shape (..., b, n); axes in front broadcast.

    Returns:
        Shape (..., b, m), in the dtype of `x` (float32 or float64). Differentiable.
    """
    (*stack, r, m), n = A[3].shape, C[3].shape[-1]
    k = min(m, n)
    if r * k * (m + n) > HELD:
        if stack:
            return torch.vmap(product)(A, C, x.expand(stack[0], *x.shape[1:]))
        return STREAM(x, *A, *C)
    if torch.compiler.is_compiling() or not tridiagonal.lost(x, k):
        return _by_matrices(*_matrices(A, C, k), x)
    if all(map(tridiagonal.has_values, (*A, *C))):
        both = _matrices(A, C, k)
        if not tridiagonal.lost(x, k, [tridiagonal.sizes(K) for K in both]):
            return _by_matrices(*both, x)
    both = _matrices(_double(A), _double(C), k)  # rounded, they and their gradients would lose what they grew
    return _by_matrices(*both, x.double()).to(x.dtype)


def _matrices(A: Side, C: Side, k: int) -> tuple[Tensor, Tensor]:
    return krylov_matrices(*A, k), krylov_matrices(*C, k)


def _by_matrices(K_A: Tensor, K_C: Tensor, x: Tensor) -> Tensor:
    return (x @ K_C.flatten(-3, -2).mT) @ K_A.flatten(-3, -2)


def _double(side: Side) -> Side:
    lower, diagonal, upper, V = (t.double() for t in side)
    return lower, diagonal, upper, V


def _plain(x: Tensor, *parts: Tensor) -> Tensor:
    wide = torch.float64 if tridiagonal.lost(x, _sizes(parts)[-1]) else x.dtype
    both = [t.to(wide) for t in parts]
    return tridiagonal.plain_product(both[:4], both[4:], x.to(wide)).to(x.dtype)  # type: ignore[arg-type]


def _sizes(parts: Sequence[Tensor]) -> tuple[int, int, int, int]:
    (r, m), n = parts[3].shape, parts[7].shape[-1]
    return r, m, n, min(m, n)


def _fake(x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    r, m, n, k = _sizes(parts)
    tiles = -(-k // WIDTH)
    return (
        x.new_empty(x.shape[0], m),
        x.new_empty(x.shape[0], r, k, dtype=_kept(x, k)),
        x.new_empty(tiles, r, m, dtype=_kept(x, k)),
        x.new_empty(tiles, r, n, dtype=_kept(x, k)),
        x.new_empty(1),
    )


def _kept(x: Tensor, k: int) -> torch.dtype:
    """Of the states before tiles: rounded, they would bring back what float32 loses."""
    return torch.float64 if tridiagonal.lost(x, k) else x.dtype


def _serves(x: Tensor, *parts: Tensor) -> bool:
    return x.ndim == 2 and all(map(_serves_side, (parts[:4], parts[4:])))


def _serves_side(side: Sequence[Any]) -> bool:
    return krylov._serves(*[*side, WIDTH + 1])


def _kernel(x: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
    k = _sizes(parts)[-1]
    if tridiagonal.lost(x, k) and not tridiagonal.has_values(x):
        return _rounded(_tiles(x.double(), [t.double() for t in parts])[0], x.dtype)
    made, seen = _tiles(x, parts)
    if tridiagonal.lost(x, k) and tridiagonal.lost(x, k, seen):
        return _rounded(_tiles(x.double(), [t.double() for t in parts])[0], x.dtype)
    y, *kept = made
    return y, *(t.to(_kept(x, k)) for t in kept), x.new_zeros(1)


def _rounded(made: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    y, *kept = made
    return y.to(dtype), *kept, y.new_ones(1, dtype=dtype)


def _tiles(x: Tensor, parts: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """y, K(C, h_i)^T x and the states before every tile; and the sizes of columns."""
    r, m, n, k = _sizes(parts)
    (*A, left), (*C, right) = parts[:4], parts[4:]
    y, z, states, seen = x.new_zeros(x.shape[0], m), [], [], []
    # One buffer for all tiles: the C library would not reuse memory that is freed in between.
    rooms = [x.new_empty(r * (WIDTH + 1) * size) for size in (m, n)]
    for j in range(0, k, WIDTH):
        width = min(WIDTH, k - j)
        states.append((left, right))
        K_A, K_C = (
            krylov._columns(*ring, state, width + 1, out=_part(room, r, width + 1))
            for ring, state, room in zip((A, C), states[-1], rooms, strict=True)
        )
        left, right = K_A[:, width].clone(), K_C[:, width].clone()
        part = x @ K_C[:, :width].flatten(0, 1).mT
        y.addmm_(part, K_A[:, :width].flatten(0, 1))
        z.append(part.unflatten(1, (r, width)))
        seen.append((tridiagonal.sizes(K_A), tridiagonal.sizes(K_C)))
    lefts, rights = (torch.stack(each) for each in zip(*states, strict=True))
    return [y, torch.cat(z, -1), lefts, rights], [torch.cat(each, -1) for each in zip(*seen, strict=True)]


def _part(room: Tensor, r: int, width: int) -> Tensor:
    """The first part of it, as (1, r, width, m)."""
    m = room.numel() // (r * (WIDTH + 1))
    return room[: r * width * m].view(1, r, width, m)


def _gradient(
    u: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Tile by tile from the last: the gradients of its columns are matrix products, and the adjoint stencil
    carries them back to the state before it, collecting those of the operators on the way."""
    *kept, flag = saved
    given = [u, *arguments, *kept]
    wide = u.dtype != torch.float64 and (not tridiagonal.has_values(flag) or bool(flag))
    given = [t.to(torch.float64 if wide else u.dtype) for t in given]
    u, x, *rest = given
    parts, (z, lefts, rights) = rest[:8], rest[8:]
    r, _, _, k = _sizes(parts)
    A, C = parts[:3], parts[4:7]
    dx = torch.zeros_like(x) if wanted[0] else None
    totals = [torch.zeros_like(t) for t in (*A, *C)]
    ahead = [torch.zeros_like(parts[3]), torch.zeros_like(parts[7])]  # gradients of the states after a tile
    for j in reversed(range(0, k, WIDTH)):
        width = min(WIDTH, k - j)
        states = lefts[j // WIDTH], rights[j // WIDTH]
        K_A, K_C = (
            krylov._columns(*ring, state, width + 1) for ring, state in zip((A, C), states, strict=True)
        )
        dK_A, dK_C = torch.empty_like(K_A), torch.empty_like(K_C)
        dK_A[:, width], dK_C[:, width] = ahead
        dK_A[:, :width] = z[..., j : j + width].permute(1, 2, 0) @ u
        dz = u @ K_A[:, :width].flatten(0, 1).mT
        dK_C[:, :width] = (dz.mT @ x).unflatten(0, (r, width))
        if dx is not None:
            dx.addmm_(dz, K_C[:, :width].flatten(0, 1))
        found_A, found_C = (
            krylov.adjoint(*[*ring, state, K, dK])
            for ring, state, K, dK in zip((A, C), states, (K_A, K_C), (dK_A, dK_C), strict=True)
        )
        for total, more in zip(totals, (*found_A[:3], *found_C[:3]), strict=True):
            total += more
        ahead = [found_A[3], found_C[3]]
    gradients = [dx, *totals[:3], ahead[0], *totals[3:], ahead[1]]
    return [g if g is None else g.to(t.dtype) for g, t in zip(gradients, arguments, strict=True)]


def _samples() -> Iterator[tuple[Any, ...]]:
    for r, m, n in ((1, 5, 5), (2, 4, 7)):
        A, C = [torch.rand(m) for _ in range(3)], [torch.rand(n) for _ in range(3)]
        yield torch.randn(3, n), *A, torch.randn(r, m), *C, torch.randn(r, n)


def _batched(info: Any, dims: Sequence[int | None], apply: Any, arguments: Sequence[Any]) -> Any:
    """Mapped vectors join the rows; mapped operators take the plain form."""
    if dims[0] is not None and all(dim is None for dim in dims[1:]):
        x = arguments[0].movedim(dims[0], 0)
        y, *kept = apply(x.flatten(0, 1), *arguments[1:])
        return (y.unflatten(0, x.shape[:2]), *kept), (0, *[None] * len(kept))
    y = torch.vmap(_plain, in_dims=tuple(dims))(*arguments)
    return (y, *[y.new_zeros(0)] * 4), (0, *[None] * 4)


STREAM = Operator(
    "stream",
    "Tensor x, Tensor lower_A, Tensor diagonal_A, Tensor upper_A, Tensor G, "
    "Tensor lower_C, Tensor diagonal_C, Tensor upper_C, Tensor H",
    plain=_plain,
    kernel=_kernel,
    fake=_fake,
    gradient=_gradient,
    serves=_serves,
    samples=_samples,
    batched=_batched,
)
