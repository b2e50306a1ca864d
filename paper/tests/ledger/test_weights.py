"""Selected networks as files."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from torchldr_paper import Ledger, Library, Protocol, Run, load_network, sweep
from torchldr_paper.ledger.weights import weights_path
from torchldr_paper.trainer import parallel

BRIEF = Protocol(epochs=2, lrs=(0.001, 0.01), trials=1, batch=12)


@pytest.mark.parametrize(
    "fields",
    [
        {"structure": "ldr_sd", "rank": 2},
        {"structure": "dense", "keep": 100},
        {"structure": "fastfood"},
        {"structure": "cauchy_like"},
        {"structure": "toeplitz_like", "model": "cnn"},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_a_network_comes_back(own_file: Path, tmp_path: Path, fields: dict) -> None:
    """Built from the file alone, it classifies as the ledger says."""
    run = Run(str(own_file), protocol=BRIEF, **fields)
    ledger, library = Ledger(tmp_path), Library(torch.device("cpu"))
    sweep([run], ledger, library, save_weights=True)
    record, images = library.find(run, ledger), library.images(run)
    assert record is not None
    assert record.best is not None
    network = load_network(weights_path(ledger, run))
    assert not network.training
    with torch.no_grad():
        right = network(images.test_x).argmax(-1) == images.test_y
    assert 100 * right.double().mean().item() == pytest.approx(record.best.test, abs=1e-3)


def test_files_of_others(tmp_path: Path) -> None:
    other, broken = tmp_path / "other.safetensors", tmp_path / "broken.safetensors"
    broken.write_bytes(b"not one")
    for about in (None, {"format": "pt"}):
        save_file({"x": torch.zeros(2)}, other, about)
        with pytest.raises(ValueError, match="does not say which run"):
            load_network(other)
    for path in (broken, tmp_path / "absent.safetensors"):
        with pytest.raises(ValueError, match="cannot be read as tensors"):
            load_network(path)


def test_a_folder_that_cannot_be(own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained whose result could not be kept."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(parallel, "train_run", lambda *args, **kwargs: pytest.fail("trained"))
    run = Run(str(own_file), protocol=BRIEF)
    with pytest.raises(OSError, match="results cannot be kept here"):
        sweep([run], Ledger(tmp_path / "file"), Library(torch.device("cpu")))


def test_published_networks_come_back() -> None:
    folder = Path(str(resources.files("torchldr_paper.ledger"))) / "published" / "weights"
    known = {record.hash: record.run for record in Ledger(folder)}
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) == 4
    for file in files:
        network, run = load_network(file), known[file.stem]
        assert network.hidden.rank == run.rank
