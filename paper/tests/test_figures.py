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

from torchldr import pictures as style
from torchldr_paper import Ledger, Record, Run, Table, build_model, count_parameters, get_table
from torchldr_paper.cli.sweeps import keep_table, parse_filters
from torchldr_paper.data import Dataset
from torchldr_paper.data.registry import DATASETS
from torchldr_paper.figures import (
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
)
from torchldr_paper.ledger.weights import Network, save_network, weights_path
from torchldr_paper.trainer.selection import select_best, select_mean
from torchldr_paper.trainer.training import Outcome, outcome_json

pytestmark = pytest.mark.usefixtures("no_data_of_the_user")


@cache
def _parameters(data: str, model: str, method: tuple[Any, ...]) -> int:
    structure, rank, hidden, keep = method
    run = Run(data, model, structure, rank, hidden=hidden, keep=keep, init="paper")
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


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """Made-up runs of the rank figure on CIFAR-10 and of both tables of bg-rot, from two seeds."""
    ledger = Ledger(tmp_path_factory.mktemp("figures"), published=False)
    fill(ledger, [keep_table(get_table("rank"), parse_filters(["dataset=cifar10_grey"]))], seeds=2)
    fill(ledger, [keep_table(get_table("shl"), parse_filters(["dataset=mnist_bg_rot"]))])
    return ledger


@pytest.fixture
def nothing(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "none", published=False)


def test_a_toeplitz_matrix_has_displacement_rank_two() -> None:
    picture = displacement(11)
    assert "rank 2" in picture.caption
    titles = [ax.get_title() for ax in picture.figure.axes]
    assert titles == ["$M$", "$Z_1 M$", "$M Z_{-1}$", "$Z_1 M - M Z_{-1}$"]


def test_the_three_operators() -> None:
    panels = operators().figure.axes
    assert len(panels) == 3
    entries = [int((ax.images[0].get_array() != 0).sum()) for ax in panels]
    assert entries == [7, 7, 21]  # n, n and 3n entries that are not zero


def test_saved_files_are_what_they_say_and_the_same_every_time(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in operators().save(tmp_path / "deep" / "a")]
    second = [path.read_bytes() for path in operators().save(tmp_path / "b", ("png", "svg"))]
    assert first == second
    assert first[0].startswith(b"\x89PNG")
    assert b"<svg" in first[1]
    with pytest.raises(ValueError, match="png or svg, got 'gif'"):
        operators().encode("gif")


def test_examples_call_a_stand_in_so(tmp_path: Path) -> None:
    picture = datasets.examples(tmp_path)
    assert picture.datasets == ("rectangles",)  # all that can be made of nothing
    assert "Stand-ins, made from a seed: Rectangles" in picture.caption
    assert picture.figure.axes[0].get_ylabel() == "Rectangles\n(stand-in)"


def test_examples_go_on_without_damaged_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = datasets.datasets.load

    def load(name: str, *args: Any) -> Dataset:
        if name == "mnist":
            raise datasets.DataFileError("cut off")
        return real(name, *args)

    monkeypatch.setattr(datasets.datasets, "load", load)
    assert "cannot be read: mnist." in datasets.examples(tmp_path, ["mnist", "rectangles"]).caption
    with pytest.raises(NothingToDrawError, match="torchldr data list"):
        datasets.examples(tmp_path, ["mnist"])


def test_colours_and_own_floats_are_drawn(own_file: Path) -> None:
    picture = datasets.examples(names=[str(own_file)])
    assert picture.figure.axes[0].get_ylabel() == "mine.npz\n(own data)"
    figure, axes = style.new_figure(2, 2, 1, 1)
    datasets.show_image(axes[0][0], torch.randn(3, 4, 4).numpy())
    assert figure.axes[0].images[0].get_array().max() == pytest.approx(1)


def test_accuracy_against_rank(ledger: Ledger) -> None:
    picture = accuracy_against_rank(ledger)
    (ax,) = picture.figure.axes
    assert ax.get_title() == "CIFAR-10, grey\n(official data)"
    assert (picture.datasets, picture.models, picture.vector) == (("cifar10_grey",), ("shl",), True)
    (line,) = [line for line in ax.lines if line.get_color() == style.look("ldr_sd").colour]
    table = get_table("rank")
    runs = [run for run in table.runs() if (run.data, run.structure) == ("cifar10_grey", "ldr_sd")]
    records = [[ledger.find(run.with_seed(seed)) for seed in (0, 1)] for run in runs]
    means = [sum(r.mean.test for r in pair if r and r.mean) / 2 for pair in records]
    assert list(line.get_xdata()) == [1, 2, 4, 8, 12, 16]
    assert list(line.get_ydata()) == pytest.approx(means, abs=0.006)
    # The band is two deviations wide on either side.
    band = ax.collections[0].get_paths()[0].get_extents()
    devs = [series.spread([r for r in pair if r]) for pair in records]
    assert band.y1 == pytest.approx(max(m + 2 * d for m, d in zip(means, devs, strict=True)), abs=0.01)


def test_the_spread_puts_trials_and_seeds_together() -> None:
    run = get_table("rank").runs()[0]
    one = made_up(run, 50.0)
    assert one.mean is not None
    assert series.spread([one]) == pytest.approx(one.mean.deviation)
    other = replace(one, result={**one.result, "mean": {**one.result["mean"], "test": one.mean.test + 2}})
    assert series.spread([one, other]) == pytest.approx((one.mean.deviation**2 + 1) ** 0.5)
    assert series.spread([replace(one, result={**one.result, "mean": None})]) == 0


def test_accuracy_against_parameters(ledger: Ledger) -> None:
    picture = accuracy_against_parameters(ledger)
    (ax,) = picture.figure.axes
    assert ax.get_title() == "MNIST-bg-rot\n(stand-in)"
    counts = {int(x) for line in ax.lines for x in line.get_xdata()}
    assert {622506, 10986, 14122} <= counts  # the paper's
    with pytest.raises(NothingToDrawError, match="torchldr paper cnn"):
        accuracy_against_parameters(ledger, "cnn")


def test_quick_runs_are_drawn_where_there_are_no_others(nothing: Ledger) -> None:
    quick = keep_table(get_table("rank"), parse_filters(["dataset=cifar10_grey", "rank=1"])).quick
    fill(nothing, [quick])
    (ax,) = accuracy_against_rank(nothing).figure.axes
    assert ax.get_title() == "CIFAR-10, grey\n(official data, quick)"


def keep_weights(ledger: Ledger) -> None:
    for structure, rank in (("ldr_sd", 1), ("toeplitz_like", 2)):
        run = Run("mnist_bg_rot", "shl", structure, rank, init="paper")
        path = weights_path(ledger, run)
        weights = {name: t.numpy() for name, t in build_model(run, (1, 28, 28), 10).state_dict().items()}
        save_network(path, run, Network(weights, (1, 28, 28), 10))


def test_learned_weights(ledger: Ledger) -> None:
    with pytest.raises(NothingToDrawError, match="torchldr paper shl --save-weights"):
        learned_weights(ledger, "mnist_bg_rot")
    keep_weights(ledger)
    picture = learned_weights(ledger, "mnist_bg_rot")
    titles = [ax.get_title() for ax in picture.figure.axes]
    assert titles[:3] == ["Toeplitz-like, r = 2", "LDR-SD, r = 1", "Subdiagonal of C, LDR-SD"]
    assert picture.title == "Learned weights, MNIST-bg-rot (stand-in)"
    assert [ax.images[0].get_array().shape for ax in picture.figure.axes[:3]] == [(784, 784)] * 2 + [(28, 28)]
    assert "Inputs" not in titles  # the dataset is not here


def test_inputs_beside_what_was_learned(tiny: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned.datasets, "load", lambda name, data_dir: tiny)
    images = learned._inputs("tiny", None)
    assert images is not None
    _, axes = style.new_figure(2, 2, 1, 1)
    learned._mosaic(axes[0][0], images)
    assert axes[0][0].images[0].get_array().shape == (4 * 9 - 2, 4 * 9 - 2)


@pytest.mark.parametrize("content", [b"no such thing", b""])
def test_weights_that_are_none(content: bytes, ledger: Ledger, tmp_path: Path) -> None:
    record = next(iter(ledger))
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(NothingToDrawError, match="not the weights of"):
        learned.load_layer(record, path, "hidden", torch.nn.Module)


def test_all_at_once(nothing: Ledger, tmp_path: Path) -> None:
    paths, left_out = save_figures(nothing, tmp_path / "out", formats=["svg"], data_dir=tmp_path)
    assert [path.name for path in paths] == ["displacement.svg", "operators.svg", "examples.svg"]
    assert set(left_out) == set(FIGURES) - {path.stem for path in paths}
    assert "run: torchldr paper rank" in left_out["accuracy_rank"]
    with pytest.raises(ValueError, match=r"unknown figure 'operator'\. Did you mean 'operators'"):
        draw("operator", nothing)


def test_without_matplotlib(nothing: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        draw_all(nothing)
