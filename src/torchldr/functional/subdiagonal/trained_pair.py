"""Products with square LDR matrices that are trained on a GPU, with all gradients, as one operator.

The formula is that of `pair`. Gradients take 4r + 6 transforms more: every step is linear and T^{-1} F^{-1}
(unscaled) is adjoint to F T, so dQ = F T (P_A dy) goes back through the same steps. Those of left_i are sums
of dQ times the conjugate of F T z_i over all rows, those of right_i likewise; P_A and P_C multiply y and x
entry by entry, so theirs are sums of dy y and x dx over P. From there on, to the vectors and operators that
all this was made from, autograd goes on. Rows do not mix, so one that is not finite, or much larger, does not
harm the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ...kernels.cuda import pair as by_cuda
from ...torch_private import are_plain, has_transforms, is_captured
from ..constants import kept
from ..fft import conjugate
from ..later import Later
from ..operator import Operator
from .generators import generators, generators_of_shifts
from .guard import Side
from .pair import analyse, constants, fits_a_block, growth, order, synthesise


def serves(m: int, n: int, x: Tensor) -> bool:
    """Whether the kernels multiply these rows by m x n matrices."""
    return m == n and x.is_cuda and x.dtype in by_cuda.READ and fits_a_block(n, x.device)


def product(A: Side, C: Side, x: Tensor, limit: float) -> Tensor | None:
    """sum_i K(A, g_i) K(C, h_i)^T x, (b, n) to (b, n) in the dtype of x; differentiable in every tensor.

    None if the range of both operators, which `guard` explains, exceeds the limit. It is read when everything
    is queued.
    """
    P, made, corners = generators(A, C, -1.0, -0.5)
    low, high = P.detach().abs().aminmax(dim=-1)
    reach = Later((high / low * corners.detach().abs().clamp(min=1)).prod())
    y = _product(x, P, made)
    return y if float(reach.read()) <= limit else None  # NaN is not


def product_of_shifts(G: Tensor, H: Tensor, f: float, x: Tensor) -> Tensor:
    """sum_i K(Z_f, g_i) K(Z_{-f}, h_i)^T x, likewise."""
    return _product(x, *generators_of_shifts(G, H, f, -1.0, -0.5))


def _product(x: Tensor, P: Tensor, made: Tensor) -> Tensor:
    # An empty batch has the gradients of a zero row.
    rows = x if len(x) else torch.nn.functional.pad(x, (0, 0, 0, 1))
    y = TRAINED_PAIR(rows, P, made)[: len(x)]
    return y.clone() if y.requires_grad else y  # the gradient reads it; a layer's output may be overwritten


def takes(m: int, n: int, x: Tensor) -> bool:
    """Whether they do so here and now: compilers and torch.func take forms that they can see."""
    return not torch.compiler.is_compiling() and serves(m, n, x) and not has_transforms()


def may_look(x: Tensor) -> bool:
    """Whether operators can be looked at now. In deterministic mode torch refuses a GPU's `cumsum`."""
    if torch.are_deterministic_algorithms_enabled() or is_captured(x.device.type):
        return False
    return are_plain((x,))


@kept(64)
def _divisors(n: int, device: torch.device) -> Tensor:
    """The divisors of the generators, left and right: 1 and D, times the length of the transforms."""
    D = growth(n, torch.float64, device)
    return torch.stack((torch.ones_like(D), D)).unsqueeze(1) * (n // 2)


def _constants(P: Tensor, made: Tensor) -> by_cuda.Constants:
    n, device = P.shape[-1], P.device
    left, right = analyse(made / _divisors(n, device)).to(torch.complex64)
    P_A, P_C = P.float()
    return constants(P_C, P_A / growth(n, torch.float32, device), left, right)


def _plain(x: Tensor, P: Tensor, made: Tensor) -> Tensor:
    """Leading axes are allowed: gradients under vmap have them."""
    D = growth(P.shape[-1], P.dtype, P.device)
    P_A, P_C = P.unsqueeze(-2).unbind(-3)
    left, right = analyse(made / _divisors(P.shape[-1], P.device)).unsqueeze(-3).unbind(-4)
    scaled = x.double() * P_C
    U, S = analyse(scaled * D), analyse(scaled)
    z = synthesise(U.unsqueeze(-2) * conjugate(right)) / D
    Q = (analyse(z[..., :-1, :]) * left[..., :-1, :]).sum(-2) + S * left[..., -1, :]
    return (P_A * (synthesise(Q) + z[..., -1, :])).to(x.dtype)


def _kernel(x: Tensor, P: Tensor, made: Tensor) -> Tensor:
    x = x.contiguous().resolve_neg()
    return by_cuda.multiply(_constants(P, made), x)


def _gradient(
    dy: Tensor, arguments: Sequence[Any], saved: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    x, P, made = arguments
    x, y, dy = (t.contiguous().resolve_neg() for t in (x, *saved, dy))
    found, n = by_cuda.gradients(_constants(P, made), x, y if wanted[1] else None, dy), P.shape[-1]
    spectra = torch.empty_like(found.spectra, dtype=torch.complex128)
    spectra[..., order(n // 2, P.device)] = found.spectra.to(torch.complex128)
    dmade = synthesise(spectra) / _divisors(n, P.device)
    return [found.x, None if found.products is None else found.products / P, dmade]


def _batched(info: Any, dims: Sequence[int | None], apply: Any, arguments: Sequence[Any]) -> Any:
    """Mapped vectors join the rows; mapped operators take the plain form."""
    if all(dim is None for dim in dims[1:]):
        x = arguments[0].movedim(dims[0], 0)
        return (apply(x.flatten(0, -2), *arguments[1:])[0].unflatten(0, x.shape[:-1]),), (0,)
    return (torch.vmap(_plain, in_dims=tuple(dims))(*arguments),), (0,)


def _samples() -> Iterator[tuple[Any, ...]]:
    for n, r in ((8, 2), (12, 1)):
        made = torch.randn(2, r + 1, n, dtype=torch.float64)
        yield torch.randn(3, n), torch.rand(2, n, dtype=torch.float64) + 0.5, made


TRAINED_PAIR = Operator(
    "trained_pair",
    "Tensor x, Tensor P, Tensor made",
    plain=_plain,
    kernel=_kernel,
    fake=lambda x, P, made: torch.empty_like(x, memory_format=torch.contiguous_format),
    gradient=_gradient,
    serves=lambda x, P, made: x.ndim == 2 and serves(P.shape[-1], P.shape[-1], x),
    samples=_samples,
    batched=_batched,
)
