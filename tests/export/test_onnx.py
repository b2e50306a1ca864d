"""ONNX files in onnxruntime against the dense oracle."""

import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

import torchldr
from torchldr import StructuredLinear, testing
from torchldr.core.rules import RULES
from torchldr.export import MODES, ExportError, check, to_onnx
from torchldr.export.graph import Symbol
from torchldr.export.inputs import take_inputs

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("torchlib_once")

SHAPES = {"square": (64, 64), "tall": (40, 21), "wide": (21, 40)}
PLAIN = {
    *("Add", "Concat", "Div", "Gather", "Gemm", "Identity", "MatMul", "Mod", "Mul", "Neg", "Pad"),
    *("ReduceSum", "Reshape", "Slice", "Squeeze", "Sub", "Transpose", "Unsqueeze"),
}


class AllClasses(nn.Module):
    """A layer of every class, with and without a bias; operators away from the start.

    In every shape, or in one of the three in turn.
    """

    def __init__(self, turn: int | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        for j, (name, cls) in enumerate(torchldr.structures().items()):
            for i, (shape, (m, n)) in enumerate(SHAPES.items()):
                if turn not in (None, (i + j) % 3):
                    continue
                rank = min(i + 1, 2) if cls.ranked else None
                layer = StructuredLinear(n, m, i != 1, structure=cls, rank=rank)
                with torch.no_grad():
                    cls.draw_operators_(layer._tensors())
                self.layers[f"{name}_{shape}"] = layer

    def forward(self, square, tall, wide):
        given = {"square": square, "tall": tall, "wide": wide}
        return [layer(given[name.rsplit("_", 1)[1]]) for name, layer in self.layers.items()]


def inputs_of(rows):
    return [torch.randn(rows, n) for _, n in SHAPES.values()]


def run(path, *inputs):
    session = check.session(path, 1)
    names = [given.name for given in session.get_inputs()]
    return session.run(None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)})


@pytest.fixture(scope="module", params=MODES)
def exported(request, tmp_path_factory):
    """Every class in every mode and, over the modes, in every shape; test_forms.py has all combinations."""
    torch.manual_seed(0)
    model, path = (
        AllClasses(MODES.index(request.param)).eval(),
        tmp_path_factory.mktemp("onnx") / "model.onnx",
    )
    report = to_onnx(model, tuple(inputs_of(1)), path, mode=request.param, plan="fast")
    return request.param, model, path, report


def test_every_class_mode_and_shape(exported):
    _, model, path, report = exported
    for rows in (1, 5):
        inputs = inputs_of(rows)
        outputs = run(path, *inputs)
        assert len(outputs) == len(model.layers)
        for (name, layer), y in zip(model.layers.items(), outputs, strict=True):
            x = inputs[list(SHAPES).index(name.rsplit("_", 1)[1])].double()
            M = layer.matrix().double()
            want = x @ M.to_dense().mT + (0 if layer.bias is None else layer.bias.double())
            size = (x.abs() @ M.magnitude().mT).max()
            error = np.abs(y - want.detach().numpy()).max()
            assert error <= testing.tolerance(torch.float32, max(M.shape)) * size.item(), name
    assert 0 < report.deviation < 1e-5


def test_matrices_made_when_loaded(tmp_path):
    """The graph holds no dense weight, and still a call is one matrix product for every layer."""
    model, inputs, path = AllClasses().eval(), inputs_of(2), tmp_path / "m.onnx"
    report = to_onnx(model, tuple(inputs), path, mode="fft", plan="load")
    found = {row.name: row.form for row in report.layers}
    assert found["layers.ldr_sd_square"] == "made from its parameters when loaded"
    assert found["layers.acdc_square"] == "made by its fast product when loaded"
    assert found["layers.ldr_sd_wide"] == "dense, which is smaller"
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options)
    left = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert set(left) <= {"Gemm", "MatMul", "Add", "Transpose"}
    assert left.count("Gemm") + left.count("MatMul") == len(model.layers) + 1  # low rank takes two


def test_operators_are_those_of_the_mode(exported):
    mode, _, path, report = exported
    graph = onnx.load(path)
    found = {node.op_type for node in graph.graph.node}
    assert {each.domain for each in graph.opset_import} == {""}
    assert ("DFT" in found) == (mode == "fft")
    assert found - {"DFT"} <= PLAIN
    assert report.operators["MatMul" if mode != "dense" else "Gemm"] > 0
    onnx.checker.check_model(graph)


def test_the_report(exported):
    mode, model, path, report = exported
    assert report.bytes == path.stat().st_size
    assert len(report.layers) == len(torchldr.structures())
    kept = json.loads(report.to_json())
    assert kept["mode"] == mode
    assert kept["layers"][0]["structure"] == "acdc"
    assert f"mode {mode}" in str(report)
    (name,) = (name for name in model.layers if name.startswith("ldr_td"))
    m, n = SHAPES[name.removeprefix("ldr_td_")]
    assert f"layers.{name}: ldr_td, {m} x {n}" in str(report)
    with_dft = {row.structure for row in report.layers if "onvolution" in row.form or "DFT" in row.form}
    convolved = {"acdc", "block_circulant", "circulant", "hankel_like", "ldr_sd", "toeplitz_like"}
    assert with_dft == (set() if mode == "dense" else convolved | {"vandermonde_like"})


def test_files_are_smaller_than_dense_ones(tmp_path):
    model = nn.Sequential(
        StructuredLinear(256, 256, structure="ldr_sd"), nn.ReLU(), StructuredLinear(256, 10)
    )
    sizes = {}
    for mode in ("matmul", "dense"):
        report = to_onnx(model, torch.randn(4, 256), tmp_path / f"{mode}.onnx", mode=mode)
        sizes[mode] = report.bytes
        assert report.bytes == (tmp_path / f"{mode}.onnx").stat().st_size
        assert report.deviation < 1e-5
    assert sizes["dense"] > 4 * sizes["matmul"]


@pytest.mark.parametrize(("mode", "opset"), [("fft", 18), ("matmul", 23)])
def test_double_precision_hard_operators_and_opsets(mode, opset, tmp_path):
    layers = []
    for regime in ("1.05", "zeros", "uniform"):
        M = testing.member(torchldr.LDRSubdiagonal, 64, 64, 1, regime=regime)
        layer = StructuredLinear(64, 64, False, rank=1, dtype=torch.float64)
        with torch.no_grad():
            for name, t in M.tensors.items():
                layer.get_parameter(name).copy_(t)
        layers.append(layer)
    x = torch.randn(2, 3, 64, dtype=torch.float64)
    report = to_onnx(nn.Sequential(*layers), x, tmp_path / "m.onnx", mode=mode, opset=opset, plan="fast")
    assert report.deviation < 1e-12
    forms = " ".join(row.form for row in report.layers)
    assert "blocks" in forms
    assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == opset


def test_a_compressed_transformer(tmp_path):
    layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    structures = {
        "*": torchldr.Structure("low_rank", rank=2),
        "*linear1": torchldr.Structure("toeplitz_like"),
    }
    torchldr.compress_(model, structures)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    example = {"src": torch.randn(2, 5, 64), "src_key_padding_mask": torch.tensor([[False] * 4 + [True]] * 2)}
    report = to_onnx(model, example, tmp_path / "m.onnx", output_names=["y"])
    assert {row.structure for row in report.layers} == {"low_rank", "toeplitz_like"}
    assert len(report.layers) == 6
    assert report.operators["DFT"] > 0
    session = check.session(tmp_path / "m.onnx")
    assert [given.name for given in session.get_inputs()] == ["src", "src_key_padding_mask"]
    assert [given.name for given in session.get_outputs()] == ["y"]
    rows, steps, features = session.get_inputs()[0].shape
    assert (isinstance(rows, str), isinstance(steps, str), features) == (True, True, 64)
    x, mask = torch.randn(3, 7, 64), torch.tensor([[False] * 6 + [True]] * 3)
    (y,) = session.run(None, {"src": x.numpy(), "src_key_padding_mask": mask.numpy()})
    with torch.no_grad():
        wanted = model(x, src_key_padding_mask=mask)
    torch.testing.assert_close(torch.from_numpy(y), wanted, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert isinstance(model.layers[0].linear1, StructuredLinear)


@pytest.mark.parametrize("mode", ["matmul", "dense"])
def test_recurrent_layers_and_channels(mode, tmp_path):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torchldr.StructuredLSTM(16, 40, structure="circulant", batch_first=True)
            self.gru = torchldr.StructuredGRU(40, 24, structure="low_rank", which="both", bias=False)
            self.decode = self.gru.step()
            self.grid = torchldr.StructuredChannels(2, 3, (3, 4), structure="toeplitz_like")
            self.wide = torchldr.StructuredChannels(2, 2, 12, structure="circulant", form="wide", bias=False)

        def forward(self, x):
            y, _ = self.lstm(x)
            z, _ = self.decode(y[:, -1])
            images = z.reshape(-1, 2, 3, 4)
            return y, self.grid(images), self.wide(images.flatten(2))

    report = to_onnx(Model(), torch.randn(2, 3, 16), tmp_path / "m.onnx", mode=mode, plan="fast")
    assert report.deviation < 1e-5
    assert ("LSTM" in report.operators) == (mode == "dense")
    assert {row.name for row in report.layers} >= {"lstm.weight_ih_l0", "grid", "wide.wide"}


class Conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = StructuredLinear(64, 64, structure="circulant")

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.layer(x), lambda x: x.clone(), (x,))


class Unknown(nn.Module):
    form = "an operation of its own"

    def forward(self, x):
        return torch.erf(x)


class Masked(nn.Module):
    """A mask with infinities, and what ONNX has no operator for if asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = StructuredLinear(8, 8, structure="toeplitz_like")

    def forward(self, x, mask, singular=None):
        y = (self.layer(x) + mask).softmax(-1)
        return y if singular is None else torch.linalg.svdvals(y)


def test_masks_with_infinities(tmp_path):
    mask = torch.zeros(3, 8)
    mask[:, 6:] = -torch.inf
    assert to_onnx(Masked(), (torch.randn(3, 8), mask), tmp_path / "m.onnx").deviation < 1e-5
    with pytest.raises(
        ExportError, match=r"exporter cannot convert this model: No ONNX function .*_linalg_svd"
    ):
        to_onnx(Masked(), (torch.randn(3, 8), mask, torch.ones(1)), tmp_path / "no.onnx")


def test_what_cannot_be_written(tmp_path, monkeypatch):
    x, path = torch.randn(2, 64), tmp_path / "m.onnx"
    with pytest.raises(ExportError, match=r"torch.export cannot trace Conditional"):
        to_onnx(Conditional(), x, path, plan="fast")
    monkeypatch.setitem(RULES, ("onnx", torchldr.Circulant), lambda mode, matrix: Unknown())
    with pytest.raises(ExportError, match="a form uses erf, which cannot be written to ONNX"):
        to_onnx(StructuredLinear(64, 64, structure="circulant"), x, path)
    assert not list(tmp_path.iterdir())


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_errors(tmp_path, monkeypatch):
    layer, x, path = StructuredLinear(8, 8), torch.randn(2, 8), tmp_path / "m.onnx"
    with pytest.raises(ValueError, match="mode must be one of fft, matmul, dense, got 'dft'"):
        to_onnx(layer, x, path, mode="dft")
    with pytest.raises(ValueError, match="plan must be one of auto, fast, load, got 'dense'"):
        to_onnx(layer, x, path, plan="dense")
    with pytest.raises(ValueError, match="opset must be between 18 and 23, got 17"):
        to_onnx(layer, x, path, opset=17)
    with pytest.raises(ValueError, match="tolerance must be a positive number, got 0"):
        to_onnx(layer, x, path, tolerance=0)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        to_onnx(layer, x, tmp_path / "nowhere" / "m.onnx")
    with pytest.raises(TypeError, match=r"model must be an nn.Module, got function"):
        to_onnx(lambda x: x, x, path)
    with pytest.raises(TypeError, match=r"example_inputs do not fit StructuredLinear.forward"):
        to_onnx(layer, (x, x), path)
    with pytest.raises(TypeError, match="example_inputs must hold a tensor, got int"):
        to_onnx(layer, 3, path)
    with pytest.raises(TypeError, match=r"G has dtype torch.bfloat16, only float32 and float64 are exported"):
        to_onnx(StructuredLinear(8, 8, dtype=torch.bfloat16), x.bfloat16(), path)
    with pytest.raises(ExportError, match=r"torch.export cannot trace Branching"):
        to_onnx(Branching(), x, path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"to_onnx needs onnxruntime: pip install 'torchldr\[onnx\]'"):
        to_onnx(layer, x, path)
    assert not list(tmp_path.iterdir())


def test_a_deviation_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    layer, x, path = StructuredLinear(64, 64, structure="circulant"), torch.randn(2, 64), tmp_path / "m.onnx"
    report = to_onnx(layer, x, path, plan="fast", check=False)
    assert report.deviation is None
    assert "not checked" in str(report)
    examples = [take_inputs("test", layer, x)]
    assert check.check_file(path, layer, examples, 1e-5) > 0
    with pytest.raises(ExportError, match=r"differ from the model's by .* more than tolerance=1.0e-12"):
        check.check_file(path, layer, examples, 1e-12)
    before = path.read_bytes()
    monkeypatch.setattr(Symbol, "__neg__", lambda self: self)  # a wrong graph
    with pytest.raises(ExportError, match=r"differ from the model's by .* more than tolerance=1.0e-04"):
        to_onnx(layer, x, path, plan="fast")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_deviations_are_found():
    y = torch.tensor([[1.0, -2.0], [float("inf"), 0.0]])
    assert check.deviation([y.numpy()], [y]) == 0
    assert check.deviation([y.numpy() + np.float32(0.5)], [y]) == pytest.approx(0.25)
    assert check.deviation([y.clamp(max=3).numpy()], [y]) == float("inf")
    assert check.deviation([np.full((2, 2), np.nan, np.float32)], [y]) == float("inf")
    assert check.deviation([np.array([1, 3])], [torch.tensor([1, 2])]) == float("inf")
    with pytest.raises(ExportError, match="1 outputs, the model 2"):
        check.deviation([y.numpy()], [y, y])
    with pytest.raises(ExportError, match=r"shape \(1, 2\), the model's \(2, 2\)"):
        check.deviation([y.numpy()[:1]], [y])
