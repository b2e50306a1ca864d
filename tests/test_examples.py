"""Every example runs with what it says to install alone, and is short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from .optional import left_out
from .processes import Case, in_forks

FOLDER = Path(__file__).resolve().parents[1] / "examples"
ARGUMENTS = {
    "swap_linear.py": ["--epochs", "1"],
    "gpt.py": ["--quick"],
    "forecast.py": ["--quick"],
    "serve.py": ["--steps", "40"],
}  # what makes an example quick
OTHERS = {"trainer.py": "transformers", "accelerated.py": "accelerate"}  # run where these are installed
SAYS = {
    "gpt.py": "98,304 -> 9,216 of the linear layers' parameters",
    "displacement.py": "by its own operators   2",
    "hidden_transform.py": "ldr_sd, rank 1                256",
    "forecast.py": "rank 24, displacement rank 6",
    "own_structure.py": "it satisfies the contract",
    "serve.py": "as the model in eval(): 100%",
    "swap_linear.py": "ldr_sd, rank 3",
}


RUN = """
import runpy, sys
blocked = sys.argv.pop(1).split()
sys.modules |= dict.fromkeys(blocked)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


# torchrun, with forks of it as workers: the same command line, agent and restarts, no new interpreters.
TORCHRUN = """
import runpy, sys
from torch.distributed import run

def worker(output, unbuffered, *command):
    sys.stdout, sys.argv = open(output, "a"), list(command)
    runpy.run_path(sys.argv[0], run_name="__main__")

def launcher(config, entrypoint):
    assert entrypoint == sys.executable
    config.start_method = "fork"
    return lambda *command: launch(config, worker)(output, *command)

launch, run.elastic_launch = run.elastic_launch, launcher
_, output, *arguments = sys.argv
run.main(arguments)
"""


def case(name: str, *arguments: str | Path) -> Case:
    """An example in an interpreter that has what it says to install alone."""
    blocked = left_out((FOLDER / name).read_text())
    return Case(RUN, [" ".join(blocked), str(FOLDER / name), *map(str, arguments)])


def test_examples(tmp_path: Path):
    names = sorted(path.name for path in FOLDER.glob("*.py"))
    assert names == sorted([*SAYS, *OTHERS, "distributed.py", "forecast_ray.py"])
    assert all(len((FOLDER / name).read_text().splitlines()) < 150 for name in names)
    cases = [case(name, *ARGUMENTS.get(name, ()))._replace(cwd=str(tmp_path)) for name in SAYS]
    for name, ran in zip(SAYS, in_forks(cases), strict=True):
        assert ran.code == 0, ran.err
        assert SAYS[name] in ran.out


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_trainers(name: str, tmp_path: Path) -> None:
    pytest.importorskip(OTHERS[name])
    (ran,) = in_forks([Case(RUN, ["", str(FOLDER / name)], cwd=str(tmp_path))])
    assert ran.code == 0, ran.err
    before, _, after = map(float, re.findall(r"^(?:dense|compressed|fine-tuned) +([0-9.]+)%", ran.out, re.M))
    assert after > before - 5


def test_forecasters_on_ray_survive_a_killed_worker(tmp_path: Path) -> None:
    pytest.importorskip("ray.data")
    small = ["--series", "6", "--block", "2", "--time", "1200", "--past", "48", "--horizon", "12"]
    command = [sys.executable, str(FOLDER / "forecast_ray.py"), *small, "--die", str(tmp_path / "died")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "died").exists()
    assert "6 series, 12 values ahead" in ran.stdout


def losses(output: str) -> list[tuple[int, float]]:
    return [(int(step), float(loss)) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", output, re.M)]


@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available(), reason="torch is built without distributed")
def test_a_killed_worker_costs_steps_and_nothing_else(tmp_path: Path) -> None:
    """The example under torchrun: a worker is killed, and the job ends as if nothing had happened."""
    quick = [str(FOLDER / "distributed.py"), "--quick", "--structure", "toeplitz_like", "--checkpoints"]
    environment = {
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    options = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    command = [*options, *quick, str(tmp_path / "together"), "--die-at", "10"]
    cases = [Case(TORCHRUN, [str(tmp_path / "output"), *command]), case(*quick, tmp_path / "alone")]
    together, alone = in_forks([case._replace(environment=environment) for case in cases])
    assert together.code == 0, together.err
    output = (tmp_path / "output").read_text()
    assert len(re.findall(r"rank 1 of 2", output)) == 2, "torchrun did not start it again"
    assert re.findall(r"rank 1 goes on after step (\d+)", output) == ["8"], output

    assert alone.code == 0, alone.err
    want, got = dict(losses(alone.out)), losses(output)
    assert {step for step, _ in got} == set(want) == set(range(1, 25))
    assert len(got) > 24, "no step was done again"
    assert all(abs(loss - want[step]) < 1e-4 for step, loss in got)
