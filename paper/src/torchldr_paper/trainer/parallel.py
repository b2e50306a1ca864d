"""Where runs are trained: here one after the other, in processes of this machine, or on Ray (`cluster`).

A fleet of small networks leaves most of a GPU idle, so several processes can share it: at the same time if
NVIDIA's multi-process service runs (`nvidia-cuda-mps-control -d`), else by turns. On an H200 six runs at a
time made the tables of single hidden layers 1.3 times faster, but each run slower: a run's notes record how
many shared the device.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..ledger.records import Record
from ..ledger.weights import Network
from ..protocol import Run
from .checkpoint import Claim
from .library import Library
from .progress import Event, Log, Tell, no_log
from .training import CHECKPOINT_SECONDS, train_run


@dataclass(frozen=True)
class Task:
    """A run and all that a worker needs to train it, besides the data; `sweep` says what each is."""

    run: Run
    results: Path
    save_weights: bool = False
    curves: bool = True
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    log: Log = no_log
    notes: Mapping[str, Any] = field(default_factory=dict)


class Done(NamedTuple):
    """What a worker returns: the line of the ledger, and the selected network where it is to be kept.

    Then a checkpoint can go: that of the run, or of this key.
    """

    record: Record
    network: Network | None = None
    checkpoint: str | None = None


class OutOfTimeError(Exception):
    """A run was left with a checkpoint, because time ran out."""


Work = Callable[[Task, Library, Tell], Done]
Update = Callable[[str, Event], None]


def train_images(task: Task, library: Library, tell: Tell) -> Done:
    """Train a run of images. Its checkpoints are kept where the driver's folder can be seen."""
    run, images = task.run, library.images(task.run)
    outcome = train_run(
        run,
        images,
        results=task.results if Claim(task.results, run.hash).is_seen() else None,
        tell=tell,
        log=task.log,
        checkpoint_seconds=task.checkpoint_seconds,
        curves=task.curves,
    )
    outcome.notes.update(task.notes)
    network = Network.of(images, outcome) if task.save_weights else None
    return Done(Record.of(run, images, outcome), network)


class Backend:
    """Trains runs here, one after the other: `width` at a time, and records say its `notes`."""

    width = 1
    pause = 0.2  # seconds between two looks at what workers tell
    notes: Mapping[str, Any] = {}

    def submit(self, work: Work, task: Task, library: Library, update: Update) -> Future[Done]:
        """Begin a run; here it has ended when this returns."""
        future: Future[Done] = Future()
        try:
            future.set_result(work(task, library, reporter(task.run, update)))
        except Exception as error:
            future.set_exception(error)
        return future

    def poll(self, update: Update) -> None:
        """Hand on what workers have told since."""

    def close(self) -> None:
        """End, with the runs that are not done."""


class Processes(Backend):
    """Trains several runs at a time, each in a process of its own. A broken pool is restarted."""

    def __init__(self, jobs: int) -> None:
        self.width, self.notes = jobs, {"jobs": jobs}
        self._pool: ProcessPoolExecutor | None = None
        self._context = multiprocessing.get_context("spawn")  # a forked process may not use CUDA
        self._told = self._context.SimpleQueue()
        self._others = {*multiprocessing.active_children()}
        self._workers: set[Any] = set()

    def submit(self, work: Work, task: Task, library: Library, update: Update) -> Future[Done]:
        for _ in range(2):
            if self._pool is None:
                threads = max(1, torch.get_num_threads() // self.width)
                self._told = self._context.SimpleQueue()  # a worker that was killed may have locked the old
                begin = (self._told, threads, str(library.device), library.data_dir)
                self._pool = ProcessPoolExecutor(self.width, self._context, _begin, begin)
            try:
                return self._pool.submit(_in_process, work, task)
            except BrokenProcessPool:
                self._pool = None
            finally:
                self._workers |= {*multiprocessing.active_children()} - self._others
        raise BrokenProcessPool("no process can be started.")

    def poll(self, update: Update) -> None:
        while not self._told.empty():
            update(*self._told.get())

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._workers:
            process.terminate()


def reporter(run: Run, update: Update) -> Tell:
    """A worker's report of a run, with the name of its machine."""
    return lambda epoch, total, note: update(run.hash, Event(run.label, platform.node(), epoch, total))


_process: tuple[Library, Update] | None = None


def _begin(told: Any, threads: int, device: str, data_dir: str | os.PathLike[str] | None) -> None:
    """In a new process: leave Ctrl-C to the parent, share the cores, find the data."""
    global _process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    _process = Library(device, data_dir), lambda key, event: told.put((key, event))


def _in_process(work: Work, task: Task) -> Done:
    assert _process is not None  # by `_begin`
    library, update = _process
    return work(task, library, reporter(task.run, update))
