"""Elimination on generators, and forward substitution, in C: the loops of `functional.gko` and `triangular`.

In place, on contiguous tensors of the CPU in float64 or complex128. `functional.gko.plain` is the same in
torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .library import Kernel

_WIDE = torch.float64
_eliminate = [Kernel(f"ldr_eliminate{form}", "p" * 14 + "iiiii") for form in ("", "_c")]
_forward = [Kernel(f"ldr_eliminate_forward{form}", "pppppppiii") for form in ("", "_c")]
_backward = [Kernel(f"ldr_eliminate_backward{form}", "ppppppppiiii") for form in ("", "_c")]
_substitute = Kernel("ldr_substitute", "ppii")

Pair = tuple[Tensor, Tensor]


def eliminate(
    s: Tensor, t: Tensor, G: Tensor, H: Tensor, B: Tensor, order: Tensor, d: Tensor, ties: Pair, kept: Pair,
    places: Tensor,
) -> bool:  # fmt: skip
    """Gaussian elimination on generators; False where a pivot is zero.

    Args:
        s, t: nodes, (n,); s is permuted. G, H: generators, (r, n), overwritten. B: right-hand sides, (p, n).
        order: the row that each pivot came from, (n,). d: for the pivots, (n,).
        ties: tables (n, q) of the rows, and of the columns, that share a node with each.
        kept: where their entries of L d and U go, (n, q). places: where each row is now, (n,).
    """
    (r, n), done = G.shape, torch.zeros(1, dtype=torch.int64)
    written = s, G, H, B, d, *kept
    split = [_parts(V) for V in written]
    s_, G_, H_, B_, d_, *kept_ = split
    scratch, sizes = _scratch(G, B), (n, r, len(B), ties[0].shape[1], ties[1].shape[1])
    given = s_, _parts(t), G_, H_, B_, order, d_, *ties, *kept_, places, done, scratch
    _eliminate[G.is_complex()](_WIDE, *given, *sizes)
    _write(written, split)
    return bool(done)


def forward(s: Tensor, t: Tensor, G: Tensor, H: Tensor, d: Tensor, B: Tensor) -> None:
    """L y = b for every row of B; G (overwritten) as it was at first, H as the pivots left it."""
    (r, n), own, found = G.shape, _parts(G), _parts(B)
    _forward[G.is_complex()](
        _WIDE, _parts(s), _parts(t), own, _parts(H), _parts(d), found, _scratch(G, B), n, r, len(B)
    )
    _write((G, B), (own, found))


def backward(t: Tensor, G: Tensor, H: Tensor, d: Tensor, ties: Tensor, kept: Tensor, B: Tensor) -> None:
    """U x = y for every row of B; G and H (overwritten) as the pivots left them."""
    (r, n), own, found = G.shape, _parts(H), _parts(B)
    given = _parts(t), _parts(G), own, _parts(d), ties, _parts(kept), found, _scratch(G, B)
    _backward[G.is_complex()](_WIDE, *given, n, r, len(B), ties.shape[1])
    _write((H, B), (own, found))


def substitute(w: Tensor, B: Tensor) -> None:
    """Solve with the lower triangular Toeplitz matrix of first column w for every row of B."""
    _substitute(_WIDE, w, B, *B.shape)


def _parts(V: Tensor) -> Tensor:
    """Complex numbers as real parts and imaginary parts, (2, ..): a copy. Real ones as they are."""
    return torch.stack((V.real, V.imag)) if V.is_complex() else V


def _write(targets: tuple[Tensor, ...], parts: tuple[Tensor, ...] | list[Tensor]) -> None:
    """Put complex numbers back together."""
    for V, of in zip(targets, parts, strict=True):
        if V.is_complex():
            torch.complex(of[0], of[1], out=V)


def _scratch(G: Tensor, B: Tensor) -> Tensor:
    r, n = G.shape
    return torch.empty(2 * (n + 2 * r + len(B)), dtype=_WIDE)
