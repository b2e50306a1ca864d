"""Several runs at a time, each in a process of its own; finished runs go to the one ledger.

A fleet of small networks leaves most of a GPU idle, and processes share one: side by side where NVIDIA's
multi-process service runs (`nvidia-cuda-mps-control -d`), else in turns. On an H200 six runs at a time made
the tables of single hidden layers 1.3 times faster, and each of the runs slower: how many shared the
device is kept in a run's notes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..ledger.ledger import Ledger
from ..protocol import Run
from .sweep import Library, Report, sweep


class Settings(NamedTuple):
    """What every process needs: as the command line has it."""

    results: Path
    device: str
    data_dir: str | os.PathLike[str] | None
    jobs: int
    force: bool = False
    save_weights: bool = False
    deadline: float | None = None  # of time.time(): start nothing after it
    curves: bool = True


def sweep_in_parallel(runs: Sequence[Run], settings: Settings, say: Callable[[str], None]) -> Report:
    """Run what the ledger lacks, `jobs` at a time.

    Args:
        runs: what to run; the longest first would be best.
        settings: where and how.
        say: called with a line for every run that is done.

    Returns:
        What became of each run.

    Raises:
        KeyboardInterrupt: when interrupted. Checkpoints stay, so the same call goes on from there.
    """
    report = Report()
    context = multiprocessing.get_context("spawn")  # a forked process may not use CUDA
    unique = list({run.hash: run for run in runs}.values())
    with ProcessPoolExecutor(settings.jobs, context, _begin, (settings,)) as pool:
        try:
            for wait in (False, True):  # what others train comes last: a process that waits does nothing else
                todo, report.claimed = (report.claimed if wait else unique), []
                futures = {pool.submit(_one, run.config(), wait): run for run in todo}
                for future in as_completed(futures):
                    _take(report, futures[future], future.result(), say)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return report


class _Done(NamedTuple):
    what: str  # a field of `Report`
    message: str
    seconds: float
    unsaved: str | None = None  # why the weights are not kept


def _take(report: Report, run: Run, done: _Done, say: Callable[[str], None]) -> None:
    if done.what == "absent":
        report.absent[run.data] = done.message
        return
    getattr(report, done.what).append(run)
    if done.unsaved is not None:
        report.unsaved[run.label] = done.unsaved
    if done.what == "finished":
        say(f"[{len(report.finished)}] {run.label}: {done.message}, {done.seconds:.1f} s")


_process: tuple[Settings, Library] | None = None


def _begin(settings: Settings) -> None:
    """In a new process: leave Ctrl-C to the parent, share the cores, find the data."""
    global _process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(max(1, torch.get_num_threads() // settings.jobs))
    _process = settings, Library(torch.device(settings.device), settings.data_dir)


def _one(config: dict[str, Any], wait: bool) -> _Done:
    assert _process is not None  # by `_begin`
    settings, library = _process
    run, begun = Run.from_config(config), time.time()
    if settings.deadline is not None and begun >= settings.deadline:
        return _Done("left", "", 0.0)
    ledger = Ledger(settings.results)
    report = sweep(
        [run],
        ledger,
        library,
        force=settings.force,
        save_weights=settings.save_weights,
        notes={"jobs": settings.jobs},
        curves=settings.curves,
        max_seconds=None if settings.deadline is None else settings.deadline - begun,
        wait=wait,
    )
    if report.absent:
        return _Done("absent", next(iter(report.absent.values())), 0.0)
    if report.left or report.claimed:
        return _Done("left" if report.left else "claimed", "", 0.0)
    record = library.find(run, ledger)
    best = None if record is None else record.best
    message = "diverged" if best is None else f"test {best.test:.2f}"
    what, seconds = "finished" if report.finished else "present", time.time() - begun
    return _Done(what, message, seconds, report.unsaved.get(run.label))
