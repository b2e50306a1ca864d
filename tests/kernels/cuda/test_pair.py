"""The kernels of the circulant pair, run as plain C++, against their formula in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchldr.functional.subdiagonal.pair import PAIR, growth
from torchldr.kernels.cuda import nvrtc, pair

from ...cuda_as_cpp import compiler

TAIL = """
#undef KERNEL
#define KERNEL(name, ...) extern "C" void run_##name(int gx, int gy, int gz, int threads, void** of) { \\
    run(gx, gy, gz, threads, [&] { name(__VA_ARGS__); }); \\
}
#define P(type, i) (type*)of[i]
#define I(i) (int)(long long)of[i]
#define CONSTANTS_FROM(i) P(float, i), P(float, i + 1), P(Z, i + 2), P(Z, i + 3), P(Z, i + 4)
#if MAKE_pair
KERNEL(pair, P(X, 0), CONSTANTS_FROM(1), P(Z, 6), P(X, 7), I(8), I(9), I(10))
#endif
#if MAKE_join
KERNEL(join, P(X, 0), CONSTANTS_FROM(1), P(Z, 6), P(X, 7), I(8), I(9), I(10))
#endif
#if MAKE_gradients
KERNEL(gradients, P(X, 0), P(X, 1), CONSTANTS_FROM(2), P(Z, 7), P(Z, 8), P(X, 9), I(10), I(11))
#endif
#if MAKE_dots
KERNEL(dots, P(Pair, 0), P(Pair, 1), P(Pair, 2), P(Pair, 3), P(Z, 4), I(5))
#endif
"""


@pytest.fixture
def on_host(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launches run as plain C++, with two multiprocessors."""
    compiled = compiler(tmp_path_factory.getbasetemp(), TAIL)

    class Kernels:
        def __init__(self, source: str, launches: Any, shared: int = 0) -> None:
            plain = source.replace("extern __shared__ Z shared[];", "static Z shared[1 << 16];")
            self.library, self.launches = compiled(plain), launches

        def queue(self, device: torch.device, arguments: Any) -> None:
            words = [a if isinstance(a, int) else a.data_ptr() for a in arguments]
            for name, grid, threads in self.launches:
                getattr(self.library, f"run_{name}")(*grid, threads, (ctypes.c_void_p * len(words))(*words))

    def launch(source: str, name: str, device: Any, grid: Any, threads: int, arguments: Any) -> None:
        Kernels(source, [(name, grid, threads)]).queue(device, arguments)

    monkeypatch.setattr(nvrtc, "Kernels", Kernels)
    monkeypatch.setattr(nvrtc, "launch", launch)
    monkeypatch.setattr(pair, "_blocks", lambda h, device: 2)
    monkeypatch.setattr(pair, "_keeps", lambda h, device: h != 1000)
    pair._kernels.cache_clear()
    pair._launches.cache_clear()
    yield
    pair._kernels.cache_clear()
    pair._launches.cache_clear()


def spectra_in_order(spectra: torch.Tensor) -> torch.Tensor:
    return spectra[:, pair.order(spectra.shape[-1], spectra.device)].contiguous()


@pytest.mark.parametrize("n", [2, 60, 1000, 2000, 16384, 32768])
@pytest.mark.parametrize(("rows", "r"), [(5, 1), (1, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_and_gradients(on_host: None, n: int, rows: int, r: int, dtype: torch.dtype) -> None:
    h, device = n // 2, torch.device("cpu")
    P = torch.rand(2, n, dtype=torch.float64) + 0.5
    right, left = torch.randn(2, r + 1, h, dtype=torch.complex128) / n
    D = growth(n, torch.float64, device)
    K = pair.Constants(
        P[0].float(),
        P[1].float(),
        pair.tables(h, device),
        spectra_in_order(right.to(torch.complex64)),
        spectra_in_order(left.to(torch.complex64)),
    )
    x, dy = torch.randn(2, rows, n).to(dtype)
    scalings = torch.stack((P[0] * D, P[0], 1 / D, P[1] * D, P[1]))
    given = [
        t.requires_grad_()
        for t in (x.double(), scalings, *(torch.cat((s.real, s.imag), -1) for s in (left, right)))
    ]
    y = PAIR.plain(*given, False)
    found = pair.multiply(K, x)
    close = 3e-6 if dtype == torch.float32 else 4e-3
    assert (found - y).norm() / y.norm() < close
    dx, _, dleft, dright = torch.autograd.grad(y, given, dy.double())
    got = pair.gradients(K, x, found, dy)
    assert (got.x - dx).norm() / dx.norm() < close
    for mine, theirs in zip(got.spectra, (dleft, dright), strict=True):
        back = torch.empty_like(mine)
        back[:, pair.order(h, device)] = mine
        exact = torch.complex(*theirs.chunk(2, -1))
        assert (back - exact).norm() / exact.norm() < 3e-6
    products = torch.stack(((dy.double() * y).sum(0), (x.double() * dx).sum(0)))
    assert (got.products - products).norm() / products.norm() < close


def test_rows_at_odd_places(on_host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view may begin between two numbers, of which `dots` reads pairs: a GPU stops there."""
    n, rows, h = 16, 3, 8
    device = torch.device("cpu")
    right, left = torch.randn(2, 2, h, dtype=torch.complex64)
    K = pair.Constants(torch.ones(n), torch.ones(n), pair.tables(h, device), right, left)
    x, dy = torch.randn(2, rows, n)
    want = pair.gradients(K, x, x, dy)
    launch, seen = nvrtc.launch, list[int]()

    def watched(source: str, name: str, *rest: Any) -> None:
        seen.extend(t.data_ptr() % 8 for t in rest[-1] if not isinstance(t, int))
        launch(source, name, *rest)

    monkeypatch.setattr(nvrtc, "launch", watched)
    odd = [torch.cat((torch.zeros(1), t.flatten()))[1:].view(rows, n) for t in (x, dy)]
    got = pair.gradients(K, odd[0], odd[0], odd[1])
    assert seen
    assert not any(seen)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)
