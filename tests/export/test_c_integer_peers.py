"""Dense layers beside executorch's Cortex-M reference and TFLite Micro's interpreter, on the same integers.

    python -m pip install tflite_micro executorch

Both round twice: to a multiple of 2^-s, where s is the shift behind a multiplier of 31 bits, then to whole
numbers. So they may differ from the specification's one rounding where a sum is within 2^-(s + 1) of a half.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from torchldr.export import to_c
from torchldr.export.c import IntegerReport
from torchldr.export.c.integer.writer import FEW

from .test_c_integer import Row, inputs, rows_of, sums_of


def executorch(q: torch.Tensor, rows: list[Row], report: IntegerReport) -> torch.Tensor:
    dialects = pytest.importorskip("executorch.exir.dialects._ops", exc_type=ImportError)
    folder = Path(dialects.__file__).parents[2] / "backends" / "cortex_m" / "passes"
    spec = importlib.util.spec_from_file_location("passes_utils", folder / "passes_utils.py")
    assert spec is not None  # alone: the package wants a compiler of Arm's
    assert spec.loader is not None
    passes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(passes)
    made = [
        passes.requantize_cmsis(torch.tensor(sums), row.fraction, row.exponent)
        for row, sums in zip(rows, sums_of(q, rows, report), strict=True)
    ]
    return (torch.stack(made, 1) + report.outputs[0][0].zero).clamp(-128, 127)


def tflite_micro(q: torch.Tensor, rows: list[Row], report: IntegerReport) -> torch.Tensor:
    runtime = pytest.importorskip("tflite_micro.python.tflite_micro.runtime")
    tflite = pytest.importorskip("tflite_micro.tensorflow.lite.micro.compression.model_editor")
    schema, graph, zeros = tflite.tflite, tflite.Subgraph(), [0] * len(rows)
    (out, _), taken, n = report.outputs[0], report.input, report.input_size
    parts = [
        graph.add_tensor(shape=shape, dtype=kind, data=data, quantization=tflite.Quantization(*quantization))
        for shape, kind, data, quantization in (
            ((1, n), schema.TensorType.INT8, None, (taken.scale, taken.zero)),
            (
                (len(rows), n),
                schema.TensorType.INT8,
                np.array([row.weights for row in rows], np.int8),
                ([row.scale for row in rows], zeros, 0),
            ),
            (
                (len(rows),),
                schema.TensorType.INT32,
                np.array([row.bias for row in rows], np.int32),
                ([row.scale * taken.scale for row in rows], zeros, 0),
            ),
            ((1, len(rows)), schema.TensorType.INT8, None, (out.scale, out.zero)),
        )
    ]
    operator = schema.OperatorT()
    operator.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions
    operator.builtinOptions = schema.FullyConnectedOptionsT()
    code = schema.BuiltinOperator.FULLY_CONNECTED
    graph.add_operator(opcode=code, inputs=parts[:3], outputs=parts[3:], _fb=operator)
    graph.inputs, graph.outputs = parts[:1], parts[3:]
    interpreter, made = runtime.Interpreter.from_bytes(bytes(tflite.Model(subgraphs=[graph]).build())), []
    for x in q.numpy():
        interpreter.set_input(x[None], 0)
        interpreter.invoke()
        made.append(torch.from_numpy(interpreter.get_output(0)[0].copy()))
    return torch.stack(made).long()


@pytest.mark.parametrize("units", [17, FEW])
@pytest.mark.parametrize("peer", [executorch, tflite_micro])
def test_dense_layers_are_those_of_a_peer(peer: Callable[..., torch.Tensor], units: int, tmp_path: Path):
    torch.manual_seed(1)
    layer, x = nn.Linear(30, units), torch.randn(50, 30)
    report = to_c(layer, x[:1], tmp_path / "c", arithmetic="integer", calibration=x)
    assert isinstance(report, IntegerReport)
    q, rows, zero = inputs(30)[:300], rows_of(layer, report), report.outputs[0][0].zero
    theirs, ours = peer(q, rows, report), report.reference(q).long()
    assert (theirs != ours).sum() <= ours.numel() / 200  # some .2 %
    sums = sums_of(q, rows, report)
    for j, i in (theirs != ours).nonzero().tolist():
        exact, row = sums[i][j] * rows[i].multiplier, rows[i]
        first = Fraction(2) ** (row.exponent - 1)  # what their first rounding may be off
        scales = abs(exact) / 2**22  # and TFLite Micro's scales, in float32
        assert abs(theirs[j, i] - ours[j, i]) == 1
        assert abs(int(theirs[j, i]) - zero - exact) <= Fraction(1, 2) + first + scales
