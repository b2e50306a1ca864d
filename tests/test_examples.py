"""Every example runs with what it says to install alone, and is short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .optional import left_out

FOLDER = Path(__file__).resolve().parents[1] / "examples"
ARGUMENTS = {
    "swap_linear.py": ["--epochs", "1"],
    "gpt.py": ["--quick"],
    "distributed.py": ["--quick"],
}  # what makes an example quick
SAYS = {
    "gpt.py": "98,304 -> 9,216 of the linear layers' parameters",
    "distributed.py": "step 24 loss 3.2",
    "displacement.py": "by its own operators   2",
    "own_structure.py": "it satisfies the contract",
    "swap_linear.py": "ldr_sd, rank 3",
}


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_example(name: str, tmp_path: Path):
    assert len((FOLDER / name).read_text().splitlines()) < 150
    blocked = dict.fromkeys(left_out((FOLDER / name).read_text()))
    code = f"import runpy, sys; sys.modules |= {blocked!r}; del sys.argv[0]; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    ran = subprocess.run(
        [sys.executable, "-c", code, FOLDER / name, *ARGUMENTS.get(name, [])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert SAYS[name] in ran.stdout
