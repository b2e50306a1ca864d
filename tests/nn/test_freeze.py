"""`freeze`: the values of the model that it copies, by either product, and a module like any other."""

from __future__ import annotations

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_sequence

import torchldr
from torchldr import StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM, freeze, testing
from torchldr.compress import materialize_
from torchldr.nn.freeze import thawed
from torchldr.nn.pointwise import StructuredPointwise

CLASSES = list(torchldr.structures().values())
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
every_product = pytest.mark.parametrize("product", ["auto", "fast", "dense"])
# Each kind of frozen layer: prepared constants, a layer that needs no gradients, nn.Linear.
KINDS = [("ldr_sd", "fast"), ("toeplitz_like", "fast"), ("cauchy_like", "fast"), ("low_rank", "dense")]
every_kind = pytest.mark.parametrize(("name", "product"), KINDS)


def layer_of(name: str, product: str = "auto", n: int = 24, m: int = 18, **more) -> StructuredLinear:
    """With operators away from where training starts."""
    cls = torchldr.get_structure(name)
    M = testing.member(
        cls, m, n, 2 if cls.ranked else None, regime="near one" if testing.has_operators(cls) else None
    )
    layer = StructuredLinear(
        n, m, structure=name, rank=2 if cls.ranked else None, dtype=torch.float64, **more
    )
    with torch.no_grad():
        for key, p in layer.named_parameters():
            if key != "bias":
                p.copy_(M.tensors[key])
    layer.product = product
    return layer


def model_of(name: str, product: str, n: int = 24) -> nn.Sequential:
    layers = layer_of(name, product, n), layer_of(name, product, 18, n, bias=False)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1])


def rows(*shape: int, **more) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, **more)


def assert_frozen(served: nn.Module) -> None:
    assert not served.training
    assert not any(p.requires_grad for p in served.parameters())


# Values.


@every_product
@every_class
def test_values_of_every_class(cls, product):
    for n, m in ((24, 18), (18, 24), (16, 16), (1, 1)):
        rank = min(2, n, m) if cls.ranked else None
        layer = StructuredLinear(n, m, structure=cls, rank=rank, dtype=torch.float64)
        layer.product = product
        served = freeze(layer)
        assert_frozen(served)
        taken = served.report[0].product
        assert taken == product if product != "auto" and cls.structured else taken in ("fast", "dense")
        assert isinstance(served, nn.Linear) == (taken == "dense")
        for x in (rows(3, n), rows(2, 3, n), rows(n), rows(0, n), rows(n, 3).mT, rows(2, 2 * n)[:, ::2]):
            torch.testing.assert_close(served(x), layer(x))


@every_class
@pytest.mark.parametrize("regime", [None, *testing.REGIMES])
def test_fast_products_in_every_regime(cls, regime):
    if not cls.structured or (regime is not None) != testing.has_operators(cls):
        return
    M = testing.member(cls, 40, 33, 2 if cls.ranked else None, regime=regime)
    layer = StructuredLinear(
        33, 40, False, structure=cls, rank=2 if cls.ranked else None, dtype=torch.float64
    )
    state = {name: t for name, t in M.tensors.items() if name in layer.state_dict()}
    layer.load_state_dict(state)
    layer.product = "fast"
    for dtype in (torch.float32, torch.float64):
        served, x = freeze(layer.to(dtype)), torch.randn(5, 33, dtype=dtype)
        exact = layer.matrix().double()
        bound = testing.tolerance(dtype, 40) * (x.double().abs() @ exact.magnitude().mT).max()
        assert ((served(x) - x.double() @ exact.to_dense().mT).abs() <= bound).all()


@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(name, product, dtype):
    """At most twice as wrong as the dense product, in the dtype and under autocast."""
    layer = layer_of(name, product, 64, 48).to(dtype)
    x, exact = torch.randn(16, 64).to(dtype), copy.deepcopy(layer).double()
    exact.product = "dense"
    want = exact(x.double())
    dense = (nn.functional.linear(x, exact.weight.to(dtype), layer.bias).double() - want).abs().max()
    found = freeze(layer)(x)
    assert found.dtype == dtype
    assert (found.double() - want).abs().max() <= 2 * dense
    served = freeze(layer.float())
    with torch.autocast("cpu", dtype=dtype):
        y = served(x.float())
    assert y.dtype == dtype
    assert (y.double() - want).abs().max() <= 2 * dense


def test_layers_of_all_kinds():
    options = {"structure": "toeplitz_like", "rank": 2, "dtype": torch.float64}
    layers = {
        "grid": (StructuredChannels(2, 3, (2, 4), 6, **options), rows(5, 2, 2, 4)),
        "no bias": (StructuredChannels(2, 3, 8, bias=False, **options), rows(5, 2, 8)),
        "wide": (StructuredChannels(2, 3, (2, 4), form="wide", **options), rows(5, 2, 2, 4)),
        "pointwise": (StructuredPointwise(layer_of("low_rank")), rows(2, 24, 3, 5)),
    }
    for name, (layer, x) in layers.items():
        for product in ("auto", "fast", "dense"):
            if hasattr(layer, "product"):
                layer.product = product
            served = freeze(nn.Sequential(layer))
            assert_frozen(served)
            assert len(served.report) == 1, name
            torch.testing.assert_close(served(x), layer(x))
            torch.testing.assert_close(served.double()(x), layer(x))


@pytest.mark.parametrize("product", ["auto", "fast", "dense"])
@pytest.mark.parametrize("cls", [StructuredLSTM, StructuredGRU])
def test_recurrent_layers_take_packed_sequences(cls, product):
    layer = cls(5, 6, 2, bidirectional=True, structure="ldr_sd", which="both", dtype=torch.float64)
    layer.product = product
    served = freeze(layer)
    assert_frozen(served)
    assert type(served) is cls.torch_class
    x = pack_sequence([rows(steps, 5) for steps in (4, 3, 1)])
    (y, state), (right, wanted) = served(x), layer(x)
    torch.testing.assert_close(y.data, right.data)
    torch.testing.assert_close(state, wanted)
    torch.testing.assert_close(
        served(rows(3, 2, 5, generator=torch.manual_seed(0)))[0],
        layer(rows(3, 2, 5, generator=torch.manual_seed(0)))[0],
    )


# What was done to the parameters.


@every_kind
def test_pruned_parametrized_and_quantised_layers(name, product):
    x = rows(3, 24)
    pruned, normed, rounded = (layer_of(name, product) for _ in range(3))
    prune.l1_unstructured(pruned, "G", 0.5)
    prune.l1_unstructured(pruned, "bias", 0.5)
    with torch.no_grad():
        pruned.G_orig.mul_(2)  # a step since the last call
    parametrizations.weight_norm(normed, "G")
    torchldr.quantize_(rounded)
    for layer in (pruned, normed, rounded):
        served = freeze(nn.Sequential(layer))
        assert_frozen(served)
        torch.testing.assert_close(served(x), layer(x))
        assert type(layer) is StructuredLinear or isinstance(layer, StructuredLinear)


@every_product
def test_ties_and_shared_modules(product):
    model = model_of("toeplitz_like", product, n=18)
    model[2].G = model[0].G
    shared = nn.Sequential(model[0], model[2], model[0])
    x = rows(3, 18)
    for tied in (nn.Sequential(model[0], nn.Tanh(), model[2]), shared):
        torch.testing.assert_close(freeze(tied)(x), tied(x))
    served = freeze(shared)
    assert served[0] is served[2]
    assert len(served.report) == 2


def test_layers_in_lists_and_subclasses():
    class Doubled(StructuredLinear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = [layer_of("low_rank", n=18)]
            self.add_module("part", self.parts[0])
            self.own = Doubled(18, 18, structure="low_rank", dtype=torch.float64)

        def forward(self, x):
            return self.own(self.parts[0](x))

    model, x = Model(), rows(3, 18)
    served = freeze(model)
    assert served.part is served.parts[0]
    assert type(served.own) is Doubled  # which has a forward of its own
    assert not any(p.requires_grad for p in served.part.parameters())
    torch.testing.assert_close(served(x), model(x))


def test_nothing_to_freeze():
    model = nn.Sequential(nn.Linear(4, 4))
    served = freeze(model)
    assert repr(served.report) == "the model has no structured layer"
    assert served is not model
    assert not served.training


# The model itself.


@every_kind
def test_the_model_trains_on_untouched(name, product):
    model, x = model_of(name, product), rows(3, 24)
    model[0].train()
    before = {key: (id(t), t._version, t.clone()) for key, t in model.state_dict(keep_vars=True).items()}
    kept = [dict(vars(part)) for part in model.modules()]
    served = freeze(model, x)
    y = served(x)
    assert [dict(vars(part)) for part in model.modules()] == kept
    for key, t in model.state_dict(keep_vars=True).items():
        same, version, numbers = before[key]
        assert (id(t), t._version) == (same, version)
        assert torch.equal(t, numbers)
    model(x).square().sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            assert p.grad is not None
            p.sub_(0.1 * p.grad)
    assert torch.equal(served(x), y)
    assert not torch.allclose(model(x), y)
    torch.testing.assert_close(freeze(model)(x), model(x))


# A module like any other.


@every_kind
def test_copies_and_pickles(name, product):
    model, x = model_of(name, product), rows(3, 24)
    served = freeze(model)
    y, file = served(x), io.BytesIO()
    torch.save(served, file)
    file.seek(0)
    for other in (
        copy.deepcopy(served),
        pickle.loads(pickle.dumps(served)),
        torch.load(file, weights_only=False),
    ):
        assert torch.equal(other(x), y)
        assert_frozen(other)
        assert list(other.report) == list(served.report)
    other = freeze(model_of(name, product))
    other.load_state_dict(served.state_dict())
    assert torch.equal(other(x), y)


@every_kind
def test_conversions_keep_the_numbers(name, product):
    served, x = freeze(model_of(name, product)), rows(3, 24)
    y = served(x)
    single = copy.deepcopy(served).float()
    assert single(x.float()).dtype == torch.float32
    torch.testing.assert_close(single(x.float()).double(), y, rtol=1e-4, atol=1e-4)
    half = copy.deepcopy(served).to(torch.bfloat16)
    assert half(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(half(x.bfloat16()).double(), y, rtol=0.1, atol=0.1)
    meta = copy.deepcopy(served).to("meta")
    assert all(t.is_meta for t in (*meta.parameters(), *meta.buffers()))
    torch.testing.assert_close(copy.deepcopy(served).cpu()(x), y)


@every_kind
def test_input_gradients(name, product):
    model = model_of(name, product)
    served, x, u = freeze(model), rows(3, 24).requires_grad_(), rows(3, 24)
    (found,), (right,) = (torch.autograd.grad(module(x), x, u) for module in (served, model))
    torch.testing.assert_close(found, right)
    assert torch.autograd.gradcheck(served, x, fast_mode=True, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(served, x, fast_mode=True)


@every_kind
def test_transformations(name, product):
    model = model_of(name, product)
    served, x = freeze(model), rows(4, 3, 24)
    torch.testing.assert_close(torch.vmap(served)(x), model(x))
    torch.testing.assert_close(torch.vmap(served, in_dims=1, out_dims=1)(x), model(x))
    jacobians = [transform(served)(x[0, 0]) for transform in (torch.func.jacrev, torch.func.jacfwd)]
    for found in jacobians:
        torch.testing.assert_close(found, torch.func.jacrev(model)(x[0, 0]))


@every_kind
def test_inference_mode_and_threads(name, product):
    model = model_of(name, product)
    with torch.inference_mode():
        inside = freeze(model)
    served, x = freeze(model), rows(3, 24)
    y = model(x)
    with torch.inference_mode():
        torch.testing.assert_close(served(x), y)
        torch.testing.assert_close(inside(x), y)
    torch.testing.assert_close(inside(x), y)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(served, [x] * 16):
            torch.testing.assert_close(found, y)


@every_kind
def test_compilers_and_export(name, product):
    torch.compiler.reset()
    model = model_of(name, product)
    served, x = freeze(model), rows(3, 24)
    compiled = torch.compile(served, backend="aot_eager", fullgraph=True)
    program = torch.export.export(
        served, (x,), dynamic_shapes={"input": {0: torch.export.Dim("rows", min=2)}}
    )
    for count in (3, 7):
        x = rows(count, 24)
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(program.module()(x), model(x))


@every_kind
def test_it_is_not_frozen_twice(name, product):
    served, x = freeze(model_of(name, product)), rows(3, 24)
    again = freeze(served)
    assert torch.equal(again(x), served(x))


@every_kind
def test_hooks_and_dense_layers(name, product):
    model, seen, x = model_of(name, product), [], rows(3, 24)
    model[0].register_forward_pre_hook(lambda module, args: (2 * args[0],))
    model[0].register_forward_hook(lambda module, args, y: seen.append(y))
    torch.testing.assert_close(freeze(model)(x), model(x))
    assert len(seen) == 2
    dense = materialize_(freeze(model))
    torch.testing.assert_close(dense(x), model(x))


# What exporters build on.

KEPT = [*KINDS, ("low_rank", "fast"), ("circulant", "fast"), ("block_circulant", "fast")]
SMALL = {
    **{" ".join(kind): (partial(layer_of, *kind), (3, 24)) for kind in KEPT},
    "channels": (partial(StructuredChannels, 2, 3, 8, dtype=torch.float64), (5, 2, 8)),
    "gru": (partial(StructuredGRU, 3, 4, dtype=torch.float64), (5, 2, 3)),
}
every_small = pytest.mark.parametrize(("make", "shape"), SMALL.values(), ids=SMALL)


def result(model: nn.Module, x: Tensor) -> Tensor:
    return y[0] if isinstance(y := model(x), tuple) else y


@every_small
def test_generators_are_exported_while_they_give_the_numbers(make, shape):
    """Of a frozen module whose weights, or whose bias alone, were changed, the module itself is exported."""
    first, second, x = make(), make(), rows(*shape)
    served = freeze(first)
    assert isinstance(thawed(served), type(first))
    served.load_state_dict(freeze(second).state_dict())
    torch.testing.assert_close(result(thawed(served), x), result(second, x))
    served = freeze(first)
    with torch.no_grad():
        next(t for name, t in served.state_dict().items() if "bias" in name).add_(1)
    torch.testing.assert_close(result(thawed(served), x), result(served, x))


@every_small
def test_exports_after_a_conversion(make, shape):
    """Generators in fewer digits would give other numbers."""
    served, x = freeze(make().float()), rows(*shape)
    wide = copy.deepcopy(served).double()
    torch.testing.assert_close(result(thawed(wide), x), result(wide, x), rtol=1e-5, atol=1e-5)
    narrow = copy.deepcopy(served).bfloat16()
    assert torch.equal(result(thawed(narrow), x.bfloat16()), result(narrow, x.bfloat16()))


# The choice, and what is said of it.


def test_the_report():
    model = nn.Sequential(
        layer_of("low_rank", "fast"), nn.ReLU(), layer_of("circulant", "dense", 18, 18), nn.Linear(18, 2)
    )
    served = freeze(model)
    low, circulant = served.report
    assert (low.layer, low.structure, low.shape, low.product) == ("0", "low_rank", "18 x 24", "fast")
    assert (circulant.layer, circulant.structure, circulant.product) == ("2", "circulant", "dense")
    assert low.why == circulant.why == "product was set"
    for row, module in ((low, served[0]), (circulant, served[2])):
        assert row.bytes == sum(t.nbytes for t in (*module.parameters(), *module.buffers()))
    text = repr(served.report)
    assert text.splitlines()[1].startswith("2: circulant 18 x 18: dense, ")
    assert repr(freeze(layer_of("low_rank")).report).startswith("(model): low_rank 18 x 24: ")


def test_an_example_says_how_many_rows():
    """Of the rows that reach each layer, not of the model's input."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = StructuredLinear(256, 256, structure="toeplitz_like")
            self.channels = StructuredChannels(2, 2, 8, structure="low_rank")

        def forward(self, x, count):
            self.channels(x.new_zeros(5, 2, 8))
            return self.layer(x.expand(count, -1))

    model = Model().eval()
    for count in (1, 4096):
        served = freeze(model, (torch.randn(1, 256), count))
        layer, channels = served.report
        assert f"for {count} row" in layer.why
        assert layer.product == model.layer.matrix().products(count, frozen=True).taken
        assert "for 5 rows" in channels.why
    assert {freeze(model, (torch.randn(1, 256), count)).report[0].product for count in (1, 4096)} == {
        "fast",
        "dense",
    }


class Named(nn.Module):
    """Calls its layers with the names of torch's arguments."""

    def __init__(self, product: str) -> None:
        super().__init__()
        self.layer = layer_of("circulant", product)
        self.channels = StructuredChannels(2, 2, 9, dtype=torch.float64, structure="low_rank")
        self.channels.product = product
        self.pointwise = StructuredPointwise(layer_of("low_rank", product, 2, 2))

    def forward(self, x: Tensor) -> Tensor:
        images = self.channels(input=self.layer(input=x).unflatten(-1, (2, 9))).unsqueeze(-1)
        return self.pointwise(input=images)


@every_product
def test_layers_called_with_named_arguments(product):
    model, x = Named(product), rows(5, 24)
    y = model(x)
    for served in (freeze(model), freeze(model, x), freeze(model, x, measure=True)):
        torch.testing.assert_close(served(x), y)
    assert "for 5 rows" in freeze(Named("auto"), x).report[0].why


def test_measuring_takes_the_faster():
    model, x = model_of("low_rank", "auto"), rows(3, 24)
    served = freeze(model, x, measure=True)
    for row in served.report:
        times = dict(part.split(" ")[:2] for part in row.why.split(", "))
        assert times.keys() == {"fast", "dense"}
        assert (
            row.product == min(times, key=lambda product: float(times[product]))
            or len(set(times.values())) == 1
        )
    torch.testing.assert_close(served(x), model(x))
    with pytest.raises(ValueError, match="freeze: measure=True needs an example"):
        freeze(model, measure=True)
    with pytest.raises(TypeError, match="freeze: measure must be True or False, got 1"):
        freeze(model, x, measure=1)
    with pytest.raises(TypeError, match=r"freeze: model must be an nn\.Module, got str"):
        freeze("model")


@every_kind
def test_errors_for_inputs(name, product):
    served = freeze(layer_of(name, product))
    with pytest.raises((ValueError, RuntimeError), match=r"24|shapes"):
        served(rows(3, 23))
    for dtype in (torch.float32, torch.int64, torch.complex128):
        with pytest.raises((TypeError, RuntimeError), match=r"dtype|real floating"):
            served(rows(3, 24).to(dtype))
