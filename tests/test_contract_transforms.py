"""Every class under torch's transformations: derivatives, vmap, functional_call, compile, export."""

import pytest
import torch
from torch.func import functional_call, jacfwd, jacrev, jvp, stack_module_state, vmap

import torchldr
from torchldr import StructuredLinear, testing

CLASSES = list(torchldr.structures().values())
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
f64 = {"dtype": torch.float64}


def layer_of(cls, n, m, rank=2, regime="near one", **kwargs):
    """A layer whose operators are not where training starts."""
    layer = StructuredLinear(n, m, structure=cls, rank=rank if cls.ranked else None, **kwargs)
    if testing.has_operators(cls):
        M = testing.member(cls, m, n, rank, regime=regime)
        with torch.no_grad():
            for name, t in M.tensors.items():
                layer.get_parameter(name).copy_(t)
    return layer


def product_of(layer):
    """The layer as a function of (input, *parameters)."""
    names = [name for name, _ in layer.named_parameters()]

    def product(x, *parameters):
        return functional_call(layer, dict(zip(names, parameters, strict=True)), x)

    return product


@pytest.mark.parametrize(
    ("cls", "regime"),
    [(cls, r) for cls in CLASSES for r in (("near one", "zeros") if testing.has_operators(cls) else (None,))],
    ids=lambda value: getattr(value, "name", value),
)
def test_first_and_second_derivatives(cls, regime):
    layer = layer_of(cls, 4, 3, regime=regime, **f64)
    inputs = [torch.randn(2, 4, requires_grad=True, **f64), *layer.parameters()]
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    assert torch.autograd.gradcheck(product_of(layer), inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(product_of(layer), inputs)


@every_class
def test_forward_mode_against_finite_differences(cls):
    """A bare custom operation would return a tangent of zero without a word."""
    layer = layer_of(cls, 20, 33, **f64)
    at = (torch.randn(3, 20, **f64), *(p.detach() for p in layer.parameters()))
    direction = tuple(torch.randn_like(t) for t in at)
    _, tangent = jvp(product_of(layer), at, direction)
    h = 1e-5
    ahead, behind = (
        product_of(layer)(*(t + sign * h * d for t, d in zip(at, direction, strict=True))) for sign in (1, -1)
    )
    assert tangent.abs().max() > 0
    assert torch.allclose(
        tangent, (ahead - behind) / (2 * h), rtol=1e-4, atol=1e-5 * tangent.abs().max().item()
    )


@every_class
def test_jacobians_agree(cls):
    layer = layer_of(cls, 5, 4, **f64)
    x = torch.randn(5, **f64)
    W = layer.matrix().to_dense()
    assert torch.allclose(jacrev(layer)(x), W)
    assert torch.allclose(jacfwd(layer)(x), W)


@every_class
def test_vmap_over_inputs(cls):
    layer = layer_of(cls, 20, 33, **f64)
    x = torch.randn(4, 3, 20, **f64)
    assert torch.allclose(vmap(layer)(x), layer(x))
    assert torch.allclose(vmap(layer, in_dims=1, out_dims=1)(x), layer(x))
    assert torch.allclose(vmap(lambda x: layer(x))(x[:, 0]), layer(x[:, 0]))


@every_class
def test_vmap_over_an_ensemble(cls):
    layers = [layer_of(cls, 20, 33, **f64) for _ in range(3)]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            for p in layer.parameters():
                p.add_(0.01 * i)
    x = torch.randn(3, 5, 20, **f64)
    parameters, buffers = stack_module_state(layers)
    own = [
        functional_call(layers[0], (dict(layer.named_parameters()), dict(layer.named_buffers())), (v,))
        for layer, v in zip(layers, x, strict=True)
    ]

    def member(parameters, buffers, x):
        return functional_call(layers[0], (parameters, buffers), (x,))

    # Constants outside of the state_dict are buffers too, and the same for all members.
    together = vmap(member)(parameters, buffers, x)
    assert torch.allclose(together, torch.stack(own))
    gradients = torch.autograd.grad(together.square().sum(), list(parameters.values()))
    for i, layer in enumerate(layers):
        alone = torch.autograd.grad(own[i].square().sum(), list(layer.parameters()))
        for a, b in zip(gradients, alone, strict=True):
            assert torch.allclose(a[i], b)


def test_vmap_over_an_ensemble_without_the_guard():
    """The single convolution, forced, under vmap: forward and backward."""
    layers = [StructuredLinear(20, 33, rank=2, product="convolution", **f64) for _ in range(3)]
    x = torch.randn(3, 5, 20, **f64)
    parameters, buffers = stack_module_state(layers)
    together = vmap(lambda p, b, x: functional_call(layers[0], (p, b), (x,)))(parameters, buffers, x)
    own = torch.stack([layer(v) for layer, v in zip(layers, x, strict=True)])
    assert torch.allclose(together, own)
    gradients = torch.autograd.grad(together.square().sum(), list(parameters.values()))
    for i, layer in enumerate(layers):
        alone = torch.autograd.grad(layer(x[i]).square().sum(), list(layer.parameters()))
        for a, b in zip(gradients, alone, strict=True):
            assert torch.allclose(a[i], b)


@every_class
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_functional_call_sees_the_parameters_it_is_given(cls, mode):
    layer = getattr(layer_of(cls, 12, 9, **f64), mode)()
    x = torch.randn(3, 12, **f64)
    layer(x)
    with torch.no_grad():
        before = layer(x)
        other = {name: 2 * p for name, p in layer.named_parameters()}
        swapped = functional_call(layer, other, x)
        assert not torch.allclose(swapped, before)
        assert torch.equal(layer(x), before)


@every_class
def test_compiles_to_one_graph(cls):
    torch._dynamo.reset()
    layer = layer_of(cls, 40, 70, **f64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 40, requires_grad=True, **f64)
    y = layer(x)
    want = torch.autograd.grad(y.sum(), [x, *layer.parameters()])
    z = compiled(x)
    got = torch.autograd.grad(z.sum(), [x, *layer.parameters()])
    assert torch.allclose(y, z)
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ldr_sd", "toeplitz_like"])
def test_compiles_with_inductor(name):
    torch._dynamo.reset()
    layer = layer_of(torchldr.get_structure(name), 1024, 1024, rank=1)
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(3, 1024)
    y = compiled(x)
    y.sum().backward()
    assert torch.allclose(y, layer(x), atol=1e-4)


@every_class
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_exports_with_a_dynamic_batch(cls, mode):
    layer = getattr(layer_of(cls, 40, 70, **f64), mode)()
    batch = torch.export.Dim("batch")
    program = torch.export.export(layer, (torch.randn(3, 40, **f64),), dynamic_shapes={"x": {0: batch}})
    for size in (2, 7):
        x = torch.randn(size, 40, **f64)
        assert torch.allclose(program.module()(x), layer(x))
