"""Networks in int8 arithmetic: accuracy, flash, RAM and instructions on a Cortex-M0.

    python benchmarks/integer.py [--data DIR] [--datasets rectangles mnist cifar10_grey] [--append]

Trains a hidden layer of each structure on raw pixels (20,000 images, a few epochs of Adam, one seed: enough
to compare arithmetics, not structures), writes it as C in floating point and in integers, and scores both on
5,000 images: floats in torch with weights rounded to int8, integers by the reference, which is the C bit for
bit. Flash is code, tables and weights of the model and of libgcc's helpers, as arm-none-eabi-size has it for
-mcpu=cortex-m0 -Os; instructions are counted by QEMU (-icount shift=0).
Rectangles are a stand-in by the published recipe. Writes results/bench/integer.json. Needs gcc-arm-none-eabi,
libnewlib-arm-none-eabi and qemu-system-arm.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torchldr import StructuredLinear, quantize_
from torchldr.compress import parameter_groups
from torchldr.export import IntegerReport, to_c
from torchldr_paper.data import load

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "microcontroller"
RESULTS = ROOT / "results" / "bench" / "integer.json"
METHODS: list[tuple[str, int | None]] = [
    ("dense", None),
    ("low_rank", 8),
    ("monarch", 1),
    ("toeplitz_like", 2),
    ("ldr_sd", 1),
]
EPOCHS = {"rectangles": 20, "mnist": 2, "cifar10_grey": 2}
TRAINING, TEST = 20_000, 5_000  # images at most
MACHINE = "code for a Cortex-M0 (-Os), counted by qemu-system-arm"
TARGET = ["-mcpu=cortex-m0", "-mthumb"]
FLAGS = ["-std=c99", "-Os", *TARGET, "-ffunction-sections", "-fdata-sections"]
MAIN = """
#include <stdint.h>
#include <stdio.h>
#include "model.h"
#define SYSTICK ((volatile uint32_t *)0xE000E010)
int main(void)
{
    static %(type)s x[MODEL_INPUT_SIZE], y[MODEL_OUTPUT_SIZE];
    uint32_t before;
    for (int i = 0; i < MODEL_INPUT_SIZE; i++)
        x[i] = (%(type)s)(i %% 7 %(by)s);
    SYSTICK[1] = 0xFFFFFF;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5;
    before = SYSTICK[2];
    model_run(x, y);
    printf("ticks %%lu\\n", (unsigned long)((before - SYSTICK[2]) & 0xFFFFFF));
    return 0;
}
"""


class Network(nn.Module):
    """Pixels of [0, 1], scaled by numbers, through one hidden layer."""

    def __init__(
        self, structure: str, rank: int | None, n: int, classes: int, mean: float, std: float
    ) -> None:
        super().__init__()
        self.hidden, self.logits = (
            StructuredLinear(n, n, structure=structure, rank=rank),
            nn.Linear(n, classes),
        )
        self.factor, self.shift = 1 / std, -mean / std

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(torch.relu(self.hidden(self.factor * x + self.shift)))


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, rate: float = 1e-3) -> None:
    optimizer = torch.optim.Adam(parameter_groups(model, rate))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        schedule.step()


@torch.no_grad()
def score(function: Any, x: Tensor, y: Tensor) -> float:
    right = sum(
        (function(a).argmax(-1) == b).sum().item() for a, b in zip(x.split(500), y.split(500), strict=True)
    )
    return 100 * right / len(y)


def answers(report: IntegerReport, x: Tensor) -> Tensor:
    return report.dequantize(report.reference(report.quantize(x)))


def shell(*command: object) -> str:
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"{command[0]}: {ran.stderr[-2000:]}")
    return ran.stdout


def on_m0(sources: list[Path], folder: Path, main: str, *flags: object) -> dict[str, int]:
    """Flash and RAM of sources and of what they take from libgcc and libm; instructions of a run."""
    objects = []
    for source in sources:
        objects.append(folder / f"{source.stem}.o")
        shell("arm-none-eabi-gcc", *FLAGS, *flags, "-c", source, "-o", objects[-1])
    (folder / "bare.c").write_text(main.replace("printf", "(void)sizeof"))
    (folder / "main.c").write_text(main)
    sizes = {}
    (folder / "none.c").write_text("int main(void) { return 0; }\n")
    roomy = folder / "roomy.ld"  # a dense network does not fit on the board, but can be linked and counted
    roomy.write_text((EXAMPLE / "microbit.ld").read_text().replace("256K", "4M").replace("16K", "4M"))
    link = ["-T", roomy, "-L", EXAMPLE, "-nostartfiles", "--specs=nano.specs", "--specs=rdimon.specs"]
    link += ["-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments"]
    start = [EXAMPLE / "startup.c", f"-I{folder}", *[f"-I{s.parent}" for s in sources]]
    for name, parts in (("none", []), ("bare", objects)):
        elf = folder / f"{name}.elf"
        shell(
            "arm-none-eabi-gcc", *FLAGS, *flags, *start, folder / f"{name}.c", *parts, *link, "-lm", "-o", elf
        )
        text, data, bss = shell("arm-none-eabi-size", elf).splitlines()[1].split()[:3]
        sizes[name] = int(text) + int(data), int(data) + int(bss)
    flash, ram = (sizes["bare"][i] - sizes["none"][i] for i in (0, 1))
    elf = folder / "run.elf"
    shell("arm-none-eabi-gcc", *FLAGS, *flags, *start, folder / "main.c", *objects, *link, "-lm", "-o", elf)
    return {"flash": flash, "ram": ram, "instructions": instructions(elf)}


def instructions(elf: Path) -> int:
    """Of `main`'s interval, in ticks of 25 MHz with an instruction a nanosecond. The board has a Cortex-M3,
    which runs code for the M0, and room for dense networks."""
    machine = ["-M", "mps2-an385", "-nographic", "-monitor", "none", "-serial", "none", "-icount", "shift=0"]
    out = shell("qemu-system-arm", *machine, "-semihosting-config", "enable=on,target=native", "-kernel", elf)
    return round(int(re.search(r"ticks (\d+)", out)[1]) * 40)  # type: ignore[index]


def measure(model: nn.Module, calibration: Tensor, x: Tensor, y: Tensor) -> list[dict[str, Any]]:
    rows = []
    example = x[:1]
    for arithmetic in ("float", "integer"):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            options = {"calibration": calibration} if arithmetic == "integer" else {}
            report = to_c(model, example, place / "model", arithmetic=arithmetic, **options)
            if isinstance(report, IntegerReport):
                right = score(partial(answers, report), x, y)
            else:
                right = score(quantize_(copy.deepcopy(model)), x, y)
            kind = (
                {"type": "int8_t", "by": ""} if arithmetic == "integer" else {"type": "float", "by": "/ 7.0f"}
            )
            found = on_m0([place / "model" / "model.c"], place, MAIN % kind)
            rows.append({"arithmetic": arithmetic, "accuracy": right, "form": report.layers[0].form, **found})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default=None)
    parser.add_argument("--datasets", nargs="+", default=list(EPOCHS))
    parser.add_argument("--append", action="store_true")
    chosen = parser.parse_args()
    rows = json.loads(RESULTS.read_text())["rows"] if chosen.append and RESULTS.exists() else []
    for name in chosen.datasets:
        data = load(name, chosen.data, source="stand-in" if name == "rectangles" else "auto")
        (train_x, test_x), labels = data.pixels(flat=True), (data.train_y, data.test_y)
        x, test = torch.from_numpy(train_x[:TRAINING]), torch.from_numpy(test_x[:TEST])
        y, test_y = torch.from_numpy(labels[0][:TRAINING]), torch.from_numpy(labels[1][:TEST])
        for structure, rank in METHODS:
            torch.manual_seed(0)
            mean, std = x.mean().item(), x.std().item()
            model = Network(structure, rank, data.features, data.classes, mean, std)
            train(model, x, y, EPOCHS[name])
            model.eval()
            before = score(model, test, test_y)
            for row in measure(model, x[:500], test, test_y):
                facts = {"dataset": name, "source": data.source, "structure": structure, "rank": rank}
                rows.append({**facts, "trained": before, **row})
                print(rows[-1], file=sys.stderr, flush=True)
            RESULTS.write_text(json.dumps({"machine": MACHINE, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
