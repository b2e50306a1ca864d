"""Networks in int8 arithmetic: accuracy, flash, RAM and instructions on a Cortex-M0.

    python benchmarks/integer.py [--data DIR] [--datasets rectangles mnist cifar10_grey] [--networks DIR]

The networks are those that the table "accuracy by flash" has at 16 kB for low rank, Toeplitz-like and
LDR-SD, and for comparison Monarch and dense layers, which are larger. Batches, epochs, learning rates,
momentum and the split are those of that table, and the epoch with the best validation counts. Three things
differ: there is one network and not three; the operators of LDR-SD learn slowly (`parameter_groups`), which
keeps their C short; and all pixels are scaled by two numbers, where the table has two for each pixel. Monarch
and dense layers take the middle rate of the table.

Each network is written as C in floating point and in integers and scored on up to 10,000 test images: floats
in torch with weights rounded to int8, integers by the reference, which is the C bit for bit. Flash is code,
tables and weights of the model and of libgcc's helpers, as arm-none-eabi-size has it for -mcpu=cortex-m0 -Os;
instructions are counted by QEMU (-icount shift=0). Trained networks are kept in --networks and found there
again. Writes results/bench/integer.json. Needs gcc-arm-none-eabi, libnewlib-arm-none-eabi, qemu-system-arm.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torchldr import StructuredLinear, quantize_
from torchldr.compress import parameter_groups
from torchldr.export import IntegerReport, to_c
from torchldr_paper.data import load
from torchldr_paper.ledger.ledger import Ledger
from torchldr_paper.tables.flash import candidates, flash_rows, flash_table

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "microcontroller"
RESULTS = ROOT / "results" / "bench" / "integer.json"
DATASETS = ("rectangles", "mnist", "cifar10_grey")
METHODS = ("ldr_sd", "toeplitz_like", "low_rank", "monarch", "dense")
KILOBYTES, TEST = 16, 10_000  # images at most
MACHINE = "code for a Cortex-M0 (-Os), counted by qemu-system-arm"
TARGET = ["-mcpu=cortex-m0", "-mthumb"]
FLAGS = ["-std=c99", "-Os", *TARGET, "-ffunction-sections", "-fdata-sections"]
MAIN = """
#include <stdint.h>
#include <stdio.h>
#include "model.h"
#define TIMER ((volatile uint32_t *)0x40000000) /* of 32 bits; SysTick's 24 overflow */
int main(void)
{
    static %(type)s x[MODEL_INPUT_SIZE], y[MODEL_OUTPUT_SIZE];
    uint32_t before;
    for (int i = 0; i < MODEL_INPUT_SIZE; i++)
        x[i] = (%(type)s)(i %% 7 %(by)s);
    TIMER[2] = TIMER[1] = 0xFFFFFFFF;
    TIMER[0] = 1;
    before = TIMER[1];
    model_run(x, y);
    printf("ticks %%lu\\n", (unsigned long)(before - TIMER[1]));
    return 0;
}
"""


class Choice(NamedTuple):
    """A network, and how it is trained."""

    structure: str
    rank: int | None
    hidden: int
    rate: float
    batch: int
    epochs: int


@cache
def chosen_rows() -> list[dict[str, Any]]:
    return flash_rows(flash_table(), Ledger())


def choose(dataset: str, structure: str, features: int) -> Choice:
    """As the table has it, or of full size."""
    protocol = next(candidates(dataset, "shl", "low_rank", KILOBYTES << 10)).protocol
    rank, hidden, rate = (1 if structure == "monarch" else None), None, sorted(protocol.lrs)[1]
    for row in chosen_rows():
        if (row["dataset"], row["model"], row["structure"], row["kilobytes"]) == (
            dataset,
            "shl",
            structure,
            KILOBYTES,
        ):
            rank, hidden, rate = row["rank"], row["hidden"], row["lr"]
    return Choice(structure, rank, hidden or features, rate, protocol.batch, protocol.epochs)


class Network(nn.Module):
    """Pixels of [0, 1], scaled by numbers, through one hidden layer."""

    def __init__(self, choice: Choice, n: int, classes: int, mean: float, std: float) -> None:
        super().__init__()
        self.hidden = StructuredLinear(n, choice.hidden, False, structure=choice.structure, rank=choice.rank)
        self.logits = nn.Linear(choice.hidden, classes)
        self.factor, self.shift = 1 / std, -mean / std

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(torch.relu(self.hidden(self.factor * x + self.shift)))


def train(model: Network, x: Tensor, y: Tensor, choice: Choice) -> None:
    """Momentum at a constant rate; the epoch that is best on 15 % of the images counts."""
    optimizer = torch.optim.SGD(parameter_groups(model, choice.rate), momentum=0.9)
    held, rows = torch.randperm(len(x)).split([int(0.15 * len(x)), len(x) - int(0.15 * len(x))])
    best, kept = -1.0, copy.deepcopy(model.state_dict())
    for _ in range(choice.epochs):
        for part in rows[torch.randperm(len(rows))].split(choice.batch):
            optimizer.zero_grad()
            cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
        if (right := score(model, x[held], y[held])) > best:
            best, kept = right, copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)


def trained(name: str, choice: Choice, data: Any, folder: Path | None) -> Network:
    """A network of one seed, from the folder where it is there."""
    x, y = torch.from_numpy(data.pixels(flat=True)[0]), torch.from_numpy(data.train_y)
    torch.manual_seed(0)
    model = Network(choice, data.features, data.classes, x.mean().item(), x.std().item())
    file = folder and folder / f"{name}-{choice.structure}-{choice.rank}-{choice.hidden}.pt"
    if file and file.exists():
        model.load_state_dict(torch.load(file, weights_only=True))
    else:
        train(model, x, y, choice)
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), file)
    return model.eval()


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
    parser.add_argument("--datasets", nargs="+", default=DATASETS)
    parser.add_argument("--networks", type=Path, default=None, help="where trained networks are kept")
    asked = parser.parse_args()
    rows = []
    for name in asked.datasets:
        data = load(name, asked.data)
        train_x, test_x = (torch.from_numpy(part) for part in data.pixels(flat=True))
        x, test, test_y = train_x[:500], test_x[:TEST], torch.from_numpy(data.test_y[:TEST])
        for structure in METHODS:
            choice = choose(name, structure, data.features)
            model = trained(name, choice, data, asked.networks)
            before = score(model, test, test_y)
            for row in measure(model, x, test, test_y):
                facts = {"dataset": name, "source": data.source, **choice._asdict()}
                rows.append({**facts, "trained": before, **row})
                print(rows[-1], file=sys.stderr, flush=True)
            RESULTS.write_text(json.dumps({"machine": MACHINE, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
