"""One level of the port product in torch operations, up and down the tree.

What sources send is held as columns Z (2, 2 + r, J, N): series that the left and the right port of each of J
blocks show, for the sources e_L, e_R and the start vectors. Z[:, :2] is [[LL, LR], [RL, RR]] and Z[:, 2:] is
[vL, vR]. What sensors hear is held as rows u (2, b, J, N), the series of the sources e_L and e_R.

Of two neighbours only what meets at the cut is transformed, everything that happens elsewhere stays as it is:

    right   what comes out of block 0 on its right, from each source: RL0, RR0, vR0
    left    what comes out of block 1 on its left: LL1, LR1, vL1
    LR0, RL1        the ways from the cut to the outer ports

A join turns on what crosses the cut. With q = (what enters block 0 at its right port, what enters block 1 at
its left port), S = zs and P = zp,

    q = T g,    T = 1 / (1 - S P RR0 LL1) [[S P LL1, P], [S, S P RR0]],

where g = (what leaves block 0, what leaves block 1) would leave if the cut were closed. So with columns
G = [(RL0, 0), (0, LR1), (vR0, vL1)] B = T G is what arrives, from each source, in block 0 and in block 1.

    up      Z'[0] = own + LR0 B[0],  Z'[1] = own + RL1 B[1],  u' = own + uR0 B[0] + uL1 B[1]
    heard   the sum over cuts of uR0 B[0] + uL1 B[1] for the start vectors
    down    the transpose of the lines above, for cotangents: spectra are conjugated
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.fft import irfft, rfft


class Cuts(NamedTuple):
    """Spectra of what meets at the cuts of a level, (.., cuts, roots)."""

    right: Tensor  # (2 + r, .)
    left: Tensor  # (2 + r, .)
    LR0: Tensor
    RL1: Tensor
    S: Tensor  # z times the coupling of the last index of block 0 into the first of block 1
    P: Tensor  # and back


def cuts(Z: Tensor, s: Tensor, p: Tensor, z: Tensor) -> Cuts:
    """Transform what meets at the cuts to 2N roots; couplings (cuts,), roots z."""
    N = 2 * Z.shape[-1]
    right, left = rfft(Z[1, :, 0::2], n=N), rfft(Z[0, :, 1::2], n=N)
    LR0, RL1 = rfft(Z[0, 1, 0::2], n=N), rfft(Z[1, 0, 1::2], n=N)
    return Cuts(right, left, LR0, RL1, s.unsqueeze(-1) * z, p.unsqueeze(-1) * z)


def arriving(cut: Cuts) -> Tensor:
    """B = T G, (2, 2 + r, cuts, roots)."""
    S, P, RR0, LL1 = cut.S, cut.P, cut.right[1], cut.left[0]
    back, forth = S * LL1, P * RR0
    D = 1 / (1 - back * forth)
    # G: what leaves the two blocks if nothing crosses. Block 0 does not hear the source on the right.
    G0, G1 = _without(cut.right, 1), _without(cut.left, 0)
    return torch.stack((P * D * (back * G0 + G1), S * D * (G0 + forth * G1)))


def columns_up(Z: Tensor, cut: Cuts, B: Tensor) -> Tensor:
    """The columns of the joined blocks, (2, 2 + r, J / 2, 2N)."""
    N = Z.shape[-1]
    joined = irfft(torch.stack((cut.LR0 * B[0], cut.RL1 * B[1])), n=2 * N)
    joined[0, :, :, :N] += _without(Z[0, :, 0::2], 1)
    joined[1, :, :, :N] += _without(Z[1, :, 1::2], 0)
    return joined


def _without(x: Tensor, source: int) -> Tensor:
    kept = x.clone()
    kept[source] = 0
    return kept


def rows_at_cut(u: Tensor) -> Tensor:
    """uR0 and uL1 at 2N roots, (2, b, J / 2, roots)."""
    return rfft(torch.stack((u[1, :, 0::2], u[0, :, 1::2])), n=2 * u.shape[-1])


def rows_up(u: Tensor, at_cut: Tensor, B: Tensor) -> Tensor:
    """The rows of the joined blocks, (2, b, J / 2, 2N)."""
    N = u.shape[-1]
    R, L = at_cut
    joined = irfft(torch.stack([torch.addcmul(R * B[0, i], L, B[1, i]) for i in (0, 1)]), n=2 * N)
    joined[0, :, :, :N] += u[0, :, 0::2]
    joined[1, :, :, :N] += u[1, :, 1::2]
    return joined


def heard(at_cut: Tensor, B: Tensor) -> Tensor:
    """Products (b, .) times (r, .), summed over cuts, (b, r, roots); b cuts are held at a time."""
    R, L = at_cut
    parts = [torch.addcmul(R * y, L, x).sum(-2) for y, x in zip(B[0, 2:], B[1, 2:], strict=True)]
    return torch.stack(parts, 1)


def rows_down(du: Tensor, dw: Tensor, B: Tensor) -> Tensor:
    """Cotangents of rows (2, b, J, N) from those of the joined ones, (2, b, J / 2, 2N), and of what is heard.

    dw: the spectra of the first 2N coefficients of the cotangents of the result, (b, r, 1, roots).
    """
    N = du.shape[-1] // 2
    hats = rfft(du)
    parts = []
    for conjugate in B.conj():
        part = torch.addcmul(hats[0] * conjugate[0], hats[1], conjugate[1])
        for w, x in zip(dw.unbind(1), conjugate[2:], strict=True):
            part = torch.addcmul(part, w, x)
        parts.append(part)
    inner = irfft(torch.stack(parts), n=2 * N)[..., :N]
    left = torch.stack((du[0, ..., :N], inner[1]), -2)
    right = torch.stack((inner[0], du[1, ..., :N]), -2)
    return torch.stack((left, right)).flatten(2, 3)
