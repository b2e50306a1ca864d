"""CUDA kernels as plain C++: the threads of a block take turns, each runs until all have to meet."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

HEAD = """
#include <ucontext.h>
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __align__(bytes)
#define __launch_bounds__(...)
#define __shared__ static
struct Three { int x, y, z; };
static Three blockIdx, gridDim, threadIdx;
static ucontext_t between_, threads_[1024];
static char stacks_[1024][1 << 16];
static bool done_[1024];
static void* kernel_;
static void __syncthreads() { swapcontext(&threads_[threadIdx.x], &between_); }
"""
RUN = """
template <class Kernel> static void enter_() { (*(Kernel*)kernel_)(); done_[threadIdx.x] = true; }
template <class Kernel> static void block(int threads, Kernel kernel) {
    kernel_ = &kernel;
    for (int i = 0; i < threads; i++) {
        done_[i] = false;
        getcontext(&threads_[i]);
        threads_[i].uc_stack.ss_sp = stacks_[i];
        threads_[i].uc_stack.ss_size = sizeof(stacks_[i]);
        threads_[i].uc_link = &between_;
        makecontext(&threads_[i], enter_<Kernel>, 0);
    }
    for (bool left = true; left;) {
        left = false;
        for (int i = 0; i < threads; i++)
            if (!done_[i]) { left = true; threadIdx = {i, 0, 0}; swapcontext(&between_, &threads_[i]); }
    }
}
template <class Kernel> static void run(int gx, int gy, int gz, int threads, Kernel kernel) {
    gridDim = {gx, gy, gz};
    for (blockIdx.z = 0; blockIdx.z < gz; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gy; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gx; blockIdx.x++) block(threads, kernel);
}
"""


def compiler(folder: Path, tail: str) -> Callable[[str], ctypes.CDLL]:
    """A function that compiles sources, followed by `tail`, whose functions call `run`."""

    @cache
    def compiled(source: str) -> ctypes.CDLL:
        stem = folder / hashlib.sha256(source.encode()).hexdigest()
        file, library = stem.with_suffix(".cpp"), stem.with_suffix(".so")
        file.write_text(HEAD + source + RUN + tail)
        flags = ["-std=c++17", "-O0", "-Werror=narrowing", "-shared", "-fPIC"]
        subprocess.run(["g++", *flags, file, "-o", library], check=True)
        return ctypes.CDLL(str(library))

    return compiled
