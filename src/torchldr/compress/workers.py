"""Work on many weights, here or in several processes; what is finished is kept as `Pieces`."""

from __future__ import annotations

import io
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from ..progress import Report, silent
from .candidates import Weight
from .metric import PLAIN, Metric
from .pieces import Pieces
from .progress import Clock, shown

T = TypeVar("T")


class Luggage:
    """What may go to another process, its tensors as bytes: torch's own way keeps a file open for each."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Callable[[bytes], Luggage], tuple[bytes]]:
        stream = io.BytesIO()
        _Packer(stream).dump(self.value)
        return _unpacked, (stream.getvalue(),)


class _Packer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        flat = value.detach().to("cpu").contiguous().reshape(-1)
        return _tensor, (flat.view(torch.uint8).numpy().tobytes(), tuple(value.shape), value.dtype)


def _tensor(data: bytes, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def _unpacked(data: bytes) -> Luggage:
    return Luggage(pickle.loads(data))


@dataclass(frozen=True)
class Parcel:
    """A weight to work on, and what its errors count by: None for its number of entries."""

    weight: Weight | list[Tensor]
    counts: Metric | None = None

    @property
    def matrices(self) -> list[Tensor]:
        return self.weight if isinstance(self.weight, list) else self.weight.matrices

    def metric(self) -> Metric:
        """One for a single piece of work: what it keeps goes with it."""
        if self.counts is not None:
            return replace(self.counts)
        matrices = self.matrices
        return PLAIN.relative(sum(W.numel() for W in matrices), matrices)


class Workers:
    """A context in which functions run on weights: where, for how long, and with what `progress`.

    One job runs here. More are processes, each with its share of the cores; they end with the context,
    however it ends: on an interrupt too, and when this process is killed. Functions run on an executor
    instead where one is given, which stays open. Results with a key are kept in `pieces`, and found again.
    If `partial`, an interrupt ends the work where there are results already, and these are what was found.

    Attributes:
        metrics: what errors of weights count by, by their names; of others, by the number of entries.
    """

    def __init__(
        self,
        jobs: int,
        executor: Executor | None = None,
        pieces: Pieces | None = None,
        *,
        clock: Clock | None = None,
        progress: bool | Report | None = False,
        seed: int = 0,
        partial: bool = False,
    ) -> None:
        if executor is not None and not isinstance(executor, Executor):
            raise TypeError(
                f"executor must be a concurrent.futures.Executor or None, got {type(executor).__name__}."
            )
        if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
            raise ValueError(f"jobs must be an int of at least 1, got {jobs!r}.")
        self.jobs, self.interrupted, self.pieces = jobs, False, Pieces() if pieces is None else pieces
        self.clock, self.seed, self.partial = clock or Clock(None), seed, partial
        self._progress, self._shown = progress, ExitStack()
        self.report: Report = silent  # until the context begins
        self._given = self._pool = executor
        self.metrics: dict[str, Metric] = {}

    def __enter__(self) -> Self:
        self.report = self._shown.enter_context(shown(self._progress, self.clock))
        if self._pool is None and self.jobs > 1:
            context = get_context("spawn")  # torch's threads do not survive a fork
            reader, self._life = context.Pipe(duplex=False)
            threads = max(1, (os.cpu_count() or 1) // self.jobs)
            self._pool = ProcessPoolExecutor(self.jobs, context, _start, (reader, threads))
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._pool is not None and self._given is None:
            self._pool.shutdown(wait=kind is None and not self.interrupted, cancel_futures=True)
            self._life.close()  # ends what still runs at once, whatever it is doing
        self._shown.close()

    def parcel(self, weight: Weight, *, plain: bool = False) -> Parcel:
        """A weight for `run`; a given executor may be another machine, which has none of our files."""
        metric = None if plain else self.metrics.get(weight.name)
        return Parcel(weight.luggage if self._given is None else weight.matrices, metric)

    def run(
        self,
        stages: Sequence[str],
        function: Callable[..., T],
        arguments: Sequence[Sequence[Any]],
        stop: Callable[[], bool] = lambda: False,
        keys: Sequence[str] = (),
        keep: Callable[[T], bool] = lambda result: True,
    ) -> dict[int, T]:
        """function(*a) for all of the arguments, or as many as there is time for, by their places in order.

        Args:
            stages: what each is called in the progress.
            function: of a module's top level.
            arguments: whatever can be pickled.
            stop: asked before each; once it says so, no other is begun.
            keys: of the results, as pieces have them, under which they are kept; none to keep nothing.
            keep: whether to keep a result.

        Raises:
            ChildProcessError: where a process ended without a result.
        """
        found = ((i, self.pieces.get(key)) for i, key in enumerate(keys))
        results: dict[int, T] = {i: piece for i, piece in found if piece is not None}
        todo = [i for i in range(len(arguments)) if i not in results]
        futures: dict[Future[Luggage], int] = {}

        def finished(i: int, result: T) -> None:
            results[i] = self.pieces.put(keys[i], result) if keys and keep(result) else result

        def cancel() -> None:
            for future in futures:
                future.cancel()

        try:
            if self.interrupted:
                return results
            if self._pool is None:
                for i in todo:
                    if stop():
                        break
                    self.report(stages[i], len(results), len(arguments))
                    finished(i, function(*arguments[i]))
            else:
                futures |= {self._pool.submit(_call, function, Luggage(arguments[i])): i for i in todo}
                for done in as_completed(futures):
                    if not done.cancelled():
                        i = futures[done]
                        finished(i, done.result().value)
                        self.report(stages[i], len(results), len(arguments))
                        if stop():
                            cancel()
        except KeyboardInterrupt:
            if not (self.partial and results):
                raise
            self.interrupted = True
        except BrokenExecutor:
            raise ChildProcessError(
                "a process ended without a result, perhaps for want of memory; try fewer jobs."
            ) from None
        finally:
            cancel()  # at an error or an interrupt, what was not begun
        return dict(sorted(results.items()))


def _call(function: Callable[..., Any], given: Luggage) -> Luggage:
    return Luggage(function(*given.value))


def _start(life: Connection, threads: int) -> None:
    """In a new process: few threads, and an end as soon as the other end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and closes the pipe
    torch.set_num_threads(threads)

    def watch() -> None:
        life.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
