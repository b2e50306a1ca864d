"""ACDC: diagonals between cosine transforms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..algebra.known import KnownDisplacement, Operators
from ..algebra.members import scales_rows
from ..core.choice import fft_multiply_adds
from ..core.contract import Random, Weights
from ..core.matrix import StructuredMatrix, normal_
from ..core.rules import rule
from ..functional.exported.convolution import toeplitz
from ..functional.exported.dense import FormulaProduct
from ..functional.fft import leading
from ..functional.orthogonal import (
    LARGEST_KEPT,
    cosine_matrix,
    cosine_reference,
    cosine_transform,
    inverse_cosine_transform,
)
from ..linalg.solvers import Candidate, formula
from ..operators import Tridiagonal
from ..project.diagonals import Diagonals, best_of
from ..project.problem import Problem, Tensors
from .classical.transforms import DCT2


class ACDC(StructuredMatrix, name="acdc"):
    """ACDC: M = A DCT D DCT^{-1}, the leading m x n part of it.

    DCT is the orthonormal cosine transform (DCT-II) of length N = max(m, n), A and D are diagonal.

    Parameters: `A` (m), `D` (N). Cost: two cosine transforms of length N a vector.

    Reference: Moczulski, Denil, Appleyard, de Freitas, "ACDC: a structured efficient linear layer",
    2016.
    """

    cpu_frozen = 28.0
    cpu_training = 22.0, 16.0, 5e5
    gpu_frozen = 32.0, 9e9
    gpu_training = 50.0, 1.5e9
    projection_work = 1

    ranked = False
    scaled = ("A",)
    also_linear = ("D",)

    @classmethod
    def parameter_shapes(cls, out_features: int, in_features: int, rank: int) -> dict[str, tuple[int, ...]]:
        return {"A": (out_features,), "D": (max(out_features, in_features),)}

    @classmethod
    def init_(
        cls, tensors: Weights, out_features: int, in_features: int, generator: Random = None, **options: Any
    ) -> None:
        # The entries of DCT D DCT^{-1} have a mean square of 1 / N.
        normal_(tensors["D"], 1.0, generator)
        tensors["A"].fill_((max(out_features, in_features) / (3 * in_features)) ** 0.5)

    @classmethod
    def multiply_adds(cls, out_features: int, in_features: int, rank: int, **options: Any) -> float:
        m, n = out_features, in_features
        return 2 * fft_multiply_adds(max(m, n)) + m + max(m, n)

    def fast_in_words(self) -> str:
        return f"2 cosine transforms of length {max(self.shape)} a row"

    def factors(self) -> list[tuple[Tensor, ...]]:
        m, n = self.shape
        C = cosine_reference(max(m, n), self.dtype).to(self.device)
        return [(torch.diag(self.A), C[:m], torch.diag(self.D), C.mT[:, :n])]

    def _materialize(self) -> Tensor:
        m, n = self.shape
        if max(m, n) > LARGEST_KEPT:
            return super()._materialize()
        C = cosine_matrix(max(m, n), self.dtype, self.device)
        return self.A.unsqueeze(-1) * (C[:m] @ (self.D.unsqueeze(-1) * C.mT[:, :n]))

    def _matmul(self, x: Tensor) -> Tensor:
        m, n = self.shape
        spectrum = inverse_cosine_transform(pad(x, (0, max(m, n) - n))) * self.D
        return cosine_transform(spectrum)[..., :m] * self.A

    def _rmatmul(self, y: Tensor) -> Tensor:
        m, n = self.shape
        spectrum = inverse_cosine_transform(pad(y * self.A, (0, max(m, n) - m))) * self.D
        return leading(cosine_transform(spectrum), n)


# Closure.

scales_rows(ACDC, "A")


@rule("known_displacement", ACDC)
def _(M: ACDC) -> KnownDisplacement:
    m, n = M.shape
    if bool((M.A.detach() == 0).any()):
        zero = int((M.A == 0).nonzero()[0])
        raise ValueError(f"ACDC: S = A T A^{{-1}} needs a diagonal A without zeros, but A[{zero}] is 0.")
    T = DCT2(max(m, n), orthonormal=True, dtype=M.dtype, device=M.device).operators().A
    assert isinstance(T, Tridiagonal)
    S = _leading(T, m)
    scaled = Tridiagonal(S.sub * M.A[1:] / M.A[:-1], S.diag, S.super * M.A[:-1] / M.A[1:])
    return KnownDisplacement(Operators(scaled, _leading(T, n)), min(2 if m == n else 3, m, n))


def _leading(T: Tridiagonal, n: int) -> Tridiagonal:
    """The leading n x n part, without corners."""
    return Tridiagonal(T.sub[: n - 1], T.diag[:n], T.super[: n - 1])


# Solving: cosine transforms, as the inverse is of the same form.


@rule("solvers", ACDC)
def _(M: ACDC) -> list[Candidate]:
    def through(b: Tensor) -> Tensor:
        return cosine_transform(inverse_cosine_transform(b) / M.D)

    return [formula("cosine transform", lambda b: through(b / M.A), lambda b: through(b) / M.A)]


# Projection: one diagonal at a time.


@rule("project", ACDC)
def project(problem: Problem, rank: int) -> Tensors:
    m, n = problem.shape
    C = cosine_reference(max(m, n))
    alternation = Diagonals(problem, C[:m], C.mT[:, :n], learn_B=False)
    B = torch.ones(n, dtype=torch.float64)
    starts = [alternation.inverse_start(B), torch.ones(m, dtype=torch.float64)]
    best = best_of(alternation, [(S, B) for S in starts])
    return {"A": best["S"] * best["B"][0], "D": best["D"]}


# In an ONNX graph.


@rule("onnx", ACDC)
def product(mode: str, M: ACDC) -> nn.Module:
    """A C D C^T x for the cosine transform C, the leading m x n part, as one convolution.

    cos(a) cos(b) = (cos(a - b) + cos(a + b)) / 2, so with c_0 = sqrt(1/N), c_k = sqrt(2/N)

        M[i, k] = A_i c_i (t_{i-k} + t_{i+k}) c_k,      t_l = sum_j D_j cos(pi l (2j + 1) / 2N) / 2:

    a Toeplitz product with c x continued evenly to both sides. t_{l + 2N} = -t_l.
    """
    (m, n), (scale, diagonal) = M.shape, (t.detach().double().cpu().numpy() for t in (M.A, M.D))
    N = max(m, n)
    weights = np.full(N, math.sqrt(2 / N))
    weights[0] = math.sqrt(1 / N)
    odd = np.zeros(4 * N)
    odd[1 : 2 * N : 2] = diagonal / 2
    symbol = np.fft.fft(odd).real[np.arange(1 - n, m + n - 1) % (4 * N)]  # t_l by one FFT
    inputs = weights[:n] * np.where(np.arange(n) == 0, 2.0, 1.0)
    before, after = (torch.from_numpy(t).to(M.dtype) for t in (inputs, scale * weights[:m]))
    convolution = toeplitz(mode, symbol[None, None], 2 - 2 * n, 2 * n - 1, m, M.dtype, period=2 * N)
    return FormulaProduct(
        "one convolution", _even_convolution, before=before, convolution=convolution, after=after
    )


def _even_convolution(x: Tensor, before: Tensor, convolution: nn.Module, after: Tensor) -> Tensor:
    x = x * before
    even = torch.cat((x[:, 1:].flip(-1), x), -1).unsqueeze(1)
    return convolution(even).squeeze(1) * after


# In C: two cosine transforms, by Fourier transforms of the same length where it has small factors.
#
# With u_j = v_{2j} for 2j < N and v_{2N-1-2j} else, both cosine transforms of v are Fourier transforms of u
# between twists, and frequencies in the order of their digits need no sorting in between.

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


# In integers: sums of cosines from a table of 2^bits sin(pi j / 2N), j = 0 .. N. work: N
_COSINE = r"""
static int32_t cosine(const int16_t *sines, int32_t N, int32_t k)
{
    k %= 4 * N;
    k = k > 2 * N ? 4 * N - k : k;
    return k <= N ? sines[N - k] : -sines[k - N];
}
"""
_INTEGER = r"""
static void acdc(const int16_t *sines, int32_t first, int32_t m, int32_t n, int32_t N, int32_t zero,
                 const rescaling *between, const rescaling *after, const int8_t *x, OUT *y, int16_t *work)
{
    for (int32_t j = 0; j < N; j++) {
        int32_t sum = first * (x[0] - zero);
        for (int32_t k = 1; k < n; k++)
            sum += cosine(sines, N, k * (2 * j + 1)) * (x[k] - zero);
        work[j] = (int16_t)rescale(between, j, sum);
    }
    for (int32_t k = 0; k < m; k++) {
        int32_t sum = 0;
        for (int32_t j = 0; j < N; j++)
            sum += cosine(sines, N, k * (2 * j + 1)) * work[j];
        y[k] = (OUT)rescale(after, k, sum);
    }
}
"""


@rule("c_integer", ACDC)
def _(M: ACDC, c: Any) -> str:
    (m, n), N = M.shape, max(M.shape)
    bits = min(14, 20 - N.bit_length())
    sines = (torch.arange(N + 1) * (math.pi / (2 * N))).double().sin().mul(2**bits).round()
    turns = torch.arange(N)[:, None] * (2 * torch.arange(N) + 1) % (4 * N)  # k by j
    turns = torch.where(turns > 2 * N, 4 * N - turns, turns)
    cosines = torch.where(turns <= N, sines[(N - turns).clamp(min=0)], -sines[(turns - N).clamp(min=0)])
    inner, first = cosines.mT[:, :n].clone(), round(2**bits * math.sqrt(0.5))
    inner[:, 0] = first
    outer = cosines[:m].contiguous()
    (D, d_scale), (A, a_scale) = c.rows("D"), c.rows("A")
    weight = A * a_scale * d_scale * (2 / N / 4**bits)
    weight[0] *= math.sqrt(0.5)
    z = c.stage(inner, D, sums=outer.abs().sum(1))
    y = c.finish(outer, weight)
    table = c.constant("sines", sines, "int16")
    c.define("cosine", _COSINE)
    acdc = c.function("acdc", _INTEGER, "rescaling")
    c.call(f"{acdc}({table}, {first}, {m}, {n}, {N}, {c.zero}, {z}, {y}, x, y, work);")
    c.scratch16, c.multiplications = N, N * (m + n)
    return "sums of cosines"
