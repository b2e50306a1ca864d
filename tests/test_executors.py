"""`analyze` and `compress_` on executors of concurrent.futures: the results do not depend on them."""

from __future__ import annotations

import math
import pickle
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import pytest
import torch
from torch import nn

import torchldr
from torchldr.compress import looks, workers
from torchldr.compress.checkpoint.files import TensorWeight
from torchldr.compress.progress import Clock
from torchldr.executors import RayExecutor


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 36))


def results(executor: Executor | None) -> tuple[dict[str, torch.Tensor], object]:
    """What compression by a budget and with data, and an analysis, come to."""
    model, loader = network(), [torch.randn(64, 40, generator=torch.Generator().manual_seed(1))] * 4
    options = {"structures": ["low_rank", "circulant"], "progress": False, "executor": executor}
    report = torchldr.compress_(model, budget=0.4, loader=loader, **options)
    assert report.layers
    found = torchldr.analyze(network(), budget=0.3, ranks=[2], **options)
    return model.state_dict(), found.to_json()


@pytest.fixture(scope="module")
def here() -> tuple[dict[str, torch.Tensor], object]:
    return results(None)


def check(executor: Executor, here: tuple[dict[str, torch.Tensor], object]) -> None:
    numbers, found = results(executor)
    assert found == here[1]
    assert numbers.keys() == here[0].keys()
    for name, tensor in numbers.items():
        assert torch.equal(tensor, here[0][name]), name


def test_threads(here) -> None:
    with ThreadPoolExecutor(2) as executor:
        check(executor, here)
        assert executor.submit(abs, -1).result() == 1  # it stays open


class Elsewhere(Executor):
    """What a process would do: what is given and what comes back travel as bytes."""

    def submit(self, function, /, *args, **options):
        future: Future = Future()
        function, args, options = pickle.loads(pickle.dumps((function, args, options)))
        future.set_result(pickle.loads(pickle.dumps(function(*args, **options))))
        return future


def test_processes(here) -> None:
    with Elsewhere() as executor:
        check(executor, here)


def test_ray(here) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with RayExecutor() as executor:
        check(executor, here)


def test_what_is_no_executor() -> None:
    with pytest.raises(TypeError, match="executor must be a concurrent"):
        torchldr.compress_(network(), budget=0.5, executor=4)


@pytest.mark.parametrize(("minutes", "apart"), [(1.0, -1e6), (-1.0, 1e6)])
def test_a_deadline_on_a_machine_that_started_at_another_time(minutes, apart, monkeypatch) -> None:
    """A deadline is a time of day, which machines share; their monotonic clocks count from their starts."""
    with workers.Workers(1, ThreadPoolExecutor(1)) as some:
        parcel = some.parcel(TensorWeight({"W": torch.randn(8, 8)}, "W"))
    deadline, monotonic = Clock(minutes).deadline(1.0), time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + apart)
    (error,) = looks.looks_of(parcel, [torchldr.Structure("toeplitz_like")], 0, 0.1, deadline)
    assert math.isfinite(error) == (minutes > 0)


def test_what_has_not_begun_is_cancelled_at_an_error() -> None:
    with ThreadPoolExecutor(1) as executor, workers.Workers(1, executor) as some:
        began = list[int]()

        def work(i: int) -> None:
            began.append(i)
            time.sleep(0.01)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            some.run(["x"] * 50, work, [(i,) for i in range(50)])
    assert len(began) < 50
