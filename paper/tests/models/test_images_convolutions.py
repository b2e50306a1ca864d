"""The networks that replace convolutions: their counts, and the fleet against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchldr_paper import Images, Protocol, Run, build_model, count_parameters, get_table, train_run
from torchldr_paper.data import Dataset
from torchldr_paper.data.dataset import Splits, fingerprint
from torchldr_paper.protocol import CONVOLUTIONS, REPLACEMENTS
from torchldr_paper.trainer.fleet import Fleet

from ..trainer.plain import train_plain

COLOUR = (3, 32, 32)


@pytest.fixture(scope="module")
def colours() -> Dataset:
    """90 + 40 colour images of 6 x 6 whose label is the brightest channel."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(130, 3, 6, 6)).astype(np.float32)
    y = draw.integers(3, size=130)
    x[np.arange(130), y] += 0.8
    splits = Splits(x[:90], y[:90], x[90:], y[90:])
    return Dataset("cifar10", **splits._asdict(), image_shape=(3, 6, 6), classes=3, source="user",
                   fingerprint=fingerprint(splits))  # fmt: skip


def runs() -> list[Run]:
    found = [Run("cifar10", model, init="paper", hidden=7) for model in CONVOLUTIONS]
    for model in REPLACEMENTS:
        for structure, rank in (("ldr_sd", 2), ("toeplitz_like", 2), ("low_rank", 1), ("dense", None)):
            found.append(Run("cifar10", model, structure, rank, init="linear", hidden=units(model)))
    for model in ("channels", "wide", "channels_blocks", "wide_blocks"):
        common = {"data": "cifar10", "model": model, "structure": "ldr_sd", "rank": 2, "hidden": units(model)}
        found.append(Run(**common, init="paper", fixed=True, l1=0.01))
        found.append(Run(**common, init="linear", bias=True, gain=0.3))
    found += [Run("cifar10", model, init="linear", hidden=7, bias=True) for model in CONVOLUTIONS]
    return found


def units(model: str) -> int:
    return 27 if model.endswith("_blocks") else 7


@pytest.mark.parametrize(
    ("model", "structure", "paper", "ours"),
    [
        ("conv3", "dense", 1573089, None),
        ("conv3_pool", "dense", 393441, None),
        ("conv4_pool", "dense", 524588, None),
        ("channels_square", "toeplitz_like", 393216, None),
        ("channels_square", "ldr_sd", 417792, None),
        ("wide_square", "toeplitz_like", 393216, None),
        ("wide_square", "ldr_sd", 405504, None),
        ("channels_blocks", "toeplitz_like", 393216, None),
        ("channels_blocks", "ldr_sd", 417792, None),
        ("wide_blocks", "toeplitz_like", 393216, None),
        ("wide_blocks", "ldr_sd", 405504, None),
        # The hidden layer as it is, 512 x 3072: (512 + 3072) r, and r + 1 for LDR-SD.
        ("channels", "toeplitz_like", 393216, 294912 + 57344),
        ("channels", "ldr_sd", 417792, 313344 + 60928),
        ("wide", "toeplitz_like", 393216, 294912 + 57344),
        ("wide", "ldr_sd", 405504, 301056 + 60928),
    ],
)
def test_parameters_are_counted_as_in_the_paper(
    model: str, structure: str, paper: int, ours: int | None
) -> None:
    rank = None if structure == "dense" else 16
    run = Run("cifar10", model, structure, rank, init="paper")
    with torch.device("meta"):
        built = build_model(run, COLOUR, 10)
    assert count_parameters(built) == (paper if ours is None else ours)
    if structure != "dense" and not model.endswith("_blocks"):
        cells = [*get_table("conv").cells, *get_table("conv_square").cells]
        (cell,) = (cell for cell in cells if (cell.run.model, cell.run.method) == (model, structure))
        assert cell.parameters == paper


@pytest.mark.parametrize("run", runs(), ids=lambda run: f"{run.model}-{run.method}-{run.init}")
def test_the_fleet_does_what_a_plain_loop_does(run: Run, colours: Dataset) -> None:
    protocol = Protocol(lrs=(0.001, 0.01), trials=1, batch=30, dtype="float64")
    run = Run.from_config({**run.config(), "protocol": {"lrs": protocol.lrs, "trials": 1, "batch": 30,
                                                        "dtype": "float64"}})  # fmt: skip
    images = Images.of(colours, run)
    fleet = Fleet(run, images)
    for epoch in range(2):
        fleet.train_epoch(epoch)
        assert all(loss is not None for loss in fleet.finish_epoch())
    steps = 2 * -(-len(fleet.split.train) // 30)
    models = train_plain(run, images, steps)
    parts = fleet.network.layout.parts(fleet.flat.detach())
    for i, plain in enumerate(models):
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(parts[name][i], parameter.detach(), rtol=1e-8, atol=1e-8)
    scores = fleet.evaluate([0.0, 0.0])
    for i, plain in enumerate(models):
        plain.eval()
        with torch.no_grad():
            right = (plain(images.test_x).argmax(-1) == images.test_y).double().mean()
        assert scores.test[i] == pytest.approx(100 * right.item())


def test_a_run_learns_and_is_recorded(colours: Dataset) -> None:
    run = Run(
        "cifar10",
        "channels",
        "ldr_sd",
        2,
        hidden=8,
        protocol=Protocol(epochs=8, batch=5, lrs=(0.02,), trials=2),
    )
    outcome = train_run(run, Images.of(colours, run))
    assert outcome.best is not None
    assert outcome.best.validation > 60
    assert outcome.parameters == 9 * 2 * 36 * 3 + (108 + 8) * 3


def test_fixed_operators_are_shifts_and_not_counted(colours: Dataset) -> None:
    """LDR-SD whose operators stay is Toeplitz-like, without corners."""
    protocol = Protocol(lrs=(0.01,), trials=1, batch=30, epochs=2)
    run = Run("cifar10", "channels", "ldr_sd", 2, init="paper", hidden=7, fixed=True, protocol=protocol)
    assert run.method == "toeplitz_like"
    fleet = Fleet(run, Images.of(colours, run))
    before = fleet.flat.detach().clone()
    fleet.train_epoch(0)
    old, new = (fleet.network.layout.parts(flat.detach()) for flat in (before, fleet.flat))
    for name, t in new.items():
        assert torch.equal(t, old[name]) == ("subdiagonal" in name or "corner" in name), name
    counts = [
        count_parameters(build_model(Run("cifar10", "channels", structure, 2, hidden=7), (3, 6, 6), 3), **how)
        for structure, how in (("ldr_sd", {"fixed": True}), ("toeplitz_like", {}))
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize(("init", "std"), [("linear", None), ("paper", None), ("paper", 0.3)])
@pytest.mark.parametrize("model", ["channels", "wide", "wide_square", "wide_blocks"])
def test_a_gain_changes_steps_but_not_the_start(model: str, init: str, std: float | None) -> None:
    x = torch.randn(4, 3, 6, 6)
    outputs = [
        build_model(
            Run("cifar10", model, "ldr_sd", 2, init=init, init_std=std, hidden=units(model), gain=gain),
            (3, 6, 6),
            3,
            torch.Generator().manual_seed(0),
        )(x)
        for gain in (None, 0.1)
    ]
    # Rounding of sums of products is relative to the largest of them, not to each entry.
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5 * outputs[0].detach().abs().max().item())


@pytest.mark.parametrize("model", ["channels", "wide_blocks"])
def test_a_given_deviation_is_that_of_both_layers(model: str) -> None:
    run = Run("cifar10", model, "ldr_sd", 16, init="paper", init_std=0.05, hidden=512)
    built = build_model(run, (3, 32, 32), 10, torch.Generator().manual_seed(0))
    drawn = {name: p for name, p in built.named_parameters() if name.endswith((".G", ".H"))}
    assert {name.split(".")[0] for name in drawn} == {"front", "hidden"}
    for p in drawn.values():
        assert p.std().item() == pytest.approx(0.05, rel=0.05)


def test_biases_start_at_zero_and_are_not_counted() -> None:
    models = [
        build_model(Run("cifar10", "wide", "ldr_sd", 2, hidden=7, bias=bias), (3, 6, 6), 3)
        for bias in (True, None)
    ]
    assert not models[0].get_parameter("front_bias").any()
    assert not models[0].get_parameter("hidden.bias").any()
    assert count_parameters(models[0]) == count_parameters(models[1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"structure": "toeplitz_like", "fixed": True}, "fixed is True or None"),
        ({"structure": "ldr_sd", "fixed": False}, "fixed is True or None"),
        ({"structure": "ldr_sd", "model": "shl", "l1": 0.1}, "l1 is for the models"),
        ({"structure": "ldr_sd", "l1": -1.0}, "l1 must be positive"),
        ({"structure": "ldr_sd", "bias": False}, "bias is True or None"),
        ({"structure": "ldr_sd", "model": "shl", "bias": True}, "bias is True or None and for the models"),
        ({"structure": "ldr_sd", "model": "wide_square", "bias": True}, "bias is True or None and for the"),
        ({"structure": "circulant", "l1": 0.1}, "l1 is for the models .* and classes with a rank"),
    ],
)
def test_wrong_fields(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run(**{"data": "cifar10", "model": "channels", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("model", REPLACEMENTS)
def test_grey_images_have_one_channel(model: str, tiny: Dataset) -> None:
    run = Run(
        "mnist", model, "ldr_sd", 2, hidden=7, protocol=Protocol(lrs=(0.001,), trials=2, dtype="float64")
    )
    images = Images.of(tiny, run)
    fleet = Fleet(run, images)
    fleet.train_epoch(0)
    models = train_plain(run, images, -(-len(fleet.split.train) // run.protocol.batch))
    parts = fleet.network.layout.parts(fleet.flat.detach())
    for i, plain in enumerate(models):
        for name, parameter in plain.named_parameters():
            torch.testing.assert_close(parts[name][i], parameter.detach(), rtol=1e-8, atol=1e-8)


def test_units_that_do_not_divide_an_image() -> None:
    with pytest.raises(
        ValueError, match="hidden must divide 192, the size of an image, got 512 units, the def"
    ):
        build_model(Run("cifar10", "wide_blocks", "ldr_sd"), (3, 8, 8), 10)


def test_more_units_than_a_square_has() -> None:
    with pytest.raises(ValueError, match="hidden must be at most 192, the size of an image, got 512 units"):
        build_model(Run("cifar10", "channels_square", "ldr_sd"), (3, 8, 8), 10)
