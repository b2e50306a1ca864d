"""The plan of a layer: the same results at every call, whatever is done to the layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchldr
from torchldr import StructuredChannels, StructuredLinear
from torchldr.core.routes import Call
from torchldr.nn import plan
from torchldr.nn.snapshot import Snapshot


@pytest.fixture(params=["fast", "dense"])
def layer(request):
    layer = StructuredLinear(12, 9, rank=2).eval()
    layer.plan = request.param
    with torch.no_grad():
        for _ in range(2):
            layer(torch.randn(3, 12))
    assert layer._plan.prepared()  # or these tests would test nothing
    return layer


def by_definition(layer, x):
    return x @ layer.matrix().to_dense().mT + layer.bias


def check(layer, x):
    with torch.no_grad():
        torch.testing.assert_close(layer(x), by_definition(layer, x), rtol=1e-4, atol=1e-5)


def test_values_of_every_shape(layer):
    for shape in ((3, 12), (12,), (2, 3, 12), (0, 12), (3, 12)):
        check(layer, torch.randn(shape))


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_that_is_added_apart_is_added_once(monkeypatch, bias):
    """As on a GPU in float32."""
    monkeypatch.setattr(plan, "adds_apart", lambda call, weight: True)
    layer = StructuredLinear(12, 9, rank=2, bias=bias).eval()
    layer.plan = "dense"
    for shape in ((3, 12), (1, 12), (12,), (2, 3, 12), (0, 12)):
        x = torch.randn(shape)
        with torch.no_grad():
            right = x @ layer.matrix().to_dense().mT + (layer.bias if bias else 0)
            torch.testing.assert_close(layer(x), right, rtol=1e-4, atol=1e-5)


def test_which_products_add_their_bias_apart():
    call, weight = Call(64, "cuda", kept=True), torch.empty(4096, 4096, device="meta")
    assert plan.adds_apart(call, weight)
    assert not plan.adds_apart(call, weight[:256])
    others = (
        {"device": "cpu"},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64},
        {"tf32": True},
        {"batch": 1},
    )
    assert not any(plan.adds_apart(call._replace(**other), weight) for other in others)


def test_an_edit_is_seen(layer):
    x = torch.randn(3, 12)
    with torch.no_grad():
        layer.G.mul_(2)
    check(layer, x)
    layer.H = nn.Parameter(torch.randn_like(layer.H))
    check(layer, x)
    with torch.no_grad():
        layer.bias.add_(1)
    check(layer, x)


def test_other_parameters_for_one_call(layer):
    x, other = torch.randn(3, 12), {"G": torch.randn(2, 9)}
    with torch.no_grad():
        y = torch.func.functional_call(layer, other, (x,))
    assert not torch.allclose(y, layer(x))
    check(layer, x)


def test_hooks_are_called(layer):
    x, seen = torch.randn(3, 12), []
    with torch.no_grad():
        handles = [
            layer.register_forward_pre_hook(lambda *_: seen.append("before")),
            layer.register_forward_hook(lambda *_: seen.append("after")),
            nn.modules.module.register_module_forward_hook(lambda *_: seen.append("global")),
        ]
        layer(x)
        assert seen == ["before", "global", "after"]
        for handle in handles:
            handle.remove()
        layer(x)
    assert len(seen) == 3


def test_gradients_when_they_are_wanted(layer):
    x = torch.randn(3, 12, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None
    assert layer.G.grad is not None


def test_gradient_of_the_input_alone(layer):
    x = torch.randn(3, 12)
    layer.requires_grad_(False)
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        layer(leaf).square().sum().backward()
        wanted = x.clone().requires_grad_()
        by_definition(layer, wanted).square().sum().backward()
        torch.testing.assert_close(leaf.grad, wanted.grad, rtol=1e-3, atol=1e-4)


def test_errors_and_conversions_are_the_same(layer):
    with torch.no_grad():
        with pytest.raises(ValueError, match="in_features"):
            layer(torch.randn(3, 11))
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(torch.randn(3, 12)).dtype == torch.bfloat16
        assert layer(x=torch.randn(3, 12)).shape == (3, 9)
        with pytest.raises(TypeError):
            layer(torch.randn(3, 12), 1)


def test_train_mode_leaves_the_plan(layer):
    layer.train()
    y = layer(torch.randn(3, 12))
    assert y.requires_grad


def test_vmap_and_compile(layer):
    x = torch.randn(4, 3, 12)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(layer)(x), layer(x), rtol=1e-4, atol=1e-5)
        torch.compiler.reset()  # other tests may have used up how often torch compiles a function
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x[0]), layer(x[0]), rtol=1e-4, atol=1e-5)


def test_edits_of_the_dense_matrix_do_not_reach_the_plan():
    def linear(layer, x):
        return layer(x), layer.weight

    def channels(layer, x):
        return layer(x.view(3, 2, 6)), layer.weight

    def recurrent(layer, x):
        return layer(x)[0], layer.dense_weight("weight_ih_l0")

    kinds = [(linear, StructuredLinear(12, 9)), (channels, torchldr.StructuredChannels(2, 2, 6))]
    kinds += [(channels, torchldr.StructuredChannels(2, 2, 6, form="wide"))]
    kinds += [(recurrent, torchldr.StructuredLSTM(12, 8)), (recurrent, torchldr.StructuredGRU(12, 8))]
    x = torch.randn(3, 12)
    with torch.no_grad():
        for call, layer in kinds:
            layer.eval().plan = "dense"
            before, weight = (t.clone() for t in call(layer, x))
            call(layer, x)[1].mul_(2)
            torch.testing.assert_close(call(layer, x), (before, weight), rtol=0, atol=0)


# An overridden `forward`, and everything else that stands between a call and the product.


def three_calls(module, x):
    with torch.no_grad():
        return [module(x) for _ in range(3)]


def all_equal(results):
    return all(torch.equal(y, results[0]) for y in results)


@pytest.mark.parametrize("structure", sorted(torchldr.structures()))
def test_an_overridden_forward_is_called_every_time(structure):
    class Tenfold(StructuredLinear):
        def forward(self, x):
            return super().forward(x) * 10

    layer = Tenfold(48, 40, structure=structure).eval()
    plain = StructuredLinear(48, 40, structure=structure).eval()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(3, 48)
    results = three_calls(layer, x)
    assert all_equal(results)
    assert torch.equal(results[0], 10 * three_calls(plain, x)[0])


def test_a_patched_instance_is_called_every_time():
    layer, x = StructuredLinear(48, 40).eval(), torch.randn(3, 48)
    before = three_calls(layer, x)[0]
    inner = layer.forward
    layer.forward = lambda x: inner(x) * 10  # as accelerate wraps modules
    results = three_calls(layer, x)
    assert all_equal(results)
    assert torch.equal(results[0], before * 10)


def recurrent(cls, **arguments):
    return lambda: cls(12, 8, which="both", **arguments)


def by_route(structure, route):
    def make():
        layer = StructuredLinear(12, 9, structure=structure)
        layer.route = route
        return layer

    return make


LAYERS = {
    "linear": (lambda: StructuredLinear(12, 9, rank=2), (3, 12)),
    "dense": (lambda: StructuredLinear(12, 9, structure="dense"), (3, 12)),
    "low rank": (by_route("low_rank", "two_products"), (3, 12)),
    "kronecker": (by_route("kronecker", "two_factors"), (3, 12)),
    "lstm": (recurrent(torchldr.StructuredLSTM), (5, 2, 12)),
    "dense lstm": (recurrent(torchldr.StructuredLSTM, structure="dense"), (5, 2, 12)),
    "gru": (recurrent(torchldr.StructuredGRU), (5, 2, 12)),
    "channels": (lambda: torchldr.StructuredChannels(2, 3, features=6), (4, 2, 6)),
}


def output(layer, x):
    with torch.no_grad():
        y = layer(x)
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("name", LAYERS)
def test_hooks_that_are_added_later_are_called(name):
    make, shape = LAYERS[name]
    layer, x, seen = make().eval(), torch.randn(shape), []
    output(layer, x), output(layer, x)
    layer.register_forward_hook(lambda *_: seen.append(1))
    output(layer, x), output(layer, x)
    assert len(seen) == 2


# Ways to change a parameter, none of which may leave a stale plan.


def fused(name):
    def change(p, layer):
        optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.1, fused=True)
        for q in layer.parameters():
            q.grad = torch.ones_like(q)
        optimizer.step()

    return change


def by_data(p, layer):
    p.data.add_(0.5)


def by_new_data(p, layer):
    p.data = p.data + 0.5


def by_vector(p, layer):
    vector = torch.nn.utils.parameters_to_vector(layer.parameters()).detach() + 0.5
    torch.nn.utils.vector_to_parameters(vector, layer.parameters())
    output(layer, LAYERS_INPUT[0])
    vector.add_(0.5)  # the parameters are views of it now
    torch.nn.utils.vector_to_parameters(vector, layer.parameters())


def by_numpy(p, layer):
    p.detach().numpy()[...] += 0.5


def by_dlpack(p, layer):
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(p.detach())).add_(0.5)


def by_storage(p, layer):
    torch.tensor([], dtype=p.dtype).set_(p.untyped_storage()).add_(0.5)


def by_uncounted_edit(p, layer):
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(p):
        p.add_(0.5)


def by_edit(p, layer):
    with torch.no_grad():
        p.add_(0.5)


def by_inference_mode(p, layer):
    with torch.inference_mode():
        p.data.add_(0.5)


def by_state_dict(p, layer):
    layer.load_state_dict({name: t + 0.5 for name, t in layer.state_dict().items()})


def by_assignment(p, layer):
    layer.load_state_dict({name: t + 0.5 for name, t in layer.state_dict().items()}, assign=True)


def by_foreach(p, layer):
    torch._foreach_add_([q.data for q in layer.parameters()], 0.5)


def by_shared_memory(p, layer):
    layer.share_memory()
    output(layer, LAYERS_INPUT[0])
    p.data.numpy()[...] += 0.5  # what another process does


LAYERS_INPUT = [torch.zeros(0)]
CHANGES = {
    **{f"fused {name}": fused(name) for name in ("SGD", "Adam", "AdamW", "Adagrad")},
    **{f.__name__: f for f in (by_data, by_new_data, by_vector, by_numpy, by_dlpack, by_storage)},
    **{f.__name__: f for f in (by_uncounted_edit, by_edit, by_inference_mode, by_state_dict)},
    **{f.__name__: f for f in (by_assignment, by_foreach, by_shared_memory)},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", LAYERS)
def test_no_change_of_parameters_leaves_a_stale_plan(name, change):
    make, shape = LAYERS[name]
    layer, x = make().eval(), torch.randn(shape)
    LAYERS_INPUT[0] = x
    before = [output(layer, x) for _ in range(2)][-1]
    learned = next(p for p in layer.parameters() if p.ndim > 1)
    for _ in range(2):
        CHANGES[change](learned, layer)
        got = output(layer, x)
        fresh = make().eval()
        fresh.load_state_dict(layer.state_dict())
        assert torch.equal(got, output(fresh, x))
    assert not torch.equal(got, before)


@pytest.mark.parametrize("name", LAYERS)
def test_a_model_built_under_inference_mode_keeps_a_plan_and_sees_edits(name):
    make, shape = LAYERS[name]
    with torch.inference_mode():
        layer, x = make().eval(), torch.randn(shape)
        before = output(layer, x)
        if name == "linear":
            kept = layer._plan
            assert kept.prepared()
            output(layer, x)
            assert layer._plan is kept
        for p in layer.parameters():
            p.add_(0.5)
        assert not torch.equal(output(layer, x), before)


def test_the_number_of_input_shapes_does_not_grow_the_plan():
    layer = StructuredLinear(12, 9, rank=2).eval()
    with torch.no_grad():
        for batch in range(1, 100):
            layer(torch.randn(batch, 12))
            layer(torch.randn(1, batch, 12))
    assert len(layer._plan._routes) <= 8
    channels = StructuredChannels(2, 2, 6).eval()
    with torch.no_grad():
        for batch in range(1, 100):
            channels(torch.randn(batch, 2, 6))
    assert 0 < len(channels.grid._plan._by_dense) <= 64


def test_routes_say_why_no_plan_is_kept():
    layer = StructuredLinear(64, 64)
    assert "train()" in layer.routes(8).note
    layer.eval()
    assert "gradient of G" in layer.routes(8).note
    with torch.no_grad():
        assert layer.routes(8).note == ""
        assert layer.routes(8).chosen in repr(layer.routes(8))


def test_a_route_can_be_named():
    layer, x = StructuredLinear(64, 64).eval(), torch.randn(2, 64)
    layer.route = "stencil"
    check(layer, x)
    assert layer._plan.prepared() == ["stencil"]
    assert "route='stencil'" in repr(layer)
    with pytest.raises(ValueError, match="route must be one of"):
        layer.route = "stencl"
    with pytest.raises(ValueError, match=r"no route 'stencl'\. Did you mean 'stencil'"):
        layer.matrix().matmul(x, route="stencl")


def test_tune_of_a_layer_that_is_called_by_keyword():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = StructuredLinear(12, 9)

        def forward(self, x):
            return self.layer(x=x)

    (found,) = torchldr.tune(Model(), torch.randn(3, 12), seconds=0.001, quiet=True)
    assert found.batch == 3


def test_tune_keeps_what_it_found_on_the_layers(capsys):
    model = nn.Sequential(StructuredLinear(96, 96), nn.ReLU(), StructuredLinear(96, 10, structure="low_rank"))
    x = torch.randn(4, 96)
    report = torchldr.tune(model, x, seconds=0.001)
    assert capsys.readouterr().err.strip() == repr(report)
    assert [row.layer for row in report] == ["0", "2"]
    assert model.training
    model.eval()
    for row, layer in zip(report, (model[0], model[2]), strict=True):
        assert row.route == min(row.seconds, key=row.seconds.get)
        with torch.no_grad():
            assert layer.routes(4).chosen == row.route
            layer.untune()
            assert layer.routes(4).chosen == row.chosen
    with torch.no_grad():
        model[0].keep_tuned(model[0].routes(4).call, "circulant_pair")
        assert model[0].routes(4).chosen == "circulant_pair"
        model[0].subdiagonal_A.fill_(0.5)  # which that route does not serve
        assert model[0].routes(4).chosen != "circulant_pair"
        check(model[0], x)


WAYS = {
    "dtype": lambda t: t.view(torch.float16),
    "transposed": lambda t: t.mT,
    "fewer rows": lambda t: t[:2],
    "other rows": lambda t: t.view(8, 2),
    "other rows, in the same steps": lambda t: t.as_strided((8, 2), (4, 1)),
}


@pytest.mark.parametrize("change", WAYS.values(), ids=WAYS)
def test_the_same_memory_read_in_another_way_is_noticed(change):
    t = torch.nn.Parameter(torch.randn(8, 4).bfloat16()[:4])
    taken = Snapshot({"t": t})
    assert taken.matches([t])
    t.data = change(t.data)
    assert not taken.matches([t])


def test_a_route_that_reads_the_parameters_in_place_takes_turns_with_one_that_does_not():
    layer, x = StructuredLinear(12, 9, structure="low_rank").eval(), torch.randn(64, 12)
    with torch.no_grad():
        for batch, route in ((64, "two_products"), (1, "dense")):
            layer.keep_tuned(layer.routes(batch).call, route)
        for batch in (64, 64, 1, 1, 64, 1, 64):
            check(layer, x[:batch])
            layer.G.data.add_(0.5)
        assert layer._plan.prepared() == ["two_products"]  # the other was made for other numbers
        assert [layer.routes(batch).chosen for batch in (64, 1)] == ["two_products", "dense"]


@pytest.mark.parametrize("structure", ["low_rank", "toeplitz_like"])
def test_a_route_that_is_prepared_later_is_of_the_numbers_of_the_plan(structure):
    """Not of the memory where they lay, which others may write since."""
    x = torch.randn(64, 12)
    for batches in ((64, 1), (1, 64)):
        layer = StructuredLinear(12, 9, structure=structure).eval()
        with torch.no_grad():
            for batch, route in zip((64, 1), layer.structure.ROUTES, strict=False):
                layer.keep_tuned(layer.routes(batch).call, route.name)
            want = by_definition(layer, x)
            layer(x[: batches[0]])
            before = [p.data for p in layer.parameters()]
            for p in layer.parameters():
                p.data = p.data.clone()
            layer(x[: batches[0]])
            for t in before:
                t.fill_(7)
            for batch in batches:
                torch.testing.assert_close(layer(x[:batch]), want[:batch], rtol=1e-4, atol=1e-5)
            old = {name: p.clone() for name, p in layer.named_parameters()}
            layer.G.mul_(2)
            for batch in batches:
                y = torch.func.functional_call(layer, old, (x[:batch],))
                torch.testing.assert_close(y, want[:batch], rtol=1e-4, atol=1e-5)
        assert len(layer._plan.prepared()) == 2


def test_a_vector_that_is_read_in_steps_is_noticed():
    layer, both = StructuredLinear(8, 8, structure="circulant").eval(), torch.randn(16)
    x = torch.randn(2, 8)
    for part in (both[:8], both[::2]):  # of one address and size
        layer.column.data = part
        check(layer, x)


def _step(t):
    """Of any optimizer: a fused one writes without being counted."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))]).step()


EDITS = {
    "in place": lambda t: t.add_(1),
    "through a view": lambda t: t.view(-1)[0].mul_(2),
    "other data": lambda t: setattr(t, "data", t.data.clone()),
    "fewer rows": lambda t: setattr(t, "data", t.data[:2]),
    "transposed": lambda t: setattr(t, "data", t.data.mT),
    "another dtype": lambda t: setattr(t, "data", t.data.view(torch.int32)),
    "a step": _step,
}


@pytest.mark.parametrize("name", EDITS)
def test_without_a_look_at_the_numbers_every_edit_that_is_counted_is_seen(name, monkeypatch):
    """As on a GPU: tensors are compared only where their count, memory, shape or the optimizers tell."""
    asked = []
    monkeypatch.setattr("torchldr.nn.snapshot._equal", lambda t, copy: asked.append(t) or False)
    tensors = [nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(3, 3), requires_grad=False)]
    own = {"a": tensors[0], "b": tensors[1]}
    taken = Snapshot(own)
    taken._in_memory = False
    taken._look_at(tensors)
    assert taken.holds(own)
    assert taken.matches(tensors)
    assert not asked
    EDITS[name](tensors[1])
    assert not taken.holds(own)
    assert not taken.matches(tensors)
    assert asked
