"""The compiled FFT, by the spectra that products take of it, against torch's in float64."""

from __future__ import annotations

import pytest
import torch

from torchldr.kernels.cpu import convolution, library
from torchldr.kernels.cpu.tables import half_length

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=str(library.why_not()))


def spectra(v: torch.Tensor, N: int) -> torch.Tensor:
    """Of real polynomials modulo X^2N + 1 in float64: real parts, then imaginary parts."""
    padded = torch.nn.functional.pad(v.double(), (0, 2 * N - v.shape[-1]))
    angle = torch.arange(N, dtype=torch.float64) * (torch.pi / (2 * N))
    twisted = torch.complex(padded[..., :N], padded[..., N:]) * torch.polar(torch.ones_like(angle), angle)
    found = torch.fft.fft(twisted)
    return torch.cat((found.real, found.imag), -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("power", range(4, 15))
def test_spectra_of_every_length(power: int, dtype: torch.dtype) -> None:
    N = 1 << power
    for m in (2 * N - 1, N, N // 2 + 1):
        V = torch.randn(2, m, generator=torch.Generator().manual_seed(power), dtype=torch.float64).to(dtype)
        found = convolution.hats(V, torch.ones(m + 2, dtype=dtype), 2 * N - m, m)
        assert found.shape == (2, 2 * N)
        bound = 10 * torch.finfo(dtype).eps * power * V.double().norm(dim=-1).max()
        assert (found.double() - spectra(V, N)).abs().max() <= bound


def test_lengths() -> None:
    for count in (1, 31, 32, 33, 2047, 2048, 2049):
        N = half_length(count)
        assert count <= 2 * N
        assert N & (N - 1) == 0
        assert N == 16 or count > N


def test_what_is_not_a_number_stays_in_its_row() -> None:
    V = torch.ones(3, 100)
    V[1, 50] = torch.nan
    found = convolution.hats(V, torch.ones(102), 100, 100)
    assert found[1].isnan().all()
    assert found[::2].isfinite().all()


def test_denormal_numbers_are_zero_inside_and_stay_outside() -> None:
    tiny = torch.full((1, 64), 1e-310, dtype=torch.float64)
    profile = torch.ones(66, dtype=torch.float64)
    assert convolution.hats(tiny, profile, 64, 64).count_nonzero() == 0
    assert (tiny * 1.0).count_nonzero() == 64
