"""Products with Krylov matrices of a tridiagonal operator with two corners.

The operator is kept as a ring, three vectors of length m with indices modulo m:

    (A x)_i = lower_i x_{i-1} + diagonal_i x_i + upper_i x_{i+1},

so lower_0 is the top right corner and upper_{m-1} the bottom left one. Views of K(A, v) w:

    matrix      sum_j w_j A^j v
    stencil     a three-point stencil with fixed coefficients, run for k steps in time

On a CPU the stencil is compiled (`stencil`) and both operators of a layer (`product`) are run in tiles of
columns that are multiplied with the batch while they are in cache, so nothing of size m k is held in
inference, and a state of size m a tile in training. Everywhere else the plain form below serves: A^p has
2p + 1 diagonals, so blocks of p columns follow each other by one batched product of small dense matrices.
The tests hold both to `krylov_reference(tridiagonal_reference(..), v, k)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import pad

from ..kernels import cuda
from ..kernels.cpu.threads import both
from ..kernels.cuda.krylov import entries
from . import stencil
from ._twin import applied, plain_backward, plain_jvp, product_vmap

Operator = tuple[Tensor, Tensor, Tensor, Tensor]  # lower, diagonal, upper (m,) and start vectors (r, m)

BLOCK = 32  # columns at a time in the plain form
TILE_ENTRIES = 1 << 20  # of the compiled form's tiles, as a matrix product likes them and a cache holds them
TILE_COLUMNS = 128, 512  # at least and at most

# Rounding errors grow as powers do, and where these first grow and then fall they outlive them. So operators
# with more than UNSEEN columns, some of which (every LOOK-th is looked at) have grown by more than 1 / eps of
# float32, are run in float64; those whose values cannot be looked at, too.
GROWTH, LOOK = 1e7, 32
UNSEEN = TILE_COLUMNS[1]
TINY = torch.finfo(torch.float32).tiny


def largest_row_sum(lower: Tensor, diagonal: Tensor, upper: Tensor) -> Tensor:
    """The largest absolute row sum of A. On a ring of 1 or 2, neighbours are one entry."""
    if lower.shape[-1] == 1:
        return (lower + diagonal + upper).abs().squeeze(-1)
    beside = (lower + upper).abs() if lower.shape[-1] == 2 else lower.abs() + upper.abs()
    return (beside + diagonal.abs()).amax(-1)


def row_sum_scale(lower: Tensor, diagonal: Tensor, upper: Tensor) -> Tensor:
    """The largest absolute row sum of A where that exceeds 1, else 1: A over it never grows."""
    return largest_row_sum(lower, diagonal, upper).clamp(min=1)


def product(A: Operator, C: Operator, x: Tensor, *, shifts: bool = False) -> Tensor:
    """sum_i K_k(A, g_i) K_k(C, h_i)^T x, k = min(m, n).

    Args:
        A, C: lower, diagonal, upper and start vectors, (m,) thrice and (r, m) for A, likewise n for C.
        x: vectors, shape (b, n).
        shifts: whether diagonals and uppers are zero. Entries of powers are not sums then, and lose nothing.

    Returns:
        Shape (b, m), in the dtype of `x` (float32 or float64).

    O(r (m + n) k) work for the stencils and O(b r (m + n) k) in matrix products, tile by tile; without
    gradients nothing of size m k is held. Powers grow with the operator, see `row_sum_scale`: where float32
    would lose them this runs in float64. Differentiable any number of times; vmap, jvp and tracing hold.
    """
    if cuda.serves(_entries(A, C), *A, *C, x):
        K_A, K_C = (K.flatten(0, 1) for K in krylov_pair(A, C, shifts=shifts))
        return (x.to(K_A.dtype) @ K_C.mT @ K_A).to(x.dtype)
    by_loops, k = stencil.serves(*A, *C, x), _columns(A, C)
    if shifts or not lost(x, k) or (by_loops and all(map(has_values, (*A, *C, x)))):
        if not by_loops:
            return _plain_product(*A, *C, x)
        y, *_, left, right = applied(_StencilProduct, *A, *C, x)
        if shifts or not lost(x, k, (left, right)):
            return y
    return product(_wide(A), _wide(C), x.double()).to(x.dtype)


def _wide(operator: Operator) -> Operator:
    lower, diagonal, upper, V = operator
    return lower.double(), diagonal.double(), upper.double(), V.double()


def has_values(t: Tensor) -> bool:
    """Whether a tensor's values can be looked at: not under vmap, or while a CUDA graph is captured."""
    return stencil.is_plain(t) and not (t.is_cuda and torch.cuda.is_current_stream_capturing())


def lost(like: Tensor, k: int, found: Sequence[Tensor] = ()) -> bool:
    """Whether rounding may have grown beyond use in k columns like this, by the `sizes` found of them."""
    if k <= UNSEEN or like.dtype == torch.float64 or like.device.type == "mps":  # which has no float64
        return False
    if not found or not all(map(has_values, found)):
        return True
    seen = [size.cpu() for size in found]  # few numbers, and fewer calls of a GPU
    return not all(bool((size <= GROWTH * size[..., :1].clamp_min(TINY)).all()) for size in seen)  # nor NaN


def sizes(K: Tensor) -> Tensor:
    """The largest entries of some columns of Krylov matrices (.., k, m), the first among them."""
    return vector_norm(K.detach()[..., ::LOOK, :], math.inf, -1)


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


def _apply_power(D: Tensor, X: Tensor, q: int) -> Tensor:
    """A^q X for the diagonals D of A^q and columns X, (m, c), by blocks of BLOCK rows."""
    m = X.shape[0]
    windows = _windows(m, BLOCK, q, X.device)
    D = pad(D, (0, 0, 0, windows.shape[0] * BLOCK - m)).view(-1, BLOCK, 2 * q + 1)
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
            X = torch.cat((X, _apply_power(D, X.flatten(1), q).view(m, q, -1)), 1)
    for j in range(0, k, p):
        if j:
            X = _apply_power(D, X.flatten(1), p).view(X.shape)
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


class _StencilProduct(torch.autograd.Function):
    """(A, G, C, H, x) to y, K(C, h_i)^T x, and of A and of C the states before every tile and `sizes`."""

    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        A, C, x = _parted(inputs)
        (r, m), b, k = A[3].shape, x.shape[0], _columns(A, C)
        y, z, across = x.new_zeros(b, m), x.new_empty(r, k, b), x.mT.contiguous()
        room = _width(A, C)
        left, right = stencil.Stencil(*A, room), stencil.Stencil(*C, room)
        states = [(A[3].clone(), C[3].clone())]  # the stencil's loops forbid to resize what they read
        seen = []
        for columns in _tiles(A, C):
            width = columns.stop - columns.start
            K_A, K_C = _run(left, right, states[-1], width)
            for i, part in enumerate(z[:, columns]):
                torch.mm(K_C[i], across, out=part)
                y.addmm_(part.mT, K_A[i])
            states.append((left.following(width), right.following(width)))
            if k > UNSEEN and y.dtype != torch.float64:
                seen.append((sizes(K_A), sizes(K_C)))
        found = [torch.cat(of, -1) for of in zip(*seen, strict=True)] or [y.new_zeros(0)] * 2
        return y, z, *(torch.stack(of) for of in zip(*states[:-1], strict=True)), *found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:4])
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if u is None:
            return (None,) * 9
        saved = ctx.saved_tensors  # once: a second reading is an error under activation checkpointing
        inputs, outputs = saved[:9], saved[9:]
        if torch.is_grad_enabled() or not stencil.is_plain(u):
            return plain_backward(_plain_product, inputs, u)
        return _adjoint(*_parted(inputs), u.contiguous(), *outputs, wanted=ctx.needs_input_grad[8])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return plain_jvp(_plain_product, ctx.saved_tensors[:9], tangents), *[None] * 5

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        y = product_vmap(_plain_product, lambda *given: _StencilProduct.apply(*given)[0], in_dims, inputs)
        return (y, *[y.new_zeros(0)] * 5), (0, *[None] * 5)


def _columns(A: Operator, C: Operator) -> int:
    return min(A[3].shape[-1], C[3].shape[-1])


def _entries(A: Operator, C: Operator) -> int:
    r, m = A[3].shape
    return entries(r, m, C[3].shape[-1])


def _run(
    left: stencil.Stencil, right: stencil.Stencil, states: Sequence[Tensor], width: int
) -> tuple[Tensor, Tensor]:
    """The next columns of A and of C."""
    steps = width * states[0].numel()
    both(steps, partial(left.run, states[0], width), partial(right.run, states[1], width))
    return left.columns(width), right.columns(width)


def _width(A: Operator, C: Operator) -> int:
    """Columns in a tile."""
    least, most = TILE_COLUMNS
    return max(least, min(most, TILE_ENTRIES // max(A[3].numel(), C[3].numel())))


def _tiles(A: Operator, C: Operator) -> list[slice]:
    k, width = _columns(A, C), _width(A, C)
    return [slice(j, min(j + width, k)) for j in range(0, k, width)]


def _parted(inputs: Sequence[Tensor]) -> tuple[Operator, Operator, Tensor]:
    a, b, c, G, d, e, f, H, x = inputs
    return (a, b, c, G), (d, e, f, H), x


def _plain_product(*inputs: Tensor) -> Tensor:
    A, C, x = _parted(inputs)
    return _plain_matmul(*A, _plain_rmatmul(*C, x, _columns(A, C)))


def _adjoint(
    A: Operator, C: Operator, x: Tensor, u: Tensor, z: Tensor, left: Tensor, right: Tensor, *, wanted: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of u^T M x in both operators, their start vectors and, where it is `wanted`, x.

    Tile by tile from the last: the columns are run again from the states before them, their gradients
    z_i u and dz_i x are matrix products, and the adjoint stencil lambda_{j-1} = A^T lambda_j + dK_{j-1}
    carries them back to the start vectors, collecting those of the coefficients on the way.
    """
    if not stencil.ADJOINT.serves(u):
        return plain_backward(_plain_product, (*A, *C, x), u)
    across, dx = u.mT.contiguous(), torch.zeros_like(x if wanted else x[:0])
    room = _width(A, C)
    stencils = stencil.Stencil(*A, room), stencil.Stencil(*C, room)
    for columns, *states in reversed(list(zip(_tiles(A, C), left, right, strict=True))):
        width = columns.stop - columns.start
        K_A, K_C = _run(*stencils, states, width)
        dK_A, dK_C = (of.gradient(width) for of in stencils)
        for i, part in enumerate(z[:, columns]):
            torch.mm(part, u, out=dK_A[i])
            dz = torch.mm(K_A[i], across, out=torch.empty_like(part))  # autocast changes no dtype of these
            torch.mm(dz, x, out=dK_C[i])
            if wanted:
                dx.addmm_(dz.mT, K_C[i])
        both(2 * K_A.numel(), partial(stencils[0].adjoint, width), partial(stencils[1].adjoint, width))
    return *stencils[0].gradients, *stencils[1].gradients, dx if wanted else None


# The Krylov matrices themselves: by a kernel on a GPU, by the compiled stencil on a CPU.


def krylov_pair(A: Operator, C: Operator, *, shifts: bool = False) -> tuple[Tensor, ...]:
    """The Krylov matrices K_k(A, g_i) and K_k(C, h_i), transposed: (r, k, m) and (r, k, n), k = min(m, n).

    In float64 where float32 would lose them. A GPU runs operators of one size side by side.
    """
    k = _columns(A, C)
    if not shifts and lost(A[3], k) and not all(map(has_values, (*A, *C))):
        return krylov_pair(_wide(A), _wide(C))
    K: tuple[Tensor, ...]
    if A[3].shape != C[3].shape or not cuda.serves(_entries(A, C), *A, *C):
        K = krylov_matrices(*A, k), krylov_matrices(*C, k)
    else:
        K = applied(_CudaKrylov, torch.stack((_ring(*A), _ring(*C))), k).unbind()
    if shifts or not lost(A[3], k, [*map(sizes, K)]):
        return K
    del K  # others twice as large follow
    return krylov_pair(_wide(A), _wide(C))


def krylov_matrices(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    """The Krylov matrices K_k(A, v_i), transposed, (r, k, m)."""
    if stencil.serves(lower, diagonal, upper, V):
        return _StencilKrylov.apply(lower, diagonal, upper, V, k)
    if not cuda.serves(k * V.numel(), lower, diagonal, upper, V):
        return _krylov_of_ring(lower, diagonal, upper, V, k)
    return applied(_CudaKrylov, _ring(lower, diagonal, upper, V).unsqueeze(0), k).squeeze(0)


def _ring(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor) -> Tensor:
    """An operator as a GPU's kernels take it, (3 + r, m)."""
    return torch.cat((torch.stack((upper, lower, diagonal)), V))


class _StencilKrylov(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(lower, diagonal, upper, V)
        ctx.k = k
        made = stencil.Stencil(lower, diagonal, upper, V, k)
        made.run(V.clone(), k)  # the loops forbid to resize what they read
        return made.columns(k)

    @staticmethod
    def backward(ctx: Any, dK: Tensor) -> tuple[Tensor | None, ...]:
        (lower, diagonal, upper, V), k = ctx.saved_tensors, ctx.k
        if torch.is_grad_enabled() or not stencil.is_plain(dK) or not stencil.ADJOINT.serves(dK):
            return *plain_backward(partial(_krylov_of_ring, k=k), (lower, diagonal, upper, V), dK), None
        made = stencil.Stencil(lower, diagonal, upper, V, k)
        made.run(V.clone(), k)
        made.gradient(k).copy_(dK)
        made.adjoint(k)
        return *made.gradients, None


def _krylov_of_ring(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, k: int) -> Tensor:
    """`krylov_matrices` in plain torch."""
    blocks = [X for _, X in _column_blocks(lower, diagonal, upper, V, k)]
    return torch.cat(blocks, 1).permute(2, 1, 0)


def plain_krylov(rings: Tensor, k: int) -> Tensor:
    """Of rings (s, 3 + r, m), the Krylov matrices (s, r, k, m), in plain torch."""
    return torch.stack([_krylov_of_ring(ring[1], ring[2], ring[0], ring[3:], k) for ring in rings])


class _CudaKrylov(torch.autograd.Function):
    """`plain_krylov` by kernels."""

    @staticmethod
    def forward(rings: Tensor, k: int) -> Tensor:
        return cuda.krylov_columns(rings, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        rings, ctx.k = inputs
        ctx.save_for_backward(rings, output)
        ctx.save_for_forward(rings)

    @staticmethod
    def backward(ctx: Any, dK: Tensor) -> tuple[Tensor | None, ...]:
        rings, K = ctx.saved_tensors
        if torch.is_grad_enabled() or not stencil.is_plain(dK):
            return *plain_backward(partial(plain_krylov, k=ctx.k), (rings,), dK), None
        return cuda.krylov_adjoint(rings, K, dK), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return plain_jvp(partial(plain_krylov, k=ctx.k), ctx.saved_tensors[:1], tangents[:1])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], rings: Tensor, k: int) -> tuple[Tensor, int]:
        K = _CudaKrylov.apply(rings.movedim(in_dims[0], 0).flatten(0, 1), k)
        return K.unflatten(0, (info.batch_size, -1)), 0
