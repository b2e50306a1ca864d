"""Folders of compressed models: what is written is read again, and what does not fit is refused."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import torchldr
from torchldr.nn.description import split_rounding

HERE = Path(__file__).parent


def load_maker() -> ModuleType:
    """tests/compress/make_fixture.py, by its path: the tests are not a package."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_fixture", HERE / "make_fixture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maker = load_maker()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    model, x = maker.make()
    folder = tmp_path_factory.mktemp("saved") / "made" / "deep"
    torchldr.save_compressed(model, folder)
    return model, x, folder


@pytest.fixture
def copied(saved, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(saved[2], tmp_path / "copy")


def test_a_dense_model_takes_layers_and_numbers(saved):
    model, x, folder = saved
    fresh = maker.Model().eval()
    assert torchldr.load_compressed(fresh, folder) is fresh
    assert torch.equal(fresh(x), model(x))
    assert fresh.same is fresh.down
    assert fresh.again.G is fresh.up.G
    assert fresh.again.bias is not fresh.up.bias
    assert [type(m) for m in fresh.modules()] == [type(m) for m in model.modules()]
    for (name, a), (_, b) in zip(model.state_dict().items(), fresh.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


def test_a_model_without_memory_is_refused(tmp_path):
    """Numbers that are copied there are lost, without a word."""
    plan = torchldr.Structure("low_rank", rank=2)
    model = nn.Sequential(nn.Linear(40, 40))
    torchldr.compress_(model, plan)
    torchldr.save_compressed(model, tmp_path)
    fresh = nn.Sequential(nn.Linear(40, 40, device="meta"))
    with pytest.raises(ValueError, match=r"0\.G of the model is on the meta device: call model\.to_empty"):
        torchldr.load_compressed(fresh, tmp_path)
    x = torch.randn(2, 40)
    fresh.to_empty(device="cpu")
    assert torch.equal(torchldr.load_compressed(fresh, tmp_path)(x), model(x))


def test_a_parametrization_that_the_model_lacks_is_named(tmp_path):
    plan = torchldr.Structure("low_rank", rank=2)
    model, other = (nn.Sequential(nn.Linear(40, 40)) for _ in range(2))
    torchldr.compress_(model, plan)
    torchldr.save_compressed(torchldr.quantize_(model, training=True), tmp_path)
    with pytest.raises(ValueError, match=r"0\.G of the model is not in the folder; a parametrization"):
        torchldr.load_compressed(other, tmp_path)
    torchldr.compress_(other, plan)
    x = torch.randn(2, 40)
    torchldr.load_compressed(torchldr.quantize_(other, training=True), tmp_path)
    assert torch.equal(other(x), model(x))


@pytest.mark.parametrize("version", [1, 2])
def test_integers_are_read_again(saved, tmp_path, version):
    model, x = copy.deepcopy(saved[0]), saved[1]
    torchldr.save_compressed(torchldr.quantize_(model), tmp_path)
    if version == 1:  # it had no word of rounding
        path = tmp_path / "manifest.json"
        manifest = json.loads(path.read_text())
        assert manifest.pop("version") == 2
        layers, rounded = split_rounding(manifest.pop("layers"))
        assert rounded
        del manifest["sha256"]
        path.write_text(json.dumps({**manifest, "version": 1, "layers": layers}))
    fresh = torchldr.load_compressed(maker.Model().eval(), tmp_path)
    assert torch.equal(fresh(x), model(x))
    assert torchldr.load_compressed(fresh, tmp_path) is fresh  # which holds integers already
    for (name, a), (_, b) in zip(model.state_dict().items(), fresh.state_dict().items(), strict=True):
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name
    other = maker.Model()
    before = copy.deepcopy(other.state_dict())
    other.up = nn.Linear(other.up.in_features, other.up.out_features + 1)
    with pytest.raises(ValueError, match="up"):
        torchldr.load_compressed(other, tmp_path)
    assert all(torch.equal(t, before[name]) for name, t in other.state_dict().items() if "up" not in name)


def test_a_compressed_model_takes_numbers_and_keeps_its_layers(saved):
    model, x, folder = saved
    other = maker.Model().eval()
    torchldr.load_compressed(other, folder)
    layers = list(other.modules())
    with torch.no_grad():
        other.up.G.zero_()
    torchldr.load_compressed(other, folder)
    assert all(a is b for a, b in zip(layers, other.modules(), strict=True))
    assert torch.equal(other(x), model(x))


def test_dtype_and_hooks_of_the_model_stay(saved):
    model, x, folder = saved
    fresh = maker.Model().double().eval()
    calls = []
    fresh.mixed.register_forward_hook(lambda *_: calls.append(1))
    torchldr.load_compressed(fresh, folder)
    assert all(p.dtype == torch.float64 for p in fresh.parameters())
    assert torch.allclose(fresh(x.double()).float(), model(x), atol=1e-5)
    assert calls == [1]


def test_materialized_models_save_too(saved, tmp_path):
    model = maker.Model().eval()
    torchldr.load_compressed(model, saved[2])
    torchldr.materialize_(model)
    torchldr.save_compressed(model, tmp_path)
    fresh = torchldr.load_compressed(maker.Model().eval(), tmp_path)
    assert torch.equal(fresh(saved[1]), model(saved[1]))
    assert json.loads((tmp_path / "manifest.json").read_text())["layers"] == {}


def test_ties_of_quantized_weights(tmp_path):
    """Structured layers that share G and H share their integers, in the model that is read too."""

    def made() -> nn.Sequential:
        return nn.Sequential(nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 48, bias=False))

    def held(model: nn.Module) -> list[int]:
        return [t.nbytes for t in {id(t): t for t in model.state_dict(keep_vars=True).values()}.values()]

    model, x = made(), torch.randn(3, 48)
    torchldr.compress_(model, torchldr.Structure("low_rank", 2))
    for layer in model[1:]:
        layer.G, layer.H = model[0].G, model[0].H
    torchldr.quantize_(model)
    torchldr.save_compressed(model, tmp_path / "saved")
    read = torchldr.load_compressed(made(), tmp_path / "saved")
    assert held(read) == held(model)
    assert len(held(read)) == 6  # scales and integers of G and H, two biases
    assert torch.equal(read(x), model(x))
    torchldr.save_compressed(read, tmp_path / "again")
    size, again = (sum(f.stat().st_size for f in (tmp_path / name).iterdir()) for name in ("saved", "again"))
    assert again == size


@pytest.mark.parametrize("version", maker.FOLDERS)
def test_older_versions_keep_loading(version):
    folder = maker.FOLDERS[version]
    assert json.loads((folder / "manifest.json").read_text())["version"] == version
    expected = json.loads((folder / "expected.json").read_text())
    model = torchldr.load_compressed(maker.Model().eval(), folder)
    y = model(torch.tensor(expected["input"]))
    assert torch.allclose(y, torch.tensor(expected["output"]), rtol=0, atol=1e-5)


def test_the_manifest_says_what_it_must(saved):
    folder = saved[2]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["version"] == 1
    assert manifest["torchldr"] == torchldr.__version__
    assert manifest["layers"]["up"]["structure"] == "ldr_sd"
    assert manifest["layers"]["attention"]["parts"]["v_proj"]["options"] == {"block_size": 3}
    assert "attention.q_proj" not in manifest["layers"]
    assert manifest["aliases"]["again.G"] == "up.G"
    assert len(list(folder.iterdir())) == 2


def test_saving_again_leaves_nothing_behind(copied):
    model = torchldr.load_compressed(maker.Model(), copied)
    before = {path.name for path in copied.iterdir()}
    with torch.no_grad():
        model.up.G.add_(1)
    torchldr.save_compressed(model, copied)
    after = {path.name for path in copied.iterdir()}
    assert len(after) == 2
    assert after != before
    assert torch.equal(torchldr.load_compressed(maker.Model(), copied).up.G, model.up.G)


def test_a_save_that_fails_keeps_the_old_folder(saved, copied, monkeypatch):
    model, x, _ = saved
    replace = os.replace

    def fail(source: Path, target: Path) -> None:
        if Path(target).name == "manifest.json":
            raise OSError("no space left")
        replace(source, target)

    other = torchldr.load_compressed(maker.Model(), copied)
    with torch.no_grad():
        other.up.G.add_(1)
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        torchldr.save_compressed(other, copied)
    assert not list(copied.glob("*.tmp")) + list(copied.glob(".*.tmp"))
    assert torch.equal(torchldr.load_compressed(maker.Model().eval(), copied)(x), model(x))


def edit(folder: Path, change) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]  # as in version 0.1: what does not fit shows by itself
    change(manifest)
    path.write_text(json.dumps(manifest))


DAMAGES = [
    (lambda m: m.update(version=3), "format version 3, this torchldr reads"),
    (lambda m: m.update(format="x"), "not the manifest of a compressed model"),
    (lambda m: m.pop("aliases"), "lacks tensors, shapes, aliases or layers"),
    (lambda m: m["tensors"].update(file="../x.safetensors"), "must lie in the folder itself"),
    (lambda m: m["tensors"].update(sha256="0"), "is damaged"),
    (lambda m: m["layers"].update(other=m["layers"]["up"]), "the model has no layer other"),
    (lambda m: m["layers"]["up"].update(shape=[3, 3]), r"up: shape is \[10, 8\] in the model and \[3, 3\]"),
    (lambda m: m["layers"]["up"].update(bias=False), "up: bias is True in the model and False"),
    (lambda m: m["layers"]["up"].update(structure="ldr_s"), "up: unknown structure 'ldr_s'"),
    (lambda m: m["layers"]["up"].update(kind="lstm"), "up: the folder has a layer of kind lstm"),
    (lambda m: m["layers"]["up"].update(rank=2), r"up\.G has shape \(2, 10\) in the model and \(1, 10\)"),
    (lambda m: m["layers"].pop("mixed"), r"mixed\.weight of the model is not in the folder"),
    (lambda m: m["layers"]["rnn"].update(hidden_size=9), "rnn: hidden_size is 8 in the model and 9"),
    (lambda m: m["layers"]["pointwise"].update(stride=[1, 1]), r"pointwise: stride is \[2, 2\] in the model"),
    (lambda m: m["layers"]["up"].pop("bias"), "up: "),
]


@pytest.mark.parametrize(("change", "message"), DAMAGES)
def test_what_does_not_fit_is_refused_and_the_model_stays(copied, change, message):
    edit(copied, change)
    model = maker.Model()
    modules, state = list(model.modules()), {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        torchldr.load_compressed(model, copied)
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())


def test_damaged_files_are_refused(copied):
    (tensors,) = copied.glob("*.safetensors")
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        torchldr.load_compressed(maker.Model(), copied)
    tensors.unlink()
    with pytest.raises(FileNotFoundError):
        torchldr.load_compressed(maker.Model(), copied)
    (copied / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        torchldr.load_compressed(maker.Model(), copied)


def test_another_architecture_is_refused(saved):
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="the model has no layer"):
        torchldr.load_compressed(model, saved[2])
    assert type(model[0]) is nn.Linear


def test_a_model_compressed_in_another_way_is_refused(tmp_path):
    def compressed(rank):
        model = nn.Sequential(nn.Linear(40, 40))
        torchldr.compress_(model, torchldr.Structure("low_rank", rank=rank))
        return model

    torchldr.save_compressed(compressed(2), tmp_path / "out")
    with pytest.raises(ValueError, match="0: the model's layer is compressed in another way"):
        torchldr.load_compressed(compressed(3), tmp_path / "out")
    torchldr.load_compressed(compressed(2), tmp_path / "out")


def test_state_that_is_no_tensor_is_refused(tmp_path):
    class Extra(nn.Module):
        def get_extra_state(self):
            return {"a": 1}

    with pytest.raises(TypeError, match="_extra_state is a dict"):
        torchldr.save_compressed(nn.Sequential(Extra()), tmp_path)


def test_weights_alone_do_not_fit_a_transposed_layer(tmp_path):
    """A Conv1D stores W^T: nothing in a file of tensors says so, and a square one would fit."""

    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nf = 32
            self.weight, self.bias = nn.Parameter(torch.randn(32, 32)), nn.Parameter(torch.zeros(32))

        def forward(self, x):
            return x @ self.weight + self.bias

    model = nn.ModuleDict({"c": Conv1D()})
    matrix = torchldr.from_dense(model["c"].weight.detach(), "low_rank", rank=2).matrix
    torchldr.compress.save_weights({"c.weight": matrix, "c.bias": torch.zeros(32)}, tmp_path / "out")
    with pytest.raises(ValueError, match=r"c: the folder was made from weights alone, and a Conv1D"):
        torchldr.load_compressed(model, tmp_path / "out")
    assert isinstance(model["c"], Conv1D)


def test_buffers_that_the_model_does_not_keep_do_not_matter(tmp_path):
    class Net(nn.Module):
        def __init__(self, kept: bool) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)
            self.register_buffer("positions", torch.arange(4), persistent=kept)
            if kept:
                self.register_buffer("places", torch.arange(3))

    saved = Net(kept=True)
    torchldr.compress_(saved, {"layer": torchldr.Structure("low_rank", rank=2)})
    torchldr.save_compressed(saved, tmp_path)
    model = torchldr.load_compressed(Net(kept=False), tmp_path)
    assert torch.equal(model.layer.G, saved.layer.G)
    saved.register_buffer("scale", torch.ones(3))
    torchldr.save_compressed(saved, tmp_path)
    with pytest.raises(ValueError, match="scale of the folder"):
        torchldr.load_compressed(Net(kept=False), tmp_path)
