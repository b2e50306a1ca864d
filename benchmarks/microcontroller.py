"""Flash, RAM and instructions of a 784 x 784 layer on an emulated Cortex-M4, every class, int8.

    python benchmarks/microcontroller.py

Writes results/bench/microcontroller.json. Needs gcc-arm-none-eabi, libnewlib-arm-none-eabi and
qemu-system-arm. Instructions are counted by the emulator (-icount shift=0), whatever the machine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from torchldr import StructuredLinear, structures
from torchldr.export import to_c

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "microcontroller"
RESULTS = ROOT / "results" / "bench" / "microcontroller.json"
N, IMAGES = 784, 2


def cases() -> list[tuple[str, int | None, bool]]:
    """Class, rank, and whether its operators have left their start."""
    found = [(name, 1 if cls.ranked else None, False) for name, cls in structures().items()]
    return [*found, ("ldr_sd", 4, False), ("ldr_sd", 1, True), ("ldr_sd", 4, True), ("low_rank", 16, False)]


def measure(name: str, rank: int | None, drawn: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    layer = StructuredLinear(N, N, bias=False, structure=name, rank=rank)
    if drawn:
        with torch.no_grad():
            layer.structure.draw_operators_(dict(layer.named_parameters()))
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder)
        report = to_c(layer, torch.randn(1, N), build / "model")
        pixels = ",".join("{" + ",".join(["1"] * N) + "}" for _ in range(IMAGES))
        (build / "model" / "images.h").write_text(
            f"#define IMAGES {IMAGES}\nstatic const unsigned char images[IMAGES][{N}] = {{{pixels}}};\n"
            "static const unsigned char labels[IMAGES] = {0};\n"
        )
        ran = subprocess.run(
            ["make", "-s", "-C", EXAMPLE, "run", f"BUILD={build}", "CPU=cortex-m4", "ARITHMETIC=float"],
            capture_output=True,
            text=True,
            check=True,
        )
        size = re.search(r"^\s*(\d+)\s+(\d+)\s+(\d+).*model\.o", ran.stdout, re.MULTILINE)
        count = re.search(r"instructions +(\d+)", ran.stdout)
        assert size is not None
        assert count is not None
    (row,) = report.layers
    return {
        "structure": name,
        "rank": rank,
        "operators": "drawn" if drawn else "at their start",
        "form": row.form,
        "weights_bytes": report.flash,
        "code_bytes": int(size[1]) - report.flash,
        "arena_bytes": report.arena,
        "instructions": int(count[1]),
    }


def main() -> None:
    rows = []
    for case in cases():
        rows.append(measure(*case))
        print(rows[-1], file=sys.stderr, flush=True)
    machine = "qemu-system-arm -M mps2-an386, Cortex-M4"
    RESULTS.write_text(json.dumps({"machine": machine, "n": N, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
