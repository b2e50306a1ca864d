"""Every class under torch's transformations: derivatives, vmap, functional_call, compile, export."""

import pytest
import torch

import torchldr
from torchldr import StructuredLinear, testing
from torchldr.testing.transformations import check_ensemble

CLASSES = list(torchldr.structures().values())


@pytest.mark.parametrize("name", [name for name in testing.TRANSFORMATIONS if name not in testing.EAGER])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.name)
def test_contract(cls, name):
    if name != "routes":  # test_contract_routes has them, with the options that some need
        testing.TRANSFORMATIONS[name](cls, testing.SHAPES)


def test_vmap_over_an_ensemble_without_the_guard():
    """The single convolution, forced, under vmap: forward and backward."""
    layers = [StructuredLinear(20, 33, rank=2, product="convolution", dtype=torch.float64) for _ in range(3)]
    check_ensemble(layers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ldr_sd", "toeplitz_like"])
def test_compiles_with_inductor(name):
    torch._dynamo.reset()
    layer = testing.layer_of(torchldr.get_structure(name), 16, 16, rank=1, dtype=torch.float32)
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(3, 16)
    y = compiled(x)
    y.sum().backward()
    assert torch.allclose(y, layer(x), atol=1e-4)
