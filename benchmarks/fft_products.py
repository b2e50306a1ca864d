"""Products by our FFTs in C beside the same products by torch.fft, as ratios in one run; on a CPU.

python benchmarks/fft_products.py [--threads 1] [--sizes 256,1024,4096,16384]
python benchmarks/fft_products.py --device cuda [--sizes 4096,8192,16384,32768]

Kernels of our own stay where they are at least 1.5 times faster. For every product: microseconds by C, and
the time by torch.fft over it. Both take constants that were prepared before; `training` is a forward and a
backward with all gradients.

On a GPU, the kernels of the circulant pair alone, rank 1 and 4096 rows of bfloat16, and those of a dense
product: milliseconds of the forward and of all gradients, and dense over ours of both together.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torchldr.functional.circulant_blocks import BLOCKS, CONSTANT_BLOCKS
from torchldr.functional.subdiagonal import convolution, pair
from torchldr.kernels.cpu import circulant
from torchldr.kernels.cuda import pair as by_cuda

Call = Callable[[], Any]
ROWS, RANKS, LARGEST = (1, 16, 64, 256), (1, 4), 1 << 22


def best(calls: tuple[Call, Call], seconds: float) -> list[float]:
    """The shortest times, of calls that take turns, at least nine."""
    found, rounds, start = [float("inf")] * 2, 0, time.perf_counter()
    for call in calls:
        call()
    while rounds < 9 or time.perf_counter() - start < seconds:
        rounds += 1
        for i, call in enumerate(calls):
            before = time.perf_counter()
            call()
            found[i] = min(found[i], time.perf_counter() - before)
    return found


def subdiagonal(n: int, r: int, rows: int) -> Iterator[tuple[str, Call, Call]]:
    A, C = ((1 + torch.randn(n - 1) / n, torch.tensor(0.1), torch.randn(r, n)) for _ in range(2))
    x = torch.randn(rows, n)
    K = convolution.prepare(A, C)
    assert isinstance(K, convolution.Constants)
    for name, operator, constants in (
        ("convolutions", convolution.CONVOLVED, tuple(K)),
        ("circulant pair", pair.PAIR, tuple(t.float() for t in pair.prepare(A, C))),
    ):
        arguments = x, *constants, False
        yield name, lambda f=operator, a=arguments: f(*a), lambda f=operator, a=arguments: f.plain(*a)


def blocks(n: int, size: int, rows: int) -> Iterator[tuple[str, Call, Call]]:
    p, x, u = n // size, torch.randn(rows, n), torch.randn(rows, n)
    columns = torch.randn(p, p, size)
    spectra, hats = circulant.spectra(columns, size), torch.fft.rfft(columns).permute(2, 1, 0)

    def by_torch() -> Tensor:
        blocks = torch.fft.rfft(x.unflatten(-1, (p, size))).permute(2, 0, 1)
        return torch.fft.irfft(torch.bmm(blocks, hats).permute(1, 2, 0), size).flatten(-2)

    yield f"blocks of {size}", lambda: CONSTANT_BLOCKS(x, columns, spectra, n), by_torch
    leaves = columns.clone().requires_grad_(), x.clone().requires_grad_()

    def trained(f: Callable[..., Tensor]) -> Call:
        def run() -> Any:
            with torch.enable_grad():
                return torch.autograd.grad(f(*leaves, n), leaves, u)

        return run

    yield f"blocks of {size}, training", trained(BLOCKS), trained(BLOCKS.plain)


def events(call: Call, repeats: int = 15, together: int = 5) -> float:
    """The shortest time of a call on a GPU, in milliseconds."""
    found = float("inf")
    call()
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(together):
            call()
        end.record()
        end.synchronize()
        found = min(found, start.elapsed_time(end) / together)
    return found


def kernels(n: int, rows: int = 4096, r: int = 1) -> tuple[float, ...]:
    """The times of our forward and gradients, and of the dense ones."""
    device, dtype = torch.device("cuda"), torch.bfloat16
    x, u = torch.randn(2, rows, n, device=device).to(dtype)
    beside, aside = torch.rand(2, n, device=device) + 0.5
    left, right = torch.randn(2, r + 1, n // 2, dtype=torch.complex64, device=device) / n
    K = pair.constants(beside, aside, left, right)
    y = by_cuda.multiply(K, x)
    W = torch.randn(n, n, device=device).to(dtype)
    calls: list[Call] = [
        lambda: by_cuda.multiply(K, x),
        lambda: by_cuda.gradients(K, x, y, u),
        lambda: x @ W.mT,
        lambda: (u @ W, u.mT @ x),
    ]
    return tuple(map(events, calls))


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sizes")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each cell")
    options = parser.parse_args()
    if options.device == "cuda":
        print("| n | forward | gradients | dense forward | dense gradients | dense / ours |")
        print("|---:|---:|---:|---:|---:|---:|")
        for n in map(int, (options.sizes or "4096,8192,16384,32768").split(",")):
            ms = kernels(n)
            print(f"| {n} |", " | ".join(f"{t:.3f}" for t in ms), f"| {sum(ms[2:]) / sum(ms[:2]):.2f} |")
        return
    torch.set_num_threads(options.threads)
    print("| product | n | rank | rows | us | torch.fft |\n|---|---:|---:|---:|---:|---:|")
    for n in map(int, (options.sizes or "256,1024,4096,16384").split(",")):
        for rows in (rows for rows in ROWS if rows * n <= LARGEST):
            for r in (r for r in RANKS if r * rows * n <= LARGEST):
                for name, ours, plain in subdiagonal(n, r, rows):
                    _print(name, n, r, rows, best((ours, plain), options.seconds))
            for size in {n, min(n, 256), max(64, n // 8)}:
                if n // size <= 16:
                    for name, ours, plain in blocks(n, size, rows):
                        _print(name, n, "", rows, best((ours, plain), options.seconds))


def _print(name: str, n: int, rank: int | str, rows: int, times: list[float]) -> None:
    ours, plain = times
    print(f"| {name} | {n} | {rank} | {rows} | {ours * 1e6:.0f} | {plain / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
