"""Sweeps on a real Ray cluster of three nodes: the rows of a sweep here, through faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from torchldr_paper import Ledger, Library, Protocol, Run, sweep
from torchldr_paper.cli import sweeps as commands
from torchldr_paper.ledger.weights import load_network, weights_path
from torchldr_paper.trainer import cluster as cluster_module
from torchldr_paper.trainer.checkpoint import Claim
from torchldr_paper.trainer.cluster import Cluster
from torchldr_paper.trainer.parallel import Done, Processes, Task, train_images
from torchldr_paper.trainer.progress import Event, Progress, Tell

from ..cli.test_paper import QUICK, call

BRIEF = Protocol(epochs=6, batch=30, lrs=(0.01,), trials=2)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster with one core on each of three nodes."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    # What tests send to workers lies in this file, which they cannot import.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def connected(nodes: Any) -> Iterator[Any]:
    """This process is a driver: sweeps find its connection."""
    import ray

    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()


def runs_of(path: Path, count: int, seed: int = 0) -> list[Run]:
    return [Run(str(path), structure="low_rank", seed=seed + i, protocol=BRIEF) for i in range(count)]


def metrics(ledger: Ledger) -> dict[str, Any]:
    return {record.hash: record.result["metrics"] for record in ledger}


def lines_of(folder: Path) -> list[str]:
    return [json.loads(line)["hash"] for line in (folder / "ledger.jsonl").read_text().splitlines()]


class Watching(Progress):
    """Calls a function after each run that is done, and keeps all events."""

    def __init__(self, runs: int, then: Callable[[int], None] = lambda done: None) -> None:
        super().__init__(runs)
        self.then, self.events = then, list[Event]()

    def update(self, key: str, event: Event) -> None:
        super().update(key, event)
        self.events.append(event)

    def finish(self, key: str, message: str) -> None:
        super().finish(key, message)
        self.then(self.done)


# Without a cluster.


def test_ray_is_optional(own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = call("train", "--data", str(own_file), *QUICK, "--results", str(tmp_path), "--ray")
    assert result.exit_code == 2
    assert "pip install 'torchldr-paper[ray]'" in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("address", "message"),
    [("127.0.0.1:1", "nothing answers at 127.0.0.1:1 ("), ("rectangles", "'rectangles' is not an address")],
)
def test_an_address_without_a_cluster(address: str, message: str, own_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    result = call("train", "--data", str(own_file), *QUICK, "--results", str(tmp_path), "--ray", address)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("Ray: ")
    assert message in line


def test_options_of_engines_exclude_each_other(own_file: Path, tmp_path: Path) -> None:
    common = ["train", "--data", str(own_file), *QUICK, "--results", str(tmp_path)]
    for wrong in (["--ray", "--jobs", "2"], ["--ray", "--logdir", str(tmp_path)]):
        assert call(*common, *wrong).exit_code == 2
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.usefixtures("spawned_as_forks")
def test_a_process_that_dies_is_replaced(own_file: Path, tmp_path: Path) -> None:
    """The pool of processes breaks; its runs begin again. One that always dies is listed."""
    runs = runs_of(own_file, 2)
    report = sweep(
        runs, Ledger(tmp_path, published=False), Library("cpu"), backend=Processes(1), work=die_once
    )
    assert report.finished == runs
    assert sorted(lines_of(tmp_path)) == sorted(run.hash for run in runs)
    (run,) = runs_of(own_file, 1, seed=9)
    report = sweep([run], Ledger(tmp_path), Library("cpu"), backend=Processes(1), work=die, retries=0)
    assert [*report.failed] == [run.label]
    assert Claim(tmp_path, run.hash).take()


def test_a_run_that_fails_is_listed(own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are trained, and the exit code says so."""
    monkeypatch.setattr(commands, "train_images", fail_first)
    result = call(
        "train", "--data", str(own_file), "--structure", "low_rank", "--seeds", "2", *QUICK,
        "--results", str(tmp_path),
    )  # fmt: skip
    assert result.exit_code == 1
    assert "seed=0: failed: RuntimeError: out of luck" in result.stderr
    assert len(lines_of(tmp_path)) == 1


# On the cluster.


def test_other_versions_are_one_line(
    nodes: Any, own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["train", "--data", str(own_file), *QUICK, "--results", str(tmp_path), "--ray", nodes.address]
    with monkeypatch.context() as other:
        other.setattr("ray.__version__", "2.0.0")
        result = call(*common)
    assert result.exit_code == 1
    assert "runs other versions than Ray 2.0.0, Python" in result.stderr.splitlines()[-1]
    with monkeypatch.context() as other:
        other.setattr(cluster_module, "__version__", "0.0.1")
        result = call(*common)
    assert result.exit_code == 1
    assert ", this machine torchldr-paper 0.0.1" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "ledger.jsonl").exists()


def test_two_sweeps_at_once_have_the_rows_of_one_here(connected: Any, own_file: Path, tmp_path: Path) -> None:
    """One by the command line, one in this process, on one ledger and cluster; weights are kept too."""
    runs = runs_of(own_file, 6)
    command = [
        sys.executable, "-m", "torchldr", "train", "--data", str(own_file), "--structure", "low_rank",
        "--seeds", "6", "--epochs", "6", "--batch", "30", "--lr", "0.01", "--trials", "2", "--init", "linear",
        "--device", "cpu", "--results", str(tmp_path), "--ray", connected.address, "--cpus", "0.5",
        "--save-weights", "--json",
    ]  # fmt: skip
    other = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shown = Watching(6)
    ledger = Ledger(tmp_path, published=False)
    backend = Cluster(cpus=0.5, max_in_flight=2, device="cpu")
    report = sweep(runs, ledger, Library("cpu"), backend=backend, save_weights=True, progress=shown)
    stdout, stderr = other.communicate(timeout=300)
    assert other.returncode == 0, stderr
    assert json.loads(stdout)[0]["seeds"] == 6
    assert len(report.finished) + len(report.present) == 6
    assert sorted(lines_of(tmp_path)) == sorted(run.hash for run in runs)

    alone = Ledger(tmp_path / "alone", published=False)
    sweep(runs, alone, Library("cpu"))
    assert metrics(Ledger(tmp_path, published=False)) == metrics(alone)
    assert all(load_network(weights_path(ledger, run)) is not None for run in runs)
    assert {event.total for event in shown.events} <= {6}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        ".ledger.lock",
        "ledger.jsonl",
    ]


def test_a_dead_worker_and_a_lost_node_cost_no_row(connected: Any, own_file: Path, tmp_path: Path) -> None:
    """A worker is killed -9 in an epoch and goes on from its checkpoint; a node goes in the middle."""
    runs = runs_of(own_file, 8)
    node = connected.add_node(num_cpus=2)
    connected.wait_for_nodes()

    def then(done: int) -> None:
        if done == 2:
            connected.remove_node(node)

    report = sweep(
        runs,
        Ledger(tmp_path, published=False),
        Library("cpu"),
        backend=Cluster(device="cpu", max_in_flight=8),
        work=slowly,
        checkpoint_seconds=0,
        log=KillInEpochThree(tmp_path),
        progress=Watching(8, then),
    )
    assert not report.failed
    assert len(report.finished) == 8
    assert sorted(lines_of(tmp_path)) == sorted(run.hash for run in runs)
    seen = [*map(int, (tmp_path / "epochs").read_text().split())]
    assert seen.count(0) == 1, "the run that was killed began anew"
    assert seen[-1] == 5

    alone = Ledger(tmp_path / "alone", published=False)
    sweep(runs, alone, Library("cpu"))
    assert metrics(Ledger(tmp_path, published=False)) == metrics(alone)


def test_an_interrupt_keeps_what_has_come(connected: Any, own_file: Path, tmp_path: Path) -> None:
    """Tasks are cancelled, claims given up, rows stay; what fails for good is listed."""
    runs = runs_of(own_file, 5)

    def then(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    ledger = Ledger(tmp_path, published=False)
    with pytest.raises(KeyboardInterrupt):
        sweep(
            runs,
            ledger,
            Library("cpu"),
            backend=Cluster(device="cpu", max_in_flight=3),
            work=two_quick_others_for_ever,
            progress=Watching(5, then),
        )
    assert len(lines_of(tmp_path)) == 2
    for _ in range(30):  # Ray takes its time to end a worker
        beating = [path.stat().st_mtime for path in tmp_path.glob("beat-*")]
        time.sleep(1.0)
        if [path.stat().st_mtime for path in tmp_path.glob("beat-*")] == beating:
            break
    else:
        pytest.fail("tasks go on after the interrupt")
    (broken,) = runs_of(own_file, 1, seed=9)
    report = sweep(
        [*runs, broken], ledger, Library("cpu"), backend=Cluster(device="cpu", retries=1), work=die_at_nine
    )
    assert (len(report.present), len(report.finished)) == (2, 3)
    assert "WorkerCrashedError" in report.failed[broken.label]


# What workers do in these tests.


def die(task: Task, library: Library, tell: Tell) -> Done:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def die_once(task: Task, library: Library, tell: Tell) -> Done:
    mark = task.results / "died"
    if not mark.exists():
        mark.touch()
        die(task, library, tell)
    return train_images(task, library, tell)


def die_at_nine(task: Task, library: Library, tell: Tell) -> Done:
    return (die if task.run.seed == 9 else train_images)(task, library, tell)


def fail_first(task: Task, library: Library, tell: Tell) -> Done:
    if task.run.seed == 0:
        raise RuntimeError("out of luck\nand of words")
    return train_images(task, library, tell)


def slowly(task: Task, library: Library, tell: Tell) -> Done:
    time.sleep(0.5)
    return train_images(task, library, tell)


class KillInEpochThree:
    """A log of the epochs of the first run that kills its worker in the fourth, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, run: Run, epoch: int, scores: object) -> None:
        if run.seed != 0:
            return
        with (self.folder / "epochs").open("a") as stream:
            stream.write(f"{epoch}\n")
        if epoch == 3 and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def two_quick_others_for_ever(task: Task, library: Library, tell: Tell) -> Done:
    if task.run.seed < 2:
        return train_images(task, library, tell)
    while True:
        (task.results / f"beat-{task.run.seed}").touch()
        time.sleep(0.05)
