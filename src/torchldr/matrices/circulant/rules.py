"""Rules of circulant matrices: closure, exact conversion, solving, and their products in ONNX and in C."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ...algebra.convert import convert
from ...algebra.known import KnownDisplacement
from ...algebra.members import like, linear_in_its_tensor, opposite_shifts, shift, units
from ...algebra.multiply import multiply
from ...algebra.structure import DisplacementStructure, Generators
from ...core.linear_map import LinearMap
from ...core.matrix import StructuredMatrix
from ...core.rules import apply, rule
from ...functional import circulant_blocks
from ...functional.exported.convolution import numbers, toeplitz
from ...functional.exported.dense import FormulaProduct
from ...functional.exported.transforms import Array
from ...functional.prepared import Prepared
from ...linalg.solvers import Candidate, formula
from ...operators import same
from ..classical.families import Toeplitz
from ..ldr_td import LDRTridiagonal
from ..ldr_td.rules import shift_parts, tridiagonal
from ..toeplitz_like import ToeplitzLike
from ..toeplitz_like.rules import of_displacement
from . import Circulant

# Closure.

linear_in_its_tensor(Circulant)


def reversed_column(column: Tensor) -> Tensor:
    """c_{-i}: the first column of a circulant matrix's transpose."""
    return column.flip(-1).roll(1, -1)


@rule("transpose", Circulant)
def _(M: Circulant) -> Circulant:
    column = reversed_column(M.column)
    return Circulant.unchecked(M.in_features, M.out_features, {"column": column}, M.options)


@rule("matmul", Circulant, Circulant)
def _(M: Circulant, N: Circulant) -> Circulant | None:
    """Crops of whole circulant matrices multiply as those where nothing is cropped between them."""
    size = M.in_features
    whole = size == max(M.shape) == max(N.shape) == max(M.out_features, N.in_features)
    if not whole or M.dtype != N.dtype:
        return None
    full = Circulant.unchecked(size, size, M.tensors, M.options)
    return Circulant.unchecked(M.out_features, N.in_features, {"column": full.matmul(N.column)}, M.options)


@rule("inverse", Circulant)
def _(M: Circulant) -> Circulant:
    """The inverse's first column solves for the first unit vector."""
    return like(M, column=apply("solve", M, b=units(M.out_features, [0], M).mT).squeeze(-1))


@rule("displacement_structure", Circulant)
def _(M: Circulant) -> DisplacementStructure:
    """A whole circulant matrix commutes with Z_1; a cropped one breaks that in its first row or column."""
    m, n = M.shape

    def make() -> Generators:
        c = M.column
        if m > n:
            return (c - c.roll(n)).unsqueeze(0), units(n, [0], M)
        if m < n:
            row = reversed_column(c)
            return units(m, [0], M), (row - row.roll(m)).unsqueeze(0)
        return c.new_zeros(0, m), c.new_zeros(0, n)

    return DisplacementStructure(shift(m, 1.0, M), shift(n, 1.0, M).T, "stein", int(m != n), make)


@rule("member", Circulant)
def _(M: LinearMap, known: DisplacementStructure) -> Circulant | None:
    m, n = M.shape
    Z = shift(m, 1.0, M)
    if m != n or known.form != "stein" or known.rank or not (same(known.A, Z) and same(known.B, Z.T)):
        return None
    return Circulant(m, n, column=multiply(M, units(n, [0], M)[0]))


@rule("known_displacement", Circulant)
def _(M: Circulant) -> KnownDisplacement:
    m, n = M.shape
    return KnownDisplacement(opposite_shifts(M), 1 if m == n else min(2, m, n))


# A circulant matrix as a member of classes that contain it.


@rule("to_ldr_td", Circulant)
def _(M: Circulant, tol: float | None) -> LDRTridiagonal:
    (m, n), column = M.shape, M.column
    one = units(min(m, n), [0], M)
    if m >= n:  # K_n(Z_1, column) is the matrix itself, K_n(Z_0, e_0) the identity
        return tridiagonal(column.unsqueeze(0), one, shift_parts(column, 1.0), shift_parts(one))
    row = reversed_column(column).unsqueeze(0)
    return tridiagonal(one, row, shift_parts(one), shift_parts(row, 1.0))


@rule("to_toeplitz_like", Circulant)
def _(M: Circulant, tol: float | None) -> StructuredMatrix:
    (m, n), column = M.shape, M.column
    if m != n:
        return convert(Toeplitz(column[:m], reversed_column(column)[:n]), ToeplitzLike)
    return of_displacement(2 * column.unsqueeze(0), units(n, [0], M))


# Solving: two FFTs.


@rule("solvers", Circulant)
def _(M: Circulant) -> list[Candidate]:
    spectrum = torch.fft.rfft(M.column)
    n = M.in_features
    by_fft = formula(
        "fft",
        lambda b: torch.fft.irfft(torch.fft.rfft(b) / spectrum, n),
        lambda b: torch.fft.irfft(torch.fft.rfft(b) / spectrum.conj(), n),
    )
    return [by_fft]


# In an ONNX graph.

_SMALL_BLOCK = 64  # circulant blocks up to here may take the DFT matrix itself


def circulant_product(kind: str, column: Tensor, m: int, n: int, dtype: torch.dtype) -> nn.Module:
    """A grid of circulant blocks (rows, columns, b), cropped to m x n, in the form with fewer constants."""
    values = column.detach().double().cpu().numpy()
    long = _long_blocks(kind, values, m, n, dtype)
    if values.shape[-1] > _SMALL_BLOCK:
        return long
    return min(_short_blocks(values, m, dtype), long, key=numbers)


def _long_blocks(kind: str, column: Array, m: int, n: int, dtype: torch.dtype) -> nn.Module:
    rows, columns, b = column.shape
    taken, given = (n if columns == 1 else b), (m if rows == 1 else b)
    symbol = column[..., np.arange(1 - taken, given) % b]
    convolution = toeplitz(kind, symbol, 1 - taken, taken, given, dtype)
    return FormulaProduct("convolutions", _convolved, convolution=convolution, grid=column.shape, m=m)


def _convolved(x: Tensor, convolution: nn.Module, grid: tuple[int, int, int], m: int) -> Tensor:
    rows, columns, b = grid
    y = convolution(_cut(x, columns, b) if columns > 1 else x.unsqueeze(1))
    return y.squeeze(1) if rows == 1 else y.flatten(1)[:, :m]


def _cut(x: Tensor, columns: int, b: int) -> Tensor:
    return pad(x, (0, columns * b - x.shape[-1])).reshape(-1, columns, b)


def _short_blocks(column: Array, m: int, dtype: torch.dtype) -> nn.Module:
    """The DFT of every block by its matrix, and a matrix product for every frequency."""
    rows, columns, b = column.shape
    F = b // 2 + 1  # frequencies
    turns = np.exp(-2j * math.pi / b * (np.outer(np.arange(b), np.arange(F)) % b))
    both = np.stack((turns, 1j * turns), 1)  # j, copy, f
    weights = np.where((np.arange(F) == 0) | (2 * np.arange(F) == b), 1.0, 2.0) / b
    back = np.stack((turns.real, turns.imag)) * weights  # parts, j, f; the conjugate's real part
    spectra = np.fft.rfft(column).transpose(2, 1, 0)  # (f, columns, rows)
    constants = {
        "analysis": np.stack((both.real, both.imag), 2).reshape(b, 4 * F),  # j, copy, parts, f
        "synthesis": back.transpose(0, 2, 1).reshape(2 * F, b),
        "spectra": np.stack((spectra.real, spectra.imag), 1).reshape(F, 2 * columns, rows),
    }
    parts = {name: torch.from_numpy(values).to(dtype) for name, values in constants.items()}
    return FormulaProduct("DFT matrices of the blocks", _by_dft_matrices, **parts, b=b, m=m)


def _by_dft_matrices(
    x: Tensor, spectra: Tensor, analysis: Tensor, synthesis: Tensor, b: int, m: int
) -> Tensor:
    F, columns, rows = spectra.shape[0], spectra.shape[1] // 2, spectra.shape[2]
    values = (_cut(x, columns, b) @ analysis).reshape(-1, columns, 2, 2, F).permute(4, 0, 3, 2, 1)
    y = (values.reshape(F, -1, 2 * columns) @ spectra).reshape(F, -1, 2, rows)
    return (y.permute(1, 3, 2, 0).reshape(-1, rows, 2 * F) @ synthesis).reshape(-1, rows * b)[:, :m]


@rule("onnx", Circulant)
def product(mode: str, M: Circulant) -> nn.Module:
    return circulant_product(mode, M.column[None, None], M.out_features, M.in_features, M.dtype)


# In C: Fourier transforms or sums, what is cheaper.

_DIRECT = r"""
/* A grid of circulant blocks of b x b, cropped to m x n; a scale for each row of blocks. */
static void circulant(const weight *column, const float *scale, int columns, int b, int m, int n,
                      const float *x, float *y)
{
    for (int i = 0; i < m; i++) {
        const weight *block = column + i / b * columns * b;
        float sum = 0.0f;
        for (int j = 0; j < n; j += b, block += b) {
            int own = i % b, width = n - j < b ? n - j : b;
            for (int l = 0; l < width; l++)
                sum += (float)block[own >= l ? own - l : own - l + b] * x[j + l];
        }
        y[i] = SCALE(scale, i / b) * sum;
    }
}
"""
# work: twice the length, for each column of blocks and two more
_FFT = r"""
static void circulant_fft(const weight *column, const float *scale, int rows, int columns, int b, int m,
                          int n, const transform *f, const float *x, float *y, float *work)
{
    int full = 2 * f->length;
    float *sum = work + columns * full, *a = sum + full;
    zero(work, columns * full);
    for (int j = 0; j < n; j++)
        work[j / b * full + place(f, j % b)] = x[j];
    for (int j = 0; j < columns; j++)
        analyse(f, work + j * full);
    for (int i = 0; i < rows; i++) {
        zero(sum, full);
        for (int j = 0; j < columns; j++, column += b) {
            zero(a, full);
            for (int l = 0; l < b; l++)
                a[place(f, l)] = (float)column[l];
            analyse(f, a);
            add_products(f->length, a, work + j * full, sum);
        }
        synthesise(f, sum);
        for (int l = 0; l < b && i * b + l < m; l++) {
            float around = b + l < full ? sum[place(f, b + l)] : 0.0f;
            y[i * b + l] = SCALE(scale, i) * (sum[place(f, l)] + around);
        }
    }
}
"""


rule("c", Circulant)(lambda M, c: circulant_grid(M, c, 1, 1, max(M.shape)))


def circulant_grid(M: Any, c: Any, rows: int, columns: int, b: int) -> str:
    """Write the product of a grid of blocks with the tensor `column`."""
    m, n = M.shape
    column, scale = c.weights("column")
    length = (b + min(n, b)) // 2
    by_fft = (rows * columns + rows + columns) * c.fft_cost(length)
    if by_fft < m * n:
        c.define("circulant_fft", _FFT, "zero", "convolution")
        f, found = c.transform(length)
        c.call(f"circulant_fft({column}, {scale}, {rows}, {columns}, {b}, {m}, {n}, {f}, x, y, work);")
        c.scratch, c.multiplications = (columns + 2) * 2 * found, by_fft
        return f"transforms of length {2 * found}"
    c.define("circulant", _DIRECT)
    c.call(f"circulant({column}, {scale}, {columns}, {b}, {m}, {n}, x, y);")
    c.multiplications = m * n
    return "sums"


_INTEGER = r"""
/* A grid of circulant blocks of b x b, cropped to m x n; columns are stored backwards. */
static void circulant(const int8_t *column, int32_t columns, int32_t b, int32_t m, int32_t n,
                      const rescaling *after, const int8_t *x, OUT *y)
{
    for (int32_t i = 0; i < m; i++) {
        const int8_t *block = column + i / b * columns * b;
        int32_t sum = 0, own = i % b;
        for (int32_t j = 0; j < n; j += b, block += b) {
            int32_t width = n - j < b ? n - j : b, upper = own + 1 < width ? own + 1 : width;
            sum += dot8(block + b - 1 - own, x + j, upper);
            sum += dot8(block, x + j + upper, width - upper);
        }
        y[i] = (OUT)rescale(after, i, sum);
    }
}
"""


rule("c_integer", Circulant)(lambda M, c: integer_grid(M, c, 1, 1, max(M.shape)))


def integer_grid(M: Any, c: Any, rows: int, columns: int, b: int) -> str:
    """Write the product of a grid of blocks with the tensor `column` in integers."""
    m, n = M.shape
    integers, scales = c.rounded(M.column)
    column = c.constant("column", integers.reshape(rows, columns, b).flip(-1))
    places = (torch.arange(b)[:, None] - torch.arange(b)) % b
    blocks = integers.reshape(rows, columns, b)[..., places]  # (rows, columns, b, b)
    matrix = blocks.transpose(1, 2).reshape(rows * b, columns * b)[:m, :n]
    unit = scales.expand(rows).repeat_interleave(b)[:m]
    y = c.finish(matrix.contiguous(), unit, fold=True)
    circulant = c.function("circulant", _INTEGER, "dot8", "rescaling")
    c.call(f"{circulant}({column}, {columns}, {b}, {m}, {n}, {y}, x, y);")
    c.multiplications = m * n
    return "sums"


# Frozen.


@rule("frozen", Circulant)
def _(M: Circulant, bias: Tensor | None) -> Prepared:
    return circulant_blocks.frozen(M.column, M.out_features)
