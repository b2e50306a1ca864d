"""ACDC in C: two cosine transforms, by Fourier transforms of the same length where it has small factors.

With u_j = v_{2j} for 2j < N and v_{2N-1-2j} else, both cosine transforms of v are Fourier transforms of u
between twists, and frequencies in the order of their digits need no sorting in between.
"""

from __future__ import annotations

import math
from typing import Any

from ...core.rules import rule
from . import ACDC

# work: 2 N
_FFT = r"""
static void acdc(const weight *A, const weight *D, float scale, int m, int n, const transform *f,
                 const float *x, float *y, float *work)
{
    int N = f->length;
    float first = sqrtf(0.5f), re, im;
    for (int k = 0; k < N; k++) {
        float value = k < n ? (k ? x[k] : first * x[k]) : 0.0f;
        root(f, k, &re, &im);
        work[2 * k] = value * re;
        work[2 * k + 1] = -value * im;
    }
    fft(f, work);
    for (int p = 0; p < N; p++) {
        int j = 0, weight_of_digit = 1, block = N, left = p;
        for (int i = 0; i < f->stages; i++) {
            block /= f->factors[i];
            j += left / block * weight_of_digit;
            left %= block;
            weight_of_digit *= f->factors[i];
        }
        work[2 * p] *= (float)D[2 * j < N ? 2 * j : 2 * N - 1 - 2 * j];
        work[2 * p + 1] = 0.0f;
    }
    inverse_fft(f, work);
    for (int k = 0; k < m; k++) {
        root(f, k, &re, &im);
        y[k] = scale * (k ? 1.0f : first) * (float)A[k] * (work[2 * k] * re - work[2 * k + 1] * im);
    }
}
"""
# sines: sin(pi j / 2N), j = 0 .. N; work: N
_DIRECT = r"""
static float cosine(const float *sines, int N, int k)
{
    k %= 4 * N;
    k = k > 2 * N ? 4 * N - k : k;
    return k <= N ? sines[N - k] : -sines[k - N];
}

static void acdc_sums(const weight *A, const weight *D, float scale, int m, int n, int N, const float *sines,
                      const float *x, float *y, float *work)
{
    for (int j = 0; j < N; j++) {
        float sum = sqrtf(0.5f) * x[0];
        for (int k = 1; k < n; k++)
            sum += cosine(sines, N, k * (2 * j + 1)) * x[k];
        work[j] = (float)D[j] * sum;
    }
    for (int k = 0; k < m; k++) {
        float sum = 0.0f;
        for (int j = 0; j < N; j++)
            sum += cosine(sines, N, k * (2 * j + 1)) * work[j];
        y[k] = scale * (k ? 1.0f : sqrtf(0.5f)) * (float)A[k] * sum;
    }
}
"""


@rule("c", ACDC)
def _(M: ACDC, c: Any) -> str:
    m, n = M.shape
    N = max(m, n)
    (A, a_scale), (D, d_scale) = c.vector("A"), c.vector("D")
    scale = c.literal(a_scale * d_scale * 2 / N)
    if c.is_smooth(N):
        f, _ = c.transform(N)
        c.define("acdc", _FFT)
        c.call(f"acdc({A}, {D}, {scale}, {m}, {n}, {f}, x, y, work);")
        c.scratch, c.multiplications = 2 * N, 2 * c.fft_cost(N)
        return f"transforms of length {N}"
    sines = c.constant("sines", [math.sin(math.pi * j / (2 * N)) for j in range(N + 1)])
    c.define("acdc_sums", _DIRECT)
    c.call(f"acdc_sums({A}, {D}, {scale}, {m}, {n}, {N}, {sines}, x, y, work);")
    c.scratch, c.multiplications = N, N * (m + n)
    return "sums of cosines"
