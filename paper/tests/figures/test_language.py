"""Figures of language models and learned channels, from small ledgers."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from torchldr_paper import Images, Ledger, Protocol, Record, get_table, table_rows, train_run
from torchldr_paper.data import Dataset
from torchldr_paper.data.dataset import Splits, fingerprint
from torchldr_paper.figures import (
    Gallery,
    NothingToDrawError,
    learned_channels,
    perplexity_against_parameters,
    validation_curves,
)
from torchldr_paper.ledger.weights import Network, save_network, weights_path
from torchldr_paper.protocol import Run
from torchldr_paper.report.page import render


def language_ledger(folder: Path) -> Ledger:
    """Every run of the table, with curves that fall towards the paper's value and less."""
    ledger = Ledger(folder, published=False)
    for cell in get_table("lstm").cells:
        assert cell.paper is not None
        curve = [[cell.paper * (0.98 + 2.0 ** (1 - epoch))] for epoch in range(12)]
        best = {"replica": 0, "lr": 20.0, "trial": 0, "epoch": 11, "train": 100.0}
        best |= {"validation": curve[-1][0], "test": round(cell.paper * 0.98, 2)}
        result = {
            "parameters": 65536 if cell.run.rank is None else 1024 * (cell.run.rank + 1),
            "seconds": 10.0,
            "best": best,
            "mean": None,
            "diverged": [None],
            "notes": {},
            "metrics": dict.fromkeys(("train", "validation", "test"), curve),
        }
        data = {"source": "official", "fingerprint": "x", "train": 1, "validation": 1, "test": 1}
        ledger.append(Record(cell.run, data, result, {"device": "none", "versions": {}}, "2026-01-01"))
    return ledger


def test_language_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(NothingToDrawError, match="torchldr paper lstm"):
        perplexity_against_parameters(Ledger(tmp_path / "none", published=False))
    ledger = language_ledger(tmp_path)
    picture = perplexity_against_parameters(ledger)
    (ax,) = picture.figure.axes
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert {"Unstructured", "LDR-SD", "Toeplitz-like", "Low rank"} <= set(lines)
    assert lines["LDR-SD"].get_ydata()[0] == pytest.approx(166.97 * 0.98, abs=0.01)
    assert len(picture.encode("svg")) > 1000
    curves = validation_curves(ledger)
    assert [ax.get_title().split("\n")[0] for ax in curves.figure.axes] == [
        "LDR-SD",
        "Toeplitz-like",
        "Low rank",
    ]
    assert all(len(ax.get_lines()) == 7 for ax in curves.figure.axes)  # six ranks and the unstructured layer


def test_a_lower_perplexity_counts_as_better(tmp_path: Path) -> None:
    ledger = language_ledger(tmp_path)
    rows = table_rows(get_table("lstm"), ledger)
    assert all(row["difference"] < 0 for row in rows)
    page = render(ledger, Gallery([], {}))
    assert page.count('class="difference above"') >= len(rows)
    assert not re.search('class="difference (near|below)"', page)


def test_learned_channels(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 3, 4, 4)).astype(np.float32), draw.integers(2, size=40)
    splits = Splits(x[:30], y[:30], x[30:], y[30:])
    data = Dataset("cifar10", **splits._asdict(), image_shape=(3, 4, 4), classes=2, source="user",
                   fingerprint=fingerprint(splits))  # fmt: skip
    ledger = Ledger(tmp_path, published=False)
    with pytest.raises(NothingToDrawError, match="paper conv --save-weights"):
        learned_channels(ledger)
    protocol = Protocol(epochs=1, lrs=(0.001,), trials=1)
    for model in ("channels", "wide"):
        for structure in ("toeplitz_like", "ldr_sd"):
            run = Run("cifar10", model, structure, 2, hidden=4, protocol=protocol)
            images = Images.of(data, run)
            outcome = train_run(run, images)
            ledger.append(Record.of(run, images, outcome))
            save_network(weights_path(ledger, run), run, Network.of(images, outcome))
        picture = learned_channels(ledger, model)
        panels = [ax for ax in picture.figure.axes if ax.get_images()]
        assert [ax.get_images()[0].get_array().shape for ax in panels] == [
            (48, 48),
            (48, 48),
            (16, 16),
            (16, 16),
        ]
    broken = weights_path(ledger, dataclasses.replace(run, model="channels"))
    save_file({"front.grid.H": torch.zeros(3, 3, 2, 16)}, broken)
    with pytest.raises(NothingToDrawError, match="not the weights of"):
        learned_channels(ledger)
