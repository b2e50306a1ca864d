"""Several processes on one ledger, and disks that are full."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from torchldr_paper import Ledger, Library, Protocol, Run, sweep
from torchldr_paper.ledger.weights import weights_path
from torchldr_paper.trainer.checkpoint import FOLDER, Claim

from .test_ledger import make

ONCE = Protocol(epochs=1, batch=80, lrs=(0.01,), trials=1)


@pytest.fixture
def library() -> Library:
    return Library(torch.device("cpu"))


TOGETHER = """
import os, torch
from torchldr_paper import Ledger, Library, Protocol, Run, choose_device, sweep
torch.set_num_threads(1)
once = Protocol(epochs=2, batch=10, lrs=(.01,), trials=1)
runs = [Run(file, structure="low_rank", seed=seed, protocol=once) for seed in range(8)]
reading, writing = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 1)  # until all three are there
        report = sweep(runs, Ledger(folder, published=False), Library(choose_device("cpu")))
        pipe.send((len(report.finished), len(report.present)))
        os._exit(0)
os.close(writing)
assert [os.wait()[1] for _ in range(3)] == [0, 0, 0]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_three_processes_share_the_runs(started: Any, own_file: Path, tmp_path: Path) -> None:
    reading, writing = multiprocessing.Pipe(duplex=False)
    with started(TOGETHER, file=str(own_file), folder=str(tmp_path), pipe=writing) as three:
        three.join()
        assert three.exitcode == 0
    done = [reading.recv() for _ in range(3)]
    assert not reading.poll()
    assert sum(finished for finished, _ in done) == 8
    assert all(finished + present == 8 for finished, present in done)
    lines = (tmp_path / "ledger.jsonl").read_text().splitlines()
    assert len({json.loads(line)["hash"] for line in lines}) == len(lines) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ledger.lock", "ledger.jsonl"]


HOLDER = """
from torchldr_paper.trainer.checkpoint import Claim
claim = Claim(folder, run)
assert claim.take()
pipe.send("held")
pipe.recv()
"""


def test_a_claim_is_left_alone_and_dies_with_its_process(
    started: Any, own_file: Path, tmp_path: Path, library: Library
) -> None:
    mine, theirs = (Run(str(own_file), seed=seed, protocol=ONCE) for seed in (0, 1))
    here, there = multiprocessing.Pipe()
    with started(HOLDER, folder=tmp_path, run=theirs.hash, pipe=there):
        assert here.recv() == "held"
        ledger = Ledger(tmp_path, published=False)
        report = sweep([theirs, mine], ledger, library, wait=False)
        assert (report.finished, report.claimed) == ([mine], [theirs])
        report = sweep([theirs, mine], ledger, library, max_seconds=0)
        assert (report.present, report.left) == ([mine], [theirs])
        assert not Claim(tmp_path, theirs.hash).take()
    # It was killed: nothing in it can be tidied up.
    assert sweep([theirs], ledger, library).finished == [theirs]
    assert not (tmp_path / FOLDER).exists()


def test_what_another_process_finished_is_not_run_again(
    own_file: Path, tmp_path: Path, library: Library
) -> None:
    """The ledger in memory is older than the file; also where everything is to be run again."""
    run = Run(str(own_file), protocol=ONCE)
    for force in (False, True):
        stale = Ledger(tmp_path, published=False)
        assert sweep([run], Ledger(tmp_path, published=False), library, force=force).finished == [run]
        assert sweep([run], stale, library, force=force).present == [run]
    assert sweep([run], stale, library, force=True).finished == [run]


def test_the_ledger_reads_only_what_is_new(tmp_path: Path) -> None:
    first, second = (Ledger(tmp_path, published=False) for _ in range(2))
    for seed in range(3):
        second.append(make(Run("rectangles", seed=seed)))
        first.read_again()
        assert len(first) == seed + 1
    with second.path.open("ab") as stream:
        stream.write(b'{"version":1,')  # another process is writing
    first.read_again()
    assert not first.problems
    assert len(Ledger(tmp_path, published=False).problems) == 1
    second.append(make(Run("rectangles", seed=3)))
    first.read_again()
    first.read_again()
    assert len(first) == 4
    assert len(first.problems) == 1
    assert "line 4: skipped" in first.problems[0]
    second.path.unlink()
    second.append(make(Run("cifar10")))
    first.read_again()
    assert first.find(Run("cifar10")) is not None


def test_a_run_outlives_weights_that_cannot_be_written(
    own_file: Path, tmp_path: Path, library: Library, full_disk: Any
) -> None:
    run, ledger = Run(str(own_file), protocol=ONCE), Ledger(tmp_path, published=False)
    with full_disk(8000):  # the line of the ledger fits, the 12 kB of weights do not
        report = sweep([run], ledger, library, save_weights=True)
    assert report.finished == [run]
    assert str(weights_path(ledger, run)) in report.unsaved[run.label]
    (record,) = Ledger(tmp_path, published=False)
    assert record.weights is None
    assert not list((tmp_path / "weights").iterdir())
    report = sweep([run], ledger, library, save_weights=True)
    assert (report.finished, report.unsaved) == ([run], {})


def test_a_run_outlives_checkpoints_that_cannot_be_written(
    own_file: Path, tmp_path: Path, library: Library, full_disk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run, ledger = Run(str(own_file), protocol=ONCE), Ledger(tmp_path, published=False)
    with full_disk(8000):
        assert sweep([run], ledger, library, checkpoint_seconds=0).finished == [run]
    assert "the checkpoint is not kept" in caplog.text
    assert run.hash in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ledger.lock", "ledger.jsonl"]


def test_a_line_that_cannot_be_written_leaves_the_ledger_as_it_was(tmp_path: Path, full_disk: Any) -> None:
    ledger = Ledger(tmp_path, published=False)
    ledger.append(make(Run("rectangles")))
    content = ledger.path.read_bytes()
    with full_disk(len(content) + 100), pytest.raises(OSError, match=r"ledger\.jsonl") as caught:
        ledger.append(make(Run("rectangles", seed=1)))
    assert caught.value.errno == errno.EFBIG
    assert ledger.path.read_bytes() == content
    assert len(ledger) == 1
