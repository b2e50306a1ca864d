/* (A x)_p = lower_p x_{p-1} + diagonal_p x_p + upper_p x_{p+1}, indices modulo m: a ring of m entries.
 *
 * Columns K_j = A K_{j-1} follow from each other; so do, from the last to the first, the gradients of the columns,
 *
 *     l_j = dK_j + A^T l_{j+1},   d lower_p += l_{j+1, p} K_{j, p-1}, and so on for the other two.
 *
 * Loops work on copies that begin a line of the cache, have the neighbour from the other end on either side (entries
 * -1 and m), and go on to whole lanes, where numbers mean nothing and nobody reads them. */

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

/* Columns 1 .. k - 1 of vectors start .. stop - 1, r of them for each operator; column 0 is there. Vectors are `each`
 * apart in K, columns `pitch`. */
LDR_API void NAMED(krylov_columns)(int64_t start, int64_t stop, int64_t r, int64_t k, int64_t m, int64_t each,
                                   int64_t pitch, const REAL *lower, const REAL *diagonal, const REAL *upper, REAL *K,
                                   REAL *room)
{
    ldr_mode mode = ldr_flush();
    int64_t wide = (m + LANES - 1) / LANES * LANES;
    for (int64_t v = start; v < stop; v++) {
        const int64_t at = v / r * m;
        const REAL *l = NAMED(copy)(room, m, NAMED(LOWER), lower + at);
        const REAL *d = NAMED(copy)(room, m, NAMED(DIAGONAL), diagonal + at);
        const REAL *u = NAMED(copy)(room, m, NAMED(UPPER), upper + at);
        REAL *column = K + v * each, *x = NAMED(copy)(room, m, NAMED(STATE), column);
        REAL *y = NAMED(vector)(room, m, NAMED(OTHER)), *last = NAMED(vector)(room, m, NAMED(COLUMN));
        for (int64_t j = 1; j < k; j++) {
            /* whole lanes reach into the next column, which is still to be made; the last one has none */
            REAL *to = column + j * pitch, *swap = x;
            int direct = wide == m || (j + 1 < k && pitch >= LANES);
            NAMED(step)(wide, l, d, u, x, y, direct ? to : last);
            if (!direct)
                memcpy(to, last, (size_t)m * sizeof(REAL));
            NAMED(close_ring)(y, m);
            x = y, y = swap;
        }
    }
    ldr_restore(mode);
}

/* Back over all k columns, for operators start .. stop - 1: `after` (r, m) is l of the column that follows, and gets
 * that of the first; d lower and so on are added to. */
LDR_API void NAMED(krylov_adjoint)(int64_t start, int64_t stop, int64_t r, int64_t k, int64_t m, int64_t each,
                                   int64_t pitch, const REAL *lower, const REAL *diagonal, const REAL *upper,
                                   const REAL *K, const REAL *dK, REAL *after, REAL *dl, REAL *dd, REAL *du, REAL *room)
{
    ldr_mode mode = ldr_flush();
    int64_t wide = (m + LANES - 1) / LANES * LANES;
    for (int64_t k_of = start; k_of < stop; k_of++) {
        const int64_t at = k_of * m;
        const REAL *l = NAMED(copy)(room, m, NAMED(LOWER), lower + at);
        const REAL *d = NAMED(copy)(room, m, NAMED(DIAGONAL), diagonal + at);
        const REAL *u = NAMED(copy)(room, m, NAMED(UPPER), upper + at);
        REAL *sl = NAMED(copy)(room, m, NAMED(DLOWER), dl + at), *sd = NAMED(copy)(room, m, NAMED(DDIAGONAL), dd + at);
        REAL *su = NAMED(copy)(room, m, NAMED(DUPPER), du + at);
        for (int64_t v = k_of * r; v < (k_of + 1) * r; v++) {
            REAL *a = NAMED(copy)(room, m, NAMED(STATE), after + v * m), *now = NAMED(vector)(room, m, NAMED(OTHER));
            for (int64_t j = k - 1; j >= 0; j--) {
                const int64_t column = v * each + j * pitch;
                const REAL *x = NAMED(copy)(room, m, NAMED(COLUMN), K + column), *given = dK + column;
                REAL *swap = a;
                if (wide > m && (j == k - 1 || pitch < LANES))
                    given = NAMED(copy)(room, m, NAMED(GIVEN), given);
                NAMED(step_back)(wide, l, d, u, x, a, given, now, sl, sd, su);
                NAMED(close_ring)(now, m);
                a = now, now = swap;
            }
            memcpy(after + v * m, a, (size_t)m * sizeof(REAL));
        }
        memcpy(dl + at, sl, (size_t)m * sizeof(REAL));
        memcpy(dd + at, sd, (size_t)m * sizeof(REAL));
        memcpy(du + at, su, (size_t)m * sizeof(REAL));
    }
    ldr_restore(mode);
}
