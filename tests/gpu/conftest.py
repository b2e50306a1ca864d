"""Tests that need a CUDA device: elsewhere none of them is collected."""

from pathlib import Path

import pytest
import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py", "*/test_*.py", "*/*/test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent.as_posix()
    for item in items:
        if item.path.as_posix().startswith(here):
            item.add_marker(pytest.mark.gpu)
