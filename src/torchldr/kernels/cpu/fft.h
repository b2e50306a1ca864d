/* The body of fft.c, for one type.
 *
 * A vector of n complex numbers is 2n reals, real parts first. The FFT is Stockham's: from one array to the other
 * and back, in natural order at both ends. A stage of stride s and radix 4 takes
 *
 *     y[s (4p + k) + j] = w^(k p s) sum_l i^(-k l) x[s p + j + l n / 4],    w = exp(-2 pi i / n),
 *
 * for j < s. Reads are contiguous whatever s is, writes come in runs of s. So the stages of stride 1 and 4 are
 * one, for sixteen p at a time, with a transposition of sixteen by sixteen numbers at its end. All others have
 * runs of sixteen or more.
 *
 * Tables for n: cosines and sines of pi j / 2n, the twist of spectrum.h (2, n); w^(k p), k = 1, 2, 3, real and
 * imaginary parts by turns (6, n / 4); the same of w^4 (6, n / 16); then three complex numbers for each p of
 * every later stage. Below 5 n + 64 numbers in all.
 */

#define TILE 16

LDR_API void NAMED(ldr_fft_tables)(REAL *out, int64_t n)
{
    const double pi = 3.14159265358979323846;
    for (int64_t j = 0; j < n; j++) {
        out[j] = (REAL)cos(pi * j / (2.0 * n));
        out[n + j] = (REAL)sin(pi * j / (2.0 * n));
    }
    out += 2 * n;
    for (int64_t s = 1; s <= 4; s *= 4) {
        int64_t q = n / (4 * s);
        for (int64_t k = 1; k <= 3; k++)
            for (int64_t p = 0; p < q; p++) {
                double angle = -2 * pi * (double)(k * p * s) / (double)n;
                out[(2 * k - 2) * q + p] = (REAL)cos(angle);
                out[(2 * k - 1) * q + p] = (REAL)sin(angle);
            }
        out += 6 * q;
    }
    for (int64_t s = 4; 4 * s <= n; s *= 4)
        for (int64_t p = 0; p < n / (4 * s); p++)
            for (int64_t k = 1; k <= 3; k++) {
                double angle = -2 * pi * (double)(k * p * s) / (double)n;
                *out++ = (REAL)cos(angle);
                *out++ = (REAL)sin(angle);
            }
}

/* The FFT of four numbers, each a pair of variables; the results replace them. */
#define BUTTERFLY(ar, ai, br, bi, cr, ci, dr, di)                          \
    do {                                                                   \
        REAL er = ar + cr, ei = ai + ci, fr = ar - cr, fi = ai - ci;       \
        REAL gr = br + dr, gi = bi + di, hr = br - dr, hi = bi - di;       \
        ar = er + gr, ai = ei + gi, cr = er - gr, ci = ei - gi;            \
        br = fr + hi, bi = fi - hr, dr = fr - hi, di = fi + hr;            \
    } while (0)

#define TURN(xr, xi, tr, ti)                                \
    do {                                                    \
        REAL turned = xr * (tr) - xi * (ti);                \
        xi = xr * (ti) + xi * (tr);                         \
        xr = turned;                                        \
    } while (0)

#if defined(__GNUC__)
typedef REAL NAMED(four) __attribute__((vector_size(4 * sizeof(REAL)), aligned(sizeof(REAL))));
typedef INDEX NAMED(order) __attribute__((vector_size(4 * sizeof(REAL))));
#if defined(__clang__)
#define LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#else
#define LOW(a, b) __builtin_shuffle(a, b, (NAMED(order)){0, 4, 1, 5})
#define HIGH(a, b) __builtin_shuffle(a, b, (NAMED(order)){2, 6, 3, 7})
#endif
#endif

/* y[l step + k] = x[k width + l] for k, l < 4 */
LDR_INLINE void NAMED(transpose)(const REAL *restrict x, int64_t width, REAL *restrict y, int64_t step)
{
#if defined(__GNUC__)
    typedef NAMED(four) four;
    four a = *(const four *)x, b = *(const four *)(x + width);
    four c = *(const four *)(x + 2 * width), d = *(const four *)(x + 3 * width);
    four e = LOW(a, c), f = HIGH(a, c), g = LOW(b, d), h = HIGH(b, d);
    *(four *)y = LOW(e, g), *(four *)(y + step) = HIGH(e, g);
    *(four *)(y + 2 * step) = LOW(f, h), *(four *)(y + 3 * step) = HIGH(f, h);
#else
    for (int k = 0; k < 4; k++)
        for (int l = 0; l < 4; l++)
            y[l * step + k] = x[k * width + l];
#endif
}

/* The stages of stride 1 and 4, for n >= 16 tile. */
LDR_INLINE void NAMED(first)(const REAL *restrict x, REAL *restrict y, int64_t n, const REAL *restrict turns,
                             const int tile)
{
    int64_t q = n / 16;
    const REAL *restrict later = turns + 24 * q;
    REAL ur[16][TILE], ui[16][TILE], vr[16][TILE], vi[16][TILE];
    for (int64_t p = 0; p < q; p += tile) {
        for (int64_t b = 0; b < 4; b++) {
            const REAL *restrict in = x + p + b * q, *restrict t = turns + p + b * q;
#pragma omp simd
            for (int l = 0; l < tile; l++) {
                REAL ar = in[l], br = in[4 * q + l], cr = in[8 * q + l], dr = in[12 * q + l];
                REAL ai = in[n + l], bi = in[n + 4 * q + l], ci = in[n + 8 * q + l], di = in[n + 12 * q + l];
                BUTTERFLY(ar, ai, br, bi, cr, ci, dr, di);
                TURN(br, bi, t[l], t[4 * q + l]);
                TURN(cr, ci, t[8 * q + l], t[12 * q + l]);
                TURN(dr, di, t[16 * q + l], t[20 * q + l]);
                ur[b][l] = ar, ur[4 + b][l] = br, ur[8 + b][l] = cr, ur[12 + b][l] = dr;
                ui[b][l] = ai, ui[4 + b][l] = bi, ui[8 + b][l] = ci, ui[12 + b][l] = di;
            }
        }
        for (int k = 0; k < 4; k++) {
            const REAL *restrict t = later + p;
#pragma omp simd
            for (int l = 0; l < tile; l++) {
                REAL ar = ur[4 * k][l], br = ur[4 * k + 1][l], cr = ur[4 * k + 2][l], dr = ur[4 * k + 3][l];
                REAL ai = ui[4 * k][l], bi = ui[4 * k + 1][l], ci = ui[4 * k + 2][l], di = ui[4 * k + 3][l];
                BUTTERFLY(ar, ai, br, bi, cr, ci, dr, di);
                TURN(br, bi, t[l], t[q + l]);
                TURN(cr, ci, t[2 * q + l], t[3 * q + l]);
                TURN(dr, di, t[4 * q + l], t[5 * q + l]);
                vr[k][l] = ar, vr[k + 4][l] = br, vr[k + 8][l] = cr, vr[k + 12][l] = dr;
                vi[k][l] = ai, vi[k + 4][l] = bi, vi[k + 8][l] = ci, vi[k + 12][l] = di;
            }
        }
        for (int l = 0; l < tile; l += 4)
            for (int k = 0; k < 16; k += 4) {
                NAMED(transpose)(&vr[k][l], TILE, y + 16 * (p + l) + k, 16);
                NAMED(transpose)(&vi[k][l], TILE, y + n + 16 * (p + l) + k, 16);
            }
    }
}

/* The stage of stride 1, for smaller n. */
LDR_INLINE void NAMED(first_small)(const REAL *restrict x, REAL *restrict y, int64_t n, const REAL *restrict t)
{
    int64_t q = n / 4;
    for (int64_t p = 0; p < q; p++) {
        REAL ar = x[p], br = x[q + p], cr = x[2 * q + p], dr = x[3 * q + p];
        REAL ai = x[n + p], bi = x[n + q + p], ci = x[n + 2 * q + p], di = x[n + 3 * q + p];
        BUTTERFLY(ar, ai, br, bi, cr, ci, dr, di);
        TURN(br, bi, t[p], t[q + p]);
        TURN(cr, ci, t[2 * q + p], t[3 * q + p]);
        TURN(dr, di, t[4 * q + p], t[5 * q + p]);
        y[4 * p] = ar, y[4 * p + 1] = br, y[4 * p + 2] = cr, y[4 * p + 3] = dr;
        y[n + 4 * p] = ai, y[n + 4 * p + 1] = bi, y[n + 4 * p + 2] = ci, y[n + 4 * p + 3] = di;
    }
}

/* A stage of stride s, a multiple of `width`. */
LDR_INLINE void NAMED(stage)(const REAL *restrict x, REAL *restrict y, int64_t n, int64_t s,
                             const REAL *restrict turns, const int width)
{
    int64_t q = n / 4;
    for (int64_t p = 0; p < q / s; p++) {
        REAL tr = turns[6 * p], ti = turns[6 * p + 1], vr = turns[6 * p + 2];
        REAL vi = turns[6 * p + 3], wr = turns[6 * p + 4], wi = turns[6 * p + 5];
        for (int64_t j = 0; j < s; j += width) {
            const REAL *restrict in = x + s * p + j;
            REAL *restrict out = y + 4 * s * p + j;
#pragma omp simd
            for (int l = 0; l < width; l++) {
                REAL ar = in[l], br = in[q + l], cr = in[2 * q + l], dr = in[3 * q + l];
                REAL ai = in[n + l], bi = in[n + q + l], ci = in[n + 2 * q + l], di = in[n + 3 * q + l];
                BUTTERFLY(ar, ai, br, bi, cr, ci, dr, di);
                TURN(br, bi, tr, ti);
                TURN(cr, ci, vr, vi);
                TURN(dr, di, wr, wi);
                out[l] = ar, out[s + l] = br, out[2 * s + l] = cr, out[3 * s + l] = dr;
                out[n + l] = ai, out[n + s + l] = bi, out[n + 2 * s + l] = ci, out[n + 3 * s + l] = di;
            }
        }
    }
}

/* The last stage, where no number turns: of radix 4, or of radix 2 where n is not a power of 4. */
LDR_INLINE void NAMED(last)(const REAL *restrict x, REAL *restrict y, int64_t n, int64_t s)
{
    if (4 * s == n) {
#pragma omp simd
        for (int64_t l = 0; l < s; l++) {
            REAL ar = x[l], br = x[s + l], cr = x[2 * s + l], dr = x[3 * s + l];
            REAL ai = x[n + l], bi = x[n + s + l], ci = x[n + 2 * s + l], di = x[n + 3 * s + l];
            BUTTERFLY(ar, ai, br, bi, cr, ci, dr, di);
            y[l] = ar, y[s + l] = br, y[2 * s + l] = cr, y[3 * s + l] = dr;
            y[n + l] = ai, y[n + s + l] = bi, y[n + 2 * s + l] = ci, y[n + 3 * s + l] = di;
        }
        return;
    }
#pragma omp simd
    for (int64_t l = 0; l < s; l++) {
        REAL ar = x[l], br = x[s + l], ai = x[n + l], bi = x[n + s + l];
        y[l] = ar + br, y[s + l] = ar - br, y[n + l] = ai + bi, y[n + s + l] = ai - bi;
    }
}

/* Whether the FFT of n numbers ends in the other array. */
int64_t NAMED(ldr_moves)(int64_t n)
{
    int64_t stages = 1, s = n >= 64 ? 16 : 4;
    for (; 4 * s < n; s *= 4)
        stages++;
    return (stages + (s < n)) % 2;
}

/* The FFT of x; returns where it is, x or y. The other array is overwritten. n is a power of two from 16 on.
 *
 * With real and imaginary parts swapped before and after it is n times the inverse. */
LDR_CLONES REAL *NAMED(ldr_transform)(REAL *x, REAL *y, int64_t n, const REAL *tables)
{
    const REAL *turns = tables + 2 * n, *later = turns + 6 * (n / 4) + 6 * (n / 16);
    REAL *spare;
    int64_t s = 16;
    if (n >= 256)
        NAMED(first)(x, y, n, turns, TILE);
    else if (n == 128)
        NAMED(first)(x, y, n, turns, 8);
    else if (n == 64)
        NAMED(first)(x, y, n, turns, 4);
    else {
        NAMED(first_small)(x, y, n, turns);
        s = 4;
    }
    if (s == 16)
        later += 6 * (n / 16);
    spare = x, x = y, y = spare;
    for (; 4 * s < n; s *= 4) {
        if (s == 4)
            NAMED(stage)(x, y, n, s, later, 4);
        else
            NAMED(stage)(x, y, n, s, later, TILE);
        later += 6 * (n / (4 * s));
        spare = x, x = y, y = spare;
    }
    if (s < n) {
        NAMED(last)(x, y, n, s);
        spare = x, x = y, y = spare;
    }
    return x;
}

#undef BUTTERFLY
#undef TURN
#undef LOW
#undef HIGH
#undef TILE
