/* The body of pair.c, for one type.
 *
 *     M = leave (sum_{i < r} T(left_i) between T(right_i)^T enter + T(left_r) beside) + aside T(right_r)^T enter
 *
 * for diagonal scalings (5, n): enter, beside, between, leave, aside; T(v) is the skew-circulant matrix of size
 * n = 2N that has the spectrum v. M^T is of the same form, with left and right, enter and leave, beside and aside
 * exchanged. Spectra are those of spectrum.h, (r + 1, n), with factors 1 / N as far as inverses want them.
 */
#include "spectrum.h"

LDR_INLINE void NAMED(scaled)(const REAL *restrict x, const REAL *restrict by, REAL *restrict out, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        out[j] = x[j] * by[j];
}

LDR_INLINE void NAMED(add_scaled)(const REAL *restrict x, const REAL *restrict by, REAL *restrict out, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        out[j] += x[j] * by[j];
}

/* From what an inverse transform left in a to the spectrum of its product with `by`. */
LDR_INLINE REAL *NAMED(between)(REAL *a, REAL *spare, const REAL *restrict by, int64_t N, const REAL *tables)
{
    const REAL *restrict c = tables, *restrict s = tables + N;
    REAL *restrict im = a, *restrict re = a + N;
#pragma omp simd
    for (int64_t j = 0; j < N; j++) {
        REAL u = by[j] * (re[j] * c[j] + im[j] * s[j]), v = by[N + j] * (im[j] * c[j] - re[j] * s[j]);
        im[j] = u * c[j] - v * s[j]; /* now the real part */
        re[j] = u * s[j] + v * c[j];
    }
    return NAMED(ldr_transform)(a, spare, N, tables);
}

/* Rows start to stop of y = M x, or of M^T x; rows are those of all matrices of a stack, b of each.
 *
 * scratch: 5 n numbers. */
LDR_API LDR_CLONES void NAMED(ldr_pair)(const REAL *x, REAL *y, const REAL *scalings, const REAL *left,
                                        const REAL *right, const REAL *tables, REAL *scratch, int64_t b, int64_t n,
                                        int64_t r, int64_t transposed, int64_t start, int64_t stop)
{
    ldr_mode before = ldr_flush();
    int64_t N = n / 2;
    REAL *a = scratch, *spare = a + n, *c = spare + n, *total = c + n;
    for (int64_t row = start; row < stop; row++) {
        const REAL *in = x + row * n, *of = scalings + row / b * 5 * n, *between = of + 2 * n;
        const REAL *enter = transposed ? of + 3 * n : of, *beside = transposed ? of + 4 * n : of + n;
        const REAL *leave = transposed ? of : of + 3 * n, *aside = transposed ? of + n : of + 4 * n;
        const REAL *l = (transposed ? right : left) + row / b * (r + 1) * n;
        const REAL *h = (transposed ? left : right) + row / b * (r + 1) * n;
        REAL *out = y + row * n;
        NAMED(scaled)(in, beside, a, n);
        SWAPPED(NAMED(analyse), a, spare, n, N, tables);
        NAMED(multiply)(a, l + r * n, total, N);
        NAMED(scaled)(in, enter, a, n);
        SWAPPED(NAMED(analyse), a, spare, n, N, tables);
        for (int64_t i = 0; i < r; i++) {
            NAMED(correlate)(a, h + i * n, c, N);
            SWAPPED(NAMED(ldr_transform), c, spare, N, tables);
            SWAPPED(NAMED(between), c, spare, between, N, tables);
            NAMED(add_product)(c, l + i * n, total, N);
        }
        NAMED(correlate)(a, h + r * n, c, N);
        SWAPPED(NAMED(synthesise), c, spare, N, tables);
        NAMED(scaled)(c, aside, out, n);
        SWAPPED(NAMED(synthesise), total, spare, N, tables);
        NAMED(add_scaled)(total, leave, out, n);
    }
    ldr_restore(before);
}

#undef SWAPPED
