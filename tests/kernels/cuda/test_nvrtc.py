"""Every CUDA kernel compiles. NVRTC needs no GPU; it comes with torch for CUDA or as nvidia-cuda-nvrtc."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from torchldr.functional.subdiagonal import cuda_pair
from torchldr.kernels import cuda
from torchldr.kernels.cuda import krylov as cuda_krylov
from torchldr.kernels.cuda import port as port_cuda
from torchldr.kernels.cuda import scan as scan_kernels

FORMS = [
    scan_kernels.Form(*flags)
    for flags in itertools.product((False, True), repeat=3)
    if not (flags[2] and (flags[0] or flags[1]))  # gradients are asked for along diagonals, forwards
]
SOURCES = {
    "contract": cuda._CONTRACT,
    "pairs": cuda_pair.SOURCE,
    "port": port_cuda.SOURCE,
    **{f"krylov {m}": cuda_krylov._source(torch.float32, m) for m in (100, 1024, 4096)},
    **{
        f"scan {dtype} {square} {form}": scan_kernels.source(dtype, square, form)
        for dtype, square, form in itertools.product((torch.float32, torch.float64), (False, True), FORMS)
    },
}


@pytest.mark.parametrize("name", SOURCES)
def test_it_compiles(compile_by_nvrtc: Callable[[str], None], name: str) -> None:
    compile_by_nvrtc(SOURCES[name])
