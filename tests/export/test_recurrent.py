"""Recurrent layers in files and programs: other lengths and batches than the example's."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from torchldr import StructuredGRU, StructuredLSTM, quantize_
from torchldr.export import ExportError, check, to_onnx, to_program

pytestmark = pytest.mark.usefixtures("torchlib_once")

SIZES = (1, 1), (1, 3), (2, 1), (9, 5)  # steps, batch


class Everything(nn.Module):
    """Layers on one another: directions, a projection, orders of axes, states, decoding."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.first = StructuredLSTM(
            6, 8, batch_first=True, bidirectional=True, structure="circulant", which="hidden", dtype=dtype
        )
        self.second = StructuredLSTM(16, 8, proj_size=6, structure="low_rank", dtype=dtype)
        self.third = StructuredGRU(6, 4, bias=False, structure="ldr_td", which="both", dtype=dtype)
        self.decode = self.third.step()

    def forward(self, x, h, c):
        y, state = self.first(x, (h, c))
        y, last = self.second(y.transpose(0, 1))
        z, end = self.third(y)
        return y, z, *state, *last, end, self.decode(y[-1], end)[0]


def given(steps, batch, dtype=torch.float64):
    h, c = torch.randn(2, 2, batch, 8, dtype=dtype)
    return torch.randn(batch, steps, 6, dtype=dtype), h, c


def agree(model, run, dtype=torch.float64):
    for sizes in SIZES:
        inputs = given(*sizes, dtype)
        with torch.no_grad():
            wanted = model(*inputs)
        for found, want in zip(run(*inputs), wanted, strict=True):
            torch.testing.assert_close(torch.as_tensor(found), want)


def of_file(path):
    session = check.session(path, 1)
    names = [each.name for each in session.get_inputs()]
    return lambda *inputs: session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})


def test_files_take_any_length_and_batch(tmp_path):
    onnx = pytest.importorskip("onnx")
    model, path = Everything().eval(), tmp_path / "m.onnx"
    report = to_onnx(model, given(3, 2), path, mode="matmul", plan="fast")
    assert report.deviation < 1e-12
    agree(model, of_file(path))
    loops = [node for node in onnx.load(path).graph.node if node.op_type == "Scan"]
    assert report.operators["Scan"] == len(loops) == 4
    (body,) = [attribute.g for attribute in loops[-1].attribute if attribute.HasField("g")]
    products = [node for node in body.node if node.op_type == "MatMul"]
    assert len(products) == 3  # the matrices of LDR-TD are made before the loop


def test_dense_matrices_are_those_of_onnx_own_operators(tmp_path):
    pytest.importorskip("onnx")
    model, path = Everything(torch.float32).eval(), tmp_path / "m.onnx"
    report = to_onnx(model, given(3, 2, torch.float32), path, mode="dense")
    assert [report.operators.get(name) for name in ("LSTM", "GRU", "Scan")] == [2, 1, 1]  # a projection
    agree(model, of_file(path), torch.float32)


def test_programs_take_any_length_and_batch():
    model = Everything().eval()
    agree(model, to_program(model, given(1, 2), plan="fast").module())


def test_layers_that_share_a_weight():
    layer, x = StructuredGRU(6, 6, 2, structure="low_rank").eval(), torch.randn(5, 1, 6)
    layer.weight_hh_l1 = layer.weight_hh_l0
    run = to_program(layer, torch.randn(3, 2, 6)).module()
    torch.testing.assert_close(run(x), layer(x))


def test_quantized_weights():
    layer, x = quantize_(StructuredGRU(6, 4, structure="low_rank").eval()), torch.randn(5, 1, 6)
    run = to_program(layer, torch.randn(3, 2, 6), plan="fast").module()
    torch.testing.assert_close(run(x), layer(x))
    assert layer.parametrizations.weight_hh_l0.original1.dtype == torch.int8


class Packing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = StructuredGRU(6, 4)

    def forward(self, x, lengths):
        return self.layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[1]


def test_packed_sequences_are_refused():
    packed = pack_padded_sequence(torch.randn(5, 2, 6), torch.tensor([5, 3]))
    with pytest.raises(TypeError, match="to_program: packed sequences are not exported; give a padded"):
        to_program(StructuredGRU(6, 4), packed)
    with pytest.raises(TypeError, match="to_program: packed sequences are not exported; give a padded"):
        to_program(StructuredGRU(6, 4), (packed, torch.zeros(1, 2, 4)))
    with pytest.raises(ExportError, match="StructuredGRU: packed sequences are not exported; give padded"):
        to_program(Packing(), (torch.randn(5, 2, 6), torch.tensor([5, 3])))
