"""Ray as an executor of concurrent.futures: sweeps run on a cluster.

    with RayExecutor("head:6379", cpus=2) as executor:
        futures = [executor.submit(train, run) for run in runs]

Ray is imported when the first executor is made; nothing else here needs it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar
from urllib.parse import urlsplit

__all__ = ["RayExecutor"]

T = TypeVar("T")

_SECONDS = 5.0  # for a head node to answer; Ray itself would try for minutes


class RayExecutor(Executor):
    """Calls as tasks of a Ray cluster.

    Args:
        address: "host:port" of a head node, "ray://host:port", or "auto" for a cluster that runs on this
            machine; None starts one here that `shutdown` ends. In a process that is connected already, None
            takes that connection and leaves it.
        cpus, gpus: of each task; fractions are allowed. `gpus=None` takes one if the cluster has any.
        retries: restarts of a task whose worker or node died. Its own errors are raised.

    Attributes:
        resources: "cpus" and "gpus" of a task.
        slots: how many tasks the cluster, as it is now, runs at a time.

    Raises:
        ImportError: where Ray is not installed.
        ConnectionError: where the cluster does not answer or has other versions of Ray or Python.
    """

    def __init__(
        self, address: str | None = None, *, cpus: float = 1.0, gpus: float | None = 0.0, retries: int = 3
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ImportError("Ray is not installed: pip install 'torchldr-paper[ray]', or ray alone.")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its default to come: no warning
        import ray

        self._ray, self._own = ray, not ray.is_initialized()
        if self._own:
            _connect(ray, address)
        total = ray.cluster_resources()
        gpus = min(1.0, total.get("GPU", 0.0)) if gpus is None else gpus
        self.resources = {"cpus": cpus, "gpus": gpus}
        fit = [total.get(name, 0.0) // need for name, need in (("CPU", cpus), ("GPU", gpus)) if need]
        self.slots = int(min(fit, default=1))
        self._task = ray.remote(_call).options(num_cpus=cpus, num_gpus=gpus, max_retries=retries)
        self._refs: dict[Future[Any], Any] = {}

    def put(self, value: Any) -> Any:
        """An argument for `submit` that goes once to each node."""
        return self._ray.put(value)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Begin a call. An argument that `put` returned arrives as its value."""
        ref = self._task.remote(fn, *args, **kwargs)
        future: Future[T] = ref.future()
        self._refs[future] = ref
        future.add_done_callback(lambda done: self._refs.pop(done, None))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End; a cluster or connection that this executor made ends too."""
        if cancel_futures:
            for ref in [*self._refs.values()]:
                self._ray.cancel(ref, force=True)
        elif wait:
            for future in [*self._refs]:
                future.exception()
        if self._own and self._ray.is_initialized():
            self._ray.shutdown()


def _call(fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    return fn(*args, **kwargs)


def _connect(ray: Any, address: str | None) -> None:
    """Start a cluster or connect to one, with errors of one line."""
    if address not in (None, "auto"):
        _answers(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises all kinds, some of them plain
        where = "a cluster cannot be started here" if address is None else address
        if "ersion mismatch" in str(error):
            mine = f"Ray {ray.__version__}, Python {sys.version.split()[0]}"
            raise ConnectionError(f"Ray: {where} runs other versions than {mine} here.") from error
        raise ConnectionError(f"Ray: {where}: {' '.join(str(error).split())}") from error


def _answers(address: str) -> None:
    """Raise an error where nothing listens at an address."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        if parts.hostname is None or parts.port is None:
            raise ValueError
    except ValueError:
        raise ConnectionError(
            f"Ray: {address!r} is not an address; known forms are host:port, ray://host:port and auto."
        ) from None
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"Ray: nothing answers at {address} ({error.strerror or error}).") from error
