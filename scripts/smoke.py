"""Tries the installed packages: a layer, training, compression, C, and the command line.

python -I smoke.py, away from the checkout, with the environment's `torchldr` first on the path.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import tempfile
from pathlib import Path

import torch

import torchldr
from torchldr import StructuredLinear
from torchldr.export import to_c


def use_the_library(folder: Path) -> None:
    """Train a layer, compress a model, keep it and read it back, export it."""
    torch.manual_seed(0)
    layer = StructuredLinear(64, 64, structure="ldr_sd", rank=2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.randn(16, 64)
    losses: list[torch.Tensor] = []
    for _ in range(5):
        optimizer.zero_grad()
        losses.append((layer(x) - x).square().mean())
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x) - layer(0 * x), x @ layer.weight.mT)

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    report = torchldr.compress_(model, {"0": torchldr.Structure("low_rank", rank=4)})
    print(report)
    torchldr.save_compressed(model, folder / "small")
    again = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    torchldr.load_compressed(again, folder / "small")
    torch.testing.assert_close(again(x), model(x))
    to_c(model, x[:1], folder / "c")
    assert (folder / "c" / "model.c").is_file()


def use_the_command_line(folder: Path) -> None:
    """Commands that take no time, those of torchldr-paper where it is installed."""
    commands = [["--version"], ["--help"], ["info"], ["structures"]]
    if importlib.util.find_spec("torchldr_paper"):
        commands += [["paper", "list"], ["paper", "rectangles", "--show"], ["data", "list"]]
        commands += [["report", "--no-figures"]]
    for arguments in commands:
        ran = subprocess.run(["torchldr", *arguments], cwd=folder, capture_output=True, text=True)
        assert ran.returncode == 0, f"torchldr {' '.join(arguments)}: {ran.stderr}"
        assert ran.stdout


if __name__ == "__main__":
    assert not Path(torchldr.__file__).is_relative_to(Path.cwd() / "src"), "this is a checkout"
    with tempfile.TemporaryDirectory() as name:
        use_the_library(Path(name))
        use_the_command_line(Path(name))
    python = platform.python_version()
    print(f"torchldr {torchldr.__version__} works: Python {python}, torch {torch.__version__}")
