"""What 0.1 wrote is read: there LDR-SD's corners had no axis of their own."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import torchldr
from torchldr import LDRSubdiagonal, StructuredChannels, StructuredGRU, StructuredLinear, StructuredLSTM

LAYERS = {
    "linear": lambda: StructuredLinear(5, 4, rank=2),
    "one feature": lambda: StructuredLinear(1, 1),
    "lstm": lambda: StructuredLSTM(5, 4, rank=2),
    "gru": lambda: StructuredGRU(5, 4, which="both"),
    "grid": lambda: StructuredChannels(2, 3, 4),
    "wide": lambda: StructuredChannels(2, 3, 4, form="wide"),
    "model": lambda: nn.Sequential(nn.Linear(3, 5), StructuredLinear(5, 4), StructuredLinear(4, 1)),
}


def as_in_0_1(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: t.squeeze(-1) if ".corner_" in f".{name}" else t for name, t in state.items()}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("assign", [False, True])
def test_state_dicts(name, assign):
    layer, other = LAYERS[name](), LAYERS[name]()
    with torch.no_grad():
        for key, p in layer.named_parameters():
            if "corner" in key:
                p.uniform_(-1, 1)
    old = as_in_0_1(layer.state_dict())
    assert any(t.shape != layer.state_dict()[key].shape for key, t in old.items())
    other.load_state_dict(old, assign=assign)
    for key, t in layer.state_dict().items():
        assert torch.equal(t, other.state_dict()[key]), key


def test_a_parametrized_corner():
    layers = [StructuredLinear(5, 4), StructuredLinear(5, 4)]
    for layer in layers:
        parametrize.register_parametrization(layer, "corner_A", nn.Tanh())
    state = layers[0].state_dict()
    key = "parametrizations.corner_A.original"
    layers[1].load_state_dict({**state, key: state[key].squeeze(-1) + 0.5})
    assert torch.equal(layers[1].corner_A, torch.tanh(state[key] + 0.5))


def test_other_shapes_are_refused():
    layer = StructuredLinear(5, 4)
    for name, t in {"corner_A": torch.zeros(2), "G": torch.zeros(4), "bias": torch.zeros(())}.items():
        with pytest.raises(RuntimeError, match=name):
            layer.load_state_dict({**layer.state_dict(), name: t})


@pytest.mark.parametrize("shape", [(), (1,)])
def test_matrices_from_corners_with_and_without_an_axis(shape):
    M = LDRSubdiagonal.random(5, 4, 2, dtype=torch.float64)
    corners = {name: M.tensors[name].reshape(shape).requires_grad_() for name in ("corner_A", "corner_C")}
    N = LDRSubdiagonal(5, 4, **{**M.tensors, **corners})
    assert N.corner_A.shape == (1,)
    torch.testing.assert_close(N.to_dense(), M.to_dense())
    x = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(N.matmul(x), M.matmul(x))
    N.matmul(x).sum().backward()
    assert corners["corner_A"].grad.shape == shape


def test_a_matrix_of_unchecked_corners_without_an_axis():
    """As rules of the algebra, or users, may have made them."""
    M = LDRSubdiagonal.random(5, 4, 2, dtype=torch.float64)
    N = LDRSubdiagonal.unchecked(
        5, 4, {name: t.squeeze(-1) if "corner" in name else t for name, t in M.tensors.items()}, M.options
    )
    x = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(N.matmul(x), M.matmul(x))
    torch.testing.assert_close(N.to_dense(), M.to_dense())
    torch.testing.assert_close(torchldr.algebra.convert(N, "ldr_td").to_dense(), M.to_dense())
