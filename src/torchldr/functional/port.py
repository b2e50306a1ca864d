"""The port product: Krylov products of a tridiagonal operator with corners in near-linear time.

The operator is a ring as in `tridiagonal`, (A x)_i = lower_i x_{i-1} + diagonal_i x_i + upper_i x_{i+1}.
Views of what is computed, K_k(A, v)^T u:

    matrix      the numbers u^T A^t v, t < k
    series      u^T (I - zA)^{-1} v up to z^{k-1}
    system      what a sensor u hears in k steps after the line was struck by v

A block of consecutive indices meets the rest of the line only at its first and last index, its two ports.
With R = (I - zA)^{-1} for the block alone, eight series in z say all that the outside can notice:

    LL = e_L^T R e_L    LR = e_L^T R e_R    RL = e_R^T R e_L    RR = e_R^T R e_R
    vL = e_L^T R v      vR = e_R^T R v      uL = u^T R e_L      uR = u^T R e_R

Two neighbours join into one block by pointwise arithmetic (`join`), where every path crosses the cut from the
left, from the right, or back and forth any number of times. Series are held by N coefficients, N = c m for
blocks of m indices: a join transforms to 2N roots of unity, where 2N coefficients of the joined block come
out. What rings on after N steps folds back onto the first coefficients: that is the only error besides
rounding, and `port_certificate` bounds it. u^T R v is needed only as a sum over a level, before the inverse
transform.

Any length: n indices are dealt to 2^levels leaves whose sizes differ by one at most; a leaf that is shorter
by one gets an index that is coupled to nothing, behind its right port, which changes no series. The corners
close the ring at the top (`close`), on series cut to k coefficients and at a radius below 1, so that a ring
without loss, whose poles lie on the unit circle, is served too.

The tests hold the products to `krylov_of_ring_reference`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

LEAF = 32  # indices in a leaf at most: dense products of this size are cheap, and the tree is shorter by 5


class Series(NamedTuple):
    """What a row of blocks shows at its ports, `.` standing for blocks and coefficients (or roots)."""

    ports: Any  # LL, LR, RL, RR, (4, .)
    v: Any  # vL, vR, (2, r, .)
    u: Any  # uL, uR, (2, b, .)


class Observer(Protocol):
    """Sees the series of each level as they are made: see `port_certificate`."""

    def leaves(self, power: Tensor, rows: Tensor, columns: Tensor) -> None: ...
    def level(self, blocks: Series, s: Tensor, p: Tensor) -> None: ...
    def top(self, block: Series, a: Tensor, b: Tensor, k: int, N: int, radius: float) -> None: ...


def port_rmatmul(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, U: Tensor, k: int, *, oversampling: int = 4
) -> Tensor:
    """Multiply by transposed Krylov matrices: K_k(A, v_i)^T u_b for every i and b.

    Args:
        lower, diagonal, upper: the ring of coefficients, shape (n,) each; corners at lower[0] and upper[-1].
        V: start vectors, shape (r, n).
        U: vectors, shape (b, n).
        k: how many columns, any number from 1.
        oversampling: c, a power of two from 2: coefficients kept for every index of a full block.

    Returns:
        Shape (b, r, k), in the common dtype (float32 or float64).

    O(c (b + r) n log^2 n + c b r n log n) work, O(c (b + r) n) memory a level. Right to rounding where blocks
    forget within c times their length: `certified_port_rmatmul` tells. Differentiable in every tensor, by
    autograd through the transforms.

    The same, slowly: `krylov_of_ring_reference(lower, diagonal, upper, v, k).mT @ u`.
    """
    return observed_rmatmul(lower, diagonal, upper, V, U, k, oversampling, None)


def port_matmul(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, w: Tensor, *, oversampling: int = 4
) -> Tensor:
    """Multiply by Krylov matrices: sum_i K_k(A, v_i) w_i.

    Args:
        lower, diagonal, upper, V, oversampling: as for `port_rmatmul`.
        w: coefficients, shape (b, r, k).

    Returns:
        Shape (b, n). `port_rmatmul` is linear in U, and this is its transpose, run as its vector-Jacobian
        product: about four times its cost, and memory for all levels.
    """
    b, _, k = w.shape

    def transposed(U: Tensor) -> Tensor:
        return port_rmatmul(lower, diagonal, upper, V, U, k, oversampling=oversampling)

    pull = torch.func.vjp(transposed, V.new_zeros(b, V.shape[-1]))[1]
    return pull(w)[0]


def observed_rmatmul(
    lower: Tensor,
    diagonal: Tensor,
    upper: Tensor,
    V: Tensor,
    U: Tensor,
    k: int,
    oversampling: int,
    observer: Observer | None,
) -> Tensor:
    """`port_rmatmul`, shown to an observer level by level."""
    _check(lower, diagonal, upper, V, U, k, oversampling)
    n = V.shape[-1]
    levels = max(0, math.ceil(math.log2(n / LEAF)))
    N = oversampling * LEAF
    roots = _roots(N << levels, V)
    starts = [i * n >> levels for i in range(1 << levels)]
    blocks, result = _leaves(lower, diagonal, upper, V, U, starts, N, observer)
    result = _lengthened(result, k)
    while len(starts) > 1:
        cuts = torch.tensor(starts[1::2], device=V.device)
        starts, N = starts[::2], 2 * N
        s, p = lower[cuts].unsqueeze(-1), upper[cuts - 1].unsqueeze(-1)
        if observer:
            observer.level(blocks, s, p)
        z = roots[:: len(starts)]
        spectra = Series(*(torch.fft.rfft(series, n=N) for series in blocks))
        joined, heard = join(spectra, s * z, p * z, _loop)
        level = torch.fft.irfft(_summed(heard), n=N)
        result = result + _lengthened(level, k)
        blocks = Series(*(torch.fft.irfft(series, n=N) for series in joined))
    top = Series(*(series[..., 0, :] for series in blocks))
    return result + _closed(top, lower[0], upper[-1], k, observer).to(result.dtype)


# The algebra, which serves spectra here and norms and errors in `port_certificate`.


def join(blocks: Series, s: Any, p: Any, loop: Callable[[Any], Any]) -> tuple[Series, list[tuple[Any, Any]]]:
    """Join blocks 0 and 1, 2 and 3, ..: their series and what u hears of v across the cuts.

    Args:
        blocks: values of the series, (.., blocks, roots).
        s, p: z times the coupling from the last index of a block into the first of its neighbour, and back.
        loop: g to 1 / (1 - g).

    Returns:
        The series of the joined blocks, and pairs (.., (b, .), (r, .)) whose products, summed over pairs and
        blocks, are the part of u^T R v that crosses the cuts. Sums and products of non-negative multiples
        only, so that the same lines bound norms.
    """
    (LL0, LR0, RL0, RR0), (vL0, vR0), (uL0, uR0) = (x[..., 0::2, :] for x in blocks)
    (LL1, LR1, RL1, RR1), (vL1, vR1), (uL1, uR1) = (x[..., 1::2, :] for x in blocks)
    back, forth = s * LL1, p * RR0  # returned by block 1 what came from the left, by block 0 from the right
    D = loop(back * forth)
    into_1, into_0 = s * D, p * D
    through, returned = RL0 * into_1, LR1 * into_0
    ports = (
        LL0 + LR0 * p * LL1 * through,
        LR0 * returned,
        RL1 * through,
        RR1 + RL1 * s * RR0 * returned,
    )
    x = into_1 * (vR0 + forth * vL1)
    y = into_0 * (vL1 + back * vR0)
    v = (vL0 + LR0 * y, vR1 + RL1 * x)
    u = (uL0 + through * (uL1 + p * LL1 * uR0), uR1 + returned * (uR0 + s * RR0 * uL1))
    return Series(_stacked(ports), _stacked(v), _stacked(u)), [(uR0, y), (uL1, x)]


def close(block: Series, a: Any, b: Any, loop: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
    """Close one block to a ring by the corners a (last index into the first) and b (back), z times each.

    With q = (q_R, q_L) what arrives at the two ports,

        q = (vR, vL) + z [[a RL, b RR], [a LL, b LR]] q,

    and u hears z a uL q_R + z b uR q_L more. The system is solved by elimination, one loop after the other.
    Returns the pairs (uL, z a q_R), (uR, z b q_L).
    """
    (LL, LR, RL, RR), (vL, vR), (uL, uR) = block
    D_R, D_L = loop(a * RL), loop(b * LR)
    forth, back = b * RR * D_L, a * LL * D_R
    D = loop(forth * back)
    return [(uL, a * D_R * D * (vR + forth * vL)), (uR, b * D_L * D * (vL + back * vR))]


def _stacked(parts: tuple[Any, ...]) -> Any:
    """Torch tensors as one; other arithmetics stay tuples of their own kind."""
    first = parts[0]
    return torch.stack(torch.broadcast_tensors(*parts)) if isinstance(first, Tensor) else first.stack(parts)


def _summed(heard: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Products (b, .) times (r, .), summed over pairs and blocks, (b, r, roots); b blocks are held at a time.

    Not an einsum, which makes a matrix product of each root.
    """
    (u, v), (u_back, v_back) = heard
    parts = [(u * x + u_back * y).sum(-2) for x, y in zip(v, v_back, strict=True)]
    return torch.stack(parts, 1)


def _loop(g: Tensor) -> Tensor:
    return 1 / (1 - g)


# The two ends of the tree.


def _leaves(
    lower: Tensor,
    diagonal: Tensor,
    upper: Tensor,
    V: Tensor,
    U: Tensor,
    starts: list[int],
    N: int,
    observer: Observer | None,
) -> tuple[Series, Tensor]:
    """The first N coefficients of all leaves' series, and of the sum of their u^T R v, (b, r, N).

    With N = g q, rows [e_L, e_R, U]^T A^{qi} for i < g and columns A^j [e_L, e_R, V] for j < q, which dense
    powers of A, each the square of the last, double until there are enough. Their products are the series.
    """
    n = V.shape[-1]
    ends = torch.tensor([*starts[1:], n], device=V.device)
    first = torch.tensor(starts, device=V.device)
    size = -(-n // len(starts))
    place = torch.arange(size, device=V.device)
    index = first.unsqueeze(1) + place  # (J, size)
    real = index < ends.unsqueeze(1)
    index = index.clamp(max=n - 1)
    inner = real[:, 1:]  # couplings of neighbours that are both in the leaf
    A = torch.diag_embed(diagonal[index] * real)
    if size > 1:
        A = A + torch.diag_embed(lower[index][:, 1:] * inner, -1)
        A = A + torch.diag_embed(upper[index][:, :-1] * inner, 1)
    ports_at = torch.stack((torch.zeros_like(first), ends - first - 1), 1).unsqueeze(-1)
    E = (place == ports_at).to(V)  # e_L, e_R, (J, 2, size)
    V_leaves, U_leaves = ((x[:, index] * real).movedim(0, 1) for x in (V, U))  # (J, r or b, size)
    columns = torch.cat((E, V_leaves), 1).mT.unsqueeze(-1)  # (J, size, 2 + r, q)
    rows = torch.cat((E, U_leaves), 1).unsqueeze(2)  # (J, 2 + b, g, size)
    power, q, g = A, 1, 1
    # A step's two products are one, of twice the size: small products cost by their number.
    while q * q < N:
        further, power = (power @ torch.cat((columns.flatten(2), power), 2)).tensor_split([-size], 2)
        columns, q = torch.cat((columns, further.reshape(columns.shape)), 3), 2 * q
    while g * q < N:
        further, power = (torch.cat((rows.flatten(1, 2), power), 1) @ power).tensor_split([-size], 1)
        rows, g = torch.cat((rows, further.reshape(rows.shape)), 2), 2 * g
    if observer:
        observer.leaves(power, rows, columns)
    ports = _dealt(rows[:, :2], columns[:, :, :2]).flatten(0, 1)
    v = _dealt(rows[:, :2], columns[:, :, 2:])
    u = _dealt(rows[:, 2:], columns[:, :, :2]).transpose(0, 1)
    heard = torch.einsum("jbgi,jirq->brgq", rows[:, 2:], columns[:, :, 2:]).flatten(2)
    return Series(ports, v, u), heard


def _dealt(rows: Tensor, columns: Tensor) -> Tensor:
    """All products of rows (J, o, g, size) and columns (J, size, i, q), (o, i, J, g q)."""
    (J, o, g, _), (i, q) = rows.shape, columns.shape[2:]
    products = (rows.flatten(1, 2) @ columns.flatten(2)).view(J, o, g, i, q)
    return products.permute(1, 3, 0, 2, 4).flatten(-2)


def _closed(top: Series, a: Tensor, b: Tensor, k: int, observer: Observer | None) -> Tensor:
    """What the corners add to u^T R v, (b, r, k), in float64.

    Series are cut to k coefficients, which changes none of the first k of the result. At N roots of radius
    rho < 1 coefficient t comes out as the sum over j of rho^{jN} times coefficient t + jN; rounding grows by
    rho^-t. The two balance at rho^N = eps^(N / (N + k)). Roots are twice k where 11 digits are plenty.
    """
    N = (4 if top.ports.dtype == torch.float64 else 2) * max(k, 2)
    radius = math.exp(math.log(torch.finfo(torch.float64).eps) / (N + k))
    if observer:
        observer.top(top, a, b, k, N, radius)
    top = Series(*(_lengthened(x, k).double() for x in top))
    weights = radius ** torch.arange(k, dtype=torch.float64, device=a.device)
    z = radius * _roots(N, top.ports)
    spectra = Series(*(torch.fft.rfft(x * weights, n=N) for x in top))
    heard = close(spectra, a.double() * z, b.double() * z, _loop)
    total = sum(u.unsqueeze(1) * v.unsqueeze(0) for u, v in heard)
    return torch.fft.irfft(total, n=N)[..., :k] / weights


def _roots(N: int, like: Tensor) -> Tensor:
    """The roots of unity at which rfft of length N evaluates a series, in the dtype of its result."""
    angles = torch.arange(N // 2 + 1, dtype=torch.float64, device=like.device) * (-2 * math.pi / N)
    return torch.polar(torch.ones_like(angles), angles).to(like.dtype.to_complex())


def _lengthened(x: Tensor, k: int) -> Tensor:
    """The first k coefficients, zeros where there are fewer."""
    return torch.nn.functional.pad(x[..., :k], (0, max(0, k - x.shape[-1])))


def _check(
    lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, U: Tensor, k: int, oversampling: int
) -> None:
    n = V.shape[-1]
    shapes = [tuple(x.shape) for x in (lower, diagonal, upper)]
    if shapes != [(n,)] * 3 or V.dim() != 2 or U.dim() != 2 or U.shape[-1] != n or n < 1:
        raise ValueError(
            "port product: the ring must be three vectors (n,), V (r, n) and U (b, n) with n >= 1, "
            f"got {shapes}, {tuple(V.shape)} and {tuple(U.shape)}."
        )
    if {x.dtype for x in (lower, diagonal, upper, V, U)} not in ({torch.float32}, {torch.float64}):
        dtypes = sorted({str(x.dtype) for x in (lower, diagonal, upper, V, U)})
        raise ValueError(f"port product: tensors must share float32 or float64, got {', '.join(dtypes)}.")
    if k < 1:
        raise ValueError(f"port product: k must be at least 1, got {k}.")
    if oversampling < 2 or oversampling & (oversampling - 1):
        raise ValueError(f"port product: oversampling must be a power of two from 2, got {oversampling}.")
