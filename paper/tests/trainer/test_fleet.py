from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import torchldr
from torchldr_paper import Images, Protocol, Run
from torchldr_paper.data import Dataset
from torchldr_paper.trainer.batches import Split
from torchldr_paper.trainer.fleet import Fleet, initial_models

from .plain import train_plain


def train_steps(fleet: Fleet, steps: int) -> None:
    count, batch = len(fleet.split.train), fleet.run.protocol.batch
    epoch = 0
    while steps > 0:
        fleet.feed.begin(epoch)
        sizes = [min(batch, count - start) for start in range(0, count, batch)][:steps]
        for size in sizes:
            fleet.step(size)
        steps, epoch = steps - len(sizes), epoch + 1


def largest_difference(fleet: Fleet, models: list[torch.nn.Module]) -> float:
    parts = fleet.network.layout.parts(fleet.flat.detach().cpu())
    return max(
        float((parts[name][i] - p.detach().cpu()).abs().max())
        for i, model in enumerate(models)
        for name, p in model.named_parameters()
    )


@pytest.mark.parametrize("structure", torchldr.structures())
@pytest.mark.parametrize("model", ["shl", "cnn"])
def test_agrees_with_the_plain_loop(model: str, structure: str, tiny: Dataset, brief: Protocol) -> None:
    """20 steps, over two epochs and their partial batches, in float64."""
    protocol = replace(brief, dtype="float64", lrs=(0.0002, 0.002), trials=1, batch=12)
    run = Run("rectangles", model, structure, protocol=protocol)
    images = Images.of(tiny, run)
    fleet = Fleet(run, images)
    train_steps(fleet, 20)
    assert largest_difference(fleet, train_plain(run, images, 20)) < 1e-10


@pytest.mark.parametrize("structure", ["dense", "fastfood", "low_rank"])
def test_a_gain_multiplies_the_hidden_matrix(structure: str, tiny: Dataset, brief: Protocol) -> None:
    protocol = replace(brief, dtype="float64", lrs=(0.0002, 0.002), trials=1, batch=12)
    run = Run("rectangles", structure=structure, gain=3.0, protocol=protocol)
    images = Images.of(tiny, run)
    fleet = Fleet(run, images)
    train_steps(fleet, 10)
    models = train_plain(run, images, 10)
    assert largest_difference(fleet, models) < 1e-10
    right = [(model(images.test_x).argmax(-1) == images.test_y).double().mean() for model in models]
    assert fleet.evaluate([0.0, 0.0]).test == pytest.approx([100 * float(share) for share in right])


@pytest.mark.parametrize("structure", ["dense", "ldr_sd", "ldr_td", "toeplitz_like"])
def test_agrees_at_784(structure: str, rectangles: Dataset) -> None:
    protocol = Protocol(lrs=(0.001, 0.002), trials=1, batch=20, dtype="float64")
    run = Run("rectangles", structure=structure, protocol=protocol)
    images = Images.of(rectangles, run)
    fleet = Fleet(run, images)
    train_steps(fleet, 20)
    assert largest_difference(fleet, train_plain(run, images, 20)) < 1e-10


def test_agrees_when_pruned(tiny: Dataset, brief: Protocol) -> None:
    run = Run("rectangles", keep=50, protocol=replace(brief, dtype="float64"))
    images = Images.of(tiny, run)
    fleet = Fleet(run, images)
    train_steps(fleet, 5)
    fleet.prune(50)
    train_steps(fleet, 5)
    weight = fleet.network.layout.parts(fleet.flat.detach())["hidden.weight"]
    assert (weight != 0).sum((1, 2)).tolist() == [50] * 4


def test_accuracies_are_those_of_the_networks(tiny: Dataset, brief: Protocol) -> None:
    for run in (
        Run("rectangles", "cnn", "ldr_sd", 2, protocol=brief),
        Run("rectangles", "shl", "low_rank", 2, protocol=brief),
        Run("rectangles", "shl", "fastfood", protocol=brief),
        Run("rectangles", keep=40, protocol=brief),
    ):
        images = Images.of(tiny, run)
        fleet = Fleet(run, images)
        train_steps(fleet, 6)
        scores = fleet.evaluate([0.0] * 4)
        for i, model in enumerate(initial_models(run, images)):
            model.load_state_dict(fleet.replica_state(fleet.flat[i].detach(), i))
            for (x, y), got in (
                ((images.test_x, images.test_y), scores.test[i]),
                ((images.train_x[fleet.split.train], images.train_y[fleet.split.train]), scores.train[i]),
                (
                    (images.train_x[fleet.split.validation], images.train_y[fleet.split.validation]),
                    scores.validation[i],
                ),
            ):
                want = 100 * (model(x).argmax(-1) == y).double().mean()
                assert got == pytest.approx(float(want), abs=100.1 / len(y))


def test_replicas_share_images_and_differ_in_weights(tiny: Dataset, brief: Protocol) -> None:
    run = Run("rectangles", protocol=brief)
    first, second = (Fleet(run, Images.of(tiny, run)) for _ in range(2))
    assert torch.equal(first.flat, second.flat)
    assert torch.equal(first.split.train, second.split.train)
    assert len(first.flat.unique(dim=0)) == 4
    other = Fleet(run.with_seed(1), Images.of(tiny, run))
    assert not torch.equal(first.split.train, other.split.train)
    orders = []
    for epoch in range(2):
        first.feed.begin(epoch)
        orders.append(first.feed.order.clone())
    assert not torch.equal(*orders)
    assert torch.equal(orders[0].sort().values, orders[1].sort().values)


def test_split() -> None:
    run = Run("rectangles")
    whole = Split.of(run, 1200)
    assert (len(whole.train), len(whole.validation)) == (1020, 180)
    assert sorted([*whole.train.tolist(), *whole.validation.tolist()]) == list(range(1200))
    for fraction, count in ((0.25, 300), (0.5, 600), (0.75, 900)):
        part = Split.of(replace(run, train_fraction=fraction), 1200)
        assert len(part.train) == count
        assert torch.equal(part.validation, whole.validation)
        assert set(part.train.tolist()) <= set(whole.train.tolist())
    with pytest.raises(ValueError, match="too few"):
        Split.of(run, 5)


def test_the_last_partial_batch_is_used(
    tiny: Dataset, brief: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run("rectangles", protocol=brief)
    sizes: list[int] = []
    step = Fleet.step

    def counted(fleet: Fleet, size: int) -> None:
        sizes.append(size)
        step(fleet, size)

    monkeypatch.setattr(Fleet, "step", counted)
    fleet = Fleet(run, Images.of(tiny, run))
    fleet.train_epoch(0)
    assert sizes == [30, 30, 30, 30, 16]
    assert int(fleet.feed.position) == 136


def test_a_diverged_replica_does_not_disturb_the_others(tiny: Dataset) -> None:
    """The same run with and without a hopeless learning rate: the good replica is the same."""
    wild = Protocol(epochs=3, batch=30, lrs=(0.001, 1e9), trials=1)
    for model, structure in (
        ("shl", "dense"),
        ("shl", "ldr_sd"),
        ("cnn", "ldr_td"),
        ("cnn", "toeplitz_like"),
    ):
        run = Run("rectangles", model, structure, protocol=wild)
        tame = replace(run, protocol=replace(wild, lrs=(0.001, 0.002)))
        rows = []
        for each in (run, tame):
            fleet = Fleet(each, Images.of(tiny, each))
            for epoch in range(3):
                fleet.train_epoch(epoch)
                losses = fleet.finish_epoch()
            scores = fleet.evaluate(losses)
            rows.append(fleet.flat[0].detach().clone())
            if each is run:
                assert fleet.alive == [True, False]
                assert losses[1] is None
                assert scores.test[1] is None
                assert scores.test[0] is not None
                assert fleet.flat.isfinite().all()
        torch.testing.assert_close(rows[0], rows[1], rtol=1e-4, atol=1e-6)


def test_any_range_of_an_operator_is_served(tiny: Dataset, brief: Protocol) -> None:
    run = Run("rectangles", structure="ldr_sd", protocol=brief)
    fleet = Fleet(run, Images.of(tiny, run))
    with torch.no_grad():
        fleet.network.layout.parts(fleet.flat.detach())["hidden.subdiagonal_A"][2, :15] = 1e-3
    flat, x = fleet.flat.detach(), fleet.images.train_x[:5]
    exact = fleet.network.logits(flat.double(), x.double())
    torch.testing.assert_close(fleet.network.logits(flat, x).double(), exact, rtol=1e-4, atol=1e-4)
    fleet.train_epoch(0)
    assert all(loss is not None for loss in fleet.finish_epoch())
