"""Small leaves for the tests of the port product."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torchldr_paper.ports import series


@pytest.fixture(scope="module")
def small_leaves() -> Iterator[None]:
    """Port products with leaves of 32 indices, so that small operators have several levels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(series, "LEAF", 32)
        yield
