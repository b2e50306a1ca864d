"""The compiled FFT and its ring: spectra multiply as polynomials modulo X^{2N} + 1 do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchldr.kernels.cpu import compiled

if compiled.why_not():
    pytest.skip(compiled.why_not(), allow_module_level=True)
from torchldr.kernels.cpu import fft

sizes = st.integers(4, 11).map(lambda power: 1 << power)
dtypes = st.sampled_from(["float32", "float64"])


def bound(dtype, n, *factors):
    """50 eps (1 + log2 n) times the size of a product of the factors."""
    eps = np.finfo(dtype).eps
    return 50 * eps * (1 + np.log2(n)) * np.prod([np.linalg.norm(factor) for factor in factors])


@settings(max_examples=30)
@given(n=sizes, dtype=dtypes, seed=st.integers(0, 99))
def test_transform(n, dtype, seed):
    z = np.random.default_rng(seed).standard_normal((2, n))
    exact = np.fft.fft(z[0] + 1j * z[1])
    spare = np.empty(2 * n, dtype)
    got = fft.transform(z.ravel().astype(dtype), spare, fft.tables(n, dtype)[1])[0]
    assert np.abs(got[:n] + 1j * got[n:] - exact).max() <= bound(dtype, n, z)


@settings(max_examples=30)
@given(n=sizes, dtype=dtypes, seed=st.integers(0, 99))
def test_spectra_multiply_modulo_x_to_the_2n_plus_1(n, dtype, seed):
    v, w = np.random.default_rng(seed).standard_normal((2, 2 * n))
    tables = fft.tables(n, dtype)
    hats = [fft.analyse(x.astype(dtype), np.empty(2 * n, dtype), *tables)[0] for x in (v, w)]
    assert np.abs(hats[0] - fft.spectra(v, n, "float64")).max() <= bound(dtype, n, v)

    def back(combine, out):
        combine(*hats, out)
        return fft.synthesise(out, np.empty(2 * n, dtype), *tables)[0] / n

    full = np.convolve(v, w)
    exact = full[: 2 * n] - np.append(full[2 * n :], 0)
    assert np.abs(back(fft.add_product, np.zeros(2 * n, dtype)) - exact).max() <= bound(dtype, n, v, w)
    # The transposed skew-circulant matrix of w: sum_i v_i w_{i-j}, with a sign where i < j.
    full = np.convolve(v, w[::-1])
    exact = full[2 * n - 1 :] - np.append(0, full[: 2 * n - 1])
    for combine, out in (
        (fft.multiply, np.empty(2 * n, dtype)),
        (fft.add_correlation, np.zeros(2 * n, dtype)),
    ):
        assert np.abs(back(combine, out) - exact).max() <= bound(dtype, n, v, w)
