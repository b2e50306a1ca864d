"""LDR-SD and the stencil of LDR-TD on a GPU, against a dense layer with TF32 and in bfloat16.

    python benchmarks/gpu_speed.py [--out results/bench/gpu_speed.json] [--quick]

Each side is captured in a CUDA graph and replayed; before every replay 256 MB are written, so that
nothing is left in the L2 cache; times are minima over 30 replays by CUDA events. Ratio is dense / ours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from torchldr import StructuredLinear
from torchldr.functional import scan
from torchldr.kernels import cuda
from torchldr.timing import machine, replay_seconds


def graph_ms(call: Callable[[], object]) -> float:
    return 1e3 * replay_seconds(call)


def empty_ms() -> float:
    """What an almost empty graph takes: the floor of this clock."""
    x = torch.zeros(1, device="cuda")
    return graph_ms(lambda: x.add_(1))


@torch.no_grad()
def inference(n: int, batch: int, ranks: list[int]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    x = torch.randn(batch, n, device="cuda")
    W = torch.randn(n, n, device="cuda") * n**-0.5
    torch.backends.cuda.matmul.allow_tf32 = True
    tf32 = graph_ms(partial(torch.nn.functional.linear, x, W))
    torch.backends.cuda.matmul.allow_tf32 = False
    narrow = W.bfloat16()
    del W
    bf16 = graph_ms(partial(torch.nn.functional.linear, x.bfloat16(), narrow))
    del narrow
    for structure in ("ldr_sd", "toeplitz_like"):
        for rank in ranks:
            layer = StructuredLinear(n, n, bias=False, structure=structure, rank=rank, device="cuda").eval()
            layer.plan = "fast"
            layer(x)
            ours = graph_ms(partial(layer, x))
            row = {"what": "inference", "structure": structure, "n": n, "batch": batch, "rank": rank}
            times = {"tf32_ms": tf32, "bf16_ms": bf16, "ours_ms": ours}
            rows.append({**row, **times, "ratio_tf32": tf32 / ours, "ratio_bf16": bf16 / ours})
    return rows


def training(n: int, batch: int, rank: int, structure: str, **options: str) -> dict[str, object]:
    """Forward and backward, with gradients of the input and of all parameters."""
    x, target = torch.randn(batch, n, device="cuda", requires_grad=True), torch.randn(batch, n, device="cuda")

    def step(layer: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> None:
        torch.autograd.grad(layer(x), [x, *layer.parameters()], target)

    dense = torch.nn.Linear(n, n, bias=False, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    tf32 = graph_ms(partial(step, dense, x, target))
    torch.backends.cuda.matmul.allow_tf32 = False
    narrow = x.detach().bfloat16().requires_grad_()
    bf16 = graph_ms(partial(step, dense.bfloat16(), narrow, target.bfloat16()))
    del dense
    ours = StructuredLinear(n, n, bias=False, structure=structure, rank=rank, device="cuda", **options)
    own = graph_ms(partial(step, ours, x, target))
    row = {"what": "training", "structure": structure, "product": options.get("product", ""), "n": n}
    times = {"batch": batch, "rank": rank, "tf32_ms": tf32, "bf16_ms": bf16, "ours_ms": own}
    return {**row, **times, "ratio_tf32": tf32 / own, "ratio_bf16": bf16 / own}


@torch.no_grad()
def stencil(n: int, vectors: int) -> dict[str, object]:
    ring = [torch.rand(1, n, device="cuda") / 3 for _ in range(3)]
    V = torch.randn(1, vectors, n, device="cuda")
    K = cuda.krylov_columns(*ring, V, n)
    dK = torch.randn_like(K)
    forward = graph_ms(lambda: cuda.krylov_columns(*ring, V, n))
    backward = graph_ms(lambda: cuda.krylov_adjoint(*ring, K, dK))
    return {"what": "stencil", "n": n, "vectors": vectors, "forward_ms": forward, "backward_ms": backward}


@torch.no_grad()
def diagonals(matrices: int, m: int, n: int) -> dict[str, object]:
    """Dense matrices of LDR-SD and all their gradients by scans, beside copies of as many numbers."""
    tensors = [1 + 0.01 * torch.randn(matrices, size, device="cuda") for size in (m, n)]
    of = scan.Operators(*(part for t in tensors for part in (t[:, :1], t[:, 1:].contiguous())))
    G, H = (torch.randn(matrices, 1, size, device="cuda") for size in (m, n))
    D = torch.randn(matrices, m, n, device="cuda")
    copy = torch.empty_like(D)
    times = {
        "copy_ms": graph_ms(lambda: copy.copy_(D)),
        "forward_ms": graph_ms(lambda: scan.stein_scan(of, G, H)),
        "backward_ms": graph_ms(lambda: scan.stein_scan_gradients(of, G, H, D)),
    }
    ratios = {f"{name}_copies": times[f"{name}_ms"] / times["copy_ms"] for name in ("forward", "backward")}
    return {"what": "diagonals", "matrices": matrices, "shape": f"{m} x {n}", **times, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows: list[dict[str, object]] = [{"what": "empty graph", "ms": empty_ms()}]
    for n, vectors in ((1024, 1), (784, 12), (1024, 16), (4096, 1)):
        rows.append(stencil(n, vectors))
    for n in (16384, 32768) if arguments.quick else (1024, 2048, 4096, 8192, 16384, 32768):
        for batch in (1, 64):
            rows += inference(n, batch, [1, 8])
    for n, rank in ((4096, 1), (16384, 1), (16384, 8), (32768, 1), (32768, 8)):
        rows.append(training(n, 64, rank, "ldr_sd", product="convolution"))
        rows.append(training(n, 64, rank, "toeplitz_like"))
    # "auto" takes what is right for every operator without a look at it: the dense matrix by scans.
    for n, rank, product in (
        (1024, 1, "auto"),
        (1024, 8, "auto"),
        (2048, 1, "auto"),
        (4096, 1, "auto"),
        (8192, 1, "auto"),
        (8192, 8, "auto"),
        (4096, 1, "split"),
    ):
        rows.append(training(n, 64, rank, "ldr_sd", product=product))
    for matrices, m, n in (
        (12, 784, 784),
        (12, 1024, 1024),
        (12, 512, 3072),
        (1, 4096, 4096),
        (1, 8192, 8192),
    ):
        rows.append(diagonals(matrices, m, n))
    rows.append(training(1024, 64, 1, "ldr_td"))
    for row in rows:
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
