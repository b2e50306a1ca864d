/* (A x)_p = lower_p x_{p-1} + diagonal_p x_p + upper_p x_{p+1}, indices modulo m: a ring of m entries.
 *
 * Columns K_j = A K_{j-1} follow from each other; so do, from the last to the first, the gradients of the columns,
 *
 *     l_j = dK_j + A^T l_{j+1},   d lower_p += l_{j+1, p} K_{j, p-1}, and so on for the other two.
 *
 * Loops work on copies that begin at a line of the cache, have the neighbour from the other end on either side
 * (entries -1 and m), and are padded to whole lanes with numbers that nothing reads. */

enum { NAMED(LOWER), NAMED(DIAGONAL), NAMED(UPPER), NAMED(DLOWER), NAMED(DDIAGONAL), NAMED(DUPPER), NAMED(COLUMN),
       NAMED(GIVEN), NAMED(STATE), NAMED(OTHER), NAMED(VECTORS) };

static int64_t NAMED(pitch)(int64_t m)
{
    const int64_t line = 64 / (int64_t)sizeof(REAL);
    return (m + LANES + line - 1) / line * line + 5 * line; /* not a power of two: rows would share the cache's sets */
}

/* A vector of the room, which is (VECTORS, pitch) and a line before. */
static REAL *NAMED(vector)(REAL *room, int64_t m, int k)
{
    return room + 64 / (int64_t)sizeof(REAL) + k * NAMED(pitch)(m);
}

static void NAMED(close_ring)(REAL *x, int64_t m) { x[-1] = x[m - 1], x[m] = x[0]; }

static REAL *NAMED(copy)(REAL *room, int64_t m, int k, const REAL *x)
{
    REAL *to = NAMED(vector)(room, m, k);
    memcpy(to, x, (size_t)m * sizeof(REAL));
    NAMED(close_ring)(to, m);
    return to;
}

LDR_API void NAMED(krylov_room)(int64_t m, int64_t *numbers)
{
    *numbers = 64 / (int64_t)sizeof(REAL) + NAMED(VECTORS) * NAMED(pitch)(m);
}

/* y = A x, once for the next step and once as the column. */
static LDR_CLONES void NAMED(step)(int64_t count, const REAL *lower, const REAL *diagonal, const REAL *upper,
                                   const REAL *x, REAL *y, REAL *column)
{
#pragma omp simd
    for (int64_t p = 0; p < count; p++) {
        const REAL v = lower[p] * x[p - 1] + diagonal[p] * x[p] + upper[p] * x[p + 1];
        y[p] = v;
        column[p] = v;
    }
}

/* `x` is K_j, `after` is l_{j+1}, and `now` becomes l_j. */
static LDR_CLONES void NAMED(step_back)(int64_t count, const REAL *lower, const REAL *diagonal, const REAL *upper,
                                        const REAL *x, const REAL *after, const REAL *given, REAL *now, REAL *dl,
                                        REAL *dd, REAL *du)
{
#pragma omp simd
    for (int64_t p = 0; p < count; p++) {
        const REAL here = after[p];
        dl[p] += here * x[p - 1];
        dd[p] += here * x[p];
        du[p] += here * x[p + 1];
        now[p] = given[p] + lower[p + 1] * after[p + 1] + diagonal[p] * here + upper[p - 1] * after[p - 1];
    }
}

/* Columns A^j v, j < k, of vectors start .. stop - 1, r of them for each operator: K (.., k, m). */
LDR_API void NAMED(krylov_columns)(int64_t start, int64_t stop, int64_t r, int64_t k, int64_t m, const REAL *lower,
                                   const REAL *diagonal, const REAL *upper, const REAL *V, REAL *K, REAL *room)
{
    ldr_mode mode = ldr_flush();
    const int64_t wide = (m + LANES - 1) / LANES * LANES;
    for (int64_t v = start; v < stop; v++) {
        const int64_t at = v / r * m;
        const REAL *l = NAMED(copy)(room, m, NAMED(LOWER), lower + at);
        const REAL *d = NAMED(copy)(room, m, NAMED(DIAGONAL), diagonal + at);
        const REAL *u = NAMED(copy)(room, m, NAMED(UPPER), upper + at);
        REAL *x = NAMED(copy)(room, m, NAMED(STATE), V + v * m), *y = NAMED(vector)(room, m, NAMED(OTHER));
        REAL *column = K + v * k * m, *last = NAMED(vector)(room, m, NAMED(COLUMN));
        memcpy(column, x, (size_t)m * sizeof(REAL));
        for (int64_t j = 1; j < k; j++) {
            /* whole lanes reach into the next column, which is still to be made; the last one has none */
            int direct = wide == m || (j + 1 < k && m >= LANES);
            REAL *swap = x;
            column += m;
            NAMED(step)(wide, l, d, u, x, y, direct ? column : last);
            if (!direct)
                memcpy(column, last, (size_t)m * sizeof(REAL));
            NAMED(close_ring)(y, m);
            x = y, y = swap;
        }
    }
    ldr_restore(mode);
}

/* Gradients in operators start .. stop - 1 and in their vectors, for those of all columns. */
LDR_API void NAMED(krylov_adjoint)(int64_t start, int64_t stop, int64_t r, int64_t k, int64_t m, const REAL *lower,
                                   const REAL *diagonal, const REAL *upper, const REAL *K, const REAL *dK, REAL *dl,
                                   REAL *dd, REAL *du, REAL *dV, REAL *room)
{
    ldr_mode mode = ldr_flush();
    const int64_t wide = (m + LANES - 1) / LANES * LANES;
    const size_t bytes = (size_t)m * sizeof(REAL);
    for (int64_t of = start; of < stop; of++) {
        const int64_t at = of * m;
        const REAL *l = NAMED(copy)(room, m, NAMED(LOWER), lower + at);
        const REAL *d = NAMED(copy)(room, m, NAMED(DIAGONAL), diagonal + at);
        const REAL *u = NAMED(copy)(room, m, NAMED(UPPER), upper + at);
        REAL *sl = NAMED(vector)(room, m, NAMED(DLOWER)), *sd = NAMED(vector)(room, m, NAMED(DDIAGONAL));
        REAL *su = NAMED(vector)(room, m, NAMED(DUPPER));
        memset(sl, 0, bytes), memset(sd, 0, bytes), memset(su, 0, bytes);
        for (int64_t v = of * r; v < (of + 1) * r; v++) {
            const REAL *column = K + (v + 1) * k * m, *given = dK + (v + 1) * k * m;
            REAL *a = NAMED(vector)(room, m, NAMED(STATE)), *now = NAMED(vector)(room, m, NAMED(OTHER));
            memcpy(a, given - m, bytes);
            NAMED(close_ring)(a, m);
            for (int64_t j = k - 2; j >= 0; j--) {
                REAL *swap = a;
                column -= m, given -= m;
                const REAL *x = NAMED(copy)(room, m, NAMED(COLUMN), column - m), *more = given - m;
                if (m < LANES) /* whole lanes read the next column */
                    more = NAMED(copy)(room, m, NAMED(GIVEN), more);
                NAMED(step_back)(wide, l, d, u, x, a, more, now, sl, sd, su);
                NAMED(close_ring)(now, m);
                a = now, now = swap;
            }
            memcpy(dV + v * m, a, bytes);
        }
        memcpy(dl + at, sl, bytes), memcpy(dd + at, sd, bytes), memcpy(du + at, su, bytes);
    }
    ldr_restore(mode);
}
