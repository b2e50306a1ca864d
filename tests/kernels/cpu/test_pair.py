"""Products by pairs of circulant matrices in C, against dense matrices in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchldr import testing
from torchldr.kernels.cpu import library, pair

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))


def drawn(n: int, r: int, lead: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Scalings, and left and right vectors of skew-circulant matrices."""
    draw = torch.Generator().manual_seed(n + r)
    options = {"generator": draw, "dtype": torch.float64}
    scalings = 1 + torch.rand(*lead, 5, n, **options)
    return scalings, torch.randn(*lead, r + 1, n, **options), torch.randn(*lead, r + 1, n, **options)


def spectra(v: Tensor) -> Tensor:
    """Modulo X^n + 1: real parts, then imaginary parts."""
    N = v.shape[-1] // 2
    angle = torch.arange(N, dtype=torch.float64) * (torch.pi / (2 * N))
    found = torch.fft.fft(torch.complex(v[..., :N], v[..., N:]) * torch.polar(torch.ones_like(angle), angle))
    return torch.cat((found.real, found.imag), -1)


def skew(v: Tensor) -> Tensor:
    """The skew-circulant matrices with these first columns."""
    n = v.shape[-1]
    lag = torch.arange(n).unsqueeze(-1) - torch.arange(n)
    return torch.where(lag < 0, -1.0, 1.0) * v[..., lag % n]


def dense(scalings: Tensor, left: Tensor, right: Tensor) -> Tensor:
    enter, beside, between, leave, aside = scalings.unbind(-2)
    L, R, N = skew(left), skew(right).mT, left.shape[-1] // 2
    inner = (L[..., :-1, :, :] * between[..., None, None, :]) @ R[..., :-1, :, :]
    M = inner.sum(-3) * N**2 * enter.unsqueeze(-2) + L[..., -1, :, :] * N * beside.unsqueeze(-2)
    return M * leave.unsqueeze(-1) + aside.unsqueeze(-1) * R[..., -1, :, :] * N * enter.unsqueeze(-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lead", [(), (3,)])
@pytest.mark.parametrize(("n", "r", "b"), [(32, 1, 1), (64, 3, 4), (128, 1, 2), (256, 2, 3), (512, 1, 1)])
def test_products_with_the_matrix_and_its_transpose(
    n: int, r: int, b: int, lead: tuple[int, ...], dtype: torch.dtype
) -> None:
    scalings, left, right = drawn(n, r, lead)
    M, size = dense(scalings, left, right), dense(scalings, left.abs(), right.abs()).abs()
    constants = [t.to(dtype) for t in (scalings, spectra(left), spectra(right))]
    x = torch.randn(*lead, b, n, dtype=dtype)
    for transposed, matrix, of in ((False, M.mT, size.mT), (True, M, size)):
        y = pair.product(*constants, x, transposed=transposed)
        assert y.shape == x.shape
        # The transforms' errors are relative to the whole rows.
        bound = testing.tolerance(dtype, n) * (
            x.double().norm(dim=-1).max() * torch.linalg.matrix_norm(of).max()
        )
        assert (y - x.double() @ matrix).abs().max() <= bound / n**0.5
        assert (y - x.double() @ matrix).norm() <= 1e-4 * y.norm()


def test_threads_share_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    scalings, left, right = drawn(64, 2, (2,))
    constants, x = (scalings, spectra(left), spectra(right)), torch.randn(2, 5, 64, dtype=torch.float64)
    alone = pair.product(*constants, x)
    monkeypatch.setattr("torchldr.kernels.cpu.threads.WORTHWHILE", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert torch.equal(pair.product(*constants, x), alone)
