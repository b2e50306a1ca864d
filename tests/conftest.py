"""Shared fixtures: hypothesis draws the same examples every time on CI, new ones elsewhere."""

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("torchldr", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("torchldr")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
