"""Every CUDA kernel compiles. NVRTC needs no GPU; it comes with torch for CUDA or as nvidia-cuda-nvrtc."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from torchldr.kernels import cuda
from torchldr.kernels.cuda import halves, pair
from torchldr.kernels.cuda import krylov as cuda_krylov
from torchldr.kernels.cuda import scan as scan_kernels

BOTH = False, True
NAMES = "pair", "join", "gradients", "dots"
FORMS = [
    scan_kernels.Form(
        square, shifts, product=product, back=not product, graded=graded, given=given, dense=dense
    )
    for square, shifts, product, graded in itertools.product(BOTH, repeat=4)
    for given, dense in ((torch.float32, torch.bfloat16), (torch.float64, torch.float64))
    if product or not graded
]
FORMS += [scan_kernels.Form(straight=True, back=back) for back in BOTH]
SOURCES = {
    "contract": cuda._CONTRACT,
    **{f"pairs {n}": pair.source(n // 2, torch.bfloat16, NAMES) for n in (2, 60, 1024, 16384, 32768)},
    "halves": halves.SOURCE,
    **{f"krylov {m}": cuda_krylov.source(torch.float32, m) for m in (100, 1024, 4096, 8192)},
    **{f"leaps {m}": cuda_krylov.source(torch.float64, m, cuda_krylov.LEAP) for m in (100, 4096)},
    **{f"scan {form}": scan_kernels.source(form) for form in FORMS},
}


@pytest.mark.parametrize("name", SOURCES)
def test_it_compiles(compile_by_nvrtc: Callable[[str], None], name: str) -> None:
    compile_by_nvrtc(SOURCES[name])
