"""Code that needs an interpreter of its own: many cases in forks of one process that has imported torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from filelock import FileLock

# Reads cases from stdin, runs each in a fork, prints what each did.
SERVER = """
import contextlib, io, json, os, sys, traceback

def run(case):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["-c", *case["arguments"]]
    os.environ.update(case["environment"])
    if case["cwd"]:
        os.chdir(case["cwd"])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            exec(compile(case["code"], "<case>", "exec"), {"__name__": "__main__"})
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
    return json.dumps([code, out.getvalue(), err.getvalue()])

exec(sys.argv[1])
found, cases = [], json.load(sys.stdin)
for case in cases:
    if not hasattr(os, "fork"):
        assert len(cases) == 1
        found.append(run(case))
        continue
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with open(writing, "w") as pipe:
            pipe.write(run(case))
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        found.append(pipe.read())
    os.waitpid(child, 0)
print("[" + ", ".join(text or '[-1, "", "the process died"]' for text in found) + "]")
"""


class Case(NamedTuple):
    """Code for a fresh interpreter, with its arguments, further variables and its folder."""

    code: str
    arguments: Sequence[str] = ()
    environment: dict[str, str] = {}  # noqa: RUF012
    cwd: str | None = None


class Ran(NamedTuple):
    """What a case did: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


def in_forks(
    cases: Sequence[Case],
    python: Sequence[str | Path] = (sys.executable,),
    before: str = "import torch",
    **options: Any,
) -> list[Ran]:
    """Run each case as `python -c` would, away from the checkout.

    Args:
        cases: what to run, one after the other.
        python: the interpreter, with what stands before it.
        before: what all cases may find done, which must start no thread.
        options: of subprocess.run.
    """
    if not hasattr(os, "fork") and len(cases) > 1:
        return [ran for case in cases for ran in in_forks([case], python, before, **options)]
    options = {"cwd": Path(sys.executable).anchor, **options}
    ran = subprocess.run(
        [*python, "-c", SERVER, before],
        input=json.dumps([case._asdict() for case in cases]),
        capture_output=True,
        text=True,
        **options,
    )
    assert ran.returncode == 0, ran.stderr
    return [Ran(*each) for each in json.loads(ran.stdout.splitlines()[-1])]


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Any:
    """What `make` returns for a folder of its own, as JSON: made by one worker for all of them."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    file = folder / "made.json"
    with FileLock(folder.with_suffix(".lock")):
        if not file.exists():
            folder.mkdir(exist_ok=True)
            file.write_text(json.dumps(make(folder)))
        return json.loads(file.read_text())
