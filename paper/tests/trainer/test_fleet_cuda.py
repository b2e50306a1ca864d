"""The fleet on a GPU: replayed graphs against the plain loop on the CPU."""

from __future__ import annotations

import pytest
import torch

import torchldr
from torchldr_paper import Images, Protocol, Run, train_run
from torchldr_paper.data import Dataset
from torchldr_paper.trainer.fleet import Fleet

from .plain import train_plain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("structure", torchldr.structures())
@pytest.mark.parametrize("model", ["shl", "cnn"])
def test_graphs_agree_with_the_plain_loop(model: str, structure: str, tiny: Dataset) -> None:
    """Two epochs of 11 full batches and a partial one, in float64."""
    run = Run(
        "rectangles",
        model,
        structure,
        protocol=Protocol(lrs=(0.0002, 0.002), trials=1, batch=12, dtype="float64"),
    )
    fleet = Fleet(run, Images.of(tiny, run, "cuda:0"))
    for epoch in range(2):
        fleet.train_epoch(epoch)
        assert all(loss is not None for loss in fleet.finish_epoch())
    models = train_plain(run, Images.of(tiny, run), 24)
    parts = fleet.network.layout.parts(fleet.flat.detach().cpu())
    for i, plain in enumerate(models):
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(parts[name][i], parameter.detach(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("structure", ["dense", "ldr_sd", "ldr_td", "fastfood"])
def test_training_on_both_devices(structure: str, rectangles: Dataset) -> None:
    run = Run("rectangles", structure=structure, protocol=Protocol(epochs=2, lrs=(0.0005, 0.001), trials=2))
    cpu, cuda = (train_run(run, Images.of(rectangles, run, device)) for device in ("cpu", "cuda:0"))
    for here, there in zip(cpu.metrics["loss"], cuda.metrics["loss"], strict=True):
        assert here == pytest.approx(there, rel=2e-3)


def test_any_range_of_an_operator_is_served(tiny: Dataset) -> None:
    """What a wide operator gives is what it gives on the CPU."""
    run = Run(
        "rectangles", structure="ldr_sd", protocol=Protocol(lrs=(0.001,), trials=2, batch=12, dtype="float64")
    )
    fleets = [Fleet(run, Images.of(tiny, run, device)) for device in ("cpu", "cuda:0")]
    for fleet in fleets:
        with torch.no_grad():
            fleet.network.layout.parts(fleet.flat.detach())["hidden.subdiagonal_A"][0, :16] = 0.2
        fleet.train_epoch(0)
    cpu, cuda = fleets
    torch.testing.assert_close(cuda.flat.detach().cpu(), cpu.flat.detach(), rtol=1e-8, atol=1e-8)


def test_a_pruned_network_keeps_its_graph(tiny: Dataset) -> None:
    run = Run("rectangles", keep=30, protocol=Protocol(epochs=2, lrs=(0.001,), trials=2))
    outcome = train_run(run, Images.of(tiny, run, "cuda:0"))
    assert int((outcome.weights["hidden.weight"] != 0).sum()) == 30
