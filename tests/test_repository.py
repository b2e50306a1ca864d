"""What lies around the packages: workflows, hooks and the hosts that files may not name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
# In parts, so that this file names none.
HOSTS = ["py" + "pi.org", "python" + "hosted.org", "download.py" + "torch.org", "ana" + "conda.org"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_no_file_names_a_registry():
    """pip asks the one that its user has configured."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    command = ["git", "grep", "-I", "--ignore-case", "--name-only", "--fixed-strings"]
    command += [part for host in HOSTS for part in ("-e", host)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (1, ""), found.stderr


def read(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_there_is(path: Path):
    """Targets of make and scripts exist, and rights are named."""
    workflow = read(path)
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        for step in job["steps"]:
            command = step.get("run", "")
            assert ("run" in step) != ("uses" in step)
            assert set(re.findall(r"^make (\w+)", command, re.MULTILINE)) <= targets
            for script in re.findall(r"^(scripts/\S+)", command, re.MULTILINE):
                assert (ROOT / script).stat().st_mode & 0o100


def test_hooks_are_the_tools_of_the_environment():
    (hooks,) = (repository["hooks"] for repository in read(ROOT / ".pre-commit-config.yaml")["repos"])
    tools = {hook["entry"].split()[0] for hook in hooks}
    assert tools == {".venv/bin/ruff", ".venv/bin/mypy"}
    assert all(hook["language"] == "system" for hook in hooks)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="not yet tried")
def test_this_python_is_one_that_the_metadata_names():
    named = f'"Programming Language :: Python :: {sys.version_info[0]}.{sys.version_info[1]}"'
    for project in ("pyproject.toml", "paper/pyproject.toml"):
        assert named in (ROOT / project).read_text()
