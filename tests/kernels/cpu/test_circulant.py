"""Products with grids of circulant blocks in C, and their gradients, against dense matrices in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from torchldr import testing
from torchldr.kernels.cpu import circulant, library

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))

# p, q, s, m, n, entries of a column, where they start
GRIDS = [
    (1, 1, 32, 32, 32, 32, 0),
    (1, 1, 64, 41, 7, 64, 0),
    (1, 1, 256, 1, 255, 200, 31),
    (2, 3, 32, 64, 96, 32, 0),
    (3, 2, 64, 131, 127, 50, 49),
    (1, 4, 128, 128, 512, 128, 5),
    (2, 2, 32, 20, 20, 32, 0),  # blocks without a row and without a column
    (1, 1, 1024, 1024, 1024, 1024, 0),
]


def dense(columns: Tensor, size: int, start: int, m: int, n: int) -> Tensor:
    """The definition."""
    i, columns = torch.arange(size), pad(columns, (0, size - columns.shape[-1]))
    blocks = columns[..., (i.unsqueeze(1) - i + start) % size]
    return blocks.transpose(-3, -2).flatten(-2).flatten(-3, -2)[..., :m, :n]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("grid", GRIDS)
def test_values_and_gradients(
    grid: tuple[int, ...], lead: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q, s, m, n, count, start = grid
    draw = torch.Generator().manual_seed(s)
    columns, x, u = (
        torch.randn(*lead, *shape, generator=draw, dtype=torch.float64).to(dtype)
        for shape in ((p, q, count), (3, n), (3, m))
    )
    spectra = circulant.spectra(columns, s, start)
    y = circulant.product(spectra, x, m)
    dcolumns, dx = circulant.backward(u, x, spectra, count, start)
    assert dx is not None
    assert torch.equal(circulant.product(spectra, u, n, transposed=True), dx)
    exact = [t.double().requires_grad_() for t in (columns, x)]
    right = exact[1] @ dense(exact[0], s, start, m, n).mT
    sizes = [t.double().abs().requires_grad_() for t in (columns, x)]
    size = sizes[1] @ dense(sizes[0], s, start, m, n).mT
    bound = testing.tolerance(dtype, max(m, n))
    assert (y - right).abs().max() <= bound * size.max()
    wanted = torch.autograd.grad(right, exact, u.double())
    of = torch.autograd.grad(size, sizes, u.double().abs())
    for got, gradient, at_most in zip((dcolumns, dx), wanted, of, strict=True):
        assert got is not None
        assert got.shape == gradient.shape
        assert (got - gradient).abs().max() <= bound * at_most.max()

    monkeypatch.setattr("torchldr.kernels.cpu.threads.WORTHWHILE", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert torch.equal(circulant.product(spectra, x, m), y)
    together = circulant.backward(u, x, spectra, count, start)
    for got, one in zip(together, (dcolumns, dx), strict=True):
        assert torch.allclose(got, one, rtol=0, atol=float(bound * of[0].max()))


def test_one_gradient_alone() -> None:
    columns, x, u = torch.randn(2, 2, 32), torch.randn(3, 50), torch.randn(3, 60)
    spectra = circulant.spectra(columns, 32)
    both = circulant.backward(u, x, spectra, 32)
    assert circulant.backward(u, x, spectra, 32, columns=False)[0] is None
    assert torch.equal(circulant.backward(u, x, spectra, 32, columns=False)[1], both[1])
    assert torch.equal(circulant.backward(u, x, spectra, 32, vectors=False)[0], both[0])
    assert circulant.backward(u, x, spectra, 32, vectors=False)[1] is None


def test_no_rows() -> None:
    spectra = circulant.spectra(torch.randn(1, 1, 32), 32)
    assert circulant.product(spectra, torch.empty(0, 32), 32).shape == (0, 32)
    dcolumns, dx = circulant.backward(torch.empty(0, 32), torch.empty(0, 32), spectra, 32)
    assert dcolumns.count_nonzero() == 0
    assert dx.shape == (0, 32)
