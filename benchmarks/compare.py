"""Two checkouts against each other: every cell of the speed tables, in turns, in one run.

    python benchmarks/compare.py 1f54512 . [--only lstm] [--seconds 600] [--out compare.json]
    python benchmarks/compare.py OLD NEW --device cuda

OLD and NEW are folders or revisions of this repository. Each is imported by a process of its own; a cell is
timed in one, then in the other, several times over, and the least time of each counts. A cell that looks
slower gets more turns, for both, before it is believed. A ratio above 1.1 is printed as slower, and the exit
code is 1 if there is one. Layers are built and called as users do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SLOWER = 1.1
ROUNDS, MOST_ROUNDS = 4, 12
CLASSES = {
    "ldr_sd": (1, 4), "ldr_td": (1,), "toeplitz_like": (1, 4), "hankel_like": (4,), "vandermonde_like": (1,),
    "cauchy_like": (1,), "low_rank": (4,), "circulant": (None,), "block_circulant": (None,),
    "fastfood": (None,), "acdc": (None,), "dense": (None,),
}  # fmt: skip
LARGE = {"cpu": (256, 1024, 4096), "cuda": (1024, 4096, 8192)}
SLOW = ("vandermonde_like", "cauchy_like", "ldr_td")  # not in the largest size: minutes, in either checkout


def cells(device: str) -> Iterator[str]:
    """The names of all cells; a name says what is timed."""
    for structure, ranks in CLASSES.items():
        for rank in ranks:
            for n in LARGE[device]:
                if n == LARGE[device][-1] and structure in SLOW:
                    continue
                for batch in (1, 64, 1024):
                    for mode in ("train", "infer"):
                        yield f"linear {structure} {rank or 0} {n} {batch} {mode}"
    for kind in ("lstm", "gru"):
        for structure, rank in (("ldr_sd", 1), ("toeplitz_like", 4)):
            for size in (128, 512):
                for mode in ("train", "infer"):
                    yield f"{kind} {structure} {rank} {size} 16 {mode}"
    for structure, rank in (("ldr_sd", 1), ("toeplitz_like", 1), ("low_rank", 4)):
        for mode in ("train", "infer"):
            yield f"channels {structure} {rank} 256 16 {mode}"
    for structure, rank in (
        ("ldr_sd", 1),
        ("ldr_td", 1),
        ("toeplitz_like", 4),
        ("fastfood", 0),
        ("dense", 0),
    ):
        yield f"fleet {structure} {rank} 784 50 train"
    for structure in ("ldr_sd", "toeplitz_like", "cauchy_like"):
        yield f"solve {structure} 2 512 1 infer"


# In a process of one checkout.


def build(cell: str, device: str) -> Callable[[], Any]:
    """What a cell times."""
    import torch

    torch.manual_seed(0)
    kind, structure, rank, n, batch, mode = cell.split()
    return BUILDERS[kind](structure, int(rank) or None, int(n), int(batch), mode, device)


def _prepared(module: Any, x: Any) -> Any:
    """The module frozen for x, or in `eval()` by a checkout older than `freeze`."""
    import torchldr

    return torchldr.freeze(module, x) if hasattr(torchldr, "freeze") else module.eval()


def _step(module: Any, x: Any, mode: str) -> Callable[[], Any]:
    import torch

    first = lambda y: y[0] if isinstance(y, tuple) else y
    if mode == "infer":
        module = _prepared(module, x)

        def infer() -> None:
            with torch.no_grad():
                module(x)

        return infer
    x.requires_grad_()

    def train() -> None:
        module.zero_grad()
        first(module(x)).sum().backward()

    return train


def _linear(
    structure: str, rank: int | None, n: int, batch: int, mode: str, device: str
) -> Callable[[], Any]:
    import torch

    import torchldr

    layer = torchldr.StructuredLinear(n, n, structure=structure, rank=rank, device=device)
    return _step(layer, torch.randn(batch, n, device=device), mode)


def _recurrent(kind: str) -> Callable[..., Callable[[], Any]]:
    def made(structure: str, rank: int, n: int, batch: int, mode: str, device: str) -> Callable[[], Any]:
        import torch

        import torchldr

        layer = getattr(torchldr, kind)(n, n, structure=structure, rank=rank, which="both", device=device)
        return _step(layer, torch.randn(20, batch, n, device=device), mode)

    return made


def _channels(structure: str, rank: int, n: int, batch: int, mode: str, device: str) -> Callable[[], Any]:
    import torch

    import torchldr

    layer = torchldr.StructuredChannels(4, 8, n, structure=structure, rank=rank, device=device)
    return _step(layer, torch.randn(batch, 4, n, device=device), mode)


def _fleet(structure: str, rank: int | None, n: int, batch: int, mode: str, device: str) -> Callable[[], Any]:
    import torch

    from torchldr_paper import Images, Run
    from torchldr_paper.trainer.fleet import Fleet

    side = int(n**0.5)
    x, y = torch.randn(1000, n, device=device), torch.randint(0, 10, (1000,), device=device)
    images = Images("mnist_bg_rot", "stand-in", "", (1, side, side), x, y, x, y, 10)
    fleet = Fleet(Run("mnist_bg_rot", "shl", structure, rank, init="paper"), images)
    return lambda: fleet.train_epoch(0)


def _solve(structure: str, rank: int, n: int, batch: int, mode: str, device: str) -> Callable[[], Any]:
    import torch

    import torchldr

    M = torchldr.get_structure(structure).random(n, n, rank, dtype=torch.float64, device=device)
    b = torch.randn(n, batch, dtype=torch.float64, device=device)
    return lambda: M.solve(b)


BUILDERS: dict[str, Callable[..., Callable[[], Any]]] = {
    "linear": _linear,
    "lstm": _recurrent("StructuredLSTM"),
    "gru": _recurrent("StructuredGRU"),
    "channels": _channels,
    "fleet": _fleet,
    "solve": _solve,
}


def serve(device: str) -> None:
    """Read names of cells, write the least seconds of one; the last cell stays built for its next turn."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    built, run = "", lambda: None
    for line in sys.stdin:
        cell = line.strip()
        try:
            if cell != built:
                run, built = build(cell, device), cell
                run(), run()
                wait()
            best, spent, runs = float("inf"), 0.0, 0
            while runs < 3 or (spent < 0.15 and runs < 1000):
                start = time.perf_counter()
                run()
                wait()
                best, spent, runs = (
                    min(best, time.perf_counter() - start),
                    spent + time.perf_counter() - start,
                    runs + 1,
                )
            answer: dict[str, Any] = {"seconds": best}
        except Exception as error:  # the other checkout may have it
            built, answer = "", {"error": f"{type(error).__name__}: {str(error)[:100]}"}
        print(json.dumps(answer), flush=True)


# In the process that compares.


class Checkout:
    """A folder with the library, and a process that imports it."""

    def __init__(self, name: str, device: str, folder: Path) -> None:
        root = Path(name)
        if not (root / "src").is_dir():
            root = folder / name
            here = Path(__file__).resolve().parent
            subprocess.run(["git", "worktree", "add", "--detach", "-f", root, name], cwd=here, check=True,
                           capture_output=True)  # fmt: skip
            self.made: Path | None = root
        else:
            self.made = None
        paths = [str(root.resolve() / part) for part in ("src", "paper/src") if (root / part).is_dir()]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", device], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def time(self, cell: str) -> float | str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(cell, file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        return answer.get("seconds", answer.get("error"))

    def close(self) -> None:
        self.process.kill()
        if self.made is not None:
            subprocess.run(["git", "worktree", "remove", "--force", self.made], cwd=Path(__file__).parent)


def compare(old: Checkout, new: Checkout, cell: str) -> dict[str, Any]:
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(MOST_ROUNDS):
        if turn >= ROUNDS and min(times[1]) <= SLOWER * min(times[0]):
            break
        for checkout, found in zip((old, new), times, strict=True):
            seconds = checkout.time(cell)
            if isinstance(seconds, str):
                return {"cell": cell, "error": seconds, "of": "old" if checkout is old else "new"}
            found.append(seconds)
    return {"cell": cell, "old": min(times[0]), "new": min(times[1]), "ratio": min(times[1]) / min(times[0])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--device", default="cpu", choices=list(LARGE))
    parser.add_argument("--only", default="", help="cells whose name holds this")
    parser.add_argument("--seconds", type=float, help="stop after so long: cells are taken in a random order")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    names = [cell for cell in cells(chosen.device) if chosen.only in cell]
    if chosen.seconds:
        import random

        random.Random(0).shuffle(names)
    rows, begun = [], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        both = [Checkout(name, chosen.device, Path(folder)) for name in (chosen.old, chosen.new)]
        try:
            for cell in names:
                if chosen.seconds and time.perf_counter() - begun > chosen.seconds:
                    break
                row = compare(both[0], both[1], cell)
                rows.append(row)
                if "error" in row:
                    print(f"{cell:45} {row['of']}: {row['error']}", flush=True)
                    continue
                times = f"{1e3 * row['old']:10.3f} ms {1e3 * row['new']:10.3f} ms {row['ratio']:6.2f}"
                print(f"{cell:45} {times} {'slower' if row['ratio'] > SLOWER else ''}", flush=True)
        finally:
            for checkout in both:
                checkout.close()
    ratios = sorted(row["ratio"] for row in rows if "ratio" in row)
    worse = sum(ratio > SLOWER for ratio in ratios)
    print(
        f"{len(ratios)} of {len(names)} cells: median {ratios[len(ratios) // 2]:.2f}, "
        f"worst {ratios[-1]:.2f}, {worse} slower by more than 10 %"
    )
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(
            json.dumps({"old": chosen.old, "new": chosen.new, "rows": rows}, indent=1) + "\n"
        )
    return int(worse > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        sys.exit(main())
