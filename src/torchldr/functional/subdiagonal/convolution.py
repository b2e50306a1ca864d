"""Products with prepared LDR matrices of any shape by two convolutions, as one operator; on a CPU by C.

    (K(A, v) w)_i = P_i (t_i + f t_{m+i}),  t = (v / P) * w,  f = c P_{m-1}

for both operators, modulo X^{2N} + 1 with 2N >= m + k - 1 of either: 2r + 2 complex FFTs of length N a row,
everything between them while it is in cache. See the package for the notation and `guard` for when this is
right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...kernels.cpu import convolution as by_c
from ...kernels.cpu import library
from ..fft import conjugate
from ..operator import Operator
from ..ring import Ring
from .guard import Side, precision
from .pair import joined


class Constants(NamedTuple):
    """All of a product that does not depend on the rows, in the dtype that it computes in."""

    A: Tensor  # profiles: P, f and df / dcorner, (.., m + 2)
    C: Tensor  # (.., n + 2)
    left: Tensor  # spectra of g_i / P, (.., r, 2N), real parts first
    right: Tensor  # those of h_i / P


def prepare(A: Side, C: Side, dtype: torch.dtype | None = None) -> Constants | str:
    """The constants of a product, or the reason why it would lose too many digits, see `guard`.

    Args:
        A, C: one matrix, or a stack: subdiagonal (.., m - 1), corner (..) and start vectors (.., r, m).
        dtype: to compute in, whatever the operators' range; by default the guard decides.
    """
    (a, corner_A, G), (c, corner_C, H) = ([t.contiguous() for t in side] for side in (A, C))
    m, n = G.shape[-1], H.shape[-1]
    *profiles, range_, _ = by_c.profiles(corner_A.unsqueeze(-1), a, corner_C.unsqueeze(-1), c, m, n)
    found = dtype or precision(range_.max().item(), G.dtype)
    if isinstance(found, str):
        return found
    P, Q, G, H = (t.to(found) for t in (*profiles, G, H))
    sizes = min(m, n), max(m, n)
    return Constants(P, Q, by_c.hats(G, P, *sizes), by_c.hats(H, Q, *sizes))


def product(x: Tensor, A: Tensor, C: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The product with prepared constants, in the dtype of all: (b, n) to (b, m). Differentiable."""
    return CONVOLVED(x, A, C, left, right, False)


def _plain(x: Tensor, A: Tensor, C: Tensor, left: Tensor, right: Tensor, transposed: bool) -> Tensor:
    if transposed:
        A, C, left, right = C, A, right, left
    m, n, length = A.shape[-1] - 2, C.shape[-1] - 2, left.shape[-1]
    k, of = min(m, n), Ring(length, length, -1.0, "half", length)
    A, C = A.unsqueeze(-2), C.unsqueeze(-2)  # of all rows
    left, right = left.unsqueeze(-3), right.unsqueeze(-3)
    u = x * C[..., :n]
    u = torch.cat((u, C[..., n, None] * u[..., : k - 1]), -1)
    z = of.synthesise(of.analyse(u).unsqueeze(-2) * conjugate(joined(right)))[..., :k]
    t = of.synthesise((of.analyse(z) * joined(left)).sum(-2))
    return A[..., :m] * (t[..., :m] + pad(A[..., m, None] * t[..., m : m + k - 1], (0, m - k + 1)))


def _kernel(x: Tensor, A: Tensor, C: Tensor, left: Tensor, right: Tensor, transposed: bool) -> Tensor:
    if transposed:
        A, C, left, right = C, A, right, left
    return by_c.product(A, C, left, right, x.contiguous())


def _fake(x: Tensor, A: Tensor, C: Tensor, left: Tensor, right: Tensor, transposed: bool) -> Tensor:
    return x.new_empty(*x.shape[:-1], (C if transposed else A).shape[-1] - 2)


def _serves(x: Tensor, *rest: Any) -> bool:
    return x.ndim == 2 and library.serves(x, *rest[:-1])


def _gradient(
    u: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    x, *constants, transposed = arguments
    if any(wanted[1:]):  # constants as a rule
        return list(torch.func.vjp(partial(_plain, transposed=transposed), x, *constants)[1](u))
    return [_kernel(*[u, *constants, not transposed]), None, None, None, None]


def _batched(info: Any, dims: Sequence[int | None], apply: Any, arguments: Sequence[Any]) -> Any:
    """Mapped vectors join the rows."""
    *tensors, transposed = arguments
    if all(dim is None for dim in dims[1:]):
        x = tensors[0].movedim(dims[0], 0)
        return (apply(x.flatten(0, -2), *arguments[1:])[0].unflatten(0, x.shape[:-1]),), (0,)
    y = torch.vmap(partial(_plain, transposed=transposed), in_dims=tuple(dims[:-1]))(*tensors)
    return (y,), (0,)


def _samples() -> Iterator[tuple[Any, ...]]:
    for r, m, n in ((1, 20, 20), (2, 9, 30)):
        size = 32
        yield (
            torch.randn(3, n), torch.rand(m + 2) + 0.5, torch.rand(n + 2) + 0.5,
            torch.randn(r, 2 * size), torch.randn(r, 2 * size), False,
        )  # fmt: skip


CONVOLVED = Operator(
    "convolved",
    "Tensor x, Tensor A, Tensor C, Tensor left, Tensor right, bool transposed",
    plain=_plain,
    kernel=_kernel,
    fake=_fake,
    gradient=_gradient,
    serves=_serves,
    samples=_samples,
    batched=_batched,
)
