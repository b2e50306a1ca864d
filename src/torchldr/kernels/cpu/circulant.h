/* The body of circulant.c, for one type.
 *
 * A vector v of s = 2N real numbers is taken as a complex one, v_{2j} + i v_{2j+1}, with spectrum V of length N.
 * Where R V = conj(V_{N-k}), the spectrum of the cyclic convolution of u and v is
 *
 *     U V - Q (V - R V),     Q = g (U - R U),     g_k = (1 + exp(-2 pi i k / N)) / 4,
 *
 * so that no spectrum of a real vector is ever unpacked. As a map of real vectors R is its own adjoint, and
 * Q_{N-k} = -conj(Q_k): the transposed map takes W to conj(U) W - conj(Q) (W + R W). Spectra of blocks are U / N and
 * -Q / N, (p, q, 2, s), real parts first.
 */
#include "spectrum.h"

/* g, real parts first, (2 N). */
LDR_API void NAMED(ldr_block_tables)(REAL *out, int64_t N)
{
    for (int64_t k = 0; k < N; k++) {
        double angle = -2 * 3.14159265358979323846 * (double)k / (double)N;
        out[k] = (REAL)((1 + cos(angle)) / 4);
        out[N + k] = (REAL)(sin(angle) / 4);
    }
}

/* v = row, its even places first, and zero behind its end. */
LDR_INLINE void NAMED(enter)(const REAL *restrict row, int64_t count, REAL *restrict v, int64_t N)
{
    int64_t whole = count > 0 ? count / 2 : 0;
#pragma omp simd
    for (int64_t j = 0; j < whole; j++) {
        v[j] = row[2 * j];
        v[N + j] = row[2 * j + 1];
    }
    NAMED(clear)(v, whole, N);
    NAMED(clear)(v, N + whole, 2 * N);
    if (count > 0 && count % 2)
        v[whole] = row[count - 1];
}

/* The inverse of `enter`, for v of an inverse transform: its odd places come first. */
LDR_INLINE void NAMED(leave)(const REAL *restrict v, REAL *restrict row, int64_t count, int64_t N)
{
#pragma omp simd
    for (int64_t j = 0; j < count / 2; j++) {
        row[2 * j] = v[N + j];
        row[2 * j + 1] = v[j];
    }
    if (count > 0 && count % 2)
        row[count - 1] = v[N + count / 2];
}

#define PRODUCT(k, at)                                                        \
    do {                                                                      \
        REAL vr = V[k], vi = V[N + k], ur = U[k], ui = U[N + k];              \
        REAL qr = Q[k], qi = Q[N + k], dr = vr - V[at], di = vi + V[N + at];  \
        REAL re = (ur * vr - ui * vi) + (qr * dr - qi * di);                  \
        REAL im = (ur * vi + ui * vr) + (qr * di + qi * dr);                  \
        out[k] = begins ? im : out[k] + im;                                   \
        out[N + k] = begins ? re : out[N + k] + re;                           \
    } while (0)

/* out += U V + Q (V - R V), its imaginary parts first. */
LDR_INLINE void NAMED(add_block)(const REAL *restrict V, const REAL *restrict U, REAL *restrict out, int64_t N,
                              const int begins)
{
    const REAL *restrict Q = U + 2 * N;
    PRODUCT(0, 0);
#pragma omp simd
    for (int64_t k = 1; k < N; k++)
        PRODUCT(k, N - k);
}

#define TRANSPOSED(k, at)                                                         \
    do {                                                                          \
        REAL wr = W[k], wi = W[N + k], ur = U[k], ui = U[N + k];                  \
        REAL qr = Q[k], qi = Q[N + k], er = wr + W[at], ei = wi - W[N + at];      \
        REAL re = (ur * wr + ui * wi) + (qr * er + qi * ei);                      \
        REAL im = (ur * wi - ui * wr) + (qr * ei - qi * er);                      \
        out[k] = begins ? im : out[k] + im;                                       \
        out[N + k] = begins ? re : out[N + k] + re;                               \
    } while (0)

/* out += conj(U) W + conj(Q) (W + R W), likewise. */
LDR_INLINE void NAMED(add_transposed)(const REAL *restrict W, const REAL *restrict U, REAL *restrict out, int64_t N,
                              const int begins)
{
    const REAL *restrict Q = U + 2 * N;
    TRANSPOSED(0, 0);
#pragma omp simd
    for (int64_t k = 1; k < N; k++)
        TRANSPOSED(k, N - k);
}

#define GRADIENT(k, at)                                                           \
    do {                                                                          \
        REAL wr = W[k], wi = W[N + k], vr = V[k], vi = V[N + k];                  \
        REAL er = wr + W[at], ei = wi - W[N + at];                                \
        REAL dr = vr - V[at], di = vi + V[N + at];                                \
        plain[k] += vr * wr + vi * wi;                                            \
        plain[N + k] += vr * wi - vi * wr;                                        \
        mixed[k] += dr * er + di * ei;                                            \
        mixed[N + k] += dr * ei - di * er;                                        \
    } while (0)

/* plain += conj(V) W and mixed += conj(V - R V) (W + R W): what gradients of U and Q are made of. */
LDR_INLINE void NAMED(add_gradient)(const REAL *restrict W, const REAL *restrict V, REAL *restrict plain, int64_t N)
{
    REAL *restrict mixed = plain + 2 * N;
    GRADIENT(0, 0);
#pragma omp simd
    for (int64_t k = 1; k < N; k++)
        GRADIENT(k, N - k);
}

#undef PRODUCT
#undef TRANSPOSED
#undef GRADIENT

/* The spectra of columns (blocks, count), count <= s, moved up by `start` places around the end of s = 2N.
 *
 * scratch: 2 s numbers. */
LDR_API LDR_CLONES void NAMED(ldr_block_spectra)(const REAL *columns, REAL *spectra, const REAL *g,
                                                 const REAL *tables, REAL *scratch, int64_t blocks, int64_t count,
                                                 int64_t start, int64_t N)
{
    ldr_mode before = ldr_flush();
    const REAL scale = (REAL)1 / (REAL)N;
    for (int64_t i = 0; i < blocks; i++) {
        REAL *a = scratch, *b = scratch + 2 * N, *restrict U = spectra + i * 4 * N, *restrict Q = U + 2 * N;
        const REAL *column = columns + i * count;
        NAMED(copy)(column + start, b, count - start);
        NAMED(clear)(b, count - start, 2 * N - start);
        NAMED(copy)(column, b + 2 * N - start, start);
        NAMED(enter)(b, 2 * N, a, N);
        SWAPPED(NAMED(ldr_transform), a, b, N, tables);
        const REAL *restrict V = a;
        for (int64_t k = 0; k < N; k++) {
            int64_t at = k ? N - k : 0;
            REAL dr = scale * (V[k] - V[at]), di = scale * (V[N + k] + V[N + at]);
            U[k] = scale * V[k], U[N + k] = scale * V[N + k];
            Q[k] = g[N + k] * di - g[k] * dr, Q[N + k] = -g[k] * di - g[N + k] * dr;
        }
    }
    ldr_restore(before);
}

/* The spectra of the blocks of a row of `count` numbers. */
LDR_INLINE void NAMED(blocks)(const REAL *row, int64_t count, int64_t blocks, REAL *found, REAL *a, int64_t N,
                              const REAL *tables)
{
    int64_t moves = NAMED(ldr_moves)(N);
    for (int64_t i = 0; i < blocks; i++, found += 2 * N) {
        int64_t left = count - i * 2 * N;
        REAL *from = moves ? a : found;
        NAMED(enter)(row + i * 2 * N, left < 2 * N ? left : 2 * N, from, N);
        NAMED(ldr_transform)(from, moves ? found : a, N, tables);
    }
}

/* One row of M V, or of M^T V, for the spectra V of its blocks. */
LDR_INLINE void NAMED(multiplied)(const REAL *V, REAL *row, int64_t count, const REAL *spectra, int64_t p, int64_t q,
                                  int64_t transposed, REAL *a, REAL *b, int64_t N, const REAL *tables)
{
    for (int64_t i = 0; i < (transposed ? q : p); i++) {
        int64_t left = count - i * 2 * N;
        if (transposed) {
            NAMED(add_transposed)(V, spectra + i * 4 * N, a, N, 1);
            for (int64_t j = 1; j < p; j++)
                NAMED(add_transposed)(V + j * 2 * N, spectra + (j * q + i) * 4 * N, a, N, 0);
        } else {
            NAMED(add_block)(V, spectra + i * q * 4 * N, a, N, 1);
            for (int64_t j = 1; j < q; j++)
                NAMED(add_block)(V + j * 2 * N, spectra + (i * q + j) * 4 * N, a, N, 0);
        }
        if (left > 0)
            NAMED(leave)(NAMED(ldr_transform)(a, b, N, tables), row + i * 2 * N, left < 2 * N ? left : 2 * N, N);
    }
}

/* Rows start to stop of y (.., m) = M x (.., n), or of M^T x; those of all matrices of a stack, `each` of one.
 *
 * scratch: 2 N (2 + max(p, q)) numbers. */
LDR_API LDR_CLONES void NAMED(ldr_blocks)(const REAL *x, REAL *y, const REAL *spectra, const REAL *tables,
                                          REAL *scratch, int64_t each, int64_t m, int64_t n, int64_t p, int64_t q,
                                          int64_t transposed, int64_t N, int64_t start, int64_t stop)
{
    ldr_mode before = ldr_flush();
    REAL *a = scratch, *b = a + 2 * N, *V = b + 2 * N;
    for (int64_t row = start; row < stop; row++) {
        const REAL *of = spectra + row / each * p * q * 4 * N;
        NAMED(blocks)(x + row * n, n, transposed ? p : q, V, a, N, tables);
        NAMED(multiplied)(V, y + row * m, m, of, p, q, transposed, a, b, N, tables);
    }
    ldr_restore(before);
}

/* dx = M^T u for rows start to stop, and the sums over these rows (p, q, 2, s) that the gradients of columns are
 * made of: from the matrix of row start on, added to. dx or sums may be NULL.
 *
 * scratch: 2 N (2 + p + q) numbers. */
LDR_API LDR_CLONES void NAMED(ldr_blocks_backward)(const REAL *u, const REAL *x, REAL *dx, REAL *sums,
                                                   const REAL *spectra, const REAL *tables, REAL *scratch,
                                                   int64_t each, int64_t m, int64_t n, int64_t p, int64_t q,
                                                   int64_t N, int64_t start, int64_t stop)
{
    ldr_mode before = ldr_flush();
    REAL *a = scratch, *b = a + 2 * N, *W = b + 2 * N, *V = W + p * 2 * N;
    for (int64_t row = start; row < stop; row++) {
        int64_t of = row / each, size = p * q * 4 * N;
        NAMED(blocks)(u + row * m, m, p, W, a, N, tables);
        if (sums) {
            NAMED(blocks)(x + row * n, n, q, V, a, N, tables);
            for (int64_t i = 0; i < p; i++)
                for (int64_t j = 0; j < q; j++)
                    NAMED(add_gradient)(W + i * 2 * N, V + j * 2 * N,
                                        sums + (of - start / each) * size + (i * q + j) * 4 * N, N);
        }
        if (dx)
            NAMED(multiplied)(W, dx + row * n, n, spectra + of * size, p, q, 1, a, b, N, tables);
    }
    ldr_restore(before);
}

/* The gradients of the columns of `ldr_block_spectra` from such sums: of plain - conj(g) mixed.
 *
 * scratch: 2 s numbers. */
LDR_API LDR_CLONES void NAMED(ldr_block_gradients)(const REAL *sums, REAL *gradients, const REAL *g,
                                                   const REAL *tables, REAL *scratch, int64_t blocks, int64_t count,
                                                   int64_t start, int64_t N)
{
    ldr_mode before = ldr_flush();
    const REAL scale = (REAL)1 / (REAL)N;
    for (int64_t i = 0; i < blocks; i++) {
        const REAL *restrict plain = sums + i * 4 * N, *restrict mixed = plain + 2 * N;
        REAL *a = scratch, *b = scratch + 2 * N, *restrict out = a, *gradient = gradients + i * count;
        for (int64_t k = 0; k < N; k++) {
            REAL mr = mixed[k], mi = mixed[N + k];
            out[N + k] = scale * (plain[k] - g[k] * mr - g[N + k] * mi);
            out[k] = scale * (plain[N + k] - g[k] * mi + g[N + k] * mr);
        }
        SWAPPED(NAMED(ldr_transform), a, b, N, tables);
        NAMED(leave)(a, b, 2 * N, N);
        NAMED(copy)(b, gradient + start, count - start);
        NAMED(copy)(b + 2 * N - start, gradient, start);
    }
    ldr_restore(before);
}

#undef SWAPPED
