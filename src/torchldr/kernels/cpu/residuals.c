/* Conjugate residuals on a Toeplitz matrix, one row after the other, by the FFT; in float64.
 *
 * The same steps as `gcr` of functional/toeplitz_residuals. Products with T and with its preconditioner are products
 * modulo X^{2N} + 1, of which the first n <= N numbers are kept: four complex FFTs of length N a step.
 */
#include <math.h>

#include "common.h"

#define REAL double
#define NAMED(name) name##_f64
#include "spectrum.h"

LDR_INLINE double dot(const double *restrict a, const double *restrict b, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++)
        sum += a[j] * b[j];
    return sum;
}

/* y -= factor x */
LDR_INLINE void subtract(double *restrict y, double factor, const double *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        y[j] -= factor * x[j];
}

/* Multiply v by the polynomial with this spectrum, conjugated, and keep the first n numbers of the product. */
LDR_INLINE void times(double *v, int64_t n, const double *spectrum, double *scratch, int64_t N, const double *tables)
{
    double *a = scratch, *spare = a + 2 * N, *c = spare + 2 * N;
    copy_f64(v, a, n);
    SWAPPED(analyse_f64, a, spare, n, N, tables);
    correlate_f64(a, spectrum, c, N);
    SWAPPED(synthesise_f64, c, spare, N, tables);
    copy_f64(c, v, n);
}

/* Solve for rows of b (p, n) into x; done becomes 1, or 0 as soon as a row will miss its target.
 *
 * spectrum, inverse (2N): of T and of the preconditioner's inverse, conjugated, over N. steps: the most of a row.
 * scratch: 6 N + 2 n (steps + 1) + steps (steps + 2) numbers. */
LDR_API LDR_CLONES void ldr_conjugate_residuals_f64(const double *b, const double *target, double *x,
                                                    const double *spectrum, const double *inverse,
                                                    const double *tables, double *scratch, int64_t *done, int64_t p,
                                                    int64_t n, int64_t N, int64_t steps)
{
    ldr_mode before = ldr_flush();
    double *R = scratch + 6 * N, *V = R + steps * n, *r = V + steps * n, *y = r + n;
    double *H = y + n, *along = H + steps * steps, *share = along + steps;
    *done = 0;
    for (int64_t row = 0; row < p; row++) {
        copy_f64(b + row * n, r, n);
        double start = sqrt(dot(r, r, n)), left = start;
        int64_t step = 0;
        while (!(left <= target[row])) {
            /* Not a number, out of steps, or a row that would miss its target at its rate so far. */
            int hopeless = step > 0 && step % 8 == 0 &&
                           !(log(start / left) * steps >= log(start / target[row]) * step);
            if (step == steps || left != left || hopeless) {
                ldr_restore(before);
                return;
            }
            double *v = V + step * n;
            copy_f64(r, R + step * n, n);
            copy_f64(r, v, n);
            times(v, n, inverse, scratch, N, tables);
            times(v, n, spectrum, scratch, N, tables);
            for (int64_t i = 0; i < step; i++)
                H[i * steps + step] = dot(V + i * n, v, n);
            for (int64_t i = 0; i < step; i++)
                subtract(v, H[i * steps + step], V + i * n, n);
            double length = sqrt(dot(v, v, n));
            H[step * steps + step] = length;
            for (int64_t j = 0; j < n; j++)
                v[j] /= length;
            along[step] = dot(v, r, n);
            subtract(r, along[step], v, n);
            left = sqrt(dot(r, r, n));
            step++;
        }
        clear_f64(y, 0, n);
        for (int64_t i = step - 1; i >= 0; i--) {
            double total = along[i];
            for (int64_t k = i + 1; k < step; k++)
                total -= H[i * steps + k] * share[k];
            share[i] = total / H[i * steps + i];
            subtract(y, -share[i], R + i * n, n);
        }
        times(y, n, inverse, scratch, N, tables);
        copy_f64(y, x + row * n, n);
    }
    *done = 1;
    ldr_restore(before);
}
