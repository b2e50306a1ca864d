"""Circulant matrices, and grids of circulant blocks, in C: Fourier transforms or sums, what is cheaper."""

from __future__ import annotations

from typing import Any

from ...core.rules import rule
from . import Circulant

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


@rule("c", Circulant)
def _(M: Circulant, c: Any) -> str:
    return circulant_grid(M, c, 1, 1, max(M.shape))


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
