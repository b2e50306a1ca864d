"""How sweeps scale on Ray, on this machine.

    python benchmarks/scale.py sleep    20,000 runs that only sleep, 200 in flight: time, memory of the driver
    python benchmarks/scale.py equal    four equal runs, two workers against one: the ratio of the times

Needs `pip install ./paper[ray]`. Lines on stdout are JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from torchldr_paper import Ledger, Library, Protocol, Run, sweep
from torchldr_paper.ledger.records import Record, versions
from torchldr_paper.trainer.cluster import Cluster
from torchldr_paper.trainer.parallel import Done, Task
from torchldr_paper.trainer.progress import Progress, Tell

FULL = Protocol()  # 50 epochs of 12 replicas: lines as long as the paper's


def nap(task: Task, library: Library, tell: Tell) -> Done:
    """A run that sleeps, and a record as long as one that trains."""
    tell(0, FULL.epochs, "")
    time.sleep(0.005)
    row: list[float | None] = [12.3456] * len(FULL.replicas)
    metrics = {
        name: [row] * FULL.epochs for name in ("loss", "train", "validation", "test", "validation_loss")
    }
    best = {
        "replica": 0,
        "lr": FULL.lrs[0],
        "trial": 0,
        "epoch": 0,
        "validation": 1.0,
        "test": 1.0,
        "train": 1.0,
    }
    result: dict[str, Any] = {"parameters": 1, "seconds": 0.02, "best": best, "mean": None}
    result |= {"diverged": [None] * len(row), "notes": {}, "metrics": metrics}
    data = library.data(task.run)
    facts = {"source": data.source, "fingerprint": data.fingerprint, "train": 1, "validation": 1, "test": 1}
    return Done(Record(task.run, facts, result, {"device": "none", "versions": versions()}, "2026-01-01"))


def tiny(folder: Path, images: int) -> str:
    """Data of one's own, of noise."""
    rng = np.random.default_rng(0)
    x = rng.random((images, 1, 16, 16), dtype=np.float32)
    y = rng.integers(0, 2, images)
    np.savez(folder / "noise.npz", train_x=x, train_y=y, test_x=x[:100], test_y=y[:100])
    return str(folder / "noise.npz")


class Memory(Progress):
    """Prints what the driver takes, ten times in a sweep."""

    def finish(self, key: str, message: str) -> None:
        super().finish(key, message)
        if self.done % max(1, self.runs // 10) == 0:
            say(runs=self.done, seconds=time.monotonic() - self._begun, megabytes=megabytes())


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def say(**facts: Any) -> None:
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in facts.items()}), flush=True)


def sleeping(folder: Path, count: int, in_flight: int) -> None:
    data = tiny(folder, 10)
    runs = [Run(data, seed=seed) for seed in range(count)]
    ledger = Ledger(folder, published=False, curves=False)
    say(runs=0, megabytes=megabytes())
    begun = time.monotonic()
    backend = Cluster(cpus=0.5, device="cpu", max_in_flight=in_flight)
    report = sweep(runs, ledger, Library("cpu"), backend=backend, work=nap, progress=Memory(count))
    seconds = time.monotonic() - begun
    whole = Ledger(folder, published=False, curves=False)
    lines = whole.path.read_bytes().count(b"\n")
    say(
        finished=len(report.finished),
        seconds=seconds,
        megabytes=megabytes(),
        lines=lines,
        distinct=len(whole),
        damaged=len(whole.problems),
        file_megabytes=whole.path.stat().st_size / 2**20,
    )


def equal(folder: Path, repeats: int = 2) -> None:
    import ray

    # Runs of seconds: with ten epochs what a run costs to begin shows.
    protocol = Protocol(epochs=60, lrs=(0.001,), trials=1)
    runs = [Run(tiny(folder, 2000), structure="low_rank", seed=s, protocol=protocol) for s in range(4)]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for repeat in range(repeats + 1):
        for workers in (2, 1):
            backend = Cluster(device="cpu", max_in_flight=workers)
            begun = time.perf_counter()
            sweep(
                runs, Ledger(folder / f"{repeat}-{workers}", published=False), Library("cpu"), backend=backend
            )
            if repeat:  # the first starts the workers
                seconds[workers].append(time.perf_counter() - begun)
    one, two = min(seconds[1]), min(seconds[2])
    say(one_worker=one, two_workers=two, ratio=two / one)
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["sleep", "equal"])
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, default=200)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if chosen.what == "sleep":
            sleeping(Path(name), chosen.runs, chosen.in_flight)
        else:
            equal(Path(name))


if __name__ == "__main__":
    main()
