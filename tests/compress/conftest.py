"""Tiny models and a dense oracle for the tests of compression."""

from __future__ import annotations

import signal

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def interruptible():
    """Programs that a test starts can be interrupted, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
