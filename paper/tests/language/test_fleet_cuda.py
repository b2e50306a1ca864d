"""Language models and replaced convolutions on a GPU: replayed graphs against the CPU."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from torchldr_paper import Images, Protocol, Run
from torchldr_paper.data import Dataset
from torchldr_paper.data.dataset import Splits, fingerprint
from torchldr_paper.data.text import Corpus
from torchldr_paper.language import LanguageProtocol, Masks, Text
from torchldr_paper.language.sweep import FleetTraining, train_epoch
from torchldr_paper.protocol import REPLACEMENTS
from torchldr_paper.trainer.fleet import Fleet

from ..trainer.plain import train_plain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

EXACT = LanguageProtocol(
    epochs=2,
    batch=4,
    hidden=16,
    embedding=16,
    bptt=7,
    evaluation_batch=2,
    dropout=0.0,
    lrs=(2.0,),
    precision="full",
    dtype="float64",
)


def trained(protocol: LanguageProtocol, device: str, folder: object) -> list[FleetTraining]:
    draw = np.random.default_rng(0)
    parts = [draw.integers(50, size=size) for size in (400, 90, 70)]
    text = Text.of(Corpus("wikitext2", *parts, words=50, source="user", fingerprint="x"), protocol, device)
    masks = Masks(text, protocol, 0)
    classes = {"ldr_sd": (1, 3), "toeplitz_like": (2,), "low_rank": (2, 4), "dense": (None,)}
    trainings = [
        FleetTraining(
            [Run("wikitext2", "lstm", name, rank, protocol=protocol) for rank in ranks], text, masks, folder
        )
        for name, ranks in classes.items()
    ]
    for _ in range(protocol.epochs):
        train_epoch(trainings, masks)
    return trainings


def test_language_models_agree_with_the_cpu(tmp_path: object) -> None:
    """Four fleets side by side, each on a stream of its own, in float64."""
    for here, there in zip(trained(EXACT, "cpu", tmp_path), trained(EXACT, "cuda:0", tmp_path), strict=True):
        for name, tensor in here.fleet.parameters().items():
            there_tensor = there.fleet.parameters()[name].cpu()
            torch.testing.assert_close(there_tensor, tensor, rtol=1e-8, atol=1e-8, msg=name)
        assert here.history["rate"] == there.history["rate"]
        # Losses that are only reported come from products that a GPU may round.
        for metric in ("train", "validation", "test"):
            torch.testing.assert_close(
                torch.tensor(here.history[metric]), torch.tensor(there.history[metric]), rtol=1e-3, atol=0
            )


def test_a_decoder_in_bfloat16_learns_alike(tmp_path: object) -> None:
    exact = dataclasses.replace(EXACT, dtype="float32")
    rough = dataclasses.replace(exact, precision="bf16")
    for full, narrow in zip(
        trained(exact, "cuda:0", tmp_path), trained(rough, "cuda:0", tmp_path), strict=True
    ):
        torch.testing.assert_close(
            torch.tensor(full.history["validation"]),
            torch.tensor(narrow.history["validation"]),
            rtol=0.02,
            atol=0,
        )


@pytest.mark.parametrize("structure", ["ldr_sd", "toeplitz_like"])
@pytest.mark.parametrize("model", REPLACEMENTS)
def test_replaced_convolutions_agree_with_the_plain_loop(model: str, structure: str) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(90, 3, 6, 6)).astype(np.float32), draw.integers(3, size=90)
    splits = Splits(x[:70], y[:70], x[70:], y[70:])
    data = Dataset("cifar10", **splits._asdict(), image_shape=(3, 6, 6), classes=3, source="user",
                   fingerprint=fingerprint(splits))  # fmt: skip
    run = Run("cifar10", model, structure, 2, hidden=27,
              protocol=Protocol(lrs=(0.001, 0.01), trials=1, batch=25, dtype="float64"))  # fmt: skip
    fleet = Fleet(run, Images.of(data, run, "cuda:0"))
    for epoch in range(2):
        fleet.train_epoch(epoch)
        assert all(loss is not None for loss in fleet.finish_epoch())
    models = train_plain(run, Images.of(data, run), 2 * -(-len(fleet.split.train) // 25))
    parts = fleet.network.layout.parts(fleet.flat.detach().cpu())
    for i, plain in enumerate(models):
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(parts[name][i], parameter.detach(), rtol=1e-8, atol=1e-8)
