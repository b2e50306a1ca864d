"""Products with two subdiagonal operators by the compiled FFT: tensors in, tensors out.

    y = sum_i K_k(A, g_i) K_k(C, h_i)^T x,    k = min(m, n),

for stacks of R matrices; `convolution.h` has the formulas. All tensors are contiguous, on the CPU and of one dtype:

    G (R, r, m), H (R, r, n)      start vectors
    corner_a, corner_c (R, 1)     top right entries
    lower_a (R, m - 1), lower_c   subdiagonals; both None for shifts
    A (R, m + 2), C (R, n + 2)    profiles: products of subdiagonal entries, then f and df / dcorner
    left, right (R, r, 2N)        spectra of start vectors over profiles
    x (R, b, n), y (R, b, m)      vectors

C x is the same product with the roles of A and C, left and right exchanged: it transposes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .library import Kernel
from .tables import half_length, tables
from .threads import in_parts, joined

_profiles = Kernel("ldr_profiles", "pppppppiii")
_hats = Kernel("ldr_hats", "pppppiiii")
_convolve = Kernel("ldr_convolve", "ppppppppppp" + "iiiiiii")
_backward = Kernel("ldr_convolve_backward", "ppppppppppppp" + "iiiiiii")
_sides = Kernel("ldr_convolve_sides", "pppppppppp" + "iiiiiiiii")


class Saved(NamedTuple):
    """What a product leaves for its gradients."""

    x_hat: Tensor  # spectra of x, (R, b, 2N)
    z_hat: Tensor  # those of K(C, h_i)^T x, (R, b, r, 2N)
    ends: Tensor  # y, then what the corner of A brings back, (R, b, m + k)


def profiles(
    corner_a: Tensor, lower_a: Tensor | None, corner_c: Tensor, lower_c: Tensor | None, m: int, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Profiles of A and of C in float64, and the product of their ranges, max|P| / min|P| max(1, |f|), (R,).

    A times f and C over f have the same product, so their common scale is taken out. A range is not finite where
    the product of a subdiagonal is 0 or leaves float64.
    """
    stack, options = len(corner_a), {"dtype": torch.float64, "device": "cpu"}
    A, C = torch.empty(stack, m + 2, **options), torch.empty(stack, n + 2, **options)
    ranges = torch.empty(stack, **options)
    _profiles(corner_a.dtype, lower_a, corner_a, lower_c, corner_c, A, C, ranges, stack, m, n)
    return A, C, ranges


def hats(V: Tensor, profile: Tensor, k: int, length: int) -> Tensor:
    """The spectra of start vectors over their profile, (R, r, 2N), for products m, n = `length`, k at most."""
    (stack, r, m), N = V.shape, half_length(length + k - 1)
    found, scratch = V.new_empty(stack, r, 2 * N), V.new_empty(4 * N)
    _hats(V.dtype, V, profile, found, tables(N, V.dtype), scratch, stack, r, m, N)
    return found


def product(A: Tensor, C: Tensor, left: Tensor, right: Tensor, x: Tensor) -> Tensor:
    """y; 2r + 2 complex FFTs of length N a vector."""
    return _product(A, C, left, right, x, (None, None, None))


def forward(A: Tensor, C: Tensor, left: Tensor, right: Tensor, x: Tensor) -> tuple[Tensor, Saved]:
    """y, and what `backward` needs again."""
    (stack, r, size), b = left.shape, x.shape[1]
    m, n = A.shape[1] - 2, C.shape[1] - 2
    saved = Saved(
        x.new_empty(stack, b, size), x.new_empty(stack, b, r, size), x.new_empty(stack, b, m + min(m, n))
    )
    return _product(A, C, left, right, x, saved), saved


def _product(
    A: Tensor, C: Tensor, left: Tensor, right: Tensor, x: Tensor, saved: tuple[Tensor | None, ...]
) -> Tensor:
    (stack, r, size), b, dtype = left.shape, x.shape[1], x.dtype
    m, n, N = A.shape[1] - 2, C.shape[1] - 2, size // 2
    y, turns = x.new_empty(stack, b, m), tables(N, dtype)

    def rows(start: int, stop: int) -> None:
        scratch = torch.empty(10 * N, dtype=dtype, device="cpu")
        _convolve(dtype, x, y, A, C, left, right, *saved, turns, scratch, b, m, n, r, N, start, stop)

    in_parts(stack * b, r * size, rows)
    return y


def transposed(u: Tensor, A: Tensor, C: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """dx alone: for constants."""
    return product(C, A, right, left, u)


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
    (stack, r, size), b, dtype = left.shape, x.shape[1], x.dtype
    m, n, N = A.shape[1] - 2, C.shape[1] - 2, size // 2
    k, dx, turns = min(m, n), torch.empty_like(x), tables(N, dtype)
    each = 2 * r * size + m + n + 2 * k
    parts: dict[int, Tensor] = {}
    ends = None if lower_a is None else saved.ends

    def rows(start: int, stop: int) -> None:
        scratch = torch.empty(10 * N, dtype=dtype, device="cpu")
        count = (stop - 1) // b - start // b + 1
        sums = parts[start] = torch.zeros(count, each, dtype=dtype, device="cpu")
        tensors = u, x, dx, A, C, left, right, saved.x_hat, saved.z_hat, ends, sums, turns, scratch
        _backward(dtype, *tensors, b, m, n, r, N, start, stop)

    if b:
        in_parts(stack * b, r * size, rows)
    sums = joined(parts, b, (stack, each), x)
    scratch, found = x.new_empty(size), []
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
            dtype, lower, corner, V, profile, sums, dlower, dcorner, dV, turns, scratch,
            stack, V.shape[2], k, r, N, each, *place,
        )  # fmt: skip
        found.append((dV, dcorner, dlower))
    (dG, da, dlower_a), (dH, dc, dlower_c) = found
    return dx, dG, dH, da, dlower_a, dc, dlower_c
