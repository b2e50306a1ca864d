"""Work on many weights, here or in several processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from ..matrices import Projection, from_dense, get_structure
from .choose import Report, Weight, errors
from .structure import Structure
from .tensors import TensorFile, TensorWeight

T = TypeVar("T")


class Packed(NamedTuple):
    """A tensor as bytes: torch's own way between processes keeps a file open for each."""

    data: bytes
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> Packed:
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        return cls(flat.view(torch.uint8).numpy().tobytes(), tuple(tensor.shape), tensor.dtype)

    def tensor(self) -> Tensor:
        return torch.frombuffer(bytearray(self.data), dtype=self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Parcel:
    """A weight as it goes to a process, with the root of its activations."""

    weight: TensorWeight | list[Packed] | list[Tensor]
    root: Packed | Tensor | None

    @property
    def matrices(self) -> list[Tensor]:
        if isinstance(self.weight, TensorWeight):
            return self.weight.matrices
        return [W.tensor() if isinstance(W, Packed) else W for W in self.weight]

    @property
    def activations(self) -> Tensor | None:
        return self.root.tensor() if isinstance(self.root, Packed) else self.root


class Workers:
    """A context in which functions run on weights.

    One job runs here. More are processes, each with its share of the cores; they end with the context,
    however it ends: on an interrupt too, and when this process is killed.

    Args:
        jobs: how many, at least 1.
    """

    def __init__(self, jobs: int) -> None:
        if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
            raise ValueError(f"jobs must be an int of at least 1, got {jobs!r}.")
        self.jobs = jobs

    def __enter__(self) -> Self:
        if self.jobs > 1:
            context = get_context("spawn")  # torch's threads do not survive a fork
            reader, self._life = context.Pipe(duplex=False)
            threads = max(1, (os.cpu_count() or 1) // self.jobs)
            self._pool = ProcessPoolExecutor(self.jobs, context, _start, (reader, threads))
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self.jobs > 1:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)
            self._life.close()  # ends what still runs at once, whatever it is doing

    def parcel(self, weight: Weight, root: Tensor | None = None) -> Parcel:
        """A weight for `run`: one of a file goes by its name, others by their numbers."""
        if self.jobs == 1:
            return Parcel(weight.matrices, root)
        packed = None if root is None else Packed.of(root)
        if isinstance(weight, TensorWeight) and isinstance(weight.source, TensorFile):
            return Parcel(weight, packed)
        return Parcel([Packed.of(W) for W in weight.matrices], packed)

    def run(
        self,
        stages: Sequence[str],
        function: Callable[..., T],
        arguments: Sequence[Sequence[Any]],
        report: Report,
    ) -> list[T]:
        """function(*a) for each of the arguments, in their order.

        Args:
            stages: what each is called in the progress.
            function: of a module's top level.
            arguments: whatever can be pickled.
            report: called with (stage, done, total).

        Raises:
            ChildProcessError: where a process ended without a result.
        """
        total = len(arguments)
        if self.jobs == 1:
            here = []
            for i, given in enumerate(arguments):
                report(stages[i], i, total)
                here.append(function(*given))
            return here
        places: dict[Future[T], int] = {self._pool.submit(function, *a): i for i, a in enumerate(arguments)}
        results: dict[int, T] = {}
        try:
            for done in as_completed(places):
                results[places[done]] = done.result()
                report(stages[places[done]], len(results), total)
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process ended without a result, perhaps for want of memory; try fewer jobs."
            ) from None
        return [results[i] for i in range(total)]


def _start(life: Connection, threads: int) -> None:
    """In a new process: few threads, and an end as soon as the other end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and closes the pipe
    torch.set_num_threads(threads)

    def watch() -> None:
        life.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def errors_of(parcel: Parcel, structures: Sequence[Structure], seed: int, effort: float) -> list[float]:
    """`choose.errors` of a parcel."""
    return errors(parcel.matrices, structures, parcel.activations, seed, effort)


def project(parcel: Parcel, structure: Structure, seed: int, effort: float) -> list[Projection]:
    """The projections of a parcel's matrices; none where it stays dense."""
    if structure.name == "dense":
        return []
    settings = {"activations": parcel.activations, "seed": seed, "effort": effort, **structure.options}
    return [from_dense(W, structure.name, structure.rank, **settings) for W in parcel.matrices]


class PackedProjection(NamedTuple):
    """A projection on its way from a process."""

    structure: str
    shape: tuple[int, int]
    tensors: Mapping[str, Packed]
    options: Mapping[str, Any]
    residual: float
    weighted_residual: float | None

    def unpack(self) -> Projection:
        tensors = {name: packed.tensor() for name, packed in self.tensors.items()}
        matrix = get_structure(self.structure).unchecked(*self.shape, tensors, self.options)
        return Projection(matrix, self.residual, self.weighted_residual)


def project_packed(parcel: Parcel, structure: Structure, seed: int, effort: float) -> list[PackedProjection]:
    """The same as `project`, ready to travel."""
    return [
        PackedProjection(
            M.name,
            (M.out_features, M.in_features),
            {name: Packed.of(tensor) for name, tensor in M.tensors.items()},
            M.options,
            residual,
            weighted,
        )
        for M, residual, weighted in project(parcel, structure, seed, effort)
    ]
