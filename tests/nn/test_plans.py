"""The `auto` plan: its bounds, that it times once and keeps what it found, and that it disturbs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import torchldr
from torchldr import StructuredLinear
from torchldr.nn import plans


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(plans, "_known", {})
    return tmp_path / "torchldr" / "plans.json"


def matrix(n: int = 200, structure: str = "ldr_sd", **options: object) -> torchldr.LDRSubdiagonal:
    return StructuredLinear(n, n, structure=structure, **options).matrix()


def never(*_: object) -> plans.Choice:
    raise AssertionError("timed")


def test_the_bounds_need_no_clock(monkeypatch):
    monkeypatch.setattr(plans, "_measure", never)
    assert plans.prefers_dense(matrix(128))
    monkeypatch.setattr(plans, "DENSE_ENTRIES", 200**2 - 1)
    assert not plans.prefers_dense(matrix(200))
    assert not plans.prefers_dense(matrix(200, "dense", bias=False))


def test_nothing_is_timed_where_it_cannot_be(monkeypatch):
    monkeypatch.setattr(plans, "_measure", never)
    assert plans.prefers_dense(matrix(200, device="meta"))
    assert not plans.prefers_dense(matrix(2048, device="meta"))


@pytest.mark.parametrize(
    ("fast", "dense"), [(1.0, True), (1 / plans.MARGIN, True), (0.9 / plans.MARGIN, False)]
)
def test_the_fast_product_must_win_by_the_margin(fast, dense):
    assert plans.Choice(1.0, fast).prefers_dense == dense


def test_a_choice_is_timed_once_and_kept(monkeypatch, cache):
    M = matrix()
    chosen = plans.prefers_dense(M, 50)
    monkeypatch.setattr(plans, "_measure", never)
    assert plans.prefers_dense(M, 64) == chosen  # the same class of batch sizes
    monkeypatch.setattr(plans, "_known", {})  # another process
    assert plans.prefers_dense(M, 50) == chosen
    (case,) = plans.describe()["choices"]
    assert case["choice"] == ("dense" if chosen else "fast")
    assert "200 x 200, rank 1, convolution float32, batch 64, float32, cpu" in case["case"]
    with pytest.raises(AssertionError, match="timed"):
        plans.prefers_dense(M, 1)
    plans.forget()
    assert not cache.exists()
    with pytest.raises(AssertionError, match="timed"):
        plans.prefers_dense(M, 50)


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": {"b": ["x", 1]}}', "\x00"])
def test_a_damaged_file_is_timed_over(cache, content):
    cache.parent.mkdir()
    cache.write_text(content)
    plans.prefers_dense(matrix())
    assert json.loads(cache.read_text())


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    plans.prefers_dense(matrix())
    plans.forget()


def test_threads_are_apart(monkeypatch):
    plans.prefers_dense(matrix())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert plans.describe()["choices"] == []


@pytest.mark.parametrize("name", sorted(torchldr.structures()))
def test_every_class_can_be_chosen_for(name):
    M = matrix(144, name)
    assert plans.prefers_dense(M) in (True, False)
    assert plans.path(M)


def test_timing_moves_no_random_numbers():
    torch.manual_seed(0)
    M = matrix()
    state = torch.random.get_rng_state()
    plans.prefers_dense(M)
    assert torch.random.get_rng_state().equal(state)


def test_the_path_follows_the_values():
    layer = StructuredLinear(256, 256)
    assert plans.path(layer.matrix()) == "convolution float32"
    with torch.no_grad():
        layer.subdiagonal_A.fill_(1.05)
    assert plans.path(layer.matrix()) == "convolution float32 + convolution float64"
    with torch.no_grad():
        layer.subdiagonal_A[7] = 0
        layer.subdiagonal_C[7] = 0
    assert plans.path(layer.matrix()) == "split"


@pytest.mark.parametrize("dense", [True, False])
def test_the_layer_follows_and_says_so(monkeypatch, dense):
    monkeypatch.setattr(plans, "prefers_dense", lambda *_: dense)
    layer = StructuredLinear(150, 150, rank=2).eval()
    assert "plan" not in repr(layer)
    x = torch.randn(3, 150)
    with torch.no_grad():
        torch.testing.assert_close(
            layer(x), x @ layer.matrix().to_dense().mT + layer.bias, atol=1e-4, rtol=1e-4
        )
    assert f"plan='auto' (keeps {'dense' if dense else 'fast'})" in repr(layer)
    assert "plan" not in repr(layer.train())


def test_the_layout_of_a_dense_plan():
    W = torch.randn(3, 2).mT
    assert plans.lay_out(W, 1).is_contiguous()
    assert plans.lay_out(W, 2) is W


@pytest.mark.parametrize("name", sorted(torchldr.structures()))
@pytest.mark.parametrize("chunk", [1, 1000, 1 << 24])
def test_the_dense_matrix_is_made_in_chunks(monkeypatch, name, chunk):
    monkeypatch.setattr(plans, "_CHUNK", chunk)
    M = StructuredLinear(20, 12, structure=name, dtype=torch.float64).matrix()
    for batch in (1, 2):
        torch.testing.assert_close(plans.dense_weight(M, batch), M.to_dense())
