"""Tiny models and a dense oracle for the tests of compression."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
