"""Every CUDA kernel compiles. NVRTC needs no GPU; it comes with torch for CUDA or as nvidia-cuda-nvrtc."""

from __future__ import annotations

import ctypes
import itertools
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from torchldr.experiments.language import cuda_decoder, cuda_recurrence
from torchldr.experiments.stacked_stage import Sizes
from torchldr.functional import cuda, cuda_krylov, port_cuda, scan_kernels
from torchldr.functional.subdiagonal import cuda_pair

FORMS = [
    scan_kernels.Form(*flags)
    for flags in itertools.product((False, True), repeat=3)
    if not (flags[2] and (flags[0] or flags[1]))  # gradients are asked for along diagonals, forwards
]
SOURCES = {
    "contract": cuda._CONTRACT,
    "pairs": cuda_pair.SOURCE,
    "port": port_cuda.SOURCE,
    "recurrence": cuda_recurrence.head(torch.float32, 128) + cuda_recurrence.SOURCE,
    "decoder": cuda_decoder.head(33278) + cuda_decoder.SOURCE,
    **{f"stage {dtype}": Sizes(6, 16, 14, 14, 5).source(dtype) for dtype in (torch.float32, torch.float64)},
    **{f"krylov {m}": cuda_krylov._source(torch.float32, m) for m in (100, 1024, 4096)},
    **{
        f"scan {dtype} {square} {form}": scan_kernels.source(dtype, square, form)
        for dtype, square, form in itertools.product((torch.float32, torch.float64), (False, True), FORMS)
    },
}


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    found = find_spec("nvidia")
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    for library in (file for folder in folders for file in sorted(folder.glob("*/lib/libnvrtc.so*"))):
        return ctypes.CDLL(str(library))
    pytest.skip("NVRTC is not installed")


@pytest.mark.parametrize("name", SOURCES)
def test_it_compiles(nvrtc: ctypes.CDLL, name: str) -> None:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = SOURCES[name].encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80")
    code = nvrtc.nvrtcCompileProgram(program, len(options), options)
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert code == 0, log.value.decode()
