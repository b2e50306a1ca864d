"""Every CUDA kernel of the experiments compiles; see the library's test of the same name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchldr_paper.language import recurrence
from torchldr_paper.models.stage import Sizes

SOURCES = {
    "recurrence": recurrence.head(torch.float32, 128) + recurrence.SOURCE,
    **{f"stage {dtype}": Sizes(6, 16, 14, 14, 5).source(dtype) for dtype in (torch.float32, torch.float64)},
}


@pytest.mark.parametrize("name", SOURCES)
def test_it_compiles(compile_by_nvrtc: Callable[[str], None], name: str) -> None:
    compile_by_nvrtc(SOURCES[name])
