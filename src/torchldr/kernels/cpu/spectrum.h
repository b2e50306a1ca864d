/* What products by FFTs share, for one type: spectra of real vectors.
 *
 * Real polynomials v of degree below 2N modulo X^{2N} + 1 are complex ones of degree below N modulo X^N - i, with
 * coefficients v_j + i v_{N+j}. Times w^j, w = exp(i pi / 2N), they become cyclic, so one complex FFT of length N
 * takes v to its spectrum. 2N reals in natural order are already the complex vector, real parts first. Products
 * of spectra are products modulo X^{2N} + 1: linear convolutions where degrees stay below 2N, skew-circulant
 * matrices of size 2N elsewhere. Conjugate spectra transpose them.
 *
 * An inverse takes spectra whose imaginary parts come first, and gives N times the vector. Functions return where
 * the result is, and the array that they were given beside it is the spare one afterwards: see SWAPPED.
 */

int64_t NAMED(ldr_moves)(int64_t n); /* whether transforms of n numbers end in the other array */
REAL *NAMED(ldr_transform)(REAL *x, REAL *y, int64_t n, const REAL *tables);

/* Call f(a, b, ...), and name its result a, the other array b. */
#define SWAPPED(f, a, b, ...)                \
    do {                                     \
        REAL *found = f(a, b, __VA_ARGS__);  \
        if (found == b)                      \
            b = a, a = found;                \
    } while (0)

LDR_INLINE void NAMED(clear)(REAL *restrict a, int64_t start, int64_t stop)
{
    for (int64_t j = start; j < stop; j++)
        a[j] = 0;
}

LDR_INLINE void NAMED(copy)(const REAL *restrict a, REAL *restrict b, int64_t count)
{
    for (int64_t j = 0; j < count; j++)
        b[j] = a[j];
}

/* The spectrum of v, 2n numbers, of which those from `full` on are zero and need not be written. */
LDR_INLINE REAL *NAMED(analyse)(REAL *v, REAL *spare, int64_t full, int64_t n, const REAL *tables)
{
    const REAL *restrict c = tables, *restrict s = tables + n;
    REAL *restrict a = v, *restrict b = v + n;
    int64_t both = full > n ? full - n : 0, rest = full < n ? full : n;
#pragma omp simd
    for (int64_t j = 0; j < both; j++) {
        REAL re = a[j], im = b[j];
        a[j] = re * c[j] - im * s[j];
        b[j] = re * s[j] + im * c[j];
    }
#pragma omp simd
    for (int64_t j = both; j < rest; j++) {
        REAL re = a[j];
        a[j] = re * c[j];
        b[j] = re * s[j];
    }
    NAMED(clear)(a, rest, n);
    NAMED(clear)(b, rest, n);
    return NAMED(ldr_transform)(v, spare, n, tables);
}

/* n times what has the spectrum v. */
LDR_INLINE REAL *NAMED(synthesise)(REAL *v, REAL *spare, int64_t n, const REAL *tables)
{
    REAL *found = NAMED(ldr_transform)(v, spare, n, tables);
    const REAL *restrict c = tables, *restrict s = tables + n;
    REAL *restrict im = found, *restrict re = found + n;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        REAL x = re[j], y = im[j];
        im[j] = x * c[j] + y * s[j]; /* now the real part */
        re[j] = y * c[j] - x * s[j];
    }
    return found;
}

/* out = a conj(b), its imaginary parts first: for an inverse. */
LDR_INLINE void NAMED(correlate)(const REAL *restrict a, const REAL *restrict b, REAL *restrict out, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        REAL ar = a[j], ai = a[n + j], br = b[j], bi = b[n + j];
        out[j] = ai * br - ar * bi;
        out[n + j] = ar * br + ai * bi;
    }
}

/* out += a conj(b), likewise. */
LDR_INLINE void NAMED(add_correlation)(const REAL *restrict a, const REAL *restrict b, REAL *restrict out,
                                       int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        REAL ar = a[j], ai = a[n + j], br = b[j], bi = b[n + j];
        out[j] += ai * br - ar * bi;
        out[n + j] += ar * br + ai * bi;
    }
}

/* out += a b, likewise. */
LDR_INLINE void NAMED(add_product)(const REAL *restrict a, const REAL *restrict b, REAL *restrict out, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        REAL ar = a[j], ai = a[n + j], br = b[j], bi = b[n + j];
        out[j] += ar * bi + ai * br;
        out[n + j] += ar * br - ai * bi;
    }
}

/* out = a b, likewise. */
LDR_INLINE void NAMED(multiply)(const REAL *restrict a, const REAL *restrict b, REAL *restrict out, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        REAL ar = a[j], ai = a[n + j], br = b[j], bi = b[n + j];
        out[j] = ar * bi + ai * br;
        out[n + j] = ar * br - ai * bi;
    }
}
