"""Dense and low-rank networks in int8 on a Cortex-M0: this package, BakeNN, CMSIS-NN and TFLite Micro.

    python -m pip install bakenn tflite_micro
    python benchmarks/integer_peers.py --data DIR

Trains both networks on MNIST (20,000 images, two epochs) and hands the same weights and calibration inputs to
all. CMSIS-NN is the C that comes in BakeNN's wheel, with one scale a layer. Everything is compiled with
-mcpu=cortex-m0 -Os; see integer.py for how it is counted. TFLite Micro's wheel has an interpreter for this
machine and no sources: its flash is the model's file without code, its RAM the arena as that interpreter
records it, with pointers of 64 bits, and nobody counts its instructions. Writes
results/bench/integer_peers.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import bakenn
import numpy as np
import torch
from integer import MACHINE, MAIN, answers, on_m0, score
from tflite_micro.python.tflite_micro import runtime
from tflite_micro.tensorflow.lite.micro.compression import model_editor as tflite
from tflite_micro.tensorflow.lite.micro.python import schema_py_generated as schema
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torchldr.export import to_c
from torchldr_paper.data import load

RESULTS = Path(__file__).resolve().parents[1] / "results" / "bench" / "integer_peers.json"
TRAINING, EPOCHS, RATE = 20_000, 2, 1e-3
VENDOR = Path(bakenn.__file__).parent / "backend" / "cmsis_nn" / "vendor"
POLICIES = {
    "BakeNN, portable": bakenn.KernelPolicy.PORTABLE,
    "BakeNN, optimized": bakenn.KernelPolicy.STATIC_PRIORITY,
}
CMSIS = """
#include <stdint.h>
#include "arm_nnfunctions.h"
#include "cmsis_run.h"
%(weights)s
void model_run(const int8_t *x, int8_t *y)
{
    cmsis_nn_context ctx = {0, 0};
%(calls)s
}
"""
LAYER = """
    {{
        cmsis_nn_fc_params fc = {{{0}, 0, {1}, {{{2}, 127}}}};
        cmsis_nn_per_tensor_quant_params quant = {{{3}, {4}}};
        cmsis_nn_dims in = {{1, 1, 1, {5}}}, filter = {{{5}, 1, 1, {6}}}, bias = {{1, 1, 1, {6}}};
        cmsis_nn_dims out = {{1, 1, 1, {6}}};
        arm_fully_connected_s8(&ctx, &fc, &quant, &in, {7}, &filter, {8}, &bias, {9}, &out, {10});
    }}"""


class Layer(NamedTuple):
    """A fully connected layer by the TFLite specification: values are scale (integer - zero)."""

    weight: np.ndarray  # int8
    bias: np.ndarray  # int32
    scales: list[float]  # of rows, or one of all
    taken: tuple[float, int]  # scale and zero of what goes in
    given: tuple[float, int]  # and of what comes out
    relu: bool


def networks() -> dict[str, nn.Sequential]:
    thin = [nn.Linear(784, 8, bias=False), nn.Linear(8, 784)]
    return {
        "dense": nn.Sequential(nn.Linear(784, 784), nn.ReLU(), nn.Linear(784, 10)),
        "low rank 8": nn.Sequential(*thin, nn.ReLU(), nn.Linear(784, 10)),
    }


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        schedule.step()


def by_bakenn(
    model: nn.Sequential, calibration: np.ndarray, policy: Any, x: np.ndarray, y: np.ndarray
) -> dict[str, Any]:
    layers = []
    for layer, after in zip(model, [*list(model)[1:], None], strict=True):
        if isinstance(layer, nn.Linear):
            bias = None if layer.bias is None else layer.bias.detach().numpy()
            relu = isinstance(after, nn.ReLU)
            name = f"layer{len(layers)}"
            layers.append(bakenn.FloatLinear(layer.weight.detach().numpy(), bias, relu=relu, name=name))
    graph = bakenn.quantize_ptq(bakenn.FloatMLP(tuple(layers), name="net"), calibration)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        options = bakenn.CBackendOptions(kernel_policy=policy, target=bakenn.CORTEX_M0PLUS)
        made = bakenn.compile(graph, place / "net", backend_options=options)
        sources = sorted((place / "net").glob("*.c"))
        arena = made.memory_report.to_text().split("Activation arena")[1].split("B")[0].strip()
        (place / "net" / "model.h").write_text(
            '#include "bknn_net.h"\n#define MODEL_INPUT_SIZE 784\n#define MODEL_OUTPUT_SIZE 10\n'
            f"static uint8_t arena[{arena}] __attribute__((aligned(16)));\n"
            "#define model_run(x, y) bknn_net_infer(arena, x, y)\n"
        )
        library = place / "net.so"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", *map(str, sources), "-o", str(library)], check=True)
        run = ctypes.CDLL(str(library)).bknn_net_infer
        work, right = np.zeros(int(arena) + 16, np.uint8), 0
        start = work.ctypes.data + -work.ctypes.data % 16
        for image, label in zip(x, y, strict=True):
            q = np.ascontiguousarray(bakenn.quantize_input(made.plan, image[None])).astype(np.int8)
            out = np.zeros(10, np.int8)
            run(*(ctypes.c_void_p(p) for p in (start, q.ctypes.data, out.ctypes.data)))
            right += int(out.argmax() == label)
        found = on_m0(sources, place, MAIN % {"type": "int8_t", "by": ""}, "-std=c11")
    return {"accuracy": 100 * right / len(y), **found}


def accuracy(
    run: Callable[[np.ndarray], np.ndarray], layers: list[Layer], x: np.ndarray, y: np.ndarray
) -> float:
    scale, zero = layers[0].taken
    q = np.clip(np.floor(x / scale + zero + 0.5), -128, 127).astype(np.int8)
    return 100 * sum(int(run(a).argmax() == label) for a, label in zip(q, y, strict=True)) / len(y)


@torch.no_grad()
def specified(model: nn.Sequential, x: Tensor, rows: bool) -> list[Layer]:
    """The network in int8 as the TFLite specification has it; ranges are those of the inputs x."""

    def kind(v: Tensor) -> tuple[float, int]:
        low, high = min(v.min().item(), 0.0), max(v.max().item(), 0.0)
        return (high - low) / 255, round(-128 - low * 255 / (high - low))

    made, taken = [], kind(x)
    for layer, after in zip(model, [*list(model)[1:], None], strict=True):
        x, relu = layer(x), isinstance(after, nn.ReLU)
        if isinstance(layer, nn.Linear):
            given, weight = kind(x.relu() if relu else x), layer.weight.double()
            scales = (weight.abs().amax(1, keepdim=True) if rows else weight.abs().max().reshape(1, 1)) / 127
            bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.double()
            whole = (bias / (taken[0] * scales.flatten())).round().int().numpy()
            q = (weight / scales).round().to(torch.int8).numpy()
            made.append(Layer(q, whole, scales.flatten().tolist(), taken, given, relu))
            taken = given
    return made


def by_tflite_micro(layers: list[Layer], x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    graph = tflite.Subgraph()
    format_of = lambda kind, name, n: graph.add_tensor(
        name=name, shape=(1, n), dtype=schema.TensorType.INT8, quantization=tflite.Quantization(*kind)
    )
    graph.inputs = before = [format_of(layers[0].taken, "x", layers[0].weight.shape[1])]
    for i, layer in enumerate(layers):
        m, parts = len(layer.weight), []
        zeros = [0] * m
        biases = [layer.taken[0] * scale for scale in layer.scales]
        for values, kind, scales in (
            (layer.weight, schema.TensorType.INT8, layer.scales),
            (layer.bias, schema.TensorType.INT32, biases),
        ):
            quantization = tflite.Quantization(scales, zeros, 0)
            parts.append(
                graph.add_tensor(shape=values.shape, dtype=kind, data=values, quantization=quantization)
            )
        after = [format_of(layer.given, f"y{i}", m)]
        options = schema.FullyConnectedOptionsT()
        options.fusedActivationFunction = int(layer.relu)
        operator = schema.OperatorT()
        operator.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions
        operator.builtinOptions = options
        graph.add_operator(
            opcode=schema.BuiltinOperator.FULLY_CONNECTED, inputs=before + parts, outputs=after, _fb=operator
        )
        before = after
    graph.outputs = before
    file = bytes(tflite.Model(subgraphs=[graph]).build())
    interpreter = runtime.Interpreter.from_bytes(file)

    def run(q: np.ndarray) -> np.ndarray:
        interpreter.set_input(q[None], 0)
        interpreter.invoke()
        return interpreter.get_output(0)

    right = accuracy(run, layers, x, y)
    return {"accuracy": right, "flash": len(file), "ram": arena(interpreter), "instructions": None}


def arena(interpreter: runtime.Interpreter) -> int:
    """Bytes that it has used, from what its C++ prints."""
    with tempfile.TemporaryFile("w+") as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        interpreter.print_allocations()
        os.dup2(before, 2)
        file.seek(0)
        text = file.read()
    found = re.search(r"total (\d+) bytes", text)
    if found is None:
        raise RuntimeError(f"TFLite Micro named no total: {text[:200]!r}")
    return int(found[1])


def by_cmsis(layers: list[Layer], x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    weights, calls, before = "", "", "x"
    for i, layer in enumerate(layers):
        (m, n), (scale,) = layer.weight.shape, layer.scales
        fraction, shift = math.frexp(layer.taken[0] * scale / layer.given[0])
        numbers, bias = (", ".join(map(str, v.flatten())) for v in (layer.weight, layer.bias))
        weights += f"static const int8_t w{i}[] = {{{numbers}}};\nstatic const int32_t b{i}[] = {{{bias}}};\n"
        after = "y" if layer is layers[-1] else f"v{i}"
        weights += "" if after == "y" else f"static int8_t {after}[{m}];\n"
        zero, least = layer.given[1], layer.given[1] if layer.relu else -128
        facts = (-layer.taken[1], zero, least, round(fraction * 2**31), shift, n, m)
        calls += LAYER.format(*facts, before, f"w{i}", f"b{i}", after)
        before = after
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "cmsis_run.h").write_text("void model_run(const int8_t *x, int8_t *y);\n")
        (place / "model.h").write_text(
            '#include <stdint.h>\n#include "cmsis_run.h"\n'
            "#define MODEL_INPUT_SIZE 784\n#define MODEL_OUTPUT_SIZE 10\n"
        )
        (place / "net.c").write_text(CMSIS % {"weights": weights, "calls": calls})
        nn_sources = VENDOR / "cmsis_nn" / "Source"
        sources = [place / "net.c", nn_sources / "FullyConnectedFunctions" / "arm_fully_connected_s8.c"]
        sources += [nn_sources / "NNSupportFunctions" / "arm_nn_vec_mat_mult_t_s8.c"]
        headers = [f"-I{VENDOR / 'cmsis_nn' / 'Include'}", f"-I{VENDOR / 'cmsis_core' / 'Include'}"]
        (place / "host").mkdir()
        (place / "host" / "arm_acle.h").touch()  # of ARM's compilers; the portable C needs nothing of it
        made, flags = place / "net.so", ["-O2", "-shared", "-fPIC", f"-I{place / 'host'}", *headers]
        subprocess.run(["gcc", *flags, *map(str, sources), "-o", str(made)], check=True)
        library = ctypes.CDLL(str(made))

        def run(q: np.ndarray) -> np.ndarray:
            out = np.zeros(10, np.int8)
            library.model_run(ctypes.c_void_p(q.ctypes.data), ctypes.c_void_p(out.ctypes.data))
            return out

        right = accuracy(run, layers, x, y)
        found = on_m0(sources, place, MAIN % {"type": "int8_t", "by": ""}, "-std=c11", *headers)
    return {"accuracy": right, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default=None)
    data = load("mnist", parser.parse_args().data)
    train_x, test_x = data.pixels(flat=True)
    x, test, rows = torch.from_numpy(train_x[:TRAINING]), torch.from_numpy(test_x), []
    y, test_y = torch.from_numpy(data.train_y[:TRAINING]), torch.from_numpy(data.test_y)
    for name, model in networks().items():
        torch.manual_seed(0)
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        train(model, x, y)
        model.eval()
        trained = score(model, test, test_y)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            report = to_c(model, x[:1], place / "model", arithmetic="integer", calibration=x[:500])
            right = score(lambda a, report=report: answers(report, a), test, test_y)
            found = on_m0([place / "model" / "model.c"], place, MAIN % {"type": "int8_t", "by": ""})
        made = {"torchldr": {"accuracy": right, **found}}
        for peer, policy in POLICIES.items():
            made[peer] = by_bakenn(model, train_x[:500], policy, test_x, data.test_y)
        made["CMSIS-NN"] = by_cmsis(specified(model, x[:500], False), test_x, data.test_y)
        made["TFLite Micro"] = by_tflite_micro(specified(model, x[:500], True), test_x, data.test_y)
        for peer, facts in made.items():
            rows.append({"network": name, "trained": trained, "by": peer, **facts})
            print(rows[-1], file=sys.stderr, flush=True)
    peers = f"BakeNN {bakenn.__version__}, TFLite Micro {version('tflite_micro')}"
    RESULTS.write_text(json.dumps({"machine": f"{MACHINE}; {peers}", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
