"""Damaged folders and fine-tunings: each is noticed in one line, or makes no difference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import torchldr
from torchldr.compress import read_plan

HUGE = 10**12


def make() -> nn.Module:
    """Three layers of one shape, two of them tied: a name that changes by a bit is that of another."""
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
    model[2].weight = model[0].weight
    return model


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    model, folder = make(), tmp_path_factory.mktemp("saved") / "model"
    torchldr.compress_(model, torchldr.Structure("ldr_sd", rank=2), time_limit=1e-6)  # quick
    torchldr.save_compressed(model, folder)
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(saved, tmp_path / "copy")


def outcome(load) -> tuple[dict[str, torch.Tensor], str]:
    """What was loaded, or what the error says."""
    try:
        return load(), ""
    except (ValueError, FileNotFoundError) as error:
        return {}, str(error)


@pytest.mark.parametrize("pattern", ["manifest.json", "*.safetensors"])
def test_every_damage_of_a_folder_is_noticed_or_harmless(copied: Path, mutations, pattern: str):
    (file,) = copied.glob(pattern)
    whole = torchldr.load_compressed(make(), copied).state_dict()
    dense, content, noticed = torchldr.compress.load_weights(copied), file.read_bytes(), 0
    assert not equal(make().state_dict(), whole)
    for damaged in mutations(content, 120):
        file.write_bytes(damaged)
        for load, want in (
            (lambda: torchldr.load_compressed(make(), copied).state_dict(), whole),
            (lambda: torchldr.compress.load_weights(copied), dense),
        ):
            found, message = outcome(load)
            noticed += not found
            assert equal(found, want) or str(copied) in message, message
            assert "\n" not in message
    assert noticed > 180


def test_one_bit_ties_a_layer_to_another(copied: Path):
    """The manifest is then right in itself: only its checksum tells."""
    path = copied / "manifest.json"
    text = path.read_text()
    assert text.count('"2.G": "0.G"') == 1
    path.write_text(text.replace('"2.G": "0.G"', '"2.G": "1.G"'))
    with pytest.raises(ValueError, match=r"manifest\.json is damaged or was edited"):
        torchldr.load_compressed(make(), copied)


def test_manifests_of_version_0_1_have_no_checksum(copied: Path):
    path = copied / "manifest.json"
    manifest = json.loads(path.read_text())
    whole = torchldr.load_compressed(make(), copied).state_dict()
    del manifest["sha256"]
    path.write_text(json.dumps(manifest))
    assert equal(torchldr.load_compressed(make(), copied).state_dict(), whole)


CLAIMS = [
    lambda m: m["layers"]["0"].update(shape=[HUGE, HUGE]),
    lambda m: m["layers"]["0"].update(shape=[32, HUGE]),
    lambda m: m["layers"]["0"].update(shape=None),
    lambda m: m["layers"]["0"].update(shape=[[32], 32]),
    lambda m: m["layers"]["0"].update(rank=HUGE),
    lambda m: m["layers"]["0"].update(rank=[2]),
    lambda m: m["layers"]["0"].update(options=None),
    lambda m: m["layers"]["0"].update(options={"product": []}),
    lambda m: m["layers"]["0"].update(structure=["ldr_sd"]),
    lambda m: m["layers"]["0"].update(structure="dense", shape=[HUGE, HUGE], rank=None),
    lambda m: m["layers"].update({"0": None}),
    lambda m: m["layers"].update({"0": [1]}),
    lambda m: m["layers"].update({"0": {}}),
    lambda m: m["aliases"].update({"2.G": ["0.G"]}),
    lambda m: m["aliases"].update({"2.G": None}),
    lambda m: m["shapes"].update({"0.G": 3}),
    lambda m: m["tensors"].update(file=None),
    lambda m: m["tensors"].update(file=["x"]),
    lambda m: m["tensors"].update(file="a\0b"),
    lambda m: m["tensors"].update(file=""),
    lambda m: m["tensors"].update(sha256=None),
    lambda m: m.update(tensors=[]),
    lambda m: m.update(weights=[]),
    lambda m: m.update(weights={"0": ["x"]}),
    lambda m: m.update(version=[1]),
]


@pytest.mark.parametrize("claim", CLAIMS)
def test_hostile_manifests_are_one_error(copied: Path, claim):
    path = copied / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    claim(manifest)
    path.write_text(json.dumps(manifest))
    for load in (
        lambda: torchldr.load_compressed(make(), copied),
        lambda: torchldr.compress.load_weights(copied),
    ):
        with pytest.raises(ValueError, match=r"load_(compressed|weights): "):
            load()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"layers":' * 100_000, "\ufeff{}", "1" * 10_000])
def test_nested_and_other_json(copied: Path, tmp_path: Path, text: str):
    (copied / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"manifest\.json is not JSON"):
        torchldr.load_compressed(make(), copied)
    (tmp_path / "plan.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"plan\.json is not a JSON file"):
        read_plan(tmp_path / "plan.json")


def test_a_full_disk_keeps_the_old_folder(copied: Path, full_disk):
    model = torchldr.load_compressed(make(), copied)
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model[0].G.add_(1)
    before = sorted(path.name for path in copied.iterdir())
    with full_disk(1000), pytest.raises(OSError, match=r"File too large: .*model-.*\.safetensors"):
        torchldr.save_compressed(model, copied)
    assert sorted(path.name for path in copied.iterdir()) == before
    assert equal(torchldr.load_compressed(make(), copied).state_dict(), whole)
