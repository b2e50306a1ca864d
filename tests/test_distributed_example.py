"""The example under torchrun: a worker is killed, and the job ends as if nothing had happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "distributed.py"


def losses(output: str) -> list[tuple[int, float]]:
    return [(int(step), float(loss)) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", output, re.M)]


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed")
def test_a_killed_worker_costs_steps_and_nothing_else(tmp_path: Path) -> None:
    quick = [EXAMPLE, "--quick", "--structure", "toeplitz_like", "--checkpoints"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    several = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    together = subprocess.run(
        [*several, "--max-restarts", "1", *quick, tmp_path / "together", "--die-at", "10"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip
    output = together.stdout
    assert together.returncode == 0, output
    assert len(re.findall(r"rank 1 of 2", output)) == 2, "torchrun did not start it again"
    assert re.findall(r"rank 1 goes on after step (\d+)", output) == ["8"], output

    command = [sys.executable, *quick, tmp_path / "alone"]
    alone = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    want, got = dict(losses(alone.stdout)), losses(output)
    assert {step for step, _ in got} == set(want) == set(range(1, 25))
    assert len(got) > 24, "no step was done again"
    assert all(abs(loss - want[step]) < 1e-4 for step, loss in got)
