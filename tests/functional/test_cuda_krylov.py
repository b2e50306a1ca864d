"""The kernels of Krylov columns, their source run as plain C++ with a thread for each of theirs."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from torchldr.functional import cuda_krylov
from torchldr.functional.reference import krylov_of_ring_reference

HEAD = r"""
#include <algorithm>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>
using std::min;
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
struct Three { unsigned x, y, z; };
static thread_local Three blockIdx, threadIdx;
static Three blockDim, gridDim;
static std::unique_ptr<std::barrier<>> block;
static std::vector<std::unique_ptr<std::barrier<>>> warps;
static std::vector<double> slots;
static void __syncthreads() { block->arrive_and_wait(); }
template <class X> static X shuffle(X x, int from) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    slots[threadIdx.x] = x;
    warps[warp]->arrive_and_wait();
    X got = from >= 0 && from < 32 ? (X)slots[warp * 32 + from] : x;
    warps[warp]->arrive_and_wait();
    return got;
}
template <class X> static X __shfl_up_sync(unsigned, X x, int d)
    { return shuffle(x, (int)(threadIdx.x % 32) - d); }
template <class X> static X __shfl_down_sync(unsigned, X x, int d)
    { return shuffle(x, (int)(threadIdx.x % 32) + d); }
"""

TAIL = r"""
__attribute__((aligned(16))) T shared[1 << 14];
template <class F> static void run(int x, int y, int threads, F kernel) {
    blockDim = {(unsigned)threads, 1, 1}; gridDim = {(unsigned)x, (unsigned)y, 1};
    slots.assign(threads, 0);
    for (int j = 0; j < y; j++) for (int i = 0; i < x; i++) {
        block = std::make_unique<std::barrier<>>(threads);
        warps.clear();
        for (int w = 0; w < threads / 32; w++) warps.push_back(std::make_unique<std::barrier<>>(32));
        std::vector<std::thread> all;
        for (int t = 0; t < threads; t++) all.emplace_back([=] {
            blockIdx = {(unsigned)i, (unsigned)j, 0}; threadIdx = {(unsigned)t, 0, 0};
            kernel();
            warps[t / 32]->arrive_and_drop();
            block->arrive_and_drop();
        });
        for (auto& one : all) one.join();
    }
}
typedef const T* In;
extern "C" {
void run_bands(int x, int y, int n, In a, In b, In c, T* B, int m, int t)
    { run(x, y, n, [=] { bands(a, b, c, B, m, t); }); }
void run_chain(int x, int y, int n, In B, In in, T* out, int m, int r, int c, int g, int b, int p, int q,
    int s, int t) { run(x, y, n, [=] { chain(B, in, out, m, r, c, g, b, p, q, s, t); }); }
void run_fill(int x, int y, int n, In a, In b, In c, T* K, int m, int k, int r)
    { run(x, y, n, [=] { fill(a, b, c, K, m, k, r); }); }
void run_local(int x, int y, int n, In a, In b, In c, In dK, T* Z, int m, int k, int r)
    { run(x, y, n, [=] { local(a, b, c, dK, Z, m, k, r); }); }
void run_flow(int x, int y, int n, In a, In b, In c, In K, In dK, In Z, T* P, int m, int k, int r)
    { run(x, y, n, [=] { flow(a, b, c, K, dK, Z, P, m, k, r); }); }
}
"""

Build = Callable[[torch.dtype, int], ctypes.CDLL]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder: Path = tmp_path_factory.mktemp("kernels")
    built: dict[str, ctypes.CDLL] = {}

    def compiled(dtype: torch.dtype, m: int) -> ctypes.CDLL:
        values = cuda_krylov.settings(dtype, m)
        head = "".join(f"#define {key} {value}\n" for key, value in values.items())
        if head not in built:
            source, library = folder / f"{len(built)}.cpp", folder / f"{len(built)}.so"
            source.write_text(head + HEAD + cuda_krylov.SOURCE + TAIL)
            flags = ["-std=c++20", "-O1", "-pthread", "-shared", "-fPIC", "-w"]
            subprocess.run(["g++", *flags, "-o", str(library), str(source)], check=True)
            built[head] = ctypes.CDLL(str(library))
        return built[head]

    return compiled


@pytest.mark.parametrize(
    ("m", "k", "r", "dtype"),
    [
        (1, 2, 2, torch.float32),
        (5, 40, 2, torch.float64),
        (33, 20, 1, torch.float32),
        (100, 36, 2, torch.float32),
        (132, 20, 1, torch.float64),
        (2050, 6, 1, torch.float32),  # eight places a thread in the chain
    ],
)
def test_columns_and_their_gradients(
    build: Build, monkeypatch: pytest.MonkeyPatch, m: int, k: int, r: int, dtype: torch.dtype
) -> None:
    def launch(name: str, like: Tensor, grid: tuple[int, int], arguments: list[Any]) -> None:
        threads = cuda_krylov._chain_threads(m) if name == "chain" else 128
        given = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments]
        build(dtype, m)[f"run_{name}"](*grid, threads, *given)

    monkeypatch.setattr(cuda_krylov, "_launch", launch)
    s = 2 if m < 9 else 1
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=g)
    leaves = [0.9 + 0.02 * draw(s, m), 0.1 * draw(s, m), 0.1 * draw(s, m), draw(s, r, m)]
    leaves, dK = [t.to(dtype).double().requires_grad_() for t in leaves], draw(s, r, k, m)
    want = torch.stack(
        [
            torch.stack(
                [krylov_of_ring_reference(*(t[i] for t in leaves[:3]), v, k).mT for v in leaves[3][i]]
            )
            for i in range(s)
        ]
    )
    exact = torch.autograd.grad(want, leaves, dK, allow_unused=True, materialize_grads=True)
    inputs = [t.detach().to(dtype) for t in leaves]
    K = cuda_krylov.krylov_columns(*inputs, k)
    got = cuda_krylov.krylov_adjoint(*inputs[:3], K, dK.to(dtype))
    bound = 20 * k * torch.finfo(dtype).eps
    assert (K - want).abs().max() <= bound * want.abs().max()
    for a, b in zip(got, exact, strict=True):
        assert (a - b).abs().max() <= 10 * bound * max(1, b.abs().max().item())
