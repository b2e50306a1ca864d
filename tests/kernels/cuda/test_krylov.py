"""The kernels of Krylov columns, their source run as plain C++ its threads taking turns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchldr.functional.reference import krylov_of_ring_reference
from torchldr.kernels.cuda import krylov as cuda_krylov

WRAPPERS = r"""
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
def build(compile_kernels: Callable[[str, str], ctypes.CDLL]) -> Build:
    def compiled(dtype: torch.dtype, m: int) -> ctypes.CDLL:
        values = cuda_krylov.settings(dtype, m)
        head = "".join(f"#define {key} {value}\n" for key, value in values.items())
        return compile_kernels(head + cuda_krylov.SOURCE, f"T shared[1 << 14];\n{WRAPPERS}")

    return compiled


@pytest.mark.parametrize(
    ("m", "k", "r", "dtype"),
    [
        (1, 2, 2, torch.float32),
        (5, 40, 2, torch.float64),
        (33, 20, 1, torch.float32),
        (100, 36, 2, torch.float32),
        (132, 20, 1, torch.float64),
        (1030, 3, 1, torch.float32),  # more places than threads in the chain
        (2050, 2, 1, torch.float32),  # eight places a thread in the chain
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
