"""Us beside others, in one run: the same job by torchldr and by a package, or a formula, that does it too.

    pip install scipy linear_operator peft torch-structured    # what is missing is skipped, with a word
    python benchmarks/peers.py [--device cpu] [--sizes 512 1024] [--only solve]
                               [--out results/bench/peers_cpu.json]

Each side is called as its user calls it, eager, in float32 (solving: float64). Inference is by the frozen
layer and under `no_grad`, training forward and backward with gradients of the input and of all parameters.
Times are minima over rounds in which the sides take turns; ratio is theirs / ours. Where both sides have the
same numbers, the results are compared as well.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gain import seconds
from torch import Tensor, nn

import torchldr
from torchldr import StructuredLinear
from torchldr.timing import machine

SIZES = 512, 1024, 2048, 4096, 8192
BATCHES = 1, 64
LONGEST = 4.0  # seconds of a call; what takes longer at one size is not run at larger ones
TENTHS = 3  # of a second for a row


class Job(NamedTuple):
    """One row: what is done, by whom, and the two ways; `same` where results must agree."""

    what: str
    peer: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    same: bool = False


def peer(name: str) -> Any:
    """A module of another package, or None with a word on stderr."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name.startswith(
                "torch_structured."
            ):  # the package itself asks for triton, which a CPU has not
                _without_init("torch_structured")
            return importlib.import_module(name)
    except ImportError as error:
        print(f"skipped {name}: no {error.name}", file=sys.stderr)
        return None


def _without_init(name: str) -> None:
    """Let the modules of a package be imported without the package's own code."""
    if name in sys.modules:
        return
    found = importlib.util.find_spec(name)
    if found is None:
        raise ImportError(name=name)
    package = types.ModuleType(name)
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules[name] = package


def step(layer: Callable[[Tensor], Tensor], x: Tensor, parameters: list[Tensor] | None) -> Callable[[], Any]:
    """Inference, or with parameters a step of training."""
    if parameters is None:
        return torch.no_grad()(lambda: layer(x))
    x = x.clone().requires_grad_()
    inputs, direction = [x, *parameters], torch.randn_like(x)
    return lambda: torch.autograd.grad(layer(x), inputs, direction, allow_unused=True)


def both(what: str, name: str, ours: nn.Module, theirs: Any, weights: list[Tensor], x: Tensor, *, same: bool
         ) -> Iterator[Job]:  # fmt: skip
    """Inference and training of our layer beside a function of x and of other weights."""
    yield Job(
        f"{what}, inference", name, step(torchldr.freeze(ours, x), x, None), step(theirs, x, None), same
    )
    yield Job(f"{what}, training", name, step(ours, x, [*ours.parameters()]), step(theirs, x, weights))


def circulants(n: int, x: Tensor) -> Iterator[Job]:
    layer = StructuredLinear(n, n, bias=False, structure="circulant", device=x.device)
    column = layer.column
    fft = torch.fft
    formula = lambda x: fft.irfft(fft.rfft(x) * fft.rfft(column), n=n)
    yield from both("circulant", "torch.fft", layer, formula, [column], x, same=True)
    spectrum = fft.rfft(column.detach())
    kept = lambda x: fft.irfft(fft.rfft(x) * spectrum, n=n)  # of a column that never changes
    infer = step(torchldr.freeze(layer, x), x, None), step(kept, x, None)
    yield Job("circulant, inference", "torch.fft, spectrum kept", *infer, same=True)
    size = n // 4
    blocks = StructuredLinear(n, n, bias=False, structure="block_circulant", block_size=size, device=x.device)
    columns = blocks.column

    def grid(x: Tensor) -> Tensor:
        parts = fft.rfft(x.reshape(*x.shape[:-1], -1, size))
        return fft.irfft(torch.einsum("...nb,mnb->...mb", parts, fft.rfft(columns)), n=size).flatten(-2)

    yield from both("block-circulant", "C3A, right gradient", blocks, grid, [columns], x, same=True)
    c3a = peer("peft.tuners.c3a.utils")
    if c3a is not None:
        theirs = lambda x: c3a.BlockCircularConvolution.apply(x, columns)
        yield from both("block-circulant", "C3A of peft", blocks, theirs, [columns], x, same=False)


def toeplitz(n: int, x: Tensor) -> Iterator[Job]:
    column, row = torch.randn(2, n, device=x.device)
    row[0] = column[0]
    M = torchldr.Toeplitz(column, row)
    scipy = peer("scipy.linalg") if x.device.type == "cpu" else None
    if scipy is not None:
        c, r, X = column.numpy(), row.numpy(), x.mT.contiguous().numpy()
        theirs = lambda: scipy.matmul_toeplitz((c, r), X).T
        yield Job("Toeplitz product", "SciPy", lambda: M.matmul(x), theirs, same=True)
    operators = peer("linear_operator.operators")
    symmetric = torchldr.Toeplitz(column, column)
    if operators is not None:
        operator, columns = operators.ToeplitzLinearOperator(column), x.mT.contiguous()
        yield Job(
            "symmetric Toeplitz product", "linear_operator",
            torch.no_grad()(lambda: symmetric.matmul(x)),
            torch.no_grad()(lambda: (operator @ columns).mT),
            same=True,
        )  # fmt: skip
    causal = torchldr.Toeplitz(column, torch.cat((column[:1], column.new_zeros(n - 1))))
    fft = torch.fft
    long = lambda: fft.irfft(fft.rfft(x, n=2 * n) * fft.rfft(column, n=2 * n), n=2 * n)[..., :n]
    yield Job("causal convolution", "torch.fft", lambda: causal.matmul(x), long, same=True)


def solving(n: int, x: Tensor) -> Iterator[Job]:
    if len(x) > 1:
        return
    column, row = torch.randn(2, n, dtype=torch.float64, device=x.device)
    row[0] = column[0] = 4 * n**0.5  # well conditioned, as Levinson's recursion needs it
    b = x[0].double()
    M = torchldr.Toeplitz(column, row)
    scipy = peer("scipy.linalg") if x.device.type == "cpu" else None
    if scipy is not None:
        c, r, right = column.numpy(), row.numpy(), b.numpy()
        yield Job(
            "Toeplitz solve", "SciPy", lambda: M.solve(b), lambda: scipy.solve_toeplitz((c, r), right), True
        )
    operators = peer("linear_operator.operators")
    if operators is not None:
        S, operator = torchldr.Toeplitz(column, column), operators.ToeplitzLinearOperator(column)
        theirs = torch.no_grad()(lambda: operator.solve(b.unsqueeze(-1)).squeeze(-1))
        yield Job("symmetric Toeplitz solve", "linear_operator", lambda: S.solve(b), theirs)


def learned(n: int, x: Tensor) -> Iterator[Job]:
    layers = peer("torch_structured.structured.layers")
    if layers is None:
        return
    for ours, theirs in (("toeplitz_like", "t"), ("ldr_sd", "sd"), ("ldr_td", "td")):
        for rank in (1, 4):
            layer = StructuredLinear(n, n, structure=ours, rank=rank, device=x.device)
            other = layers.StructuredLinear(theirs, layer_size=n, r=rank).to(x.device)
            yield from both(
                f"{ours}, r = {rank}", "torch-structured", layer, other, [*other.parameters()], x, same=False
            )


def timed(job: Job, device: str) -> tuple[float, float]:
    """The shortest times of both, in turns."""
    calls, repeats, best = (job.ours, job.theirs), [], [float("inf")] * 2
    for i, call in enumerate(calls):
        seconds(call, 1, device)
        best[i] = seconds(call, 1, device)
        repeats.append(max(1, int(4e-3 / best[i])))
    until, rounds = time.perf_counter() + TENTHS / 10, 0
    while sum(best) < LONGEST and (rounds < 3 or time.perf_counter() < until):
        for i, call in enumerate(calls):
            best[i] = min(best[i], seconds(call, repeats[i], device))
        rounds += 1
    return best[0], best[1]


def difference(a: Any, b: Any) -> float:
    a, b = (torch.as_tensor(v).double().cpu() for v in (a, b))
    return float((a - b).norm() / b.norm())


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["what"], row["peer"], row["batch"], row["n"]


def kept(out: Path | None) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows of an earlier run on this machine with this version: a long table can be measured in parts."""
    found = json.loads(out.read_text()) if out is not None and out.exists() else {}
    return {key(row): row for row in found["rows"]} if found.get("machine") == machine() else {}


def measured(
    n: int, batch: int, device: str, only: str, before: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The rows of one size, without those that took too long at a smaller one."""
    slow = {
        key(row)[:3]
        for row in before
        if row["n"] < n and max(row["ours_us"], row["theirs_us"]) > 0.25e6 * LONGEST
    }
    x = torch.randn(batch, n, device=device)
    for make in (circulants, toeplitz, solving, learned):
        for job in make(n, x):
            if (job.what, job.peer, batch) in slow or only not in f"{job.what}, {job.peer}":
                continue
            off = difference(job.ours(), job.theirs()) if job.same else None
            assert off is None or off < 1e-4, f"{job.what} beside {job.peer}: off by {off}"
            ours, theirs = timed(job, device)
            row = {"what": job.what, "peer": job.peer, "n": n, "batch": batch}
            yield row | {"ours_us": ours * 1e6, "theirs_us": theirs * 1e6, "ratio": theirs / ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--only", default="", help="rows whose text contains this")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = kept(arguments.out)
    for n in arguments.sizes:
        for batch in BATCHES:
            for row in measured(n, batch, arguments.device, arguments.only, [*rows.values()]):
                rows[key(row)] = row
                print(*(f"{v:.3g}" if isinstance(v, float) else v for v in row.values()), flush=True)
        if arguments.out is not None:
            ordered = sorted(rows.values(), key=lambda row: (row["n"], row["batch"]))
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(json.dumps({"machine": machine(), "rows": ordered}, indent=1) + "\n")
    behind = sum(row["ratio"] < 1 for row in rows.values())
    print(f"ahead in {len(rows) - behind} of {len(rows)} rows, behind in {behind}")


if __name__ == "__main__":
    main()
