"""Runs as tasks of a Ray cluster: data goes once to each node, results come back, the driver alone writes."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future
from functools import lru_cache
from typing import Any

import torch

from .. import __version__
from ..data import Dataset
from ..data.text import Corpus
from ..executors import RayExecutor
from .library import Library
from .parallel import Backend, Done, Task, Update, Work, reporter
from .progress import Event

_TELL_SECONDS = 1.0  # between two events of a run
_CHECK_SECONDS = 120.0  # for all nodes to say which versions they have


class Cluster(Backend):
    """Trains runs on Ray.

    Args:
        address, retries: see `RayExecutor`.
        cpus, gpus: of each run; fractions are allowed. `gpus=None` takes one if the cluster has any, unless
            `device` is another.
        device: "auto" uses a GPU if the run has one.
        max_in_flight: runs that are handed to Ray at a time; by default twice as many as fit.

    Raises:
        ImportError, ConnectionError: see `RayExecutor`; also where nodes have other versions of the package.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: float = 1.0,
        gpus: float | None = None,
        device: str = "auto",
        max_in_flight: int | None = None,
        retries: int = 3,
    ) -> None:
        if gpus is None and device != "auto":
            gpus = float(device.startswith("cuda"))
        self.executor = RayExecutor(address, cpus=cpus, gpus=gpus, retries=retries)
        self.device, self._threads, self._shared = device, max(1, int(cpus)), dict[str, Any]()
        self.width = max_in_flight or max(4, 2 * self.executor.slots)
        self.notes = {"ray": self.executor.resources}
        import ray

        try:
            _check_nodes(ray)
        except BaseException:
            self.close()
            raise
        # On the driver's own node, which outlives the others.
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self._board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=here).remote()
        self._asked: Any = None
        self._ray = ray

    def submit(self, work: Work, task: Task, library: Library, update: Update) -> Future[Done]:
        data = library.data(task.run)
        if data.fingerprint not in self._shared:
            self._shared[data.fingerprint] = self.executor.put(data)
        shared = self._shared[data.fingerprint]
        return self.executor.submit(_on_node, work, task, shared, self.device, self._threads, self._board)

    def poll(self, update: Update) -> None:
        """Hand on what came; ask again, and do not wait for the answer."""
        if self._asked is not None and self._ray.wait([self._asked], timeout=0)[0]:
            for key, event in self._ray.get(self._asked).items():
                update(key, event)
            self._asked = None
        if self._asked is None:
            self._asked = self._board.take.remote()

    def close(self) -> None:
        self.executor.shutdown(cancel_futures=True)


class _Board:
    """The latest event of each run, until it is taken."""

    def __init__(self) -> None:
        self._events: dict[str, Event] = {}

    def tell(self, key: str, event: Event) -> None:
        self._events[key] = event

    def take(self) -> dict[str, Event]:
        events, self._events = self._events, {}
        return events


def _on_node(work: Work, task: Task, data: Dataset | Corpus, device: str, threads: int, board: Any) -> Done:
    torch.set_num_threads(threads)
    library, told = _library(device), [0.0]
    library.keep(task.run.data, data)

    def update(key: str, event: Event) -> None:
        now = time.monotonic()
        if now - told[0] >= _TELL_SECONDS or event.epoch == event.total:
            told[0] = now
            with contextlib.suppress(Exception):  # a run does not end because nobody listens
                board.tell.remote(key, event)

    return work(task, library, reporter(task.run, update))


@lru_cache(maxsize=1)
def _library(device: str) -> Library:
    """Of this worker, so that the runs that it trains find their images on the device."""
    return Library(device)


def _versions() -> tuple[str, str]:
    return __version__, torch.__version__


def _check_nodes(ray: Any) -> None:
    """Check that all nodes have the driver's versions of the package and of torch.

    Raises:
        ConnectionError: if one has not, in one line.
    """
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    ask = ray.remote(_versions)
    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    asked = {
        ask.options(num_cpus=0, scheduling_strategy=affinity(node, soft=True), max_retries=3).remote(): name
        for node, name in nodes.items()
    }
    done, _ = ray.wait([*asked], num_returns=len(asked), timeout=_CHECK_SECONDS)
    for ref in done:
        try:
            found = ray.get(ref)
        except Exception as error:
            lines = str(error).strip().splitlines()
            raise ConnectionError(f"Ray: node {asked[ref]} cannot train: {lines[-1]}") from error
        if found != _versions():
            names = [f"torchldr-paper {own}, torch {torch_}" for own, torch_ in (found, _versions())]
            raise ConnectionError(f"Ray: node {asked[ref]} has {names[0]}, this machine {names[1]}.")
