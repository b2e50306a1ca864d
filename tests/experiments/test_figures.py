"""Figures from a small ledger of made-up runs, written through the ledger itself."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from torchldr.data import Dataset
from torchldr.data.registry import DATASETS
from torchldr.experiments import Ledger, Record, Run, Table, build_model, count_parameters, get_table
from torchldr.experiments.figures import (
    FIGURES,
    NothingToDrawError,
    accuracy_against_parameters,
    accuracy_against_rank,
    datasets,
    displacement,
    draw,
    draw_all,
    learned,
    learned_weights,
    operators,
    save_figures,
    series,
    style,
)
from torchldr.experiments.selection import select_best, select_mean
from torchldr.experiments.sweep import weights_path
from torchldr.experiments.training import Outcome, outcome_json


@cache
def _parameters(data: str, model: str, method: tuple[Any, ...]) -> int:
    structure, rank, hidden, keep = method
    run = Run(data, model, structure, rank, hidden=hidden, keep=keep)
    return count_parameters(build_model(run, DATASETS[data].image_shape, 10), keep)


def made_up(run: Run, final: float, source: str = "official") -> Record:
    """A record whose replicas climb to about `final`; the last one diverges halfway."""
    draw, epochs, replicas = random.Random(run.hash), run.protocol.epochs, run.protocol.replicas
    tops = [final + draw.gauss(0, 0.5) - 2 * abs(i % 4 - 2) for i in range(len(replicas))]

    def column(gap: float) -> list[list[float | None]]:
        return [
            [
                None
                if i == len(tops) - 1 > 0 and epoch > epochs // 2
                else round(min(100, top + gap - (top - 10) * 0.8**epoch + draw.gauss(0, 0.2)), 4)
                for i, top in enumerate(tops)
            ]
            for epoch in range(epochs)
        ]

    metrics = {"loss": column(-50), "train": column(4), "validation": column(0.5), "test": column(0)}
    outcome = Outcome(
        metrics=metrics,
        best=select_best(metrics, replicas),
        mean=select_mean(metrics, replicas),
        diverged=[None] * (len(tops) - 1) + [epochs // 2 + 1],
        parameters=_parameters(run.data, run.model, (run.structure, run.rank, run.hidden, run.keep))
        if run.data in DATASETS
        else 1000,
        seconds=draw.uniform(2, 9),
        weights={},
        notes={"form": "stacked"},
    )
    data = {"source": source, "fingerprint": f"f-{run.data}", "train": 1020, "validation": 180, "test": 5000}
    machine = {"device": "CPU", "versions": {"torch": torch.__version__}}
    return Record(run, data, outcome_json(outcome), machine, "2024-01-01T00:00:00+00:00")


def fill(ledger: Ledger, tables: Iterable[Table], seeds: int = 1, leave: tuple[str, ...] = ("norb",)) -> None:
    """Append made-up records of all runs of these tables, but for some datasets."""
    for table in tables:
        for cell in table.cells:
            if cell.run.data in leave:
                continue
            source = "stand-in" if cell.run.data.startswith("mnist") else "official"
            for seed in range(seeds):
                run = cell.run.with_seed(seed)
                if ledger.find(run) is None:
                    paper = cell.paper if cell.metric != "generalization" else None
                    level = paper if paper is not None else 40.0 + (run.rank or 20) ** 0.5
                    ledger.append(made_up(run, level, source))
