from __future__ import annotations

import pytest
import torch

import torchldr
from torchldr_paper import PrunedLinear, Run, build_model, count_parameters
from torchldr_paper.models.images import hidden_input, magnitude_mask
from torchldr_paper.tables.values import BUDGET_RANKS, RHU_UNITS
from torchldr_paper.trainer.batches import generator

MNIST, CIFAR, GREY32 = (1, 28, 28), (3, 32, 32), (1, 32, 32)


def parameters(run: Run, shape: tuple[int, int, int] = MNIST, outputs: int = 10) -> int:
    with torch.device("meta"):  # to count, no numbers are needed
        return count_parameters(build_model(run, shape, outputs), run.keep)


@pytest.mark.parametrize(
    ("structure", "rank", "mnist", "cifar", "norb"),
    [  # the paper's Table 1
        ("dense", None, 622506, 1058826, 1054726),
        ("ldr_td", 1, 14122, 18442, 14342),
        ("toeplitz_like", 4, 14122, 18442, 14342),
        ("hankel_like", 4, 14122, 18442, 14342),
        ("vandermonde_like", 4, 14122, 18442, 14342),
        ("low_rank", 4, 14122, 18442, 14342),
        ("ldr_sd", 1, 10986, 14346, 10246),
        ("fastfood", None, 10202, 13322, 9222),
        ("circulant", None, 8634, 11274, 7174),
    ],
)
def test_shl_counts(structure: str, rank: int | None, mnist: int, cifar: int, norb: int) -> None:
    run = Run("mnist", "shl", structure, rank)
    assert parameters(run) == mnist
    assert parameters(run, GREY32) == cifar
    assert parameters(run, GREY32, 6) == norb


@pytest.mark.parametrize(
    ("model", "structured", "fewer"),
    [  # the captions of Tables 8 and 9
        ("shl", (10986, 12554, 15690, 21962, 28234, 34506), (11126, 12714, 15890, 22242, 28594, 34946)),
        ("cnn", (11770, 13338, 16474, 22746, 29018, 35290), (11935, 13525, 16705, 23065, 29425, 35785)),
    ],
)
def test_budgets(model: str, structured: tuple[int, ...], fewer: tuple[int, ...]) -> None:
    for i, rank in enumerate(BUDGET_RANKS):
        assert parameters(Run("mnist", model, "ldr_sd", rank)) == structured[i]
        assert parameters(Run("mnist", model, keep=2 * 784 * (rank + 1))) == structured[i]
        assert parameters(Run("mnist", model, hidden=RHU_UNITS[model][i])) == fewer[i]


def test_hidden_layer_of_the_cnn_is_784_or_1024() -> None:
    assert hidden_input("cnn", MNIST) == 784
    assert hidden_input("cnn", CIFAR) == 1024
    with pytest.raises(ValueError, match="at least 4 x 4"):
        hidden_input("cnn", (1, 3, 9))


@pytest.mark.parametrize("structure", torchldr.structures())
@pytest.mark.parametrize("model", ["shl", "cnn"])
def test_every_class_in_both_networks(model: str, structure: str) -> None:
    run = Run("mnist", model, structure)
    network = build_model(run, (1, 6, 6), 3)
    assert network(torch.randn(5, 1, 6, 6)).shape == (5, 3)
    assert (network.hidden.bias is None) == (model == "shl")


def test_generator_decides_all_weights() -> None:
    for run in (
        Run("mnist", "cnn", "fastfood"),
        Run("mnist", keep=3),
        Run("mnist", structure="ldr_sd", init_std=0.2),
    ):
        first, second, other = (build_model(run, (1, 6, 6), 3, generator(seed)) for seed in (1, 1, 2))
        for name, value in first.state_dict().items():
            assert torch.equal(value, second.state_dict()[name])
        assert not torch.equal(first.logits.weight, other.logits.weight)


def test_initial_deviation() -> None:
    for structure, name in (("low_rank", "G"), ("dense", "weight"), ("circulant", "column")):
        run = Run("mnist", structure=structure, init_std=0.3)
        drawn = build_model(run, MNIST, 2, generator(0)).hidden.get_parameter(name).detach()
        assert drawn.std() == pytest.approx(0.3, rel=0.1)
    dense = build_model(Run("mnist", keep=4, init="paper"), MNIST, 2, generator(0)).hidden
    assert dense.get_parameter("weight").detach().std() == pytest.approx(784**-0.5, rel=0.01)
    logits = build_model(Run("mnist", output_std=0.3), MNIST, 10, generator(0)).logits
    assert logits.weight.detach().std() == pytest.approx(0.3, rel=0.05)
    assert not logits.bias.any()


def test_pruning_keeps_the_largest() -> None:
    layer = PrunedLinear(6, 4)
    x, before = torch.randn(3, 6), layer.weight.detach().clone()
    assert torch.allclose(layer(x), torch.nn.functional.linear(x, before, layer.bias))
    layer.mask.copy_(magnitude_mask(layer.weight.detach(), 5))
    assert layer.mask.sum() == 5
    assert before[layer.mask == 1].abs().min() >= before[layer.mask == 0].abs().max()
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert not layer.weight.grad[layer.mask == 0].any()
    assert "mask" in layer.state_dict()


def test_mask_of_a_stack() -> None:
    weight = torch.randn(3, 4, 5)
    mask = magnitude_mask(weight, 7)
    assert mask.sum((1, 2)).tolist() == [7, 7, 7]
    assert torch.equal(mask[1], magnitude_mask(weight[1], 7))


def test_keep_more_than_there_are() -> None:
    with pytest.raises(ValueError, match="keep must be at most 36"):
        build_model(Run("mnist", keep=37), (1, 2, 3), 2)
