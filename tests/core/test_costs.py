"""Costs of routes: choices that were measured."""

from __future__ import annotations

import pytest
import torch

import torchldr
from torchldr.core import costs
from torchldr.core.routes import Call, choose


@pytest.mark.parametrize("cpu", list(costs.CPUS))
@pytest.mark.parametrize("structure", ["blast", "monarch"])
def test_one_row_trains_by_stages(structure: str, cpu: str, monkeypatch: pytest.MonkeyPatch):
    """Both ways have as many views; by the dense matrix it took twice as long."""
    monkeypatch.setitem(costs.MACHINES, "cpu", costs.CPUS[cpu])
    M = torchldr.get_structure(structure).random(256, 256, rank=1)
    assert choose(M, Call(needs_grad=True)).name.endswith("stages")


def test_costs_follow_the_threads_of_torch(monkeypatch: pytest.MonkeyPatch):
    """Where they were measured: large dense products gain from each, compiled ones for one row from none."""
    monkeypatch.setitem(costs.MACHINES, "cpu", costs.CPUS["x86_64"])
    M, before, seconds = torchldr.ToeplitzLike.random(2048, 2048), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            seconds.append({row.route: row.seconds for row in M.routes(1, kept=True)})
    finally:
        torch.set_num_threads(before)
    dense, compiled = ([found[name] for found in seconds] for name in ("dense", "compiled_pair"))
    assert dense[0] > dense[1] > dense[2]
    assert compiled[0] == compiled[1] == compiled[2]
