"""LDR-SD on a GPU: the kernels, run as C++, against the definition."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from torchldr import LDRSubdiagonal
from torchldr.functional.subdiagonal import cuda_pair
from torchldr.matrices.ldr_sd.routes import sides

HEAD = """
#define __global__
#define __device__
#define __forceinline__ inline
#define __align__(n)
struct Three { int x, y, z; };
static Three blockIdx, blockDim, threadIdx, gridDim;
"""


def member(n: int, rank: int, spread: float = 0.02, seed: int = 0) -> LDRSubdiagonal:
    """A member with corners, its scales within the range of a float32 convolution."""
    draw = torch.Generator().manual_seed(seed)
    M = LDRSubdiagonal.random(n, n, rank=rank, generator=draw)
    with torch.no_grad():
        for side in "AC":
            M.tensors[f"subdiagonal_{side}"].uniform_(1 - spread, 1 + spread, generator=draw)
            M.tensors[f"corner_{side}"].uniform_(-1, 1, generator=draw)
    return M


def test_what_it_does_not_take() -> None:
    assert cuda_pair.why_not(*sides(member(64, 1))) == "for GPUs"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels' source, its threads run one after the other."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder: Path = tmp_path_factory.mktemp("kernels")
    tail = """
#define RUN(name, parameters, arguments) extern "C" void run_##name parameters { \\
    blockDim.x = 8; gridDim.y = rows; \\
    for (blockIdx.y = 0; blockIdx.y < rows; blockIdx.y++) \\
        for (blockIdx.x = 0; blockIdx.x * 8 < h; blockIdx.x++) \\
            for (threadIdx.x = 0; threadIdx.x < 8; threadIdx.x++) name arguments; }
RUN(enter, (const float* x, const float* f, const float* s, const Z* t, Z* o, int h, int rows),
    (x, f, s, t, o, h))
RUN(spread, (const Z* U, const Z* right, Z* o, int r, int h, int rows), (U, right, o, r, h))
RUN(scale, (const Z* t, const float* w, Z* z, int r, int h, int rows), (t, w, z, r, h))
RUN(gather, (const Z* w, const Z* S, const Z* left, Z* o, int r, int h, int rows), (w, S, left, o, r, h))
RUN(leave, (const Z* y, const Z* z, const Z* t, const float* P, const float* a, float* o, int h, int rows),
    (y, z, t, P, a, o, h))
"""
    (folder / "pairs.cpp").write_text(HEAD + cuda_pair.SOURCE + tail)
    command = ["g++", "-O1", "-shared", "-fPIC", "-o", str(folder / "pairs.so"), str(folder / "pairs.cpp")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "pairs.so"))


@pytest.fixture
def kernels(compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(name: str, like: torch.Tensor, arguments: list[object]) -> None:
        given = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int(a)  # type: ignore[arg-type]
            for a in (*arguments, like.shape[-2])
        ]
        compiled[f"run_{name}"](*given)

    monkeypatch.setattr(cuda_pair, "_launch", launch)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize(("n", "rank"), [(2, 1), (30, 3), (64, 1), (500, 4)])
def test_it_is_the_product(n: int, rank: int, batch: int) -> None:
    M = member(n, rank)
    x = torch.randn(batch, n, generator=torch.Generator().manual_seed(1))
    exact = x.double() @ M.to(torch.float64).to_dense().mT
    got = cuda_pair.matmul(cuda_pair.prepare(*sides(M)), x)
    assert (got - exact).abs().max() <= 1e-6 * n**0.5 * exact.abs().max().clamp(min=1e-3)


@pytest.mark.usefixtures("kernels")
def test_rows_do_not_meet() -> None:
    K, x = cuda_pair.prepare(*sides(member(64, 2))), torch.randn(4, 64)
    alone = cuda_pair.matmul(K, x)
    wild = x * torch.tensor([torch.nan, 1.0, 1e6, 1.0]).unsqueeze(1)
    assert torch.equal(cuda_pair.matmul(K, wild)[[1, 3]], alone[[1, 3]])
