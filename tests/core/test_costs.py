"""Costs of routes: choices that were measured."""

from __future__ import annotations

import pytest

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
