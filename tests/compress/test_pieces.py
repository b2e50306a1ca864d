"""What is kept of interrupted work, and what is not believed."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

import torchldr
from torchldr.compress.pieces import LOG, Pieces, checksum

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool)


def test_pieces_come_back_mapped(tmp_path):
    pieces = Pieces(tmp_path / "work")
    assert pieces.begin({"a": [1, None]})
    tensors = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
    tensors |= {"none": torch.zeros(0, 3), "one": torch.tensor(2.0), "turned": torch.randn(4, 3).mT}
    assert pieces.get("x") is None
    pieces.put("x", {"a": [1.5, None, "tensor: 0", tensors]})
    again = pieces.zeros("sum", (3, 2), torch.zeros(1))
    again.add_(2)
    pieces.put("y", [1e-300, again])
    assert not list((tmp_path / "work").glob("000001.*"))  # it lies in its own file
    pieces.close()
    pieces = Pieces(tmp_path / "work")
    assert pieces.begin({"a": [1, None]})
    *value, found = pieces.get("x")["a"]
    assert value == [1.5, None, "tensor: 0"]
    assert all(torch.equal(found[name], t) and found[name].dtype == t.dtype for name, t in tensors.items())
    number, found = pieces.get("y")
    assert number == 1e-300
    assert found.tolist() == [[2.0] * 2] * 3
    pieces.close(done=True)
    assert not (tmp_path / "work").exists()


def test_without_a_folder_nothing_is_kept():
    pieces = Pieces()
    x = torch.randn(3)
    assert pieces.begin({})
    assert pieces.put("x", [1, x])[1] is x
    assert pieces.get("x") is None


def test_what_is_torn_or_damaged_is_done_again(tmp_path):
    pieces = Pieces(tmp_path)
    pieces.begin({})
    for key in "abc":
        pieces.put(key, [key, torch.ones(3)])
    pieces.close()
    log = tmp_path / LOG
    log.write_bytes(log.read_bytes()[:-5])
    file = sorted(tmp_path.glob("*.bin"))[0]
    file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")
    pieces = Pieces(tmp_path)
    assert pieces.begin({})
    assert [pieces.get(key) is not None for key in "abc"] == [False, True, False]
    pieces.put("c", ["again", torch.zeros(2)])
    pieces.close()
    pieces = Pieces(tmp_path)
    pieces.begin({})
    assert pieces.get("b")[1].tolist() == [1, 1, 1]
    assert pieces.get("c")[1].tolist() == [0, 0]


def test_of_a_folder_of_before_what_has_no_tensors_is_taken_up(tmp_path):
    """Tensors lay in files of safetensors then, with sums of 32 bits."""
    old = [{"key": "a", "value": [0.5], "files": {}}]
    old += [{"key": "b", "value": ["\0tensor 0"], "tensors": "000001.safetensors", "files": {"x": 7}}]
    (tmp_path / LOG).write_text("".join(json.dumps(line) + "\n" for line in [{}, *old]))
    (tmp_path / "x").write_bytes(b"x")
    pieces = Pieces(tmp_path)
    assert pieces.begin({})
    assert pieces.get("a") == [0.5]
    assert pieces.get("b") is None


def test_other_work_starts_anew_and_a_strangers_folder_is_left(tmp_path):
    pieces = Pieces(tmp_path / "a")
    pieces.begin({"seed": 0})
    pieces.put("x", [1, torch.ones(3)])
    with pytest.raises(BlockingIOError, match="another process"):
        Pieces(tmp_path / "a").begin({"seed": 0})
    pieces.close()
    pieces = Pieces(tmp_path / "a")
    assert not pieces.begin({"seed": 1})
    assert pieces.get("x") is None
    assert [file.name for file in (tmp_path / "a").iterdir()] == [LOG]
    pieces.close()
    assert not (tmp_path / "a").exists()  # nothing was done there
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("")
    with pytest.raises(FileExistsError, match="no interrupted work"):
        Pieces(tmp_path / "b")


def test_the_checksum_sees_numbers_names_shapes_and_types():
    x = torch.arange(4.0)
    others = [{"a": x}, {"b": x}, {"a": x.reshape(2, 2)}, {"a": x.int()}, {"a": x + 1}, [x], [x, None]]
    assert len({checksum(one) for one in others}) == len(others)
    assert checksum({"a": x}) == checksum({"a": x.clone()})
    assert checksum(x.to_sparse()) == checksum(x)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 48)).eval()


class Stop:
    """A progress that interrupts at a stage, and says which stages there were."""

    def __init__(self, stage=None, done=0):
        self.stage, self.done, self.seen = stage, done, []

    def __call__(self, stage, done, total):
        self.seen.append(stage.split()[0])
        if self.stage is not None and stage.startswith(self.stage) and done >= self.done:
            raise KeyboardInterrupt


@pytest.mark.parametrize("spec", [0.5, torchldr.Structure("block_circulant", block_size=8)])
def test_compress_goes_on_where_it_was_interrupted(tmp_path, spec):
    torch.manual_seed(1)
    loader = [torch.randn(60, 48) * torch.logspace(0, -1, 48) for _ in range(6)]
    options = {"loader": loader, "structures": ["low_rank", "block_circulant"]}
    expected, model = network(), network()
    report = torchldr.compress_(expected, spec, **options)
    stages = ["calibrating", *["looking"] * isinstance(spec, float), "projecting", "checking"]
    for i, stage in enumerate(stages):
        stop = Stop(stage, done=0 if stage == "checking" else 1)
        with pytest.raises(KeyboardInterrupt):
            torchldr.compress_(model, spec, **options, checkpoint=tmp_path / "work", progress=stop)
        assert all(type(layer) is nn.Linear for layer in model[::2])
        assert not set(stages[: max(0, i - 1)]) & set(stop.seen)  # these were finished before
    found = torchldr.compress_(model, spec, **options, checkpoint=tmp_path / "work", progress=False)
    mine, theirs = model.state_dict(), expected.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    assert [layer.rank for layer in found.layers] == [layer.rank for layer in report.layers]
    assert found.distance == report.distance
    model.train()(loader[0]).sum().backward()  # its parameters are its own, and can be trained
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1.0)


def test_another_model_loader_or_budget_starts_anew(tmp_path):
    loader = [torch.randn(60, 48) for _ in range(3)]
    base = {"spec": 0.5, "loader": loader, "structures": ["low_rank"], "checkpoint": tmp_path / "work"}
    torchldr.compress_(network(), **base)
    other = network()
    with torch.no_grad():
        other[4].bias[3] += 1e-3
    changes = [
        (other, {}),
        (other, {"spec": 0.4}),
        (other, {"seed": 1, "spec": 0.4}),
        (other, {"seed": 1, "spec": 0.4, "loader": [x + 1 for x in loader]}),
    ]
    for model, change in changes:
        with pytest.warns(UserWarning, match="starting anew"):
            torchldr.compress_(copy.deepcopy(model), **{**base, **change})
    quiet = Stop()
    torchldr.compress_(copy.deepcopy(other), **{**base, **changes[-1][1]}, effort=7.0, progress=quiet)
    assert set(quiet.seen) == {"checking"}  # all of it was finished, whatever time there is
