"""`torchldr demo`."""

from __future__ import annotations

import json

import pytest
import torch

import torchldr
from torchldr_paper import demo


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices, each product once."""

    def run_once(functions, seconds):
        for function in functions.values():
            function()
        return dict.fromkeys(functions, 1.0)

    monkeypatch.setattr(demo, "minimum_seconds", run_once)
    for name, value in (("SIZE", 32), ("LARGE", 64), ("BUDGET", 256)):
        monkeypatch.setattr(demo, name, value)


@pytest.mark.usefixtures("small_demo")
def test_demo_prints_the_table_to_stdout_and_saves_the_picture(run, tmp_path):
    picture = tmp_path / "out" / "demo.png"
    code, out, err = run("demo", "--steps", "2", "--out", str(picture), "--json")
    rows = json.loads(out)
    assert code == 0
    assert {row["structure"] for row in rows} == set(torchldr.structures())
    assert all(row["parameters"] <= 256 for row in rows if row["structure"] != "dense")
    assert [row["error"] for row in rows] == sorted(row["error"] for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture}" in err


@pytest.mark.usefixtures("small_demo")
def test_the_demo_is_deterministic():
    first, second = demo.run(steps=3), demo.run(steps=3)
    assert [row["error"] for row in first.rows] == [row["error"] for row in second.rows]


def test_the_demos_target_is_in_ldr_sd_at_rank_2():
    n = 64
    T = demo.shifts_with_gains(n, 4, torch.Generator().manual_seed(1)).double()
    again = torch.Generator().manual_seed(1)
    torch.randperm(n // 2, generator=again), torch.randn(4, generator=again)
    p, q = (demo._walk(n, again).double() for _ in range(2))
    A, C = (torch.diag(gains[1:] / gains[:-1], -1) for gains in (p, q))
    assert torch.linalg.matrix_rank(T - A @ T @ C.mT, rtol=1e-5) == 2
    assert torch.linalg.matrix_rank(T, rtol=1e-5) > 32
