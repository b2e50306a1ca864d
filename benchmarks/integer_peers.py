"""Dense and low-rank networks in int8 on a Cortex-M0: this package, BakeNN and CMSIS-NN.

    python -m pip install bakenn          # needs numpy alone
    python benchmarks/integer_peers.py --data DIR

Trains both networks on MNIST (20,000 images, two epochs) and hands the same weights and calibration inputs to
both. CMSIS-NN is the C that comes in BakeNN's wheel, with the same shapes and arbitrary weights: its accuracy
is not measured. Everything is compiled with -mcpu=cortex-m0 -Os; see integer.py for how it is counted. Writes
results/bench/integer_peers.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import bakenn
import numpy as np
import torch
from integer import MACHINE, MAIN, answers, on_m0, score
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
static void layer(const int8_t *x, int8_t *y, const int8_t *w, const int32_t *b, int n, int m)
{
    cmsis_nn_context ctx = {0, 0};
    cmsis_nn_fc_params fc = {3, 0, -7, {-128, 127}};
    cmsis_nn_per_tensor_quant_params quant = {1518500250, -9};
    cmsis_nn_dims in = {1, 1, 1, n}, filter = {n, 1, 1, m}, bias = {1, 1, 1, m}, out = {1, 1, 1, m};
    arm_fully_connected_s8(&ctx, &fc, &quant, &in, x, &filter, w, &bias, b, &out, y);
}
void model_run(const int8_t *x, int8_t *y)
{
    static int8_t a[784], b[784];
%(calls)s
}
"""


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


def by_cmsis(model: nn.Sequential) -> dict[str, Any]:
    sizes = [(layer.in_features, layer.out_features) for layer in model if isinstance(layer, nn.Linear)]
    weights, calls, draw = "", "", np.random.default_rng(0)
    for i, (n, m) in enumerate(sizes):
        numbers = ", ".join(map(str, draw.integers(-127, 128, m * n)))
        weights += f"static const int8_t w{i}[] = {{{numbers}}};\nstatic const int32_t b{i}[{m}] = {{1}};\n"
        taken, given = "x" if i == 0 else "ba"[i % 2], "y" if i == len(sizes) - 1 else "ab"[i % 2]
        calls += f"    layer({taken}, {given}, w{i}, b{i}, {n}, {m});\n"
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
        return {
            "accuracy": None,
            **on_m0(sources, place, MAIN % {"type": "int8_t", "by": ""}, "-std=c11", *headers),
        }


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
        made["CMSIS-NN"] = by_cmsis(model)
        for peer, facts in made.items():
            rows.append({"network": name, "trained": trained, "by": peer, **facts})
            print(rows[-1], file=sys.stderr, flush=True)
    RESULTS.write_text(
        json.dumps({"machine": f"{MACHINE}; BakeNN {bakenn.__version__}", "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
