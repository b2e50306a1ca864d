"""Many runs: trains those that are not in the ledger, and resumes interrupted ones.

Several processes may sweep over one ledger: each claims the runs that it trains, see `checkpoint`. Workers
train and report; only the caller of `sweep` writes.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, field
from functools import partial

from ..data import DatasetNotFoundError
from ..ledger.ledger import Ledger
from ..ledger.records import Record
from ..ledger.weights import read_network, save_network, weights_path
from ..protocol import Run
from .checkpoint import CheckpointFile, Claim
from .library import Library, choose_device
from .parallel import Backend, Done, OutOfTimeError, Task, Work, train_images
from .progress import Log, Progress, no_log
from .training import CHECKPOINT_SECONDS

__all__ = ["Library", "Report", "choose_device", "missing", "sweep"]

_log = logging.getLogger("torchldr_paper")
_PAUSE = 0.5  # seconds between two looks at the runs of others


@dataclass
class Report:
    """What a sweep did.

    Attributes:
        finished: runs that were trained.
        present: runs that the ledger has, also those that another process trained meanwhile.
        absent: why data is not here, by its name.
        left: runs for which the time did not suffice.
        claimed: runs that another process trains, if `wait` is false.
        unsaved: why weights of finished runs could not be written, by the runs' labels.
        failed: why runs could not be trained, by their labels.
    """

    finished: list[Run] = field(default_factory=list)
    present: list[Run] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    left: list[Run] = field(default_factory=list)
    claimed: list[Run] = field(default_factory=list)
    unsaved: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def sweep(
    runs: Iterable[Run],
    ledger: Ledger,
    library: Library,
    *,
    backend: Backend | None = None,
    work: Work = train_images,
    force: bool = False,
    max_seconds: float | None = None,
    save_weights: bool = False,
    retries: int = 3,
    progress: Progress | None = None,
    log: Log = no_log,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    curves: bool = True,
    wait: bool = True,
) -> Report:
    """Run what the ledger lacks, each appended when it is finished.

    A run that another process trains is left to that process and checked again at the end: by then it is in
    the ledger, or its process has died and it is trained here.

    Args:
        runs: what to run, in this order; repetitions are run once.
        ledger: where finished runs are looked up and written.
        library: the data and the device.
        backend: where to train, closed in the end; by default here, one run after the other.
        work: what trains a run.
        force: run even what is in the ledger.
        max_seconds: start no further run after this time.
        save_weights: keep the selected network of each run as `weights/<hash>.safetensors` beside the
            ledger; a run that is in the ledger without its weights, or with damaged ones, is run again.
        retries: how often a run begins again, or from its checkpoint, after its process died.
        progress: what to report to.
        log: called with every epoch's scores, where the run is trained.
        checkpoint_seconds: see `train_run`.
        curves: see `train_run`.
        wait: for other processes; else their runs are reported as claimed.

    Returns:
        What became of each run. Missing datasets, failed runs and weights that cannot be written are
        reported, not raised.

    Raises:
        KeyboardInterrupt: when interrupted. Finished runs are in the ledger and checkpoints stay, so the same
            call continues from there.
    """
    backend = backend or Backend()
    unique = list({run.hash: run for run in runs}.values())
    task = partial(
        Task,
        results=ledger.results.absolute(),
        save_weights=save_weights,
        curves=curves,
        checkpoint_seconds=checkpoint_seconds,
        log=log,
        notes=backend.notes,
    )
    deadline = time.monotonic() + (math.inf if max_seconds is None else max_seconds)
    shown = progress or Progress(len(unique))
    under_way = _Sweep(ledger, library, backend, work, task, force, save_weights, deadline, retries, shown)
    try:
        under_way.go(unique, wait=wait)
    except KeyboardInterrupt:
        under_way.take_all(0.0)
        raise
    finally:
        backend.close()
        under_way.release()
    return under_way.report


@dataclass
class _Sweep:
    """A sweep under way; `sweep` says what the first fields are."""

    ledger: Ledger
    library: Library
    backend: Backend
    work: Work
    task: Callable[[Run], Task]
    force: bool
    save_weights: bool
    deadline: float
    retries: int
    progress: Progress
    report: Report = field(default_factory=Report)
    _flying: dict[Future[Done], tuple[Run, Claim, int]] = field(default_factory=dict)  # with its tries
    _arrived: queue.SimpleQueue[Future[Done]] = field(default_factory=queue.SimpleQueue)
    _before: dict[str, Record | None] = field(default_factory=dict)  # what the ledger had before this sweep

    def go(self, runs: Sequence[Run], *, wait: bool) -> None:
        """Bring the runs into the ledger, as many at a time as the backend takes."""
        waiting, others, look = deque(runs), list[Run](), 0.0
        while waiting or self._flying or (others and wait):
            if not waiting and wait and time.monotonic() >= look:
                waiting.extend(others)
                others, look = [], time.monotonic() + _PAUSE
            while waiting and len(self._flying) < self.backend.width:
                run = waiting.popleft()
                if not self._visit(run):
                    if wait and look == 0.0:
                        _log.warning("%s: waiting, another process trains it", run.label)
                    others.append(run)
            if self._flying or others:
                self.backend.poll(self.progress.update)
                self.take_all(self.backend.pause if self._flying else _PAUSE)
        self.report.claimed.extend(others)

    def take_all(self, seconds: float) -> None:
        """Keep finished runs; if there are none, wait this long for one."""
        try:
            while True:
                self._take(self._arrived.get(timeout=seconds) if seconds else self._arrived.get_nowait())
                seconds = 0.0
        except queue.Empty:
            return

    def release(self) -> None:
        """Give up the runs that have not finished."""
        for _, claim, _ in self._flying.values():
            claim.release()
        self._flying.clear()

    def _visit(self, run: Run) -> bool:
        """Begin a run unless it is known or time is over; False if another process trains it."""
        report = self.report
        if run.data in report.absent:
            return True
        try:
            known = self._before.setdefault(run.hash, self.library.find(run, self.ledger))
            if not self.force and self._complete(run, known):
                report.present.append(run)
                return True
            if time.monotonic() >= self.deadline:
                report.left.append(run)
                return True
            if self.library.source(run.data) == "absent":
                self.library.data(run)  # which says what is missing
        except DatasetNotFoundError as error:
            report.absent[run.data] = str(error)
            return True
        self.ledger.prepare()
        claim = Claim(self.ledger.results, run.hash)
        if not claim.take():
            return False
        self.ledger.read_again()  # the process that had it before may have finished it
        found = self.library.find(run, self.ledger)
        if found is not known and self._complete(run, found):
            report.present.append(run)
            claim.release()
        else:
            self._launch(run, claim, 0)
        return True

    def _launch(self, run: Run, claim: Claim, tries: int) -> None:
        try:
            future = self.backend.submit(self.work, self.task(run), self.library, self.progress.update)
        except BaseException:
            claim.release()
            raise
        self._flying[future] = run, claim, tries
        future.add_done_callback(self._arrived.put)

    def _take(self, future: Future[Done]) -> None:
        """Keep the result of a run, or restart it if its process died."""
        run, claim, tries = self._flying.pop(future)
        try:
            done = future.result()
        except Exception as error:
            if isinstance(error, BrokenExecutor) and tries < self.retries:
                _log.warning("%s: its process died, trying again", run.label)
                self._launch(run, claim, tries + 1)
                return
            claim.release()
            self._fail(run, error)
            return
        try:
            self._keep(run, done)
        finally:
            claim.release()

    def _fail(self, run: Run, error: Exception) -> None:
        cause = getattr(error, "cause", None) or error  # Ray's errors hold the run's own
        if isinstance(cause, DatasetNotFoundError):
            self.report.absent[run.data] = str(cause)
            return
        if isinstance(cause, OutOfTimeError):
            self.report.left.append(run)
            return
        lines = str(cause).strip().splitlines()
        self.report.failed[run.label] = f"{type(cause).__name__}: {lines[0] if lines else ''}".rstrip(": ")
        _log.debug("%s failed", run.label, exc_info=error)
        self.progress.finish(run.hash, f"{run.label}: failed")

    def _keep(self, run: Run, done: Done) -> None:
        record = done.record
        if done.network is not None:
            try:
                checksum = save_network(weights_path(self.ledger, run), run, done.network)
                record = dataclasses.replace(record, result={**record.result, "weights": checksum})
            except OSError as error:  # the record still can be written
                self.report.unsaved[run.label] = str(error)
        self.ledger.append(record)
        CheckpointFile(self.ledger.results, done.checkpoint or run.hash, record.fingerprint).remove()
        self.report.finished.append(run)
        score = "diverged" if record.best is None else f"test {record.best.test:.2f}"
        self.progress.finish(run.hash, f"{run.label}: {score}, {record.result['seconds']:.1f} s")

    def _complete(self, run: Run, record: Record | None) -> bool:
        """Whether a run is in the ledger, with its weights where those are wanted."""
        if record is None or not self.save_weights:
            return record is not None
        path = weights_path(self.ledger, run)
        if not path.is_file():
            return False
        try:
            read_network(path, record)
        except ValueError as error:
            _log.warning("the weights cannot be used, the run starts over: %s", error)
            return False
        return True


def missing(runs: Sequence[Run], ledger: Ledger, library: Library) -> list[Run]:
    """The runs that a sweep would train: not in the ledger, and their data is here."""

    def lacks(run: Run) -> bool:
        try:
            return library.source(run.data) != "absent" and library.find(run, ledger) is None
        except DatasetNotFoundError:
            return False

    return [run for run in {run.hash: run for run in runs}.values() if lacks(run)]
