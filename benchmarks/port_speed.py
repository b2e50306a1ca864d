"""The port product against the compiled stencil: K(A, v)^T u, rank 1, batch 1, float32, one thread.

    python benchmarks/port_speed.py [--sizes 1024 4096] [--repeats 5] [--oversampling 4]

Prints processor time (the least over the repeats) of both and of the certified port product, their ratio in
this run, and the largest error of each against the stencil in float64, relative to the largest entry.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from torchldr.functional.port import port_rmatmul
from torchldr.functional.port_certificate import certified_port_rmatmul
from torchldr.functional.stencil import Stencil
from torchldr.functional.tridiagonal import TILE_COLUMNS, TILE_ENTRIES

TILE = 512  # columns at a time where growth is measured


def stencil_rmatmul(lower: Tensor, diagonal: Tensor, upper: Tensor, V: Tensor, U: Tensor, k: int) -> Tensor:
    """`port_rmatmul` by the compiled stencil, in the tiles and by the products of `tridiagonal.product`."""
    least, most = TILE_COLUMNS
    tile = max(least, min(most, TILE_ENTRIES // V.numel()))
    stencil, state, across = Stencil(lower, diagonal, upper, V, tile), V, U.mT.contiguous()
    parts = []
    for j in range(0, k, tile):
        width = min(tile, k - j)
        stencil.run(state, width)
        parts.append(torch.stack([torch.mm(K, across) for K in stencil.columns(width)]))
        state = stencil.following(width)
    return torch.cat(parts, 1).permute(2, 0, 1)


def near_shift(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Subdiagonal 1 +- .05, the others +- .1, corners 0, a start vector and an input of norm near 1.

    Divided by its mean growth in n steps: powers of the raw operator leave float32 at large n, and divided
    by the row sums they vanish, where a stencil of denormal numbers is slow.
    """
    lower, diagonal, upper = 2 * torch.rand(3, n, generator=generator) - 1
    lower, diagonal, upper = 1 + 0.05 * lower, 0.1 * diagonal, 0.1 * upper
    lower[0] = upper[-1] = 0
    V, U = torch.randn(2, 1, n, generator=generator) / n**0.5
    ring = torch.stack((lower, diagonal, upper)).double()
    stencil, state, growth = Stencil(*ring, V.double(), TILE), V.double(), 0.0
    for _ in range(-(-n // TILE)):
        stencil.run(state / state.norm(), TILE)
        state = stencil.following(TILE)
        growth += float(state.norm().log())
    lower, diagonal, upper = (ring / math.exp(growth / (TILE * -(-n // TILE)))).float()
    return lower, diagonal, upper, V, U


def processor_time(f: Callable[[], object], repeats: int) -> float:
    f()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        f()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--oversampling", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    print(
        f"{'n':>7} {'stencil ms':>11} {'port ms':>9} {'certified':>9} {'ratio':>6} {'errors':>17} {'tail':>8}"
    )
    for n in options.sizes:
        print(row(n, near_shift(n, generator), options.repeats, options.oversampling))


@torch.no_grad()
def row(n: int, operands: tuple[Tensor, ...], repeats: int, c: int) -> str:
    slow = processor_time(lambda: stencil_rmatmul(*operands, n), min(repeats, 3))
    fast = processor_time(lambda: port_rmatmul(*operands, n, oversampling=c), repeats)
    sure = processor_time(lambda: certified_port_rmatmul(*operands, n, oversampling=c), repeats)
    exact = stencil_rmatmul(*(x.double() for x in operands), n)
    port, certificate = certified_port_rmatmul(*operands, n, oversampling=c)
    errors = [(y - exact).abs().max() / exact.abs().max() for y in (stencil_rmatmul(*operands, n), port)]
    return (
        f"{n:7d} {slow * 1e3:11.1f} {fast * 1e3:9.1f} {sure * 1e3:9.1f} {slow / fast:6.2f} "
        f"{errors[0]:8.1e} {errors[1]:8.1e} {certificate.tails.max():8.1e}"
    )


if __name__ == "__main__":
    main()
