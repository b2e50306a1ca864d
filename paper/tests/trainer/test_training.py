from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torchldr_paper import Images, Ledger, Library, Outcome, Protocol, Run, build_model, sweep, train_run
from torchldr_paper.data import Dataset
from torchldr_paper.trainer.checkpoint import CheckpointFile
from torchldr_paper.trainer.fleet import Scores


def same(a: Outcome, b: Outcome) -> None:
    assert a.metrics == b.metrics
    assert a.best == b.best
    assert a.diverged == b.diverged
    for name, tensor in a.weights.items():
        assert torch.equal(tensor, b.weights[name]), name


class InterruptError(Exception):
    pass


def stop_after(epochs: int):  # type: ignore[no-untyped-def]
    seen = 0

    def log(run: Run, epoch: int, scores: Scores) -> None:
        nonlocal seen
        seen += 1
        if seen > epochs:
            raise InterruptError

    return log


several = pytest.mark.parametrize(
    "fields",
    [
        {"structure": "ldr_sd", "rank": 2},
        {"model": "cnn", "structure": "fastfood"},
        {"keep": 60},
        {"model": "channels_blocks", "structure": "ldr_sd", "rank": 2, "hidden": 7},
    ],
    ids=["ldr_sd", "cnn fastfood", "pruned", "channels_blocks"],
)


@several
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    fields: dict[str, object], tiny: Dataset, brief: Protocol, tmp_path: Path
) -> None:
    curves = fields.get("structure") != "fastfood"  # one without
    run = Run("rectangles", protocol=brief, **fields)  # type: ignore[arg-type]
    images = Images.of(tiny, run)
    whole = train_run(run, images, curves=curves)
    for epochs in (0, 1):
        with pytest.raises(InterruptError):
            train_run(
                run, images, results=tmp_path, checkpoint_seconds=0, log=stop_after(epochs), curves=curves
            )
    same(train_run(run, images, results=tmp_path, checkpoint_seconds=0, curves=curves), whole)


@several
def test_without_curves_the_result_is_the_same(
    fields: dict[str, object], tiny: Dataset, brief: Protocol
) -> None:
    run = Run("rectangles", protocol=brief, **fields)  # type: ignore[arg-type]
    images = Images.of(tiny, run)
    whole, short = (train_run(run, images, curves=curves) for curves in (True, False))
    assert (short.best, short.mean, short.diverged) == (whole.best, whole.mean, whole.diverged)
    for name, tensor in whole.weights.items():
        assert torch.equal(tensor, short.weights[name]), name
    for name in ("loss", "validation", "validation_loss"):
        assert short.metrics[name] == whole.metrics[name]
    for name in ("train", "test"):
        known = [
            (here, there)
            for row, full in zip(short.metrics[name], whole.metrics[name], strict=True)
            for here, there in zip(row, full, strict=True)
            if here is not None
        ]
        assert len(known) == len(run.protocol.replicas)  # each where its validation is best
        assert all(here == there for here, there in known)


def test_a_diverged_replica_is_recorded_and_survives_a_checkpoint(tiny: Dataset, tmp_path: Path) -> None:
    run = Run("rectangles", protocol=Protocol(epochs=3, batch=30, lrs=(0.001, 1e9), trials=1))
    images = Images.of(tiny, run)
    whole = train_run(run, images)
    assert whole.diverged == [None, 0]
    assert whole.metrics["test"][2][1] is None
    assert whole.best is not None
    assert whole.best.lr == 0.001
    with pytest.raises(InterruptError):
        train_run(run, images, results=tmp_path, checkpoint_seconds=0, log=stop_after(1))
    same(train_run(run, images, results=tmp_path), whole)
    short = train_run(run, images, curves=False)
    assert (short.best, short.mean, short.diverged) == (whole.best, whole.mean, whole.diverged)


def test_all_replicas_diverge(tiny: Dataset) -> None:
    run = Run("rectangles", protocol=Protocol(epochs=5, batch=30, lrs=(1e9,), trials=2))
    outcome = train_run(run, Images.of(tiny, run))
    assert outcome.diverged == [0, 0]
    assert outcome.best is None
    assert len(outcome.metrics["test"]) == 1


def test_a_pruned_run_trains_before_and_after(tiny: Dataset, brief: Protocol) -> None:
    run = Run("rectangles", keep=60, protocol=brief)
    outcome = train_run(run, Images.of(tiny, run))
    assert len(outcome.metrics["test"]) == brief.epochs
    assert int((outcome.weights["hidden.weight"] != 0).sum()) == 60
    assert outcome.parameters == 60 + 49 * 10 + 10


def test_weights_are_those_of_the_selected_network(tiny: Dataset, brief: Protocol) -> None:
    run = Run("rectangles", structure="fastfood", protocol=brief)
    images = Images.of(tiny, run)
    outcome = train_run(run, images)
    assert outcome.best is not None
    model = build_model(run, images.image_shape, images.outputs)
    model.load_state_dict(outcome.weights)
    accuracy = 100 * (model(images.test_x).argmax(-1) == images.test_y).double().mean()
    assert float(accuracy) == pytest.approx(outcome.best.test, abs=1.3)


def test_damaged_and_foreign_checkpoints_are_left(
    tiny: Dataset, brief: Protocol, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run("rectangles", protocol=brief)
    images = Images.of(tiny, run)
    file = CheckpointFile(tmp_path, run.hash, images.fingerprint)
    with pytest.raises(InterruptError):
        train_run(run, images, results=tmp_path, checkpoint_seconds=0, log=stop_after(1))
    assert file.load() is not None
    assert CheckpointFile(tmp_path, run.hash, "other data").load() is None
    assert "other data or code" in caplog.text
    file.path.write_bytes(file.path.read_bytes()[:1000])
    whole = train_run(run, images)
    same(train_run(run, images, results=tmp_path), whole)
    assert "cannot be read" in caplog.text


KILLED = """
import os, signal, torch
from torchldr_paper import Ledger, Library, Protocol, Run, choose_device, sweep
torch.set_num_threads(1)
run = Run(file, structure="ldr_sd", protocol=Protocol(epochs=6, batch=10, lrs=(.001, .002), trials=2))
def log(run, epoch, scores):
    if epoch == 3:
        os.kill(os.getpid(), signal.SIGKILL)
sweep([run], Ledger(results), Library(choose_device("cpu")), log=log, checkpoint_seconds=0)
"""


def test_kill_minus_nine_loses_one_epoch_at_most(started: Any, own_file: Path, tmp_path: Path) -> None:
    with started(KILLED, file=str(own_file), results=str(tmp_path / "broken")) as broken:
        broken.join()
        assert broken.exitcode == -signal.SIGKILL
    protocol = Protocol(epochs=6, batch=10, lrs=(0.001, 0.002), trials=2)
    run = Run(str(own_file), structure="ldr_sd", protocol=protocol)
    threads, epochs = torch.get_num_threads(), dict[str, list[int]]()
    torch.set_num_threads(1)
    try:
        for name in ("broken", "whole"):
            seen = epochs[name] = []
            sweep(
                [run],
                Ledger(tmp_path / name),
                Library("cpu"),
                log=lambda run, epoch, scores, seen=seen: seen.append(epoch),  # type: ignore[misc]
                checkpoint_seconds=0,
            )
    finally:
        torch.set_num_threads(threads)
    assert epochs["whole"] == [*range(6)]
    assert epochs["broken"][0] >= 3  # the epoch that it died in may not have been saved
    assert epochs["broken"][-1] == 5

    (record,), (want,) = (list(Ledger(tmp_path / name, published=False)) for name in ("broken", "whole"))
    assert record.result["metrics"] == want.result["metrics"]
    assert record.best == want.best
    assert not list((tmp_path / "broken" / ".checkpoints").glob("*"))


def test_tensorboard(tiny: Dataset, brief: Protocol, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torchldr_paper.trainer.progress import tensorboard_log

    run = Run("rectangles", protocol=brief)
    train_run(run, Images.of(tiny, run), log=tensorboard_log(tmp_path))
    (events,) = tmp_path.glob("*/events*")
    assert run.hash in events.parent.name
    assert b"validation/lr=0.01/trial=1" in events.read_bytes()


def test_checkpoints_wait(tiny: Dataset, brief: Protocol, tmp_path: Path) -> None:
    """Epochs that are shorter than the interval share a checkpoint."""
    run = Run("rectangles", protocol=replace(brief, epochs=2))
    train_run(run, Images.of(tiny, run), results=tmp_path, checkpoint_seconds=math.inf)
    assert not (tmp_path / ".checkpoints").exists()


def test_metrics_are_json(tiny: Dataset, brief: Protocol) -> None:
    from torchldr_paper.trainer.training import outcome_json

    run = Run("rectangles", protocol=brief)
    json.dumps(outcome_json(train_run(run, Images.of(tiny, run))), allow_nan=False)
