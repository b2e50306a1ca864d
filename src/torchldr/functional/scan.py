"""The dense matrices of LDR-SD layers, and all their gradients, by recurrences along diagonals.

    matrix        M = sum_{t < m} A^t E (C^t)^T,  A m x m, C n x n, m <= n, both subdiagonal with corners
    sources       E = G^T H
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
the shift. `column_scan` has it.

Work O(m n) beside the sources, which a GPU does in a few passes over its memory: diagonals are cut into
segments, whose sums are computed at once, then chained (`kernels.cuda.scan`). What is here takes tensors that
`serves` says yes to. The tests run the kernels as C++ and hold them to the definition.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..kernels.cuda import unavailable
from ..kernels.cuda.numbers import NAMES
from ..kernels.cuda.scan import MOST, Form, parts, passes, run


class Operators(NamedTuple):
    """A and C of one matrix or of stacked ones: corners (..., 1), subdiagonals (..., m - 1) and (..., n - 1).

    Shifts have the numbers 1 or -1 for corners, and None.
    """

    corner_a: Tensor | int
    lower_a: Tensor | None
    corner_c: Tensor | int
    lower_c: Tensor | None

    @property
    def reversed(self) -> Operators:
        """A^T and C^T, read from the other end."""
        flipped: list[Any] = [t.flip(-1) if isinstance(t, Tensor) else t for t in self]
        return Operators(*flipped)


class Gradients(NamedTuple):
    """Of `stein_scan`: in the operators and in E."""

    of: Operators
    e: Tensor  # (..., m, n)


_kind = attrgetter("dtype", "device")


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors."""
    first, *others = tensors
    if not first.is_cuda or first.dtype not in NAMES or unavailable():
        return False
    kind = _kind(first)
    return all(map(kind.__eq__, map(_kind, others)))


def stein_scan(of: Operators, G: Tensor, H: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The matrices sum_{t < m} A^t G^T H (C^t)^T of stacked layers.

    Args:
        of: A and C.
        G: shape (..., r, m).
        H: shape (..., r, n), n >= m.
        dtype: of the result, by default that of G. The computation is in float32 or wider.

    Returns:
        Shape (..., m, n). No gradient: `stein_scan_gradients` are its own.

    The same, slowly: the sum over t.
    """
    m, n = G.shape[-1], H.shape[-1]
    form = Form(m == n, of.lower_a is None, product=True, given=G.dtype, dense=dtype or G.dtype)
    return _filled(form, G.shape[:-2], m, n, _arguments(of, G, H), H.device)


def stein_scan_adjoint(of: Operators, D: Tensor, given: torch.dtype | None = None) -> Tensor:
    """sum_{t < m} (A^t)^T D C^t, the adjoint of `stein_scan` in E: the same, from the other end.

    `given` is the dtype of the operators, where that of D has fewer digits.
    """
    m, n = D.shape[-2:]
    form = Form(m == n, of.lower_a is None, back=True, given=given or D.dtype, dense=D.dtype)
    return _filled(form, D.shape[:-2], m, n, _arguments(of.reversed, e=D), D.device)


def stein_scan_gradients(of: Operators, G: Tensor, H: Tensor, D: Tensor) -> Gradients:
    """Gradients of sum(D * stein_scan(of, G, H)): that in E in the dtype of D, the others in that of G."""
    leading, m, n = G.shape[:-2], G.shape[-1], H.shape[-1]
    form = Form(m == n, of.lower_a is None, product=True, graded=True, given=G.dtype, dense=D.dtype)
    D = D.contiguous().resolve_neg()
    weights, dE = G.new_empty(*leading, m + n), torch.empty_like(D)
    _queue(form, leading.numel(), m, n, [*_arguments(of, G, H), D, dE, weights], D.device)
    return Gradients(Operators(*weights.split_with_sizes((1, m - 1, 1, n - 1), -1)), dE)


def column_scan(nodes: Tensor, e: Tensor) -> Tensor:
    """X_ij = nodes_j X_{i-1, j} + e_ij, shapes (R, n) and (R, m, n); no gradient."""
    return _columns(nodes, e, back=False)


def column_scan_adjoint(nodes: Tensor, D: Tensor) -> Tensor:
    """The adjoint of `column_scan` in e: the same, from the last row to the first."""
    return _columns(nodes, D, back=True)


def diagonal_sums(D: Tensor) -> Tensor:
    """sum_i D[i, (s + i) mod n] by the kernels: (..., m, n), m <= n, to (..., n) in float32 or wider."""
    leading, (m, n) = D.shape[:-2], D.shape[-2:]
    form = Form(m == n, shifts=True, given=torch.promote_types(D.dtype, torch.float32), dense=D.dtype)
    found = []
    for R, given in _in_parts(leading.numel(), _arguments(Operators(1, None, 1, None), e=D)):
        of = passes(form, R, m, n, sums_alone=True)
        found.append(run(of, D.device, [*given, 0, 0, 0]).view(2, R, of.segments, n)[1].sum(1))
    return (found[0] if len(found) == 1 else torch.cat(found)).reshape(*leading, n)


def _columns(nodes: Tensor, e: Tensor, back: bool) -> Tensor:
    form = Form(straight=True, back=back, given=nodes.dtype, dense=e.dtype)
    given = _arguments(Operators(0, None, 0, nodes.flip(1) if back else nodes), e=e)
    return _filled(form, e.shape[:1], e.shape[1], e.shape[2], given, e.device)


def _arguments(
    of: Operators, G: Tensor | None = None, H: Tensor | None = None, e: Tensor | None = None
) -> list[Any]:
    """The first arguments of all kernels: pointers (0 for none) and numbers."""
    ka, a, kc, c = of
    corners = (ka, kc) if a is None else (0, 0)  # numbers if they are not tensors
    tensors: tuple[Any, ...] = (None, a, None, c, G, H, e) if a is None else (ka, a, kc, c, G, H, e)
    pointers = [0 if t is None else t.contiguous().resolve_neg() for t in tensors]
    return [*pointers[:4], *corners, *pointers[4:], 0 if G is None else G.shape[-2]]


def _in_parts(matrices: int, arguments: list[Any]) -> list[tuple[int, list[Any]]]:
    """The arguments of each launch, and its number of matrices."""
    if 0 < matrices <= MOST:
        return [(matrices, arguments)]
    return [
        (
            min(cut.stop, matrices) - cut.start,
            [t.reshape(matrices, -1)[cut] if isinstance(t, Tensor) else t for t in arguments],
        )
        for cut in parts(matrices)
    ]


def _queue(form: Form, matrices: int, m: int, n: int, arguments: list[Any], device: torch.device) -> None:
    """Run the kernels of this form."""
    for R, some in _in_parts(matrices, arguments):
        run(passes(form, R, m, n), device, some)


def _filled(
    form: Form, leading: torch.Size, m: int, n: int, arguments: list[Any], device: torch.device
) -> Tensor:
    whole = torch.empty(*leading, m, n, dtype=form.dense, device=device)
    _queue(form, leading.numel(), m, n, [*arguments, 0, whole, 0], device)
    return whole
