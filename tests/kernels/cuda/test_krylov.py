"""The kernels of Krylov columns, their source run as plain C++ its threads taking turns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.kernels.cuda import krylov as cuda_krylov

BANDS = r"""
typedef const T* In;
extern "C" void run_bands(int x, int y, int n, In rings, T* B, int m, int r, int t)
    { run(x, y, n, [=] { bands(rings, B, m, r, t); }); }
"""
LEAPS = r"""
extern "C" void run_leap(int x, int y, int n, In B, In from, T* to, int m, int r, int v, int add)
    { run(x, y, n, [=] { leap(B, from, to, m, r, v, add); }); }
"""
CHAIN = r"""
extern "C" void run_chain(int x, int y, int n, In B, In in, In start, T* out, int m, int r, int c, int z,
    int g, int b, int p, int q, int s, int t, int u)
    { run(x, y, n, [=] { chain(B, in, start, out, m, r, c, z, g, b, p, q, s, t, u); }); }
"""
COLUMNS = r"""
extern "C" {
void run_fill(int x, int y, int n, In rings, T* K, int m, int k, int r)
    { run(x, y, n, [=] { fill(rings, K, m, k, r); }); }
void run_local(int x, int y, int n, In rings, In dK, T* Z, int m, int k, int r)
    { run(x, y, n, [=] { local(rings, dK, Z, m, k, r); }); }
void run_flow(int x, int y, int n, In rings, In K, In dK, In Z, T* P, int m, int k, int r)
    { run(x, y, n, [=] { flow(rings, K, dK, Z, P, m, k, r); }); }
}
"""

Build = Callable[[torch.dtype, int, int | None], ctypes.CDLL]


@pytest.fixture(scope="module")
def build(compile_kernels: Callable[[str, str], ctypes.CDLL]) -> Build:
    def compiled(dtype: torch.dtype, m: int, steps: int | None) -> ctypes.CDLL:
        source = cuda_krylov.source(dtype, m, steps)
        chain = CHAIN if " chain(" in source else ""
        return compile_kernels(source, f"T shared[1 << 14];\n{BANDS}{LEAPS if steps else chain + COLUMNS}")

    return compiled


@pytest.fixture
def nothing_cached() -> Iterator[None]:
    """The functions that remember what depends on sizes, which tests change."""
    cached = cuda_krylov.source, cuda_krylov.chunk_length
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("nothing_cached")
@pytest.mark.parametrize(
    ("m", "k", "r", "dtype"),
    [
        (1, 2, 2, torch.float32),
        (5, 40, 2, torch.float64),  # in two launches
        (36, 75, 2, torch.float32),  # groups of one chunk
        (150, 150, 1, torch.float64),  # groups of two, the last of one and a part
        (150, 160, 2, torch.float64),
        (68, 68, 2, torch.float32),  # no chain: from chunk to chunk
        (129, 40, 2, torch.float64),
        (33, 20, 1, torch.float32),
        (100, 36, 2, torch.float32),
        (132, 20, 1, torch.float64),
        (1030, 3, 1, torch.float32),  # chunks of 8 steps
        (2050, 2, 1, torch.float32),  # and of 4
    ],
)
def test_columns_and_their_gradients(
    build: Build, monkeypatch: pytest.MonkeyPatch, m: int, k: int, r: int, dtype: torch.dtype
) -> None:
    def launch(
        name: str,
        like: Tensor,
        grid: tuple[int, int],
        arguments: list[Any],
        steps: int | None = None,
        times: int = 1,
        moves: tuple[int, ...] = (),
    ) -> None:
        threads = cuda_krylov._chain_threads(m) if name == "chain" else 128
        given = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
        for _ in range(times):
            build(dtype, m, steps)[f"run_{name}"](*grid, threads, *map(ctypes.c_void_p, given))
            given = [a + by for a, by in zip_longest(given, moves, fillvalue=0)]

    monkeypatch.setattr(cuda_krylov, "_launch", launch)
    monkeypatch.setattr(cuda_krylov, "LEAP", 16)
    monkeypatch.setattr(cuda_krylov, "GROUPED", 4)
    if m == 5:
        monkeypatch.setattr(cuda_krylov, "VECTORS", r)  # one operator at a time
    if m in (68, 129):
        monkeypatch.setattr(cuda_krylov, "IN_REGISTERS", 64)
    s = 2 if m < 9 else 1
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=g)
    rings = torch.cat(
        (0.1 * draw(s, 1, m), 0.9 + 0.02 * draw(s, 1, m), 0.1 * draw(s, 1, m), draw(s, r, m)), 1
    )
    rings, dK = rings.to(dtype).double().requires_grad_(), draw(s, r, k, m)
    want = torch.stack(
        [
            torch.stack([krylov_of_ring_reference(lower, diagonal, upper, v, k).mT for v in V])
            for upper, lower, diagonal, *V in rings
        ]
    )
    (exact,) = torch.autograd.grad(want, rings, dK)
    given = rings.detach().to(dtype)
    K = cuda_krylov.krylov_columns(given, k)
    got = cuda_krylov.krylov_adjoint(given, K, dK.to(dtype))
    bound = 20 * k * torch.finfo(dtype).eps
    assert (K - want).abs().max() <= bound * want.abs().max()
    assert ((got - exact).abs().amax(-1) <= 10 * bound * exact.abs().amax(-1).clamp(min=1)).all()


@pytest.mark.parametrize(("gigabytes", "most"), [(139, cuda_krylov.MOST), (8, 1 << 27)])
def test_small_devices_hold_fewer_entries(gigabytes: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(total_memory=gigabytes << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert cuda_krylov.most.__wrapped__() == most
