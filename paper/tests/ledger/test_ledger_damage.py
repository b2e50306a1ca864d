"""Damaged files of a run: each is noticed in one line, or makes no difference."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchldr import get_structure, structures
from torchldr_paper import Images, Ledger, Library, Protocol, Run, build_model, load_network, sweep, train_run
from torchldr_paper.data import Dataset
from torchldr_paper.ledger.weights import _least, weights_path
from torchldr_paper.trainer.checkpoint import CheckpointFile
from torchldr_paper.trainer.fleet import Scores

from .test_ledger import make

Mutations = Callable[[bytes, int], Iterator[bytes]]
ONCE = Protocol(epochs=2, batch=30, lrs=(0.01,), trials=1)


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def stop(run: Run, epoch: int, scores: Scores) -> None:
    if epoch:
        raise KeyboardInterrupt


def test_checkpoints(
    tiny: Dataset, tmp_path: Path, mutations: Mutations, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run("rectangles", structure="ldr_sd", rank=2, protocol=ONCE)
    images = Images.of(tiny, run)
    with pytest.raises(KeyboardInterrupt):
        train_run(run, images, results=tmp_path, checkpoint_seconds=0, log=stop)
    file = CheckpointFile(tmp_path, run.hash, images.fingerprint)
    content, whole = file.path.read_bytes(), file.load()
    assert whole is not None
    noticed = 0
    for damaged in mutations(content, 165):
        file.path.write_bytes(damaged)
        caplog.clear()
        found = file.load()
        if found is None:
            noticed += 1
            assert [str(file.path) in record.getMessage() for record in caplog.records] == [True]
        else:
            assert equal(found[0], whole[0])
            assert found[1] == whole[1]
    assert noticed > 140


def test_a_checkpoint_without_a_checksum_starts_anew(
    tiny: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run("rectangles", protocol=ONCE)
    images = Images.of(tiny, run)
    with pytest.raises(KeyboardInterrupt):
        train_run(run, images, results=tmp_path, checkpoint_seconds=0, log=stop)
    file = CheckpointFile(tmp_path, run.hash, images.fingerprint)
    tensors, metadata = contents(file.path)
    del metadata["sha256"]
    save_file(tensors, file.path, metadata)
    assert file.load() is None
    assert "of other data or code" in caplog.text


@pytest.fixture(scope="module")
def saved(own_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network of a finished run, in its ledger's folder."""
    ledger = Ledger(tmp_path_factory.mktemp("saved"), published=False)
    run = Run(str(own_file), structure="ldr_sd", rank=2, protocol=ONCE)
    sweep([run], ledger, Library(torch.device("cpu")), save_weights=True)
    return weights_path(ledger, run)


def contents(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, "pt") as stored:
        return {name: stored.get_tensor(name) for name in stored.keys()}, dict(stored.metadata())  # noqa: SIM118


def test_networks(saved: Path, tmp_path: Path, mutations: Mutations) -> None:
    whole, copy, noticed = load_network(saved).state_dict(), tmp_path / "copy.safetensors", 0
    for damaged in mutations(saved.read_bytes(), 84):
        copy.write_bytes(damaged)
        found, message = loaded(copy)
        noticed += not found
        assert equal(found, whole) or message.startswith(str(copy))
        assert "\n" not in message
    assert noticed > 65


def loaded(path: Path) -> tuple[dict[str, Tensor], str]:
    """What a file holds, or what the error says."""
    try:
        return load_network(path).state_dict(), ""
    except ValueError as error:
        return {}, str(error)


def test_networks_of_version_0_1(saved: Path, tmp_path: Path) -> None:
    tensors, metadata = contents(saved)
    del metadata["sha256"]
    old = tmp_path / "old.safetensors"
    save_file(tensors, old, metadata)
    assert equal(load_network(old).state_dict(), load_network(saved).state_dict())


HUGE = 2_000_000


@pytest.mark.parametrize("structure", ["dense", "ldr_sd", "low_rank", "fastfood", "ldr_td"])
@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("image_shape", [1, HUGE, HUGE]),
        ("image_shape", [HUGE * HUGE, 1, 1]),
        ("image_shape", [1, 7]),
        ("image_shape", [1, -7, -7]),
        ("image_shape", ["1", 7, 7]),
        ("image_shape", None),
        ("outputs", HUGE * HUGE),
        ("outputs", 1.5),
        ("hidden", HUGE * HUGE),
        ("rank", 49),
        ("run", None),
        ("run", [[]]),
        ("nested", "[" * 100_000),
    ],
)
def test_a_network_that_claims_to_be_larger(
    saved: Path, tmp_path: Path, structure: str, change: str, value: object
) -> None:
    """Nothing is allocated that the file does not hold."""
    tensors, metadata = contents(saved)
    del metadata["sha256"]
    config = json.loads(metadata["run"]) | {"structure": structure}
    if change in ("hidden", "rank"):
        config[change] = value
    if structure in ("dense", "fastfood"):
        config.pop("rank")
    metadata["run"] = json.dumps(config)
    if change == "nested":
        metadata["run"] = str(value)
    elif change in metadata:
        metadata[change] = json.dumps(value)
    path = tmp_path / "claims.safetensors"
    save_file(tensors, path, metadata)
    with pytest.raises(ValueError, match=r"claims\.safetensors"):
        load_network(path)


@pytest.mark.parametrize("model", ["shl", "cnn", "conv3_pool", "channels", "wide", "channels_blocks"])
def test_no_honest_network_is_too_large(model: str) -> None:
    """What is held against the size of a file never exceeds that of the network."""
    for structure in structures():
        for shape, hidden in (((1, 8, 8), 64), ((3, 8, 8), 1), ((4, 5, 7), 10)):
            if model == "channels_blocks" and (shape[0] * shape[1] * shape[2]) % hidden:
                continue
            rank = min(2, hidden) if get_structure(structure).ranked else None
            run = Run("x", model=model, structure=structure, rank=rank, hidden=hidden)
            numbers = sum(t.numel() for t in build_model(run, shape, 3).state_dict().values())
            assert _least(run, shape, 3) <= numbers, (structure, shape)


def test_damaged_weights_are_trained_again(
    own_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, library = Run(str(own_file), protocol=ONCE), Library(torch.device("cpu"))
    ledger = Ledger(tmp_path, published=False)
    sweep([run], ledger, library, save_weights=True)
    path = weights_path(ledger, run)
    content, whole = path.read_bytes(), load_network(path).state_dict()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert sweep([run], ledger, library).finished == []  # the record is right
    assert sweep([run], ledger, library, save_weights=True).finished == [run]
    assert f"starts over: {path}: damaged" in caplog.text
    assert caplog.text.count("starts over") == 1
    assert equal(load_network(path).state_dict(), whole)
    assert sweep([run], ledger, library, save_weights=True).finished == []
    # A file that is whole, but of another network than the ledger's line.
    other = Run(str(own_file), seed=1, protocol=ONCE)
    sweep([other], ledger, library, save_weights=True)
    path.write_bytes(weights_path(ledger, other).read_bytes())
    assert sweep([run], ledger, library, save_weights=True).finished == [run]
    assert "not the weights that the ledger has" in caplog.text


def test_lines_of_the_ledger(tmp_path: Path, mutations: Mutations, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    ledger = Ledger(tmp_path, published=False)
    ledger.append(make(Run("rectangles", structure="ldr_sd"), 81.25))
    content, (whole,) = ledger.path.read_bytes(), ledger
    noticed = 0
    for damaged in mutations(content, 300):
        ledger.path.write_bytes(damaged)
        again = Ledger(tmp_path, published=False)
        noticed += bool(again.problems)
        assert all(str(ledger.path) in problem for problem in again.problems)
        for record in again:
            assert record == whole
        assert again.problems or len(again) == 1 or not damaged.strip()
    assert noticed > 250
