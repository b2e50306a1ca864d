"""Convolution, ReLU and pooling for all replicas: torch's operations, and the kernels as C++ against them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu

from torchldr_paper.models import stage as stacked_stage
from torchldr_paper.models.stage import Sizes, plain_stage, stage

Compile = Callable[[str, str], ctypes.CDLL]

WRAPPERS = """
Real shared[1 << 15];
extern "C" Real* all_shared() { return shared; }
#define GRID int x, int y, int threads
typedef unsigned char Byte;
extern "C" void run_stage_forward(GRID, Real* a, Real* w, Real* b, Real* out, Byte* at, int several) {
    run(x, y, threads, [=] { stage_forward(a, w, b, out, at, several); });
}
extern "C" void run_stage_image(GRID, Real* u, Byte* at, Real* w, Real* dx) {
    run(x, y, threads, [=] { stage_image(u, at, w, dx); });
}
extern "C" void run_stage_filters(
    GRID, Real* a, Real* u, Byte* at, Real* each, int several, int splits
) {
    run(x, y, threads, [=] { stage_filters(a, u, at, each, several, splits); });
}
"""

# (R, b, c, h, w), o, q: the stages of the CNN in small, odd ends, channels in groups of 1 to 4.
SHAPES = [
    ((1, 2, 1, 6, 8), 6, 5),
    ((3, 2, 6, 4, 4), 16, 5),
    ((2, 2, 3, 5, 7), 4, 3),
    ((2, 1, 5, 2, 3), 7, 1),
    ((1, 1, 4, 7, 2), 2, 5),
]


def operands(shape: tuple[int, ...], o: int, q: int, R: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    b, c, h, w = shape[1:]
    shapes = shape, (R, o, c, q, q), (R, o), (R, b, o, h // 2, w // 2)
    x, weight, bias, u = (torch.randn(*s, dtype=torch.float64, generator=g) for s in shapes)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), u


def assert_alike(got: Tensor, want: Tensor, leaves: tuple[Tensor, ...], u: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    found, expected = (torch.autograd.grad(y, leaves, u) for y in (got, want))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("shape", "o", "q"), SHAPES)
@pytest.mark.parametrize("R", [1, 3])
def test_every_replica_has_its_filters(shape: tuple[int, ...], o: int, q: int, R: int) -> None:
    shape = (1 if shape[0] == 1 else R, *shape[1:])
    x, weight, bias, u = operands(shape, o, q, R)
    xs = x.expand(R, *shape[1:])
    want = [max_pool2d(relu(conv2d(xs[i], weight[i], bias[i], padding=q // 2)), 2) for i in range(R)]
    assert_alike(stage(x, weight, bias), torch.stack(want), (x, weight, bias), u)


@pytest.fixture
def kernels(compile_kernels: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of float64 on the CPU go through the kernels."""

    def launch(
        source: str, name: str, device: object, grid: tuple[int, ...], threads: int, given: list, shared: int
    ) -> None:
        assert all(t.is_contiguous() for t in given if isinstance(t, Tensor))
        library = compile_kernels(source, WRAPPERS)
        library.all_shared.restype = ctypes.POINTER(ctypes.c_double * (1 << 15))
        block = np.frombuffer(library.all_shared().contents)
        block[:] = np.nan  # nothing may be read before it is written, nor anything written behind the end
        values = [ctypes.c_void_p(t.data_ptr()) if isinstance(t, Tensor) else t for t in given]
        getattr(library, f"run_{name}")(*grid[:2], threads, *values)
        assert np.isnan(block[shared // 8 :]).all()

    monkeypatch.setattr(stacked_stage, "launch", launch)
    monkeypatch.setattr(stacked_stage, "_MOST_THREADS", 40)  # so that a thread has several squares


@pytest.mark.parametrize(("shape", "o", "q"), SHAPES)
@pytest.mark.parametrize("alone", [False, True])
def test_kernels(kernels: None, shape: tuple[int, ...], o: int, q: int, alone: bool) -> None:
    shape = (1, *shape[1:]) if alone else shape
    *leaves, u = operands(shape, o, q, R=1 if alone else max(2, shape[0]))
    assert_alike(stacked_stage._Stage.apply(*leaves), plain_stage(*leaves), tuple(leaves), u)


def test_what_is_no_number_stays_none(kernels: None) -> None:
    x, weight, bias, _ = operands((2, 1, 1, 6, 6), 2, 3, R=2)
    with torch.no_grad():
        x[1, 0, 0, 3, 3] = torch.nan
        torch.testing.assert_close(
            stacked_stage._Stage.apply(x, weight, bias), plain_stage(x, weight, bias), equal_nan=True
        )


@pytest.mark.parametrize(
    ("channels", "side", "back", "fits"),
    [
        (3, 32, True, True),
        (6, 16, True, True),
        (3, 76, True, False),
        (3, 76, False, True),
        (6, 1, True, False),
        (64, 16, False, False),
    ],
)
def test_what_fits_a_block(channels: int, side: int, back: bool, fits: bool) -> None:
    assert Sizes(channels, 16, side, side, 5).fit((99 << 10) // 4, back=back) == fits


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "o"), [((1, 50, 3, 32, 32), 6), ((12, 50, 6, 14, 14), 16), ((2, 3, 6, 9, 5), 16)]
)
def test_on_a_gpu(shape: tuple[int, ...], o: int, dtype: torch.dtype) -> None:
    x, weight, bias, u = operands(shape, o, 5, R=max(2, shape[0]))
    want = plain_stage(x, weight, bias)
    expected = torch.autograd.grad(want, (x, weight, bias), u)
    leaves = [t.detach().to("cuda", dtype).requires_grad_() for t in (x, weight, bias)]
    got = stage(*leaves)
    found = torch.autograd.grad(got, leaves, u.to(got))
    exact = dtype == torch.float64
    assert (got.cpu() - want).norm() <= (1e-12 if exact else 1e-5) * want.norm()
    for mine, theirs in zip(found, expected, strict=True):
        # In float32 a few of the 470,400 squares have another largest output than in float64.
        assert (mine.cpu() - theirs).norm() <= (1e-12 if exact else 5e-3) * theirs.norm()
