"""compress_ against dense oracles: every replaced module computes what its dense weights would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils._pytree import tree_leaves

import torchldr
from torchldr.nn.pointwise import StructuredPointwise

LOW = torchldr.Structure("low_rank", rank=3)


class Conv1D(nn.Module):
    """Shaped as Hugging Face's: y = x W + b with W (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) / nx**0.5)
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def low_rank(W: Tensor, rank: int = 3) -> Tensor:
    """The best approximation of a rank, by Eckart and Young."""
    U, s, V = torch.linalg.svd(W.double(), full_matrices=False)
    return ((U[:, :rank] * s[:rank]) @ V[:rank]).to(W.dtype)


def gap(W: Tensor, rank: int = 3) -> float:
    """Between the singular values that an approximation keeps and the others: what rounding is divided by."""
    s = torch.linalg.svdvals(W.double())
    return 1.0 if rank >= len(s) else ((s[rank - 1] - s[rank]) / s[0]).item()


def close(a: Tensor, b: Tensor, gap: float = 1.0) -> bool:
    """Equal but for rounding errors of a few products of some 100 terms."""
    eps = torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=0, atol=500 * eps * max(1.0, b.abs().max().item()) / gap)


@given(m=st.integers(2, 40), n=st.integers(2, 40), bias=st.booleans(), seed=st.integers(0, 2**31 - 1))
@settings(max_examples=15, deadline=None)
def test_linear_is_the_projection_of_its_weight(m, n, bias, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(n, m, bias, dtype=torch.float64))
    dense, x = model[0], torch.randn(3, n, dtype=torch.float64)
    rank = min(3, m, n)
    report = torchldr.compress_(model, torchldr.Structure("low_rank", rank=rank), min_features=1)
    assert isinstance(model[0], torchldr.StructuredLinear)
    W = dense.weight.detach()
    assert close(model(x), nn.functional.linear(x, low_rank(W, rank), dense.bias), gap(W, rank))
    assert model[0].bias is dense.bias
    (row,) = report.layers
    expected = (dense.weight - low_rank(dense.weight, rank)).norm() / dense.weight.norm()
    assert row.residual == pytest.approx(expected.item(), abs=1e-9)
    assert (row.parameters_before, row.parameters_after) == (m * n, rank * (m + n))
    assert row.bytes_after == 8 * row.parameters_after


@pytest.mark.parametrize(
    "name", ["toeplitz_like", "block_circulant", "fastfood", "ldr_sd", "circulant", "acdc"]
)
def test_any_class_serves(name):
    """Past its time a compression projects with a tenth of the effort."""
    ranked = torchldr.get_structure(name).ranked
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 8))
    first, x = model[0].weight.detach(), torch.randn(4, 8)
    plan = torchldr.Structure(name, rank=1 if ranked else None)
    torchldr.compress_(model, plan, min_features=4, time_limit=1e-6)
    found = torchldr.from_dense(first, name, plan.rank, effort=0.1).matrix
    y = torch.tanh(x @ found.to_dense().T + model[0].bias) @ model[2].matrix().to_dense().T + model[2].bias
    assert close(model(x), y)


def test_conv1d_and_pointwise_convolutions():
    model = nn.Sequential(nn.Conv2d(32, 40, 1, stride=(2, 1)), nn.Flatten(2), Conv1D(36, 35))
    convolution, conv1d = model[0], model[2]
    x = torch.randn(2, 32, 9, 7)
    torchldr.compress_(model, LOW, min_features=8)
    assert isinstance(model[0], StructuredPointwise)
    assert isinstance(model[2], torchldr.StructuredLinear)
    W = low_rank(convolution.weight.detach().flatten(1))[..., None, None]
    y = nn.functional.conv2d(x, W, convolution.bias, stride=(2, 1))
    assert close(model[0](x), y)
    assert model[0](x).is_contiguous()
    assert close(model(x), y.flatten(2) @ low_rank(conv1d.weight.detach()) + conv1d.bias)


def test_another_class_of_that_name_is_left_alone():
    def like(forward):
        return type("Conv1D", (Conv1D,), {"forward": forward})(32, 32)

    model = nn.Sequential(
        like(lambda self, x: x @ self.weight.T + self.bias),
        like(lambda self, x: torch.relu(x @ self.weight + self.bias)),
        like(lambda self, x: self.missing(x)),
    )
    parts = list(model)
    with pytest.warns(UserWarning, match="nothing was replaced"):
        torchldr.compress_(model, LOW)
    assert list(model) == parts


def test_other_convolutions_and_subclasses_are_left_alone():
    class Mine(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return -super().forward(x)

    parts = [
        nn.Conv2d(32, 32, 3),
        nn.Conv2d(32, 32, 1, groups=2),
        nn.Conv2d(32, 32, 1, padding=1),
        Mine(32, 32),
    ]
    parts.append(nn.utils.parametrizations.weight_norm(nn.Linear(32, 32)))
    parts.append(prune.l1_unstructured(nn.Linear(32, 32), "weight", 0.5))
    parts.append(prune.l1_unstructured(nn.Linear(32, 32), "bias", 0.5))
    parts.append(prune.l1_unstructured(nn.LSTM(32, 32), "weight_hh_l0", 0.5))
    parts.append(nn.Linear(32, 32))
    parts[-1].forward = lambda x: -nn.functional.linear(x, parts[-1].weight)
    model = nn.Sequential(*parts)
    with pytest.warns(UserWarning, match=r"nothing was replaced: 0 a convolution \(Conv2d, 3 x 3\)"):
        report = torchldr.compress_(model, LOW)
    assert report.layers == ()
    assert all(now is before for now, before in zip(model, parts, strict=True))
    groups = "a 1x1 convolution with groups or padding"
    subclass = "a Mine, whose forward may differ from that of nn.Linear"
    computed = "its weight is computed by a parametrization"
    large = "a convolution (Conv2d, 3 x 3): only nn.Conv2d of 1 x 1 is replaced"
    pruned, patched = (
        "its weight or bias is computed, as by weight norm or pruning",
        "its forward was replaced",
    )
    reasons = large, groups, groups, subclass, computed, pruned, pruned, pruned, patched
    assert report.left == {str(i): reason for i, reason in enumerate(reasons)}
    with pytest.raises(ValueError, match=r"'0' matches no layer .* \(0 a convolution \(Conv2d, 3 x 3\)"):
        torchldr.compress_(model, {"0": LOW})


@pytest.mark.parametrize(("kind", "options"), [(nn.LSTM, {"proj_size": 12}), (nn.LSTM, {}), (nn.GRU, {})])
def test_recurrent_input_weights(kind, options):
    model = nn.ModuleDict({"rnn": kind(20, 24, 2, bidirectional=True, **options)})
    dense, x = model["rnn"], torch.randn(5, 3, 20)
    report = torchldr.compress_(model, LOW, min_features=8)
    assert [row.name for row in report.layers] == [
        f"rnn.weight_ih_l{layer}{side}" for layer in (0, 1) for side in ("", "_reverse")
    ]
    assert report.layers[0].shape == (24, 20)
    assert report.layers[2].shape == (24, 2 * (options.get("proj_size", 24)))
    assert {row.matrices for row in report.layers} == {4 if kind is nn.LSTM else 3}
    assert "recurrent=True" in report.left["rnn.weight_hh_l0"]
    assert model["rnn"].weight_hh_l0 is dense.weight_hh_l0
    oracle = kind(20, 24, 2, bidirectional=True, **options)
    oracle.load_state_dict(dense.state_dict())
    for name, p in oracle.named_parameters():
        if name.startswith("weight_ih"):
            gates = p.detach().chunk(4 if kind is nn.LSTM else 3)
            p.data = torch.cat([low_rank(gate) for gate in gates])
    assert close(model["rnn"](x)[0], oracle(x)[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_every_weight_of_a_recurrent_layer_has_its_own_structure(kind, tmp_path):
    plan = {
        "rnn.weight_ih_l0": torchldr.Structure("low_rank", rank=2),
        "rnn.weight_ih_l1": torchldr.Structure("toeplitz_like", rank=1),
        "rnn.weight_hh_l1": torchldr.Structure("low_rank", rank=5),
    }

    def fresh():
        torch.manual_seed(0)
        return nn.ModuleDict({"rnn": kind(32, 40, 2)}).eval()

    model, x = fresh(), torch.randn(6, 3, 32)
    dense, oracle = model["rnn"], fresh()["rnn"]
    report = torchldr.compress_(model, plan, recurrent=True)
    assert [row.structure for row in report.layers] == ["low_rank", "dense", "toeplitz_like", "low_rank"]
    assert model["rnn"].weight_hh_l0 is dense.weight_hh_l0
    assert sum(p.numel() for p in model.parameters()) == report.model_parameters_after
    for key, structure in plan.items():
        p = oracle.get_parameter(key.removeprefix("rnn."))
        gates = p.detach().chunk(4 if kind is nn.LSTM else 3)
        made = [torchldr.from_dense(W, structure.name, structure.rank).matrix.to_dense() for W in gates]
        p.data = torch.cat(made)
    y = model["rnn"](x)[0]
    assert close(y, oracle(x)[0])
    torchldr.save_compressed(model, tmp_path)
    assert torch.equal(torchldr.load_compressed(fresh(), tmp_path)["rnn"](x)[0], y)
    torchldr.materialize_(model)
    assert type(model["rnn"]) is kind
    assert close(model["rnn"](x)[0], y)


def test_recurrent_weights_under_a_budget_show_their_effect():
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.rnn = nn.GRU(40, 64, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x)[0][:, -1]

    given = {"structures": ["low_rank"], "loader": list(torch.randn(8, 4, 9, 40))}
    inputs = torchldr.compress_(Last(), 0.5, **given)
    both = torchldr.compress_(Last(), 0.5, recurrent=True, **given)
    assert [row.name for row in inputs.layers] == ["rnn.weight_ih_l0"]
    assert [row.name for row in both.layers] == ["rnn.weight_ih_l0", "rnn.weight_hh_l0"]
    assert both.parameters_after <= 0.5 * both.parameters_before
    assert 0 < inputs.distance < 1
    assert 0 < both.distance < 1


def test_tied_weights_stay_tied_and_shared_modules_are_replaced_once():
    model = nn.ModuleDict({"a": nn.Linear(32, 32), "b": nn.Linear(32, 32), "c": nn.Linear(32, 32)})
    model["b"].weight = model["a"].weight
    model["d"] = model["c"]
    report = torchldr.compress_(model, LOW)
    assert model["a"].G is model["b"].G
    assert model["a"].bias is not model["b"].bias
    assert model["c"] is model["d"]
    assert [(row.name, row.tied) for row in report.layers] == [("a", ("b",)), ("c", ("d",))]
    torchldr.materialize_(model)
    assert model["a"].weight is model["b"].weight
    assert model["c"] is model["d"]
    assert isinstance(model["c"], nn.Linear)


@pytest.mark.parametrize("which", ["quantized", "pruned", "trained"])
@pytest.mark.parametrize(("make", "names"), [
    (lambda: torchldr.StructuredLinear(8, 8, structure="low_rank"), ["G", "bias"]),
    (lambda: torchldr.StructuredLSTM(8, 8, structure="low_rank"), ["weight_hh_l0", "bias_ih_l0"]),
    (lambda: torchldr.StructuredGRU(8, 8, structure="low_rank", which="hidden"), ["weight_ih_l0"]),
])  # fmt: skip
def test_what_is_computed_is_made_dense(make, names, which):
    """Errors for missing names, a call of pruning that finds nothing, values from before the last step."""
    model, x = nn.Sequential(make()), torch.randn(3, 8)
    if which == "quantized":
        torchldr.quantize_(model)
    else:
        for name in names:
            prune.random_unstructured(model[0], name, 0.5)
    wanted = model(x)
    if which == "trained":  # since the last call, which pruned
        start = [p.detach().clone() for p in model.parameters()]
        torch.nn.utils.vector_to_parameters(torch.randn(1000), model.parameters())
        model(x)
        torch.nn.utils.vector_to_parameters(torch.cat([p.flatten() for p in start]), model.parameters())
    found = torchldr.materialize_(model)(x)
    for y, right in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        assert close(y, right)
    assert all(p.requires_grad for p in model.parameters()) == (which != "quantized")


@pytest.mark.parametrize("names", [("fastfood", "fastfood"), ("toeplitz_like", "hankel_like")])
def test_the_same_parameters_in_other_matrices_are_other_weights(names):
    model = nn.Sequential(*(torchldr.StructuredLinear(32, 32, structure=name) for name in names))
    for name in model[0]._learned:
        setattr(model[1], name, getattr(model[0], name))
    x = torch.randn(3, 32)
    y = model(x)
    assert close(torchldr.materialize_(model)(x), y)


def test_a_weight_shared_with_an_embedding_is_left_alone():
    model = nn.ModuleDict({"table": nn.Embedding(50, 32), "head": nn.Linear(32, 50, False)})
    model["head"].weight = model["table"].weight
    report = torchldr.compress_(model, LOW)
    assert report.left == {"head": "its weight is shared with table"}
    assert model["head"].weight is model["table"].weight


def test_hooks_mode_dtype_and_frozen_weights_survive():
    model = nn.Sequential(nn.Linear(32, 32, dtype=torch.bfloat16), nn.Linear(32, 32))
    model[0].eval()
    model[0].weight.requires_grad_(False)
    calls = []
    handle = model[0].register_forward_hook(lambda *_: calls.append(1))
    torchldr.compress_(model, LOW)
    layer = model[0]
    assert not layer.training
    assert model[1].training
    assert layer.G.dtype == torch.bfloat16
    assert not layer.G.requires_grad
    assert layer.bias.requires_grad
    assert model[1].G.requires_grad
    layer(torch.randn(2, 32, dtype=torch.bfloat16))
    assert calls == [1]
    handle.remove()
    layer(torch.randn(2, 32, dtype=torch.bfloat16))
    assert calls == [1]


def test_random_numbers_are_left_alone():
    model = nn.Sequential(nn.Linear(32, 32), nn.LSTM(32, 32))
    state = torch.get_rng_state()
    torchldr.compress_(model, LOW)
    assert torch.equal(state, torch.get_rng_state())


def test_precedence_of_a_plan():
    model = nn.ModuleDict({f"block{i}": nn.ModuleDict({"up": nn.Linear(32, 32)}) for i in range(3)})
    plan = {
        "block0.up": torchldr.Structure("low_rank", rank=1),  # exact, though first and short
        "block*.up": torchldr.Structure("low_rank", rank=2),
        "*": torchldr.Structure("low_rank", rank=3),
        "block?.up": torchldr.Structure("low_rank", rank=4),  # as long as block*.up, and later
        "block2*": torchldr.Structure("dense"),  # shorter than block?.up
    }
    report = torchldr.compress_(model, plan)
    assert [row.rank for row in report.layers] == [1, 4, 4]
    model = nn.ModuleDict({"a": nn.Linear(32, 32), "b": nn.Linear(32, 32)})
    report = torchldr.compress_(model, {"*": LOW, "b": torchldr.Structure("dense")})
    assert isinstance(model["b"], nn.Linear)
    assert report.left == {"b": "stays dense by the plan"}


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torchscript_is_left_alone():
    """It was an AttributeError."""
    model = nn.Sequential(torch.jit.trace(nn.Linear(40, 40), torch.ones(1, 40)), nn.Linear(40, 40))
    report = torchldr.compress_(model, torchldr.Structure("low_rank", rank=1))
    assert [layer.name for layer in report.layers] == ["1"]
    assert report.left == {"0": "is TorchScript: compress the model first"}


def test_weights_that_are_not_ordinary_numbers_are_left_alone():
    kinds = torch.float8_e4m3fn, torch.complex64
    model = nn.Sequential(*[nn.Linear(40, 40).to(dtype) for dtype in (torch.float32, *kinds)])
    report = torchldr.compress_(model, LOW)
    assert [layer.name for layer in report.layers] == ["0"]
    assert [f"its weight is {dtype}" in report.left[str(i + 1)] for i, dtype in enumerate(kinds)] == [
        True
    ] * 2


def test_layers_that_are_called_from_a_list_are_replaced_there():
    """The old layers went on being called."""

    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(40, 40), nn.Linear(40, 40)
            self.order = [self.first, {"then": (self.second, "some name")}]

        def forward(self, x):
            return self.order[1]["then"][0](self.order[0](x))

    model = Listed()
    torchldr.compress_(model, LOW)
    assert model.order == [model.first, {"then": (model.second, "some name")}]
    x = torch.randn(3, 40)
    torch.testing.assert_close(model(x), model.second(model.first(x)))
    torchldr.materialize_(model)
    assert type(model.order[0]) is nn.Linear


def test_filter_and_small_layers():
    model = nn.ModuleDict({"a": nn.Linear(32, 32), "b": nn.Linear(32, 32), "c": nn.Linear(32, 31)})
    report = torchldr.compress_(model, LOW, filter_fn=lambda module, name: name != "b")
    assert [row.name for row in report.layers] == ["a"]
    assert report.left == {"b": "left out by filter_fn", "c": "has 31 features, fewer than min_features=32"}


@pytest.mark.parametrize("budget", [0.1, 0.3, 0.6, 2000])
def test_a_budget_is_kept_and_used(budget):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(48, 64), nn.Linear(64, 40), nn.Linear(40, 40))
    whole = 48 * 64 + 64 * 40 + 40 * 40
    report = torchldr.compress_(model, budget, min_features=8, structures=("low_rank", "block_circulant"))
    limit = budget * whole if budget < 1 else budget
    assert 0.7 * limit < report.parameters_after <= limit
    assert report.parameters_before == whole
    assert (
        sum(p.numel() for name, p in model.named_parameters() if "bias" not in name)
        == report.parameters_after
    )


def test_a_budget_finds_the_structure_that_is_there():
    """A Toeplitz-like weight, one of low rank and one of none: each gets what suits it, and what it needs."""
    toeplitz = torchldr.ToeplitzLike.random(32, 32, rank=1).to_dense()
    low = torchldr.LowRank.random(32, 32, rank=4).to_dense()
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
    for layer, W in zip(model, (toeplitz, low, torch.randn(32, 32)), strict=False):
        layer.weight.data = W.contiguous()
    report = torchldr.compress_(model, (64 + 256 + 1024) / 3072)
    assert [(row.structure, row.rank) for row in report.layers] == [
        ("toeplitz_like", 1),
        ("low_rank", 4),
        ("dense", None),
    ]
    assert all(row.residual < 1e-5 for row in report.layers)


def test_activations_lower_the_error_that_counts():
    scales = torch.logspace(0, -2, 40)
    batches = [(torch.randn(50, 40) * scales, None) for _ in range(4)]
    dense = nn.Sequential(nn.Linear(40, 40), nn.Dropout(0.5), nn.Linear(40, 36))
    X = torch.cat([batch for batch, _ in batches])
    errors, reports = [], []
    for loader in (None, batches):
        model = nn.Sequential(nn.Linear(40, 40), nn.Dropout(0.5), nn.Linear(40, 36))
        model.load_state_dict(dense.state_dict())
        reports.append(torchldr.compress_(model, {"0": LOW}, loader=loader))
        assert model[1].training
        errors.append((model.eval()(X) - dense.eval()(X)).norm() / dense(X).norm())
        inner = (model[0](X) - dense[0](X)).norm() / (X @ dense[0].weight.T).norm()
    assert errors[1] < 0.8 * errors[0]
    assert reports[1].distance == pytest.approx(errors[1].item(), rel=0.3)
    assert reports[0].layers[0].weighted_residual is None
    assert reports[1].layers[0].weighted_residual == pytest.approx(inner.item(), rel=0.2)
    model = nn.Sequential(nn.Linear(40, 40), nn.Dropout(0.5), nn.Linear(40, 36))
    model.load_state_dict(dense.state_dict())
    given = torchldr.compress_(model, {"0": LOW}, activations={"0": X})
    expected = (model[0](X) - dense[0](X)).norm() / (X @ dense[0].weight.T).norm()
    assert given.layers[0].weighted_residual == pytest.approx(expected.item(), rel=1e-4)
    assert expected < inner


INPUTS = [
    ({"activations": {"0": torch.zeros(5, 32)}}, "activations of 0 must be finite and not all zero"),
    (
        {"activations": {"0": torch.ones(5, 31)}},
        r"activations of 0 must have 32 entries .* got shape \(5, 31\)",
    ),
    ({"activations": {"9": torch.ones(5, 32)}}, "activations for '9', which is not a weight"),
    (
        {"loader": [torch.full((5, 32), float("inf"))]},
        "inputs of 0 on the loader's batches are not all finite",
    ),
    ({"loader": iter(())}, "the loader gave no batch"),
]


@pytest.mark.parametrize(("options", "message"), INPUTS)
def test_wrong_activations_are_named(options, message):
    model = nn.Sequential(nn.Linear(32, 32))
    with pytest.raises(ValueError, match=message):
        torchldr.compress_(model, LOW, **options)
    assert type(model[0]) is nn.Linear
    assert not model[0]._forward_pre_hooks


def test_materialize_of_parametrized_layers():
    """Their tensors are computed: none of them is another layer's."""
    model = nn.Sequential(*(torchldr.StructuredLinear(32, 32, structure="circulant") for _ in range(2)))
    for layer in model:
        nn.utils.parametrize.register_parametrization(layer, "column", nn.Hardtanh())
    x = torch.randn(3, 32)
    y = model(x)
    assert torch.allclose(torchldr.materialize_(model)(x), y, atol=1e-5)


def test_materialize_goes_back_with_the_same_function():
    class Everything(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pointwise = nn.Conv2d(32, 32, 1)
            self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
            self.rnn = nn.GRU(32, 32, batch_first=True)
            self.head = Conv1D(40, 32)

        def forward(self, x: Tensor) -> Tensor:
            x = self.pointwise(x).flatten(2).transpose(1, 2)
            x = self.attention(x, x, x, need_weights=False)[0]
            return self.head(self.rnn(x)[0])

    model = Everything().eval()
    x = torch.randn(2, 32, 3, 3)
    torchldr.compress_(model, LOW)
    y, biases = model(x), (model.head.bias, model.rnn.bias_ih_l0)
    assert torchldr.materialize_(model) is model
    kinds = [type(model.get_submodule(name)) for name in ("pointwise", "attention", "rnn", "head")]
    assert kinds == [nn.Conv2d, nn.MultiheadAttention, nn.GRU, nn.Linear]
    assert close(model(x), y)
    assert (model.head.bias, model.rnn.bias_ih_l0) == biases
    assert not any(module.training for module in model.modules())


def test_gradients_flow():
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    torchldr.compress_(model, torchldr.Structure("toeplitz_like", rank=1))
    model(torch.randn(4, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_report_prints_and_saves(tmp_path):
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 8))
    report = torchldr.compress_(model, LOW)
    text = str(report)
    assert "2,048 -> 288" in text
    assert "low_rank rank=3" in text
    assert "left alone: 1 (has 8 features" in text
    report.save(tmp_path / "report.json")
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved["layers"][0]["name"] == "0"
    assert saved["parameters_after"] == 288
    assert saved["model_parameters_after"] == sum(p.numel() for p in model.parameters())


def test_progress_is_reported():
    seen = []
    model = nn.Sequential(nn.Linear(32, 32))
    torchldr.compress_(model, 0.5, structures=("low_rank",), progress=lambda *step: seen.append(step))
    assert seen == [("looking at 0", 0, 1), ("projecting 0", 0, 1)]


BAD = [
    (lambda: {"0": "low_rank"}, TypeError, "must map to a torchldr.Structure"),
    (lambda: {"nothing*": LOW}, ValueError, "'nothing\\*' matches no layer"),
    (lambda: {"1": LOW}, ValueError, "1 has 4 features, fewer than min_features"),
    (
        lambda: torchldr.Structure("low_rank", rank=33),
        ValueError,
        "compress_: 0: .*rank must be between 1 and 32",
    ),
    (lambda: 1.5, ValueError, "between 0 and 1, got 1.5"),
    (lambda: 0, ValueError, "at least 1, got 0"),
    (lambda: True, TypeError, "spec must be"),
    (lambda: 0.001, ValueError, "too small: the smallest candidates have"),
]


@pytest.mark.parametrize(("spec", "kind", "message"), BAD)
def test_errors_leave_the_model_as_it_was(spec, kind, message):
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 4))
    before = list(model)
    with pytest.raises(kind, match=message):
        torchldr.compress_(model, spec(), structures=("low_rank",))
    assert all(a is b for a, b in zip(model, before, strict=True))


def test_weights_that_are_not_finite_are_named():
    model = nn.ModuleDict({"good": nn.Linear(32, 32), "bad": nn.Linear(32, 32)})
    model["bad"].weight.data[3, 3] = float("nan")
    with pytest.raises(ValueError, match="the weight of bad has entries that are not finite"):
        torchldr.compress_(model, LOW)
    assert isinstance(model["good"], nn.Linear)


def test_a_layer_alone_cannot_be_replaced_in_place():
    with pytest.raises(ValueError, match=r"put it into an nn\.Sequential"):
        torchldr.compress_(nn.Linear(32, 32), LOW)
    with pytest.raises(ValueError, match=r"put it into an nn\.Sequential"):
        torchldr.materialize_(torchldr.StructuredLinear(32, 32))


WRONG = [
    (("lowrank",), {}, ValueError),
    (("circulant", 2), {}, ValueError),
    (("low_rank", 0), {}, ValueError),
    (("low_rank", 2.0), {}, TypeError),
    (("low_rank", 2), {"block_size": 3}, TypeError),
]


@pytest.mark.parametrize(("arguments", "options", "kind"), WRONG)
def test_structures_are_checked_when_made(arguments, options, kind):
    with pytest.raises(kind):
        torchldr.Structure(*arguments, **options)


def test_structures_compare_and_hash():
    a = torchldr.Structure("block_circulant", block_size=4)
    assert a == torchldr.Structure("block_circulant", block_size=4)
    assert len({a, torchldr.Structure("block_circulant", block_size=8)}) == 2
    with pytest.raises(AttributeError):
        a.rank = 3


def test_the_budget_may_be_named():
    model = nn.Sequential(nn.Linear(64, 64))
    report = torchldr.compress_(model, budget=0.2, structures=["low_rank"])
    assert report.layers[0].parameters_after <= 0.2 * 64 * 64
    for arguments in ({}, {"spec": 0.1, "budget": 0.1}):
        with pytest.raises(TypeError, match="one of spec"):
            torchldr.compress_(model, **arguments)


def test_a_report_says_how_fast_layers_are_and_which_are_slower(monkeypatch):
    def seconds(calls, repeats, wanted):
        for call in calls.values():
            call()
        return {name: 3e-3 if "cauchy" in name else 1e-3 if "low_rank" in name else 2e-3 for name in calls}

    monkeypatch.setattr("torchldr.compress.budget.minimum_seconds", seconds)
    model = nn.ModuleDict({"a": nn.Linear(32, 32), "b": nn.Linear(32, 48), "c": nn.Linear(32, 32)})
    plan = {"a": LOW, "b": torchldr.Structure("cauchy_like", rank=1)}
    report = torchldr.compress_(model, plan)
    assert [row.latency_after for row in report.layers] == [1.0, 3.0, 2.0]
    assert report.slower == ["b"]
    assert "latency: 6 -> 6 ms for 64 vectors a call, measured here\nslower than dense here: b;" in str(
        report
    )


@pytest.mark.parametrize("name", ["monarch", "kronecker", "blast"])
def test_classes_of_blocks_are_chosen_where_they_fit_and_come_back(name: str, tmp_path: Path):
    """By name: a default call does not try them, since low rank is nearer to most weights."""
    torch.manual_seed(0)
    cls = torchldr.get_structure(name)
    W = cls.random(24, 36, 1, **cls.variants(24, 24)[-1]).to_dense()
    model = nn.Sequential(nn.Linear(36, 24, bias=False))
    model[0].weight = nn.Parameter(W.detach().clone())
    torchldr.compress_(model, 0.4, structures=["low_rank", name], min_features=8)
    assert model[0].structure.name == name
    torch.testing.assert_close(model[0].weight, W, rtol=1e-4, atol=1e-4)
    torchldr.save_compressed(model, tmp_path / "model")
    fresh = nn.Sequential(nn.Linear(36, 24, bias=False))
    torchldr.load_compressed(fresh, tmp_path / "model")
    assert torch.equal(fresh[0].weight, model[0].weight)


VERBS = {
    "compress_": lambda folder: torchldr.compress_(folder, 0.1),
    "materialize_": torchldr.materialize_,
    "save_compressed": lambda folder: torchldr.save_compressed(folder, nn.Linear(2, 2)),
    "load_compressed": lambda folder: torchldr.load_compressed(folder, nn.Linear(2, 2)),
    "quantize_": torchldr.quantize_,
    "freeze": torchldr.freeze,
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_is_no_model(verb):
    with pytest.raises(TypeError, match=f"{verb}: model must be an nn.Module, got str"):
        VERBS[verb]("folder")


class _Tagger(nn.Module):
    """Most of it is a table of words; logits for each of them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.words, self.layer, self.name = nn.Embedding(500, 40), nn.Linear(40, 40), name

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {self.name: self.layer(self.words(ids))}


@pytest.mark.parametrize("name", ["logits", "sentence_embedding"])
def test_a_report_says_in_words_what_it_comes_to(name):
    model = _Tagger(name)
    batches = [torch.randint(500, (9, 7)) for _ in range(6)]
    report = torchldr.compress_(model, 0.5, loader=batches, structures=["low_rank"])
    assert "shrank to 50 % of their parameters, the model to 96.3 %" in report.summary
    assert "because 80 kB of it are in Embedding modules. On held-out batches" in report.summary
    assert ("nats" in report.summary) == (name == "logits")
    assert ("of their size" in report.summary) == (name != "logits")
    assert str(report).endswith(report.summary.replace(". ", ".\n"))
    nothing = torchldr.compress_(_Tagger(name), torchldr.Structure("dense"), loader=batches)
    assert "shrank to 100 % of their parameters, the model to 100 %. On" in nothing.summary
