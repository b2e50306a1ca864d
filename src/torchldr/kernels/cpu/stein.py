"""The dense matrices of two subdiagonal operators, and all their gradients: `scan.h` has the loops.

    M = sum_{t < m} A^t G^T H (C^t)^T,  A m x m, C n x n with corners, m <= n

`functional.doubling.shifted_sum` makes the same with plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from .library import Kernel
from .threads import in_parts

_ROOM = Kernel("scan_room", "iiiip")
_FILL = Kernel("scan_fill", "iiiiiiippppppiipp")
_GRADIENTS = Kernel("scan_gradients", "iiiiiiippppppppiippppppp")

NARROWEST = 64  # diagonals of a band at least
_PREPARE, _AROUND, _TURN, _MAIN, _FINISH, _ALL = range(6)
_ROUND = 1  # a regime: rows follow the last one too, through A's corner

# An operator: its corner (R, 1) and its subdiagonal (R, m - 1); 1, -1 or 0 and None for a shift.
Corner = Tensor | int
Lower = Tensor | None


def fill(G: Tensor, H: Tensor, corner_a: Corner, lower_a: Lower, corner_c: Corner, lower_c: Lower) -> Tensor:
    """The matrices sum_{t < m} A^t G^T H (C^t)^T.

    Args:
        G: shape (..., r, m), contiguous like all tensors, float32 or float64.
        H: shape (..., r, n), n >= m.
        corner_a, lower_a: of A, (..., 1) and (..., m - 1); for a shift an int and None.
        corner_c, lower_c: of C, (..., 1) and (..., n - 1), in the same form as A.

    Returns:
        Shape (..., m, n).

    Rows follow from each other in the dtype of G. O(r m n) work a matrix.
    """
    (*lead, r, m), n = G.shape, H.shape[-1]
    R, M = math.prod(lead), G.new_empty(*lead, m, n)
    operators = _arguments(corner_a, lower_a, corner_c, lower_c)
    bands = _bands(R, n, (2 + r) * m * n)
    if bands == 1:
        room = torch.empty(_room(G.dtype, 1, r, m, n), dtype=torch.uint8, device="cpu")
        _FILL(G.dtype, _ALL, 0, R, 1, r, m, n, G, H, *operators, room, M)
        return M

    def call(phase: int, start: int, stop: int, bands: int, room: Tensor) -> None:
        _FILL(G.dtype, phase, start, stop, bands, r, m, n, G, H, *operators, room, M)

    _phases(call, R, bands, _room(G.dtype, max(bands, 1), r, m, n), m * n)
    return M


def gradients(
    D: Tensor,
    M: Tensor,
    G: Tensor,
    H: Tensor,
    corner_a: Corner,
    lower_a: Lower,
    corner_c: Corner,
    lower_c: Lower,
    operators: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients of sum(D * M) in all arguments of `fill`.

    Args:
        D: shape (..., m, n), contiguous.
        M: what `fill` made of the other arguments.
        operators: whether A and C get gradients; shifts never do.

    Returns:
        Those of G, H, corner_a, lower_a, corner_c, lower_c; the last four None without `operators`.
    """
    (*lead, r, m), n = G.shape, H.shape[-1]
    R = math.prod(lead)
    dG, dH = torch.empty_like(G), torch.empty_like(H)
    found: tuple[Tensor | None, ...] = (None,) * 4
    if operators and isinstance(corner_a, Tensor):
        found = tuple(torch.empty_like(t) for t in (corner_a, lower_a, corner_c, lower_c))  # type: ignore[arg-type]
    given = _arguments(corner_a, lower_a, corner_c, lower_c)
    bands = _bands(R, n, (8 + 4 * r) * m * n)
    if bands == 1:
        room = torch.empty(_room(G.dtype, 1, r, m, n), dtype=torch.uint8, device="cpu")
        _GRADIENTS(G.dtype, _ALL, 0, R, 1, r, m, n, D, M, G, H, *given, room, dG, dH, *found)
        return dG, dH, *found

    def call(phase: int, start: int, stop: int, bands: int, room: Tensor) -> None:
        _GRADIENTS(
            G.dtype, phase, start, stop, bands, r, m, n, D, M, G, H, *given, room, dG, dH, *found
        )  # fmt: skip

    _phases(call, R, bands, _room(G.dtype, max(bands, 1), r, m, n), m * n, finish=True)
    return dG, dH, *found


def _arguments(
    corner_a: Corner, lower_a: Lower, corner_c: Corner, lower_c: Lower
) -> tuple[Tensor | int | None, ...]:
    if isinstance(corner_a, Tensor) or isinstance(corner_c, Tensor):
        return corner_a, lower_a, corner_c, lower_c, 0, 0
    return None, None, None, None, corner_a, corner_c


def _bands(R: int, n: int, work: int) -> int:
    """How many bands of diagonals: 1 for a single thread, 0 where threads share whole matrices."""
    threads = torch.get_num_threads()
    if threads == 1 or R * work < 2 * _WORTHWHILE:
        return 1
    return 0 if threads <= R else max(1, min(-(-threads // R), n // NARROWEST, work // _WORTHWHILE))


def _phases(
    call: Callable[[int, int, int, int, Tensor], None],
    R: int,
    bands: int,
    room: int,
    size: int,
    finish: bool = False,
) -> None:
    """All matrices by several threads."""
    if bands == 0:

        def some(start: int, stop: int) -> None:
            call(_ALL, start, stop, 1, torch.empty(room, dtype=torch.uint8, device="cpu"))

        in_parts(R, size, some)
        return
    memory = torch.empty(R * room, dtype=torch.uint8, device="cpu")

    def phase(name: int) -> None:
        in_parts(R * bands, size, lambda start, stop: call(name, start, stop, bands, memory))

    call(_PREPARE, 0, R, bands, memory)
    if (memory.view(R, room)[:, :8].view(torch.float64) == _ROUND).any():
        phase(_AROUND)
        call(_TURN, 0, R, bands, memory)
    phase(_MAIN)
    if finish:
        call(_FINISH, 0, R, bands, memory)


_WORTHWHILE = 1 << 24  # multiplications that pay for a thread, half a millisecond


@cache
def _room(dtype: torch.dtype, bands: int, r: int, m: int, n: int) -> int:
    """Bytes that one matrix takes beside its tensors."""
    size = torch.zeros(1, dtype=torch.int64, device="cpu")
    _ROOM(dtype, bands, r, m, n, size)
    return int(size)
