/* The loops over a row: what the time of a scan goes to. All pointers begin at the first column of a piece. */

/* A step down: M_j = a c_j before_j + E_j, where before_j is the entry up and to the left, and E_j = sum_k g_k h_kj
 * for up to four ranks, or e_j. */
LDR_INLINE void NAMED(down)(int ranks, int64_t count, REAL a, const REAL *c, const REAL *before, const REAL *g,
                            int64_t m, const REAL *h, int64_t n, const REAL *e, REAL *M)
{
    const REAL g0 = g[0], g1 = ranks > 1 ? g[m] : 0, g2 = ranks > 2 ? g[2 * m] : 0, g3 = ranks > 3 ? g[3 * m] : 0;
    const REAL *h1 = ranks > 1 ? h + n : h, *h2 = ranks > 2 ? h1 + n : h, *h3 = ranks > 3 ? h2 + n : h;
#pragma omp simd
    for (int64_t j = 0; j < count; j++) {
        REAL v = ranks ? g0 * h[j] : e[j];
        if (ranks > 1)
            v += g1 * h1[j];
        if (ranks > 2)
            v += g2 * h2[j];
        if (ranks > 3)
            v += g3 * h3[j];
        M[j] = a * c[j] * before[j] + v;
    }
}

#define LDR_PARAMETERS                                                                                           \
    int64_t count, REAL a, const REAL *c, const REAL *before, const REAL *g, int64_t m, const REAL *h, int64_t n, \
        const REAL *e, REAL *M
#define LDR_DOWN(name, ranks)                                                                                    \
    static LDR_CLONES void NAMED(name)(LDR_PARAMETERS)                                                           \
    {                                                                                                            \
        NAMED(down)(ranks, count, a, c, before, g, m, h, n, e, M);                                               \
    }
LDR_DOWN(down_e, 0)
LDR_DOWN(down_one, 1)
LDR_DOWN(down_two, 2)
LDR_DOWN(down_three, 3)
LDR_DOWN(down_four, 4)
#undef LDR_DOWN
#undef LDR_PARAMETERS

/* Four ranks of E, or one. */
static LDR_CLONES void NAMED(add_four)(int64_t count, const REAL *g, int64_t m, const REAL *h, int64_t n, REAL *e)
{
    const REAL g0 = g[0], g1 = g[m], g2 = g[2 * m], g3 = g[3 * m], *h1 = h + n, *h2 = h1 + n, *h3 = h2 + n;
#pragma omp simd
    for (int64_t j = 0; j < count; j++)
        e[j] += g0 * h[j] + g1 * h1[j] + g2 * h2[j] + g3 * h3[j];
}

static LDR_CLONES void NAMED(add_one)(int64_t count, REAL g, const REAL *h, REAL *e)
{
#pragma omp simd
    for (int64_t j = 0; j < count; j++)
        e[j] += g * h[j];
}

/* A step up: Z_j = D_j + a after_j, where after_j is c times the entry down and to the right. With `sums` those for
 * one rank, dg = <Z, h> and dh += g Z; `graded` also those of operators, da = <Z before, c> and dc += a_i Z before.
 * Lanes before `skip` have been summed already. */
LDR_INLINE void NAMED(up)(int graded, int sums, int64_t skip, int64_t count, const REAL *D, REAL a, const REAL *next,
                          const REAL *after, REAL *Z, REAL own, const REAL *c, const REAL *before, REAL *da, REAL *dc,
                          REAL g, const REAL *h, REAL *dg, REAL *dh)
{
    REAL s = 0, p = 0;
#pragma omp simd reduction(+ : s, p)
    for (int64_t j = 0; j < count; j++) {
        REAL v = D[j] + a * next[j] * after[j];
        Z[j] = v;
        v = j < skip ? 0 : v;
        if (graded) {
            REAL w = v * before[j];
            s += w * c[j];
            dc[j] += own * w;
        }
        if (sums) {
            p += v * h[j];
            dh[j] += g * v;
        }
    }
    if (graded)
        *da += s;
    if (sums)
        *dg += p;
}

#define LDR_PARAMETERS                                                                                           \
    int64_t count, const REAL *D, REAL a, const REAL *next, const REAL *after, REAL *Z, REAL own, const REAL *c,  \
        const REAL *before, REAL *da, REAL *dc, REAL g, const REAL *h, REAL *dg, REAL *dh
#define LDR_UP(name, graded, sums)                                                                               \
    static LDR_CLONES void NAMED(name)(LDR_PARAMETERS)                                                           \
    {                                                                                                            \
        NAMED(up)(graded, sums, 0, count, D, a, next, after, Z, own, c, before, da, dc, g, h, dg, dh);            \
    }
#define LDR_UP_LAST(name, graded, sums)                                                                          \
    static LDR_CLONES void NAMED(name)(int64_t skip, LDR_PARAMETERS)                                             \
    {                                                                                                            \
        NAMED(up)(graded, sums, skip, count, D, a, next, after, Z, own, c, before, da, dc, g, h, dg, dh);         \
    }
LDR_UP(up_graded, 1, 1)
LDR_UP(up_summed, 0, 1)
LDR_UP(up_alone, 0, 0)
LDR_UP_LAST(up_graded_last, 1, 1)
LDR_UP_LAST(up_summed_last, 0, 1)
#undef LDR_UP_LAST
#undef LDR_UP
#undef LDR_PARAMETERS

/* The sums of two ranks more, or of one. */
LDR_INLINE void NAMED(collect)(int ranks, int64_t count, const REAL *Z, REAL g0, REAL g1, const REAL *h,
                               const REAL *h1, REAL *p0, REAL *p1, REAL *dh, REAL *dh1)
{
    REAL s = 0, t = 0;
#pragma omp simd reduction(+ : s, t)
    for (int64_t j = 0; j < count; j++) {
        const REAL v = Z[j];
        s += v * h[j];
        dh[j] += g0 * v;
        if (ranks > 1) {
            t += v * h1[j];
            dh1[j] += g1 * v;
        }
    }
    *p0 += s;
    if (ranks > 1)
        *p1 += t;
}

static LDR_CLONES void NAMED(collect_two)(int64_t count, const REAL *Z, REAL g0, REAL g1, const REAL *h,
                                          const REAL *h1, REAL *p0, REAL *p1, REAL *dh, REAL *dh1)
{
    NAMED(collect)(2, count, Z, g0, g1, h, h1, p0, p1, dh, dh1);
}

static LDR_CLONES void NAMED(collect_one)(int64_t count, const REAL *Z, REAL g0, const REAL *h, REAL *p0, REAL *dh)
{
    NAMED(collect)(1, count, Z, g0, 0, h, h, p0, p0, dh, dh);
}
