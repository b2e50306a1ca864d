/* The body of convolution.c, for one type.
 *
 *     y = sum_i K_k(A, g_i) K_k(C, h_i)^T x,    k = min(m, n),
 *
 * for A = D Z_f D^{-1}, D = diag(P): subdiagonal s, P_i = s_1 .. s_i, f = corner P_{m-1}, and C likewise.
 *
 *     (K(A, g) w)_i = P_i (t_i + f t_{m+i}),    t = (g / P) * w.
 *
 * A profile is P (m), f and df / dcorner, for every matrix of a stack. Hats are spectra of g_i / P and h_i / P, rows
 * of 2N numbers with 2N >= m + k - 1 of either operator. Rows of x are those of all matrices of a stack, b of each.
 */
#include "spectrum.h"

/* The mean of log2 |entries|, of those that are neither zero nor infinite nor NaN. */
static double NAMED(mean_log)(const REAL *lower, int64_t count)
{
    double logs = 0, product = 1;
    int64_t counted = 0;
    for (int64_t i = 0; lower && i < count; i++) {
        int power;
        double part = frexp((double)lower[i], &power);
        if (!(part != 0 && part - part == 0))
            continue;
        product *= part < 0 ? -part : part; /* in [1/2, 1) */
        logs += power;
        if (++counted % 512 == 0)
            logs += log2(product), product = 1;
    }
    return counted ? (logs + log2(product)) / (double)counted : 0;
}

/* P, f and df / dcorner of an operator times `scale`; returns its range. */
static double NAMED(profile)(const REAL *lower, REAL corner, int64_t m, double scale, double *out)
{
    double value = 1, low = 1, high = 1;
    out[0] = 1;
    for (int64_t i = 1; i < m; i++) {
        value *= (lower ? lower[i - 1] : 1) * scale;
        out[i] = value;
        double size = value < 0 ? -value : value;
        low = size < low ? size : low;
        high = size > high ? size : high;
        if (size != size) /* no comparison above is true */
            low = high = size;
    }
    out[m + 1] = value * scale;
    out[m] = corner * out[m + 1];
    double size = out[m] < 0 ? -out[m] : out[m];
    return high / low * (size <= 1 ? 1 : size); /* not size > 1: NaN stays */
}

/* Profiles of both operators (stack, m + 2) and (stack, n + 2), and the product of their ranges (stack).
 *
 * A times f and C over f have the same product. Here f shares the growth between them, logarithms of geometric means
 * as n^2 to m^2: the shorter operator may grow faster. lower is NULL for shifts. */
LDR_API void NAMED(ldr_profiles)(const REAL *lower_a, const REAL *corner_a, const REAL *lower_c,
                                 const REAL *corner_c, double *A, double *C, double *ranges, double *factors,
                                 int64_t stack, int64_t m, int64_t n)
{
    for (int64_t i = 0; i < stack; i++) {
        const REAL *a = lower_a ? lower_a + i * (m - 1) : lower_a, *c = lower_c ? lower_c + i * (n - 1) : lower_c;
        double of_a = NAMED(mean_log)(a, m - 1), of_c = NAMED(mean_log)(c, n - 1);
        double f = exp2((of_a + of_c) * ((double)n * n / ((double)m * m + (double)n * n)) - of_a);
        factors[i] = f;
        ranges[i] = NAMED(profile)(a, corner_a[i], m, f, A + i * (m + 2)) *
                    NAMED(profile)(c, corner_c[i], n, 1 / f, C + i * (n + 2));
    }
}

/* The spectra of v / P for start vectors (stack, r, m). */
LDR_API LDR_CLONES void NAMED(ldr_hats)(const REAL *V, const REAL *profiles, REAL *hats, const REAL *tables,
                                        REAL *scratch, int64_t stack, int64_t r, int64_t m, int64_t N)
{
    ldr_mode before = ldr_flush();
    for (int64_t i = 0; i < stack * r; i++) {
        const REAL *restrict v = V + i * m, *restrict P = profiles + i / r * (m + 2);
        REAL *a = scratch, *b = scratch + 2 * N, *restrict in = a;
#pragma omp simd
        for (int64_t j = 0; j < m; j++)
            in[j] = v[j] / P[j];
        SWAPPED(NAMED(analyse), a, b, m, N, tables);
        NAMED(copy)(a, hats + i * 2 * N, 2 * N);
    }
    ldr_restore(before);
}

/* (P u, f P u, ..): what a transposed product analyses; returns how many numbers. */
LDR_INLINE int64_t NAMED(unfold)(const REAL *restrict u, const REAL *restrict P, int64_t m, int64_t k,
                                 REAL *restrict out)
{
    REAL f = P[m];
    REAL *restrict back = out + m;
#pragma omp simd
    for (int64_t j = 0; j < m; j++)
        out[j] = P[j] * u[j];
    if (f == 0)
        return m;
#pragma omp simd
    for (int64_t j = 0; j < k - 1; j++)
        back[j] = f * (P[j] * u[j]);
    return m + k - 1;
}

/* y_j = P_j t_j / N + f high_j, where high_j = P_j t_{m+j} / N for j < k - 1, of k; high may be NULL. */
LDR_INLINE void NAMED(fold)(const REAL *restrict t, const REAL *restrict P, int64_t m, int64_t k, int64_t N,
                            REAL *restrict y, REAL *restrict high)
{
    const REAL scale = (REAL)1 / (REAL)N, f = P[m], *restrict back = t + m;
#pragma omp simd
    for (int64_t j = 0; j < m; j++)
        y[j] = P[j] * (scale * t[j]);
    if (f != 0)
#pragma omp simd
        for (int64_t j = 0; j < k - 1; j++)
            y[j] += f * (P[j] * (scale * back[j]));
    if (!high)
        return;
#pragma omp simd
    for (int64_t j = 0; j < k - 1; j++)
        high[j] = P[j] * (scale * back[j]);
    high[k - 1] = 0;
}

/* From what an inverse transform left in a to the spectrum of its first k <= N numbers, over N. */
LDR_INLINE REAL *NAMED(cropped)(REAL *a, REAL *spare, int64_t k, int64_t N, const REAL *tables)
{
    const REAL scale = (REAL)1 / (REAL)N, *restrict c = tables, *restrict s = tables + N;
    REAL *restrict im = a, *restrict re = a + N;
#pragma omp simd
    for (int64_t j = 0; j < k; j++) {
        REAL z = scale * (re[j] * c[j] + im[j] * s[j]);
        im[j] = z * c[j]; /* now the real part */
        re[j] = z * s[j];
    }
    NAMED(clear)(im, k, N);
    NAMED(clear)(re, k, N);
    return NAMED(ldr_transform)(a, spare, N, tables);
}

/* Rows start to stop of y. For gradients the spectra of x (rows, 2N) and of K(C, h_i)^T x (rows, r, 2N) are left in
 * x_hat and z_hat, and in ends (rows, m + k) a copy of y and what the corner of A brings back. These may be NULL.
 *
 * scratch: 10 N numbers. */
LDR_API LDR_CLONES void NAMED(ldr_convolve)(const REAL *x, REAL *y, const REAL *A, const REAL *C, const REAL *left,
                                            const REAL *right, REAL *x_hat, REAL *z_hat, REAL *ends,
                                            const REAL *tables, REAL *scratch, int64_t b, int64_t m, int64_t n,
                                            int64_t r, int64_t N, int64_t start, int64_t stop)
{
    ldr_mode before = ldr_flush();
    int64_t k = m < n ? m : n, size = 2 * N;
    REAL *a = scratch, *spare = a + size, *c = spare + size, *total = c + size;
    for (int64_t row = start; row < stop; row++) {
        int64_t of = row / b;
        const REAL *P = C + of * (n + 2), *Q = A + of * (m + 2);
        int64_t full = NAMED(unfold)(x + row * n, P, n, k, a);
        SWAPPED(NAMED(analyse), a, spare, full, N, tables);
        if (x_hat)
            NAMED(copy)(a, x_hat + row * size, size);
        for (int64_t i = 0; i < r; i++) {
            const REAL *g = left + (of * r + i) * size, *h = right + (of * r + i) * size;
            NAMED(correlate)(a, h, c, N);
            SWAPPED(NAMED(ldr_transform), c, spare, N, tables);
            SWAPPED(NAMED(cropped), c, spare, k, N, tables);
            if (i == 0)
                NAMED(multiply)(c, g, total, N);
            else
                NAMED(add_product)(c, g, total, N);
            if (z_hat)
                NAMED(copy)(c, z_hat + (row * r + i) * size, size);
        }
        SWAPPED(NAMED(synthesise), total, spare, N, tables);
        NAMED(fold)(total, Q, m, k, N, y + row * m, ends ? ends + row * (m + k) + m : 0);
        if (ends)
            NAMED(copy)(y + row * m, ends + row * (m + k), m);
    }
    ldr_restore(before);
}

/* dx = M^T u for rows start to stop, and the sums over these rows that the gradients of A and C are made of.
 *
 * Sums for every matrix: spectra (r, 2N) of the correlations of u with z_i, imaginary parts first, those of x with
 * dz_i, then u_j y_j (m), x_j dx_j (n), and what the corners bring back, u_j high_j and x_j dhigh_j (k each). They
 * begin with the matrix of row start and are added to. x_hat NULL: dx alone. scratch: 11 N numbers. */
LDR_API LDR_CLONES void NAMED(ldr_convolve_backward)(
    const REAL *u, const REAL *x, REAL *dx, const REAL *A, const REAL *C, const REAL *left, const REAL *right,
    const REAL *x_hat, const REAL *z_hat, const REAL *ends, REAL *sums, const REAL *tables, REAL *scratch, int64_t b,
    int64_t m, int64_t n, int64_t r, int64_t N, int64_t start, int64_t stop)
{
    ldr_mode before = ldr_flush();
    int64_t k = m < n ? m : n, size = 2 * N, each = 2 * r * size + m + n + 2 * k;
    REAL *a = scratch, *spare = a + size, *c = spare + size, *total = c + size, *high = total + size;
    for (int64_t row = start; row < stop; row++) {
        int64_t of = row / b;
        REAL *sum = sums + (of - start / b) * each;
        const REAL *P = A + of * (m + 2);
        int64_t full = NAMED(unfold)(u + row * m, P, m, k, a);
        SWAPPED(NAMED(analyse), a, spare, full, N, tables);
        for (int64_t i = 0; i < r; i++) {
            const REAL *g = left + (of * r + i) * size, *h = right + (of * r + i) * size;
            NAMED(correlate)(a, g, c, N);
            SWAPPED(NAMED(ldr_transform), c, spare, N, tables);
            SWAPPED(NAMED(cropped), c, spare, k, N, tables);
            if (x_hat) {
                NAMED(add_correlation)(a, z_hat + (row * r + i) * size, sum + i * size, N);
                NAMED(add_correlation)(x_hat + row * size, c, sum + (r + i) * size, N);
            }
            if (i == 0)
                NAMED(multiply)(c, h, total, N);
            else
                NAMED(add_product)(c, h, total, N);
        }
        SWAPPED(NAMED(synthesise), total, spare, N, tables);
        NAMED(fold)(total, C + of * (n + 2), n, k, N, dx + row * n, ends ? high : 0);
        if (!ends)
            continue;
        REAL *restrict out = sum + 2 * r * size;
        const REAL *restrict given = u + row * m, *restrict y = ends + row * (m + k), *restrict back = y + m;
#pragma omp simd
        for (int64_t j = 0; j < m; j++)
            out[j] += given[j] * y[j];
        const REAL *restrict in = x + row * n, *restrict din = dx + row * n;
        out += m;
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            out[j] += in[j] * din[j];
        out += n;
#pragma omp simd
        for (int64_t j = 0; j < k - 1; j++)
            out[j] += given[j] * back[j];
        out += k;
#pragma omp simd
        for (int64_t j = 0; j < k - 1; j++)
            out[j] += in[j] * high[j];
    }
    ldr_restore(before);
}

/* The gradients of one operator and its start vectors from such sums, which are overwritten.
 *
 * That of v_i is the correlation over P. That of s_l is the flow over edge l, the sum over all paths that cross it,
 * divided by s_l; from one edge to the next the flow changes by what starts there less what ends there,
 * v_l dv_l - u_l y_l. dcorner NULL: those of v alone. */
LDR_API LDR_CLONES void NAMED(ldr_convolve_sides)(
    const REAL *lower, const REAL *corner, const REAL *V, const REAL *profiles, REAL *sums, REAL *dlower,
    REAL *dcorner, REAL *dV, const REAL *tables, REAL *scratch, int64_t stack, int64_t m, int64_t k, int64_t r,
    int64_t N, int64_t each, int64_t spectra, int64_t ends, int64_t around)
{
    ldr_mode before = ldr_flush();
    for (int64_t of = 0; of < stack; of++) {
        const REAL *restrict P = profiles + of * (m + 2), *v = V + of * r * m, scale = (REAL)1 / (REAL)N;
        REAL *sum = sums + of * each, *found = dV + of * r * m;
        for (int64_t i = 0; i < r; i++) {
            REAL *a = sum + spectra + i * 2 * N, *spare = scratch;
            SWAPPED(NAMED(synthesise), a, spare, N, tables);
            const REAL *restrict q = a;
            REAL *restrict out = found + i * m;
#pragma omp simd
            for (int64_t j = 0; j < m; j++)
                out[j] = scale * q[j] / P[j];
        }
        if (!dcorner)
            continue;
        double total = 0;
        for (int64_t j = 0; j < k - 1; j++)
            total += sum[around + j];
        total *= P[m + 1];
        dcorner[of] = (REAL)total;
        double flow = corner[of] * total;
        for (int64_t j = 0; j < m - 1; j++) {
            for (int64_t i = 0; i < r; i++)
                flow += (double)v[i * m + j] * found[i * m + j];
            flow -= sum[ends + j];
            /* nothing moves by a single column */
            dlower[of * (m - 1) + j] = k > 1 ? (REAL)(flow / lower[of * (m - 1) + j]) : 0;
        }
    }
    ldr_restore(before);
}

#undef SWAPPED
