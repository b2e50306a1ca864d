"""The recurrences of `scan` on a CPU, where a row of all diagonals at once is what memory and vectors like.

Numba compiles the loops of `kernels.cpu.scan` (see `compiled`): two passes over the matrix, and for gradients
three. What goes from row to row is float64, whose range holds products that float32 would lose. The functions
are those of `scan`, for tensors that `serves` says yes to. Threads share matrices, and the bands of diagonals
into which square ones are cut where they are fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kernels.cpu.arrays import as_array
from ..kernels.cpu.compiled import Loops, numbers, wide
from ..kernels.cpu.threads import in_parts
from .doubling import shifted_sum
from .scan import Gradients, Operators

NARROWEST = 128  # diagonals of a band: each row of it costs some time, however short


def serves(*tensors: Tensor) -> bool:
    """Whether the loops take these tensors."""
    dtype, dispatch = tensors[0].dtype, Tensor.__torch_dispatch__
    same = all(t.dtype is dtype and type(t).__torch_dispatch__ is dispatch for t in tensors)
    return same and FILL.serves(*tensors)


def goes_back(t: Tensor, graded: bool) -> bool:
    """Whether loops take such tensors still: for the gradients of operators too, or the adjoint alone."""
    return (GRADIENTS if graded else FILL).serves(t)


def stein_scan(of: Operators, G: Tensor, H: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The matrices sum_{t < m} A^t G^T H (C^t)^T; no gradient."""
    return _filled(of, _sources(G, H)).view(*G.shape[:-2], G.shape[-1], H.shape[-1]).to(dtype or G.dtype)


def stein_scan_adjoint(of: Operators, D: Tensor, given: torch.dtype | None = None) -> Tensor:
    """sum_{t < m} (A^t)^T D C^t: the same, from the other end."""
    turned = D.to(given or D.dtype).flip(-2, -1)
    return (
        _filled(of.reversed, turned.reshape(D.shape[:-2].numel(), *D.shape[-2:]))
        .view(D.shape)
        .flip(-2, -1)
        .to(D.dtype)
    )


def stein_scan_gradients(of: Operators, G: Tensor, H: Tensor, D: Tensor) -> Gradients:
    """Gradients of sum(D * stein_scan(of, G, H)): that in E in the dtype of D, the others in that of G."""
    from ..kernels.cpu.scan import BLOCK, VECTORS, gradients  # imports numba

    E, given = _sources(G, H), D.to(G.dtype).reshape(D.shape[:-2].numel(), *D.shape[-2:])
    R, m, n = E.shape
    bands, dE = _bands(E), torch.empty_like(E)
    dweights = E.new_zeros(R, bands, m + n, dtype=torch.float64)

    def scratch(width: int) -> list[Tensor]:
        return [dweights.new_empty(VECTORS, width), dweights.new_empty(-(-m // BLOCK), 4, width)]

    _run(gradients, of, [E, given], scratch, [dE, dweights.flatten(0, 1)], bands)
    found = dweights.sum(1).to(G.dtype).view(*G.shape[:-2], m + n)
    return Gradients(
        Operators(*found.split_with_sizes((1, m - 1, 1, n - 1), -1)), dE.view(D.shape).to(D.dtype)
    )


def _filled(of: Operators, E: Tensor) -> Tensor:
    """The matrices (R, m, n) of the sources E."""
    from ..kernels.cpu.scan import fill  # imports numba

    M = torch.empty_like(E, memory_format=torch.contiguous_format)
    _run(fill, of, [E], lambda width: [E.new_empty(2, width, dtype=torch.float64)], [M], _bands(E))
    return M


def _bands(E: Tensor) -> int:
    """Into how many bands of equal width each matrix is cut, for every thread to have one."""
    R, m, n = E.shape
    most = min(-(-torch.get_num_threads() // max(R, 1)), n // NARROWEST) if m == n else 1
    return next(count for count in range(max(most, 1), 0, -1) if n % count == 0)


def _run(
    loop: Callable[..., None],
    of: Operators,
    inputs: list[Tensor],
    scratch: Callable[[int], list[Tensor]],
    outputs: list[Tensor],
    bands: int,
) -> None:
    """The loop over operators, inputs, memory of its own and outputs; each thread takes some of the bands."""
    first, last = ([as_array(t.contiguous()) for t in tensors] for tensors in (inputs, outputs))
    R, m, n = outputs[0].shape
    given = _both(of, R, m, n)

    def some(start: int, stop: int) -> None:
        loop(given, *first, start, stop, *map(as_array, scratch(n // bands)), *last)

    in_parts(R * bands, m * n // bands, some)


def _sources(G: Tensor, H: Tensor) -> Tensor:
    """E = G^T H, (R, m, n). Autocast leaves what is written to `out` alone."""
    G, H = (V.reshape(V.shape[:-2].numel(), *V.shape[-2:]) for V in (G, H))
    return torch.bmm(G.mT, H, out=G.new_empty(len(G), G.shape[-1], H.shape[-1]))


def weights(corner: Tensor | int, lower: Tensor | None, like: Tensor, size: int) -> Tensor:
    """The corner, then the subdiagonal, ones for a shift: (..., size), in the dtype of `like`."""
    if isinstance(corner, Tensor):
        assert lower is not None
        return torch.cat((corner, lower), -1).to(like.dtype)
    return torch.cat((like.new_full((1,), corner), like.new_ones(size - 1)))


def _both(of: Operators, R: int, m: int, n: int) -> Any:
    """a and c, corners first, as one array (R, m + n) of float64."""
    if of.lower_a is not None:
        return as_array(torch.cat(of, -1).to(torch.float64).reshape(R, m + n))  # type: ignore[arg-type]
    found = np.ones((R, m + n))
    found[:, 0], found[:, m] = of.corner_a, of.corner_c
    return found


def _tiny(dtype: torch.dtype) -> tuple[list[Tensor], Any]:
    """Small operands, and the definition of what the scan makes of them."""
    a, c, G, H = (numbers(*shape, dtype=dtype) for shape in ((1, 18), (1, 21), (1, 2, 18), (1, 2, 21)))
    return [a, c, G, H], lambda a, c, G, H: shifted_sum(G.mT @ H, a, c, 18)


def _operators(a: Tensor, c: Tensor) -> Operators:
    return Operators(a[:, :1], a[:, 1:], c[:, :1], c[:, 1:])


def _check_fill(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    tensors, definition = _tiny(dtype)
    a, c, G, H = tensors
    yield stein_scan(_operators(a, c), G, H), definition(*map(wide, tensors))


def _check_gradients(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    tensors, definition = _tiny(dtype)
    D, leaves = numbers(1, 18, 21, dtype=dtype), [wide(t).requires_grad_() for t in tensors]
    right = torch.autograd.grad(definition(*leaves), leaves, wide(D))
    a, c, G, H = tensors
    of, dE = stein_scan_gradients(_operators(a, c), G, H, D)
    got = weights(*of[:2], D, 18), weights(*of[2:], D, 21), H @ dE.mT, G @ dE
    yield from zip(got, right, strict=True)


FILL = Loops("the dense matrix of LDR-SD", _check_fill)
GRADIENTS = Loops("the gradients of LDR-SD's dense matrix", _check_gradients)
