"""Options that only layers saved by earlier versions carry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import torchldr
from torchldr.matrices import LDRTridiagonal


@pytest.mark.parametrize("value", ["auto", "stencil", "port"])
def test_a_retired_option_changes_nothing(value: str) -> None:
    torch.manual_seed(0)
    layer = torchldr.StructuredLinear(8, 6, structure="ldr_td", rank=2, product=value, normalize=True)
    torch.manual_seed(0)
    plain = torchldr.StructuredLinear(8, 6, structure="ldr_td", rank=2, normalize=True)
    assert layer.options == plain.options == {"normalize": True}
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(3, 8)
    assert torch.equal(layer(x), plain(x))
    M = LDRTridiagonal(6, 8, **layer.matrix().tensors, product=value)
    assert M.options == {"normalize": False}
    assert "product" not in LDRTridiagonal.default_options()


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: torchldr.StructuredLSTM(4, 6, structure="ldr_td", **options),
        lambda **options: torchldr.StructuredChannels(2, 3, 8, structure="ldr_td", **options),
    ],
    ids=["lstm", "channels"],
)
def test_other_layers_drop_it_too(make) -> None:
    layer, plain = make(product="port"), make()
    plain.load_state_dict(layer.state_dict())
    assert repr(layer) == repr(plain)


def test_another_value_of_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="product must be one of auto, stencil, port, got 'tree'"):
        torchldr.StructuredLinear(8, 8, structure="ldr_td", product="tree")


def test_other_classes_do_not_know_it() -> None:
    with pytest.raises(TypeError, match="unknown keyword 'product'"):
        torchldr.StructuredLinear(8, 8, structure="low_rank", product="port")


def test_folders_that_carry_it_load(tmp_path: Path) -> None:
    layer = torchldr.StructuredLinear(10, 12, structure="ldr_td")
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(12, 4)).eval()
    torchldr.save_compressed(model, tmp_path)
    file = tmp_path / "manifest.json"
    manifest = json.loads(file.read_text())
    assert manifest["layers"]["0"]["options"] == {"normalize": False}
    manifest["layers"]["0"]["options"]["product"] = "port"
    del manifest["sha256"]
    file.write_text(json.dumps(manifest))
    fresh = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 4)).eval()
    loaded = torchldr.load_compressed(fresh, tmp_path)
    x = torch.randn(3, 10)
    assert torch.equal(loaded(x), model(x))
    assert loaded[0].options == {"normalize": False}
