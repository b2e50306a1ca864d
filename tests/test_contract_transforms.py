"""Every class under torch's transformations: derivatives, torch.func, compile, export."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchldr
from torchldr import StructuredLinear, testing

CLASSES = list(torchldr.structures().values())
# tests/test_contract_products.py compiles and exports every class, with more of its operators.
TWICE = ("compile", "export")
NAMES = [
    pytest.param(name, marks=[pytest.mark.exhaustive] if name in TWICE else [])
    for name in testing.TRANSFORMATIONS
    if name not in testing.EAGER
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_contract(cls, name):
    testing.TRANSFORMATIONS[name](cls, testing.SHAPES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_as_a_constant_of_a_transformation(cls, training):
    """Neither the layer nor its input is transformed, but what happens inside is."""
    layer = StructuredLinear(64, 64, structure=cls, rank=2 if cls.ranked else None).train(training)
    x, a = torch.randn(3, 64), torch.randn(3, 64)
    y = layer(x).detach()
    gradient = torch.func.grad(lambda a: (layer(x) * a).sum())(a)
    assert torch.allclose(gradient, y, atol=1e-5)
    assert torch.allclose(torch.vmap(lambda a: layer(x) * a)(a[None])[0], y * a, atol=1e-5)
    layer.requires_grad_(False)
    x.requires_grad_()
    assert torch.allclose(torch.vmap(lambda a: layer(x) * a)(a[None])[0], y * a, atol=1e-5)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("product", ["fast", "dense"])
def test_jacobians_of_a_layer_and_of_its_weight(cls, product):
    layer = StructuredLinear(6, 5, structure=cls, rank=2 if cls.ranked else None, dtype=torch.float64)
    layer.eval().requires_grad_(False).product = product
    W, x = layer.matrix().to_dense(), torch.randn(3, 6, dtype=torch.float64)
    for found in (
        torch.func.jacrev(layer)(x[0]),
        torch.func.jacfwd(layer)(x[0]),
        torch.func.grad(lambda a: (a * layer.weight).sum())(torch.ones_like(W)),
    ):
        torch.testing.assert_close(found, W)


@pytest.mark.parametrize(
    ("cls", "product"),
    [
        pytest.param(cls, product, marks=[] if (i + j) % 2 else [pytest.mark.exhaustive])
        for i, cls in enumerate(CLASSES)
        for j, product in enumerate(("fast", "dense"))
    ],
)
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # torch, of constants that it folds
def test_recorded_operations_are_the_product(cls, product):
    layer = StructuredLinear(12, 10, structure=cls, rank=2 if cls.ranked else None, dtype=torch.float64)
    layer.requires_grad_(False).product = product
    x, other = torch.randn(2, 3, 12, dtype=torch.float64)
    for early in (False, True):
        torch.testing.assert_close(make_fx(layer, pre_dispatch=early)(x)(other), layer(other))
    y, tangent = torch.func.linearize(layer, x)
    torch.testing.assert_close(y, layer(x))
    torch.testing.assert_close(tangent(other), layer(other) - layer.bias)


@pytest.mark.slow
def test_inductor_computes_blocks_that_are_cut_short():
    """Of one row: a product of two numbers, which inductor fuses with the crop. Monarch's are cut alike."""
    torch.compiler.reset()
    layer = StructuredLinear(20, 33, structure="blast", rank=1)
    x, compiled = torch.randn(1, 20), torch.compile(layer, fullgraph=True)
    found, wanted = compiled(x), layer(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    gradients = [torch.autograd.grad(y.square().sum(), list(layer.parameters())) for y in (found, wanted)]
    for got, right in zip(*gradients, strict=True):
        torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)
