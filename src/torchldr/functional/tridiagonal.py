"""Products with Krylov matrices of a tridiagonal operator with two corners.

The operator is kept as a ring, three vectors of length m with indices modulo m:

    (A x)_i = lower_i x_{i-1} + diagonal_i x_i + upper_i x_{i+1},

so lower_0 is the top right corner and upper_{m-1} the bottom left one. Views of K(A, v) w:

    matrix      sum_j w_j A^j v
    stencil     a three-point stencil with fixed coefficients, run for k steps in time

On a CPU the stencil is compiled (`stencil`) and run in tiles of columns that are multiplied with the
batch while they are in cache, so nothing of size m k is held in inference, and k / TILE states of
size m in training. Everywhere else the plain form below serves: A^p has 2p + 1 diagonals, so blocks
of p columns follow each other by one batched product of small dense matrices. The tests hold both to
`krylov_reference(tridiagonal_reference(..), v, k)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import cuda, stencil
from ._twin import plain_backward, plain_jvp

BLOCK = 32  # columns at a time in the plain form
TILE = 64  # columns at a time in the compiled form


def row_sum_scale(lower: Tensor, diagonal: Tensor, upper: Tensor) -> Tensor:
    """The largest absolute row sum of A where that exceeds 1, else 1: A over it never grows."""
    return (lower.abs() + diagonal.abs() + upper.abs()).amax(-1).clamp(min=1)


def krylov_matmul(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, w: Tensor) -> Tensor:
    """Multiply by the Krylov matrices of a tridiagonal operator: sum_i K_k(A, v_i) w_i.

    Args:
        lower, diagonal, upper: the ring of coefficients, shape (m,) each.
        V: start vectors, shape (r, m).
        w: coefficients, shape (b, r, k) with k <= m.

    Returns:
        Shape (b, m), in the dtype of `w` (float32 or float64).

    O(r m k) work for the stencil and O(b r m k) in matrix products; O(r m) extra memory without
    gradients. Powers grow with the operator: see `row_sum_scale`. Differentiable any number of times;
    vmap, jvp and tracing hold.

    The same, slowly: `sum(krylov_of_ring_reference(lower, diagonal, upper, v, k) @ w)`.
    """
    if stencil.serves(lower, diagonal, upper, V, w):
        return _StencilMatmul.apply(lower, diagonal, upper, V, w)[0]
    if cuda.serves(V.shape[-1], lower, diagonal, upper, V, w):
        return w.flatten(1) @ _cuda_krylov(lower, diagonal, upper, V, w.shape[-1]).flatten(0, 1)
    return _plain_matmul(lower, diagonal, upper, V, w)


def krylov_rmatmul(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, u: Tensor, k: int) -> Tensor:
    """Multiply by the transposed Krylov matrices: K_k(A, v_i)^T u for every i.

    Args:
        lower, diagonal, upper: the ring of coefficients, shape (m,) each.
        V: start vectors, shape (r, m).
        u: vectors, shape (b, m).
        k: how many columns, at most m.

    Returns:
        Shape (b, r, k). Costs and rules as for `krylov_matmul`.
    """
    if stencil.serves(lower, diagonal, upper, V, u):
        return _StencilRmatmul.apply(lower, diagonal, upper, V, u, k)[0]
    if cuda.serves(V.shape[-1], lower, diagonal, upper, V, u):
        K = _cuda_krylov(lower, diagonal, upper, V, k)
        return (u @ K.flatten(0, 1).mT).unflatten(1, K.shape[:2])
    return _plain_rmatmul(lower, diagonal, upper, V, u, k)


# The plain form.


def _windows(m: int, size: int, halo: int, device: torch.device) -> Tensor:
    """Indices modulo m of ceil(m / size) blocks of `size` rows with a halo on either side.

    Unrolling the ring to a line makes every window right, even one that is longer than the ring.
    """
    blocks = -(-m // size)
    first = torch.arange(blocks, device=device).unsqueeze(1) * size - halo
    return (first + torch.arange(size + 2 * halo, device=device)) % m


def _slanted(rows: Tensor) -> Tensor:
    """(.., a, w) to (.., a, a + w - 1), row i moved right by i places: diagonals to a banded matrix."""
    a, w = rows.shape[-2:]
    flat = pad(rows, (0, a)).flatten(-2)
    return flat[..., : a * (a + w - 1)].unflatten(-1, (a, a + w - 1))


def _powers(lower: Tensor, diagonal: Tensor, upper: Tensor, p: int) -> Iterator[tuple[int, Tensor]]:
    """(q, the 2q + 1 diagonals of A^q) for q = 1, 2, 4, .. p: entry [i, q + o] couples i to i + o."""
    D, q, m = torch.stack((lower, diagonal, upper), -1), 1, lower.shape[-1]
    yield q, D
    while q < p:
        neighbours = D[_windows(m, 1, q, D.device)]  # (m, 2q + 1, 2q + 1)
        D = (D.unsqueeze(-2) @ _slanted(neighbours)).squeeze(-2)
        q *= 2
        yield q, D


def _apply_power(D: Tensor, X: Tensor, q: int, size: int) -> Tensor:
    """A^q X for the diagonals D of A^q and columns X, (m, c)."""
    m = X.shape[0]
    windows = _windows(m, size, q, X.device)
    D = pad(D, (0, 0, 0, windows.shape[0] * size - m)).view(-1, size, 2 * q + 1)
    return (_slanted(D) @ X[windows]).flatten(0, 1)[:m]


def _column_blocks(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int
) -> Iterator[tuple[int, Tensor]]:
    """(j, columns j, j + 1, .. of all Krylov matrices, (m, p, r)), k columns in all."""
    m = V.shape[-1]
    p = min(BLOCK, 1 << (k - 1).bit_length())
    X = V.mT.unsqueeze(1)
    D = X
    for q, D in _powers(lower, diagonal, upper, p):
        if q < p:
            X = torch.cat((X, _apply_power(D, X.flatten(1), q, BLOCK).view(m, q, -1)), 1)
    for j in range(0, k, p):
        if j:
            X = _apply_power(D, X.flatten(1), p, BLOCK).view(X.shape)
        yield j, X[:, : k - j]


def _plain_matmul(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, w: Tensor) -> Tensor:
    k, w = w.shape[-1], w.mT
    parts = [
        w[:, j : j + X.shape[1]].flatten(1) @ X.flatten(1).mT
        for j, X in _column_blocks(lower, diagonal, upper, V, k)
    ]
    return sum(parts[1:], parts[0])


def _plain_rmatmul(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, u: Tensor, k: int) -> Tensor:
    parts = [
        (u @ X.flatten(1)).unflatten(1, X.shape[1:]) for _, X in _column_blocks(lower, diagonal, upper, V, k)
    ]
    return torch.cat(parts, 1).mT


# The compiled form.


class _StencilMatmul(torch.autograd.Function):
    @staticmethod
    def forward(
        lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, w: Tensor
    ) -> tuple[Tensor, Tensor]:
        b, r, k = w.shape
        y = w.new_zeros(b, V.shape[-1])
        states = []
        for j, state, tile in stencil.tiles(lower, diagonal, upper, V, k, TILE):
            states.append(state)
            for i in range(r):
                y.addmm_(w[:, i, j : j + tile.shape[1]], tile[i])
        return y, torch.stack(states)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, u: Tensor, _: Any) -> tuple[Tensor, ...]:
        *inputs, states = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.serves(*inputs, u):
            return plain_backward(_plain_matmul, inputs, u)
        lower, diagonal, upper, _, w = inputs
        *operator, dw = _adjoint(lower, diagonal, upper, states, w, u, transposed=False)
        return *operator, dw

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, None]:
        return plain_jvp(_plain_matmul, ctx.saved_tensors, tangents), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        return _vmap(_plain_matmul, krylov_matmul, in_dims, inputs)


class _StencilRmatmul(torch.autograd.Function):
    @staticmethod
    def forward(
        lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, u: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        z = u.new_empty(u.shape[0], V.shape[0], k)
        states = []
        for j, state, tile in stencil.tiles(lower, diagonal, upper, V, k, TILE):
            states.append(state)
            for i in range(V.shape[0]):
                z[:, i, j : j + tile.shape[1]] = u @ tile[i].mT
        return z, torch.stack(states)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.k = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, output[1])
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, w: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        *inputs, states = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.serves(*inputs, w):
            return *plain_backward(partial(_plain_rmatmul, k=ctx.k), inputs, w), None
        lower, diagonal, upper, _, u = inputs
        *operator, du = _adjoint(lower, diagonal, upper, states, w, u, transposed=True)
        return *operator, du, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
        plain = partial(_plain_rmatmul, k=ctx.k)
        return plain_jvp(plain, ctx.saved_tensors, tangents[:-1]), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        k = inputs[-1]
        plain, fast = partial(_plain_rmatmul, k=k), partial(krylov_rmatmul, k=k)
        return _vmap(plain, fast, in_dims[:-1], inputs[:-1])


def _adjoint(
    lower: Tensor, diagonal: Tensor, upper: Tensor, states: Tensor, w: Tensor, u: Tensor, *, transposed: bool
) -> tuple[Tensor, ...]:
    """Gradients of the form u^T K(A, v) w in the operator, v and (transposed) u or else w.

    Tile by tile from the last: the tile's columns are run again from the state before it, their
    gradients w^T u are one matrix product, and the adjoint stencil
    lambda_{j-1} = A^T lambda_j + dK_{j-1} carries them back to v, collecting those of A on the way.
    """
    b, r, k = w.shape
    m = u.shape[-1]
    gradients = u.new_zeros(m), u.new_zeros(m), u.new_zeros(m)
    carry = u.new_zeros(r, m)
    other = u.new_zeros(b, m) if transposed else torch.empty_like(w)
    for index in reversed(range(states.shape[0])):
        j = index * TILE
        columns = slice(j, min(j + TILE, k))
        _, _, tile = next(stencil.tiles(lower, diagonal, upper, states[index], columns.stop - j, TILE))
        dK = tile.new_empty(tile.shape)
        for i in range(r):
            torch.mm(w[:, i, columns].mT, u, out=dK[i])
            if transposed:
                other.addmm_(w[:, i, columns], tile[i])
            else:
                other[:, i, columns] = u @ tile[i].mT
        stencil.adjoint(lower, diagonal, upper, tile, dK, carry, gradients)
    return *gradients, carry, other


def _vmap(plain: Any, fast: Any, in_dims: tuple[int | None, ...], inputs: tuple[Tensor, ...]) -> Any:
    """Inputs mapped alone join the batch of the fast form; stacked operators take the plain one."""
    none = inputs[0].new_zeros(0)
    *fixed, dim = in_dims
    if dim is None or any(d is not None for d in fixed):
        return (torch.vmap(plain, in_dims=in_dims)(*inputs), none), (0, None)
    x = inputs[-1].movedim(dim, 0)
    y = fast(*inputs[:-1], x.flatten(0, 1))
    return (y.unflatten(0, x.shape[:2]), none), (0, None)


# On a GPU: the Krylov matrices themselves, by a kernel, and one matrix product.


def _cuda_krylov(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    """(r, k, m): the Krylov matrices, transposed."""
    stacked = (t.unsqueeze(0) for t in (lower, diagonal, upper, V))
    return _CudaKrylov.apply(*stacked, k).squeeze(0)


def _plain_krylov(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    """`_CudaKrylov` in plain torch: (s, m) thrice and (s, r, m) to (s, r, k, m)."""
    stacked = []
    for ring in zip(lower, diagonal, upper, V, strict=True):
        columns = torch.cat([X for _, X in _column_blocks(*ring, k)], 1)  # (m, k, r)
        stacked.append(columns.permute(2, 1, 0))
    return torch.stack(stacked)


class _CudaKrylov(torch.autograd.Function):
    @staticmethod
    def forward(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
        return cuda.krylov_columns(lower, diagonal, upper, V, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.k = inputs
        ctx.save_for_backward(*tensors, output)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, dK: Tensor) -> tuple[Tensor | None, ...]:
        lower, diagonal, upper, V, K = ctx.saved_tensors
        if torch.is_grad_enabled():
            plain = partial(_plain_krylov, k=ctx.k)
            return *plain_backward(plain, (lower, diagonal, upper, V), dK), None
        return *cuda.krylov_adjoint(lower, diagonal, upper, K, dK), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return plain_jvp(partial(_plain_krylov, k=ctx.k), ctx.saved_tensors, tangents[:-1])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        *tensors, k = inputs
        size = info.batch_size
        stacked = [
            t.expand(size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(tensors, in_dims, strict=False)
        ]
        K = _CudaKrylov.apply(*(t.flatten(0, 1) for t in stacked), k)
        return K.unflatten(0, (size, -1)), 0
