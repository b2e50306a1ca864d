"""Code that needs an interpreter of its own: many cases in forks of one process that has imported torch."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import FORKS
from filelock import FileLock

# A function that runs a case and returns what it did.
RUN = """
import contextlib, io, os, sys, traceback

def run(case):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["-c", *case["arguments"]]
    os.environ.update(case["environment"])
    os.chdir(case["cwd"] or os.path.abspath(os.sep))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            exec(compile(case["code"], "<case>", "exec"), {"__name__": "__main__"})
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
    return code, out.getvalue(), err.getvalue()
"""

# Reads cases from stdin, runs each in a fork, prints what each did.
SERVER = """
import json, torch

found = []
for case in json.load(sys.stdin):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with open(writing, "w") as pipe:
            json.dump(run(case), pipe)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        found.append(pipe.read() or '[-1, "", "the process died"]')
    os.waitpid(child, 0)
print("[" + ", ".join(found) + "]")
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


def in_forks(cases: Sequence[Case]) -> list[Ran]:
    """Run each case as `python -c` would, away from the checkout, with torch and torchldr imported before.

    The process that forks is that of `started` in conftest.py, and stays for further cases.
    """
    context, found = multiprocessing.get_context(FORKS), list[Ran]()
    for case in cases:
        reading, writing = context.Pipe(duplex=False)
        environment = {**os.environ, **case.environment}
        names = {"case": {**case._asdict(), "environment": environment}, "pipe": writing}
        process = context.Process(target=exec, args=(RUN + "pipe.send(run(case))", names))
        process.start()
        writing.close()
        try:
            found.append(Ran(*reading.recv()))
        except EOFError:
            found.append(Ran(-1, "", "the process died"))
        process.join()
    return found


def in_forks_of(python: Sequence[str | Path], cases: Sequence[Case], **options: Any) -> list[Ran]:
    """The same of another interpreter, which imports torch alone before.

    Args:
        python: the interpreter, with what stands before it.
        cases: what to run, one after the other.
        options: of subprocess.run.
    """
    command = [*python, "-c", RUN + SERVER]
    given = json.dumps([case._asdict() for case in cases])
    ran = subprocess.run(command, input=given, capture_output=True, text=True, cwd="/", **options)
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
