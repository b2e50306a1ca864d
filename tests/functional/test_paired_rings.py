"""LDR-SD of batches as complex pairs: the plain form against the definition, the kernels against that."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from torchldr import LDRSubdiagonal
from torchldr.functional import paired_rings

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


def prepared(M: LDRSubdiagonal) -> paired_rings.PairedRings:
    assert paired_rings.fits(M._side("A"), M._side("C"))
    return paired_rings.prepare(M._side("A"), M._side("C"))


@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize(("n", "rank"), [(1, 1), (2, 1), (15, 3), (64, 1), (500, 4)])
def test_it_is_the_product(n: int, rank: int, batch: int) -> None:
    M = member(n, rank)
    x = torch.randn(batch, n, generator=torch.Generator().manual_seed(1))
    exact = x.double() @ M.to(torch.float64).to_dense().mT
    got = paired_rings.plain_matmul(prepared(M), x)
    assert (got - exact).abs().max() <= 1e-6 * n**0.5 * exact.abs().max().clamp(min=1e-3)


def test_what_it_does_not_take() -> None:
    side = lambda M, name: M._side(name)
    wide = LDRSubdiagonal.random(8, 16, rank=1)
    assert not paired_rings.fits(side(wide, "A"), side(wide, "C"))
    prime = member(1021, 1, 0.001)
    assert not paired_rings.fits(side(prime, "A"), side(prime, "C"))
    steep = member(64, 1)
    steep.tensors["subdiagonal_A"].fill_(0.5)
    assert not paired_rings.fits(side(steep, "A"), side(steep, "C"))
    exact = member(64, 1).to(torch.float64)
    assert not paired_rings.fits(side(exact, "A"), side(exact, "C"))
    assert not paired_rings.serves(torch.ones(4, 8))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels' source, its threads run one after the other."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder: Path = tmp_path_factory.mktemp("kernels")
    tail = """
#define RUN(name, parameters, arguments) extern "C" void run_##name parameters { \\
    blockDim.x = 8; gridDim.y = pairs; \\
    for (blockIdx.y = 0; blockIdx.y < pairs; blockIdx.y++) \\
        for (blockIdx.x = 0; blockIdx.x * 8 < n; blockIdx.x++) \\
            for (threadIdx.x = 0; threadIdx.x < 8; threadIdx.x++) name arguments; }
RUN(pair, (const float* x, const float* P, const Z* t, Z* o, int b, int n, int pairs), (x, P, t, o, b, n))
RUN(spread, (const Z* U, const Z* right, Z* o, int r, int n, int pairs), (U, right, o, r, n))
RUN(turn_back, (const Z* t, Z* v, int r, int n, int pairs), (t, v, r, n))
RUN(gather, (const Z* w, const Z* S, const Z* left, Z* o, int r, int n, int pairs), (w, S, left, o, r, n))
RUN(part, (const Z* y, const Z* v, const Z* t, const float* P, float* o, int b, int n, int pairs),
    (y, v, t, P, o, b, n))
"""
    (folder / "pairs.cpp").write_text(HEAD + paired_rings.SOURCE + tail)
    command = ["g++", "-O1", "-shared", "-fPIC", "-o", str(folder / "pairs.so"), str(folder / "pairs.cpp")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "pairs.so"))


@pytest.mark.parametrize("batch", [2, 7])
@pytest.mark.parametrize(("n", "rank"), [(15, 3), (64, 1)])
def test_kernels(
    compiled: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, n: int, rank: int, batch: int
) -> None:
    def launch(name: str, like: torch.Tensor, arguments: list[object]) -> None:
        given = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_int(a)  # type: ignore[arg-type]
            for a in (*arguments, like.shape[-2])
        ]
        compiled[f"run_{name}"](*given)

    monkeypatch.setattr(paired_rings, "_launch", launch)
    K, x = prepared(member(n, rank)), torch.randn(batch, n)
    torch.testing.assert_close(
        paired_rings.matmul(K, x), paired_rings.plain_matmul(K, x), rtol=1e-5, atol=1e-5
    )
