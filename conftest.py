"""Shared fixtures: seeds, processes, CUDA sources as C++; hypothesis draws the same every time on CI."""

import contextlib
import ctypes
import gc
import importlib.util
import logging
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import settings

settings.register_profile("torchldr", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("torchldr")

# Processes of the tests are forks of one that has imported these, which takes seconds: see `started`.
multiprocessing.set_forkserver_preload(["torch", "torch._dynamo", "torchldr"])
FORKS = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"

# To seed a device that is not there keeps a stack trace, a millisecond in each torch.manual_seed.
for devices in (torch.cuda, torch.xpu, torch.mtia):
    if not devices.is_available():
        devices.manual_seed_all = lambda seed: None

# torch.compile collects garbage after each of its programs.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

# Modules that need an extra are not looked through for examples without it.
collect_ignore = [] if importlib.util.find_spec("transformers") else ["src/torchldr/hf.py"]


def hasten(loaded: dict[str, ModuleType]) -> None:
    """What torch's compiler and exporter do for each program, and need not: half of the time of small ones.

    Guards are timed, behind a cache that is emptied first. Each decomposition looks through all operators
    of torch, 31 times.
    """
    guards, utils = loaded.get("torch._dynamo.guards"), loaded.get("torch._export.utils")
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0
    if hasattr(utils, "_materialize_cpp_cia_ops"):
        utils._materialize_cpp_cia_ops = cache(utils._materialize_cpp_cia_ops)


def pytest_collection_finish() -> None:
    """Imported and collected objects stay: searching them for garbage takes a third of a second.

    Other objects are searched less often than by default. Together this saves a twentieth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    hasten(sys.modules)


def pytest_runtest_logstart() -> None:
    """torch's loggers pass on to the root what they say, a few warnings, and have no ears of their own.

    pytest listens to every logger that does not pass on, six times in each test. torch has forty of them, and
    one writes down all that torch.compile does as soon as anybody listens.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if f"{name}.".startswith("torch.") and isinstance(logger, logging.Logger) and not logger.propagate:
            logger.propagate, logger.handlers = True, []


@pytest.fixture(autouse=True)
def seeded():
    """As `torch.manual_seed`, which keeps a stack trace for each device that was not used yet."""
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


@pytest.fixture
def no_data_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No dataset is found in the places where the user may have some."""
    monkeypatch.delenv("TORCHLDR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def interruptible():
    """Programs that a test starts can be interrupted, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def started():
    """A context in which code runs in a process of its own, that finds `names`; killed at the end.

    It is a fork of a process that has imported torch and torchldr and has done nothing else.
    """

    @contextlib.contextmanager
    def start(code: str, **names: Any) -> Iterator[BaseProcess]:
        head = "import os; os.environ.clear(); os.environ.update(environment)\n"
        names |= {"__name__": "__main__", "environment": dict(os.environ)}
        process = multiprocessing.get_context(FORKS).Process(target=exec, args=(head + code, names))
        process.start()
        try:
            yield process
        finally:
            process.kill()
            process.join()

    return start


@pytest.fixture
def spawned_as_forks(monkeypatch: pytest.MonkeyPatch):
    """Processes that our code spawns have imported torch before; they are told the same things."""
    context = multiprocessing.get_context(FORKS)

    def get_context(method: str):
        assert method == "spawn"
        return context

    monkeypatch.setattr("multiprocessing.get_context", get_context)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """Run a command of `torchldr`: (exit code, stdout, stderr)."""
    from torchldr import cli

    def run(*arguments: object) -> tuple[int | str | None, str, str]:
        with pytest.raises(SystemExit) as exit:
            cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return exit.value.code, captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def mutations():
    """A function of a file's bytes and a number: so many damaged versions of it, the same ones each time.

    Single bits, mostly; bytes set to 0, blocks of 0, what is cut off, doubled, exchanged and put behind.
    """

    def damaged(content: bytes, count: int):
        draw, size = random.Random(0), len(content)
        for index in range(count):
            # Half of them near the beginning, where headers are.
            at = draw.randrange(min(size, 1500)) if index % 2 else draw.randrange(size)
            to, changed = min(size, at + draw.randrange(1, 100)), bytearray(content)
            match index % 12:
                case 1:
                    changed[at] = 0
                case 3:
                    changed[at:to] = bytes(to - at)
                case 5:
                    del changed[at:]
                case 6:
                    del changed[at:to]
                case 7:
                    changed[at:at] = changed[at:to]
                case 9:
                    changed[at:to] = reversed(changed[at:to])
                case 10:
                    changed += content[at:to]
                case _:
                    changed[at] ^= 1 << draw.randrange(8)
            yield bytes(changed)

    return damaged


@pytest.fixture(scope="session")
def torchlib_once() -> Iterator[None]:
    """torch reads its tables of operators for every ONNX file that it writes, a second each: here once."""
    if importlib.util.find_spec("onnxscript") is None:
        yield
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture
def full_disk():
    """A context in which no file can become larger than so many bytes, as on a disk that is full."""
    resource = pytest.importorskip("resource")

    @contextlib.contextmanager
    def full(most: int):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return full


CUDA_AS_CPP = r"""
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>
template <class X> static X min(X a, X b) { return a < b ? a : b; }
static float exp(float x) { return expf(x); }
static float tanh(float x) { return tanhf(x); }
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ __attribute__((aligned(32)))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
#define __expf expf
struct Three { unsigned x, y, z; };
static Three blockIdx, threadIdx, blockDim, gridDim;
struct Fiber { ucontext_t first; jmp_buf here; char* stack; bool begun, done; };
static Fiber fibers[1024];
static jmp_buf scheduler;
static void (*body)(const void*);
static const void* captured;
static void leave() { if (!_setjmp(fibers[threadIdx.x].here)) _longjmp(scheduler, 1); }
static __attribute__((noinline)) void resume(Fiber& one) {
    if (_setjmp(scheduler)) return;
    if (one.begun) _longjmp(one.here, 1);
    one.begun = true;
    setcontext(&one.first);
}
struct Barrier {
    int size, waiting = 0, round = 0;
    void open_if_all() { if (size && waiting == size) { waiting = 0; round++; } }
    void wait() { int mine = round; waiting++; open_if_all(); while (round == mine) leave(); }
    void drop() { size--; open_if_all(); }
};
static Barrier block;
static Barrier warps[32];
static double slots[1024];
static float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
static unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
static void __syncthreads() { block.wait(); }
template <class X> static X shuffle(X x, int from) {
    int warp = threadIdx.x / 32;
    slots[threadIdx.x] = x;
    warps[warp].wait();
    X got = from >= 0 && from < 32 ? (X)slots[warp * 32 + from] : x;
    warps[warp].wait();
    return got;
}
template <class X> static X __shfl_up_sync(unsigned, X x, int d)
    { return shuffle(x, (int)(threadIdx.x % 32) - d); }
template <class X> static X __shfl_down_sync(unsigned, X x, int d)
    { return shuffle(x, (int)(threadIdx.x % 32) + d); }
static void start() {
    body(captured);
    warps[threadIdx.x / 32].drop();
    block.drop();
    fibers[threadIdx.x].done = true;
    _longjmp(scheduler, 1);
}
template <class F> static void run(int x, int y, int threads, F kernel) {
    blockDim = {(unsigned)threads, 1, 1}; gridDim = {(unsigned)x, (unsigned)y, 1};
    const size_t size = 1 << 16;
    body = [](const void* kernel) { (*(const F*)kernel)(); };
    captured = &kernel;
    for (int j = 0; j < y; j++) for (int i = 0; i < x; i++) {
        blockIdx = {(unsigned)i, (unsigned)j, 0};
        block = {threads};
        for (int w = 0; 32 * w < threads; w++) warps[w] = {min(32, threads - 32 * w)};
        for (int t = 0; t < threads; t++) {
            Fiber& one = fibers[t];
            if (!one.stack) one.stack = (char*)malloc(size);
            one.begun = one.done = false;
            getcontext(&one.first);
            one.first.uc_stack.ss_sp = one.stack; one.first.uc_stack.ss_size = size;
            makecontext(&one.first, start, 0);
        }
        // Forwards and backwards in turn: threads that do not wait for each other should notice.
        for (int left = threads, turn = 0; left; turn++) for (int k = 0; k < threads; k++) {
            unsigned t = turn % 2 ? threads - 1 - k : k;
            if (fibers[t].done) continue;
            threadIdx = {t, 0, 0};
            resume(fibers[t]);
            left -= fibers[t].done;
        }
    }
}
"""


@pytest.fixture(scope="session")
def compile_kernels(tmp_path_factory):
    """CUDA source as plain C++, its threads taking turns: each runs until it waits for others.

    A function of the source and of wrappers: C functions that call `run(x, y, threads, kernel)`, behind the
    definition of the array `shared`. Returns the library.
    """
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder, built = tmp_path_factory.mktemp("kernels"), {}

    def compiled(source: str, wrappers: str) -> ctypes.CDLL:
        text = CUDA_AS_CPP + source + wrappers
        if text not in built:
            cpp, library = folder / f"{len(built)}.cpp", folder / f"{len(built)}.so"
            cpp.write_text(text)
            # Fortified, as some systems compile by default, longjmp refuses to go from one stack to another.
            # The headers are those of C: <math.h> of C++ takes as long to read as a kernel to compile.
            flags = ["-std=c++20", "-O1", "-U_FORTIFY_SOURCE", "-D_GLIBCXX_INCLUDE_NEXT_C_HEADERS"]
            flags += ["-shared", "-fPIC", "-w"]
            subprocess.run(["g++", *flags, "-o", str(library), str(cpp)], check=True)
            built[text] = ctypes.CDLL(str(library))
        return built[text]

    return compiled


@pytest.fixture(scope="session")
def compile_by_nvrtc():
    """A function that compiles CUDA source by NVRTC, which needs no GPU, and fails with its log."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    libraries = [file for folder in folders for file in sorted(folder.glob("*/lib/libnvrtc.so*"))]
    if not libraries:
        pytest.skip("NVRTC is not installed")
    nvrtc = ctypes.CDLL(str(libraries[0]))

    def compiled(source: str) -> None:
        program, size = ctypes.c_void_p(), ctypes.c_size_t()
        created = nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None
        )
        assert created == 0
        options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80")
        code = nvrtc.nvrtcCompileProgram(program, len(options), options)
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
        assert code == 0, log.value.decode()

    return compiled


@pytest.fixture(scope="session")
def load_script():
    """A function of a file under the checkout's root: the module that it is."""

    def load(file: str) -> ModuleType:
        path = Path(__file__).resolve().parent / file
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
