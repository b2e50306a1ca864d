"""torch.export programs: the same function, and nothing of this package in them."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import torchldr
from torchldr import StructuredLinear
from torchldr.export import MODES, ExportError, to_program
from torchldr.functional.exported.transforms import FourierTransform


@pytest.mark.parametrize("mode", MODES)
def test_programs_compute_the_same(mode):
    names = ["ldr_sd", "ldr_td", "cauchy_like", "fastfood"]
    model = nn.Sequential(*(StructuredLinear(48, 48, structure=name) for name in names)).eval()
    program = to_program(model, torch.randn(1, 48), mode=mode, plan="fast")
    for shape in ((3, 48), (7, 48)):
        x = torch.randn(shape)
        assert torch.allclose(program.module()(x), model(x), atol=1e-5)
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not any("torchldr" in target for target in targets)
    assert any("fft" in target for target in targets) == (mode == "fft")
    dense = [p for p in program.state_dict.values() if p.shape == (48, 48)]
    assert len(dense) == {"fft": 2, "matmul": 2, "dense": 4}[mode]  # ldr_td and cauchy_like


def test_a_first_axis_that_must_be_one():
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = StructuredLinear(8, 8)

        def forward(self, x):
            return self.layer(x.squeeze(0))

    model = Single().eval()
    program = to_program(model, torch.randn(1, 8))
    x = torch.randn(1, 8)
    assert torch.allclose(program.module()(x), model(x), atol=1e-6)


def test_dynamic_shapes_of_ones_own():
    layer = StructuredLinear(8, 8, structure="circulant").eval()
    program = to_program(layer, torch.randn(4, 3, 8), dynamic_shapes=({1: torch.export.Dim("steps")},))
    x = torch.randn(4, 9, 8)
    assert torch.allclose(program.module()(x), layer(x), atol=1e-6)


def test_a_layer_used_twice_and_the_original_untouched():
    layer = StructuredLinear(40, 40, structure="toeplitz_like")
    model = nn.Sequential(layer, nn.Tanh(), layer).train()
    program = to_program(model, torch.randn(2, 40), mode="dense")
    x = torch.randn(3, 40)
    assert torch.allclose(program.module()(x), model(x), atol=1e-5)
    assert model.training
    assert model[0] is layer
    assert layer.G.requires_grad
    assert len([name for name in program.state_dict if name.endswith("weight")]) <= 2


def test_a_deviation_is_an_error(monkeypatch):
    layer = StructuredLinear(64, 64, structure="toeplitz_like")
    monkeypatch.setattr(FourierTransform, "_swapped", lambda self, z: z)
    with pytest.raises(ExportError, match=r"the program's results differ .* tolerance=1.0e-04"):
        to_program(layer, torch.randn(2, 64), plan="fast")
    with pytest.raises(ValueError, match="to_program: tolerance must be a positive number, got -1"):
        to_program(layer, torch.randn(2, 64), tolerance=-1)


def test_errors():
    with pytest.raises(ValueError, match="mode must be one of"):
        to_program(StructuredLinear(8, 8), torch.randn(2, 8), mode="onnx")
    with pytest.raises(ExportError, match=r"torch.export cannot trace"):
        to_program(torchldr.StructuredLinear(8, 8), torch.randn(2, 9))


class AnyArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = StructuredLinear(6, 6, structure="toeplitz_like")

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs[0]) + inputs[1]


def test_a_model_may_take_any_number_of_arguments():
    model = AnyArguments()
    program = to_program(model, (torch.randn(2, 6), torch.randn(2, 6)))
    x = torch.randn(5, 6), torch.randn(5, 6)
    torch.testing.assert_close(program.module()(*x), model(*x), rtol=1e-4, atol=1e-5)


class AnyKeywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = StructuredLinear(6, 4, structure="toeplitz_like")

    def forward(self, x, **kwargs):
        return self.layer(x) * kwargs["scale"]


def test_a_model_may_take_any_keywords():
    model = AnyKeywords()
    program = to_program(model, {"scale": torch.randn(2, 1), "x": torch.randn(2, 6)})
    given = {"x": torch.randn(5, 6), "scale": torch.randn(5, 1)}
    torch.testing.assert_close(program.module()(**given), model(**given), rtol=1e-4, atol=1e-5)


class Adapted(StructuredLinear):
    def forward(self, x):
        return super().forward(x) + x


def test_a_forward_of_ones_own_is_kept(tmp_path):
    """By `materialize_` and `save_compressed` too, which once dropped it without a word."""
    model, x = nn.Sequential(Adapted(6, 6, structure="circulant"), StructuredLinear(6, 4)), torch.randn(5, 6)
    y = model(x)
    torch.testing.assert_close(to_program(model, x).module()(x), y, rtol=1e-4, atol=1e-5)
    torchldr.save_compressed(model, tmp_path / "saved")
    with pytest.raises(ValueError, match="0"):
        torchldr.load_compressed(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4)), tmp_path / "saved")
    again = nn.Sequential(Adapted(6, 6, structure="circulant"), nn.Linear(6, 4))
    torch.testing.assert_close(torchldr.load_compressed(again, tmp_path / "saved")(x), y)
    torchldr.materialize_(model)
    assert [type(layer) for layer in model] == [Adapted, nn.Linear]
    torch.testing.assert_close(model(x), y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [nn.Linear(8, 8), torchldr.StructuredLinear(8, 8, structure="low_rank")])
@pytest.mark.parametrize("export", ["to_program", "to_onnx", "to_c"])
def test_a_pruned_model_is_an_error_that_says_what_to_do(layer, export, tmp_path):
    model, x = nn.Sequential(copy.deepcopy(layer), nn.ReLU()), torch.randn(1, 8)
    name = next(name for name, _ in layer.named_parameters() if name != "bias")
    prune.l1_unstructured(model[0], name, 0.5)
    out = [] if export == "to_program" else [tmp_path / "made"]
    with pytest.raises(ValueError, match=rf"^{export}: 0\.{name} is no parameter but computed, .*`remove`"):
        getattr(torchldr.export, export)(model, x, *out)
    prune.remove(model[0], name)
    getattr(torchldr.export, export)(model, x, *out)
