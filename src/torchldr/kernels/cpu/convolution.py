"""Products with two subdiagonal operators by the compiled FFT: tensors in, tensors out.

    y = sum_i K_k(A, g_i) K_k(C, h_i)^T x,    k = min(m, n),

for one matrix or a stack; `convolution.h` has the formulas. All tensors are contiguous, on the CPU and of one
dtype:

    G (.., r, m), H (.., r, n)     start vectors, with the axes of a stack in front
    corner_a, corner_c (.., 1)     top right entries; () will do for one matrix
    lower_a (.., m - 1), lower_c   subdiagonals; both None for shifts
    A (.., m + 2), C (.., n + 2)   profiles: products of subdiagonal entries, then f and df / dcorner
    left, right (.., r, 2N)        spectra of start vectors over profiles
    x (.., b, n), y (.., b, m)     vectors

With the roles of A and C, left and right exchanged it is the transposed product.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .library import Kernel
from .tables import half_length, scratch, tables
from .threads import in_parts, joined

_profiles = Kernel("ldr_profiles", "ppppppppiii")
_hats = Kernel("ldr_hats", "pppppiiii")
_convolve = Kernel("ldr_convolve", "ppppppppppp" + "iiiiiii")
_backward = Kernel("ldr_convolve_backward", "ppppppppppppp" + "iiiiiii")
_sides = Kernel("ldr_convolve_sides", "pppppppppp" + "iiiiiiiii")


class Saved(NamedTuple):
    """What a product leaves for its gradients."""

    x_hat: Tensor  # spectra of x, (.., b, 2N)
    z_hat: Tensor  # those of K(C, h_i)^T x, (.., b, r, 2N)
    ends: Tensor  # y, then what the corner of A brings back, (.., b, m + k)


def profiles(
    corner_a: Tensor, lower_a: Tensor | None, corner_c: Tensor, lower_c: Tensor | None, m: int, n: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Profiles of A and C in float64, the product of their ranges max|P| / min|P| max(1, |f|), and factors.

    A times f and C over f have the same product, so their common scale is taken out: factors are what A was
    multiplied by, and C divided. Ranges and factors have a number for each matrix. A range is not finite
    where the product of a subdiagonal is 0 or leaves float64.
    """
    lead, wide = corner_a.shape[:-1], torch.float64
    A, C = (corner_a.new_empty(*lead, size + 2, dtype=wide) for size in (m, n))
    ranges, factors = (corner_a.new_empty(lead, dtype=wide) for _ in range(2))
    _profiles(corner_a.dtype, lower_a, corner_a, lower_c, corner_c, A, C, ranges, factors, lead.numel(), m, n)
    return A, C, ranges, factors


def hats(V: Tensor, profile: Tensor, k: int, length: int) -> Tensor:
    """The spectra of start vectors over P, (.., r, 2N), for k columns and at most `length` rows."""
    (*lead, r, m), N, dtype = V.shape, half_length(length + k - 1), V.dtype
    found, room = V.new_empty((*lead, r, 2 * N)), scratch(4 * N, dtype)
    _hats(dtype, V, profile, found, tables(N, dtype), room, math.prod(lead), r, m, N)
    return found


def product(A: Tensor, C: Tensor, left: Tensor, right: Tensor, x: Tensor) -> Tensor:
    """y; 2r + 2 complex FFTs of length N a vector."""
    return _product(A, C, left, right, x, (None, None, None))


def forward(
    A: Tensor, C: Tensor, left: Tensor, right: Tensor, x: Tensor, saved: Saved | None = None
) -> tuple[Tensor, Saved]:
    """y, and what `backward` needs again, in memory that may be given."""
    if saved is not None:
        return _product(A, C, left, right, x, saved), saved
    (r, size), rows, m, n = left.shape[-2:], x.shape[:-1], A.shape[-1] - 2, C.shape[-1] - 2
    saved = Saved(x.new_empty(*rows, size), x.new_empty(*rows, r, size), x.new_empty(*rows, m + min(m, n)))
    return _product(A, C, left, right, x, saved), saved


def _product(
    A: Tensor, C: Tensor, left: Tensor, right: Tensor, x: Tensor, saved: tuple[Tensor | None, ...]
) -> Tensor:
    (r, size), (*rows_of_x, n), m, dtype = left.shape[-2:], x.shape, A.shape[-1] - 2, x.dtype
    N, total = size // 2, x.numel() // n
    y, turns, b = x.new_empty((*rows_of_x, m)), tables(N, dtype), total * r * size // left.numel()

    def rows(start: int, stop: int) -> None:
        room = scratch(10 * N, dtype)
        _convolve(dtype, x, y, A, C, left, right, *saved, turns, room, b, m, n, r, N, start, stop)

    in_parts(total, r * size, rows)
    return y


def backward(
    u: Tensor,
    x: Tensor,
    A: Tensor,
    C: Tensor,
    left: Tensor,
    right: Tensor,
    saved: Saved,
    G: Tensor,
    H: Tensor,
    corner_a: Tensor | None = None,
    lower_a: Tensor | None = None,
    corner_c: Tensor | None = None,
    lower_c: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """dx, dG, dH and those of corner_a, lower_a, corner_c, lower_c, which are None for shifts.

    As many FFTs as `forward`, and 2r for each matrix.
    """
    (r, size), m, n, dtype = left.shape[-2:], A.shape[-1] - 2, C.shape[-1] - 2, x.dtype
    stack, total, N = left.numel() // (r * size), x.numel() // n, size // 2
    b = total // stack
    k, dx, turns = min(m, n), torch.empty_like(x), tables(N, dtype)
    each = 2 * r * size + m + n + 2 * k
    parts: dict[int, Tensor] = {}
    ends = None if lower_a is None else saved.ends

    def rows(start: int, stop: int) -> None:
        room = scratch(10 * N, dtype)
        count = (stop - 1) // b - start // b + 1
        sums = parts[start] = x.new_zeros((count, each))
        tensors = u, x, dx, A, C, left, right, saved.x_hat, saved.z_hat, ends, sums, turns, room
        _backward(dtype, *tensors, b, m, n, r, N, start, stop)

    if total:
        in_parts(total, r * size, rows)
    sums = joined(parts, b, (stack, each), x)
    room, found = scratch(size, dtype), []
    places = (0, 2 * r * size, 2 * r * size + m + n), (r * size, 2 * r * size + m, 2 * r * size + m + n + k)
    for lower, corner, V, profile, place in (
        (lower_a, corner_a, G, A, places[0]),
        (lower_c, corner_c, H, C, places[1]),
    ):
        dV = torch.empty_like(V)
        dlower, dcorner = (None if t is None else torch.empty_like(t) for t in (lower, corner))
        if lower is None:
            dcorner = None
        _sides(
            dtype, lower, corner, V, profile, sums, dlower, dcorner, dV, turns, room,
            stack, V.shape[-1], k, r, N, each, *place,
        )  # fmt: skip
        found.append((dV, dcorner, dlower))
    (dG, da, dlower_a), (dH, dc, dlower_c) = found
    return dx, dG, dH, da, dlower_a, dc, dlower_c
