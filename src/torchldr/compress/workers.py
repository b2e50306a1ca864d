"""Work on many weights, here or in several processes; what is finished is kept as `Pieces`."""

from __future__ import annotations

import io
import math
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from ..matrices import Projection, get_structure
from ..progress import Report, silent
from .candidates import SCREEN_EFFORT, Weight, at_once, bound, exact, plain_curve
from .checkpoint.files import TensorFiles, TensorWeight
from .metric import PLAIN, Metric, TimeUpError, project, widened
from .pieces import Pieces
from .progress import PROJECTING, Clock
from .structure import Structure

T = TypeVar("T")
DEADLINE = 0.9  # of the time: then projections are quick ones
_LARGE = 1 << 16


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
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _unpacked(data: bytes) -> Luggage:
    return Luggage(pickle.loads(data))


class Form(NamedTuple, Generic[T]):
    """How results are kept: as a piece, or not at all (None), and back."""

    pack: Callable[[T], Any]
    unpack: Callable[[Any], T] = lambda piece: piece


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
    """A context in which functions run on weights: where, for how long, and whom they report to.

    One job runs here. More are processes, each with its share of the cores; they end with the context,
    however it ends: on an interrupt too, and when this process is killed. Functions run on an executor
    instead where one is given, which stays open. Results with a key are kept in `pieces`, and found again.

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
        report: Report = silent,
        seed: int = 0,
    ) -> None:
        if executor is not None and not isinstance(executor, Executor):
            raise TypeError(
                f"executor must be a concurrent.futures.Executor or None, got {type(executor).__name__}."
            )
        if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
            raise ValueError(f"jobs must be an int of at least 1, got {jobs!r}.")
        self.jobs, self.interrupted, self.pieces = jobs, False, Pieces() if pieces is None else pieces
        self.clock, self.report, self.seed = clock or Clock(None), report, seed
        self._given = self._pool = executor
        self.metrics: dict[str, Metric] = {}

    def __enter__(self) -> Self:
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

    def parcel(self, weight: Weight, *, plain: bool = False) -> Parcel:
        """A weight for `run`: one of a file goes to our processes by its name, others by their numbers."""
        metric = None if plain else self.metrics.get(weight.name)
        # A given executor may run on another machine, which need not have the file.
        named = isinstance(weight, TensorWeight) and isinstance(weight.source, TensorFiles)
        return Parcel(weight if named and self._given is None else weight.matrices, metric)

    def run(
        self,
        stages: Sequence[str],
        function: Callable[..., T],
        arguments: Sequence[Sequence[Any]],
        stop: Callable[[], bool] = lambda: False,
        partial: bool = False,
        keys: Sequence[str] = (),
        form: Form[T] | None = None,
    ) -> dict[int, T]:
        """function(*a) for all of the arguments, or as many as there is time for, by their places in order.

        Args:
            stages: what each is called in the progress.
            function: of a module's top level.
            arguments: whatever can be pickled.
            stop: asked before each; once it says so, no other is begun.
            partial: whether an interrupt does the same, where there are results already.
            keys: of the results, under which they are kept; none to keep nothing.
            form: in which they are kept.

        Raises:
            ChildProcessError: where a process ended without a result.
        """
        form = form or Form(lambda result: result)
        known = {i: piece for i, key in enumerate(keys) if (piece := self.pieces.get(key)) is not None}
        results: dict[int, T] = {i: form.unpack(piece) for i, piece in known.items()}
        todo = [i for i in range(len(arguments)) if i not in known]
        futures: dict[Future[Luggage], int] = {}

        def finished(i: int, result: T) -> None:
            if keys and self.pieces.folder is not None and (piece := form.pack(result)) is not None:
                result = form.unpack(self.pieces.put(keys[i], piece))
            results[i] = result

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
            if not (partial and results):
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


class FirstLook(NamedTuple):
    """Errors of low rank, in the metric and in the plain norm (by entries), and bounds of others in that."""

    errors: list[float]
    plain: list[float]
    bounds: list[float]


# A look that was given up for want of time is taken again.
LOOKS: Form[list[float]] = Form(lambda found: found if all(map(math.isfinite, found)) else None)


def first_look(parcel: Parcel, low: Sequence[Structure], others: Sequence[Structure], seed: int) -> FirstLook:
    """What is known of a weight without slow projections."""
    matrices = parcel.matrices
    curve = plain_curve(matrices)
    scale = sum(W.numel() for W in matrices) / (curve[0] or 1.0)
    bounds: dict[Structure, float] = {}
    for name in dict.fromkeys(s.name for s in others):
        some = [s for s in others if s.name == name]
        parts = [_bounds(W, some, seed) for W in matrices]
        bounds |= {s: scale * sum(part) for s, part in zip(some, zip(*parts, strict=True), strict=True)}
    errors = looks_of(parcel, low, seed, SCREEN_EFFORT)
    plain = [scale * curve[min(s.rank or 1, len(curve) - 1)] for s in low]
    return FirstLook(errors, plain, [bounds[s] for s in others])


def _bounds(W: Tensor, some: Sequence[Structure], seed: int) -> list[float]:
    """Lower bounds of |W - M|^2 for structures of one class; the error itself where it is found at once.

    Even that takes long for many structures of a large matrix: then nothing is known.
    """
    if not exact(some[0].name):
        return bound(W, some[0].name, [s.rank or 1 for s in some])
    if W.numel() > _LARGE:
        return [0.0] * len(some)
    whole = float(W.double().square().sum())
    return [whole * project(W, s, PLAIN, seed, SCREEN_EFFORT).residual ** 2 for s in some]


def looks_of(
    parcel: Parcel, structures: Sequence[Structure], seed: int, effort: float, deadline: float | None = None
) -> list[float]:
    """The errors of structures in a metric, by projections; of all ranks by one decomposition where it can.

    Infinite where the deadline (by `time.time()`) came first.
    """
    matrices, metric = parcel.matrices, parcel.metric()
    fits = {
        name: [metric.fit(W, Structure(name)) for W in matrices]
        for name in dict.fromkeys(s.name for s in structures)
        if at_once(name)
    }
    exact = min(max(1e-10, 8 * torch.finfo(matrices[0].dtype).eps), 1e-3) ** 2
    whole = sum(metric.error(W) for W in matrices)
    found = []
    for structure in structures:
        if structure.name in fits:
            error = metric.scale * sum(fit.error(structure.rank or 1) for fit in fits[structure.name] if fit)
        else:
            try:
                made = [project(W, structure, metric, seed, effort, deadline, quick=False) for W in matrices]
            except TimeUpError:
                found.append(math.inf)
                continue
            pairs = [(widened(W), p.matrix) for W, p in zip(matrices, made, strict=True)]
            error = sum(metric.error(W - M.to(W.device, W.dtype).to_dense()) for W, M in pairs)
        # Weights are known to their rounding errors: nothing is gained below these.
        found.append(error if error > exact * whole else 0.0)
    return found


def projections(parcel: Parcel, structure: Structure, seed: int, deadline: float | None) -> list[Projection]:
    """The projections of a parcel's matrices; none where it stays dense. `deadline` as for `project`."""
    if structure.is_dense:
        return []
    metric = parcel.metric()
    return [project(W, structure, metric, seed, 1.0, deadline) for W in parcel.matrices]


PROJECTIONS: Form[list[Projection]] = Form(
    lambda made: [
        [p.matrix.name, tuple(p.matrix.shape), p.matrix.options, p.matrix.tensors, *p[1:]] for p in made
    ],
    lambda piece: [
        Projection(get_structure(name).unchecked(m, n, tensors, options), *residuals)
        for name, (m, n), options, tensors, *residuals in piece
    ],
)


def project_all(
    workers: Workers,
    weights: Sequence[Weight],
    structures: Sequence[Structure],
) -> list[list[Projection]]:
    """`projections` of each of the weights, wherever the workers are; quick ones where time is short."""
    pairs, deadline = list(zip(weights, structures, strict=True)), workers.clock.deadline(DEADLINE)
    stages = [f"{PROJECTING} {weight.name}" for weight in weights]
    arguments = [(workers.parcel(w), s, workers.seed, deadline) for w, s in pairs]
    keys = [f"{weight.name} projected as {structure}" for weight, structure in pairs]
    made = workers.run(stages, projections, arguments, keys=keys, form=PROJECTIONS).values()
    return [  # files and processes give them back on the CPU
        [p._replace(matrix=p.matrix.to(weight.matrices[0].device)) for p in some]
        for weight, some in zip(weights, made, strict=True)
    ]
