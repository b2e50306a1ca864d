/* M = sum_{t < m} A^t E (C^t)^T for E = G^T H and two subdiagonal operators with corners, m <= n.
 *
 * A step into entry (i, j) comes from (i - 1, j - 1), columns modulo n, and weighs a_i c_j. With f and q of
 * scan_weights.h,
 *
 *     M - A M C^T = E - A^m E (C^m)^T = G^T H',   H'_j = H_j - f q_j H_{j-m}.
 *
 * So rows follow from each other, M_ij = a_i c_j M_{i-1, j-1} + (G^T H')_ij, and the first from the last, which a pass
 * of its own finds from E: no row around, and nothing divided. Where A's corner is 0, f is 0 and nothing else is
 * needed. Backward, with D the gradient of M,
 *
 *     Z_ij = D_ij + a_{i+1} c_{j+1} Z_{i+1, j+1},   dG = Z H'^T,   dH' = G Z,   d(a_i c_j) = Z_ij M_{i-1, j-1},
 *
 * where the last row follows from the first (a_m is the corner). What f and q have of dH' is a matter of r n numbers;
 * so is A's corner where it is 0. For G and H alone, D_ij - f q_{j+m} D_{i, j+m} and H take the place of D and H'.
 *
 * Only paths that go around once cancel in all of that. Where they are large, scan_general.h has no such paths.
 *
 * A band is some diagonals j - i, so that bands have nothing to do with each other within a pass.
 */

typedef struct {
    REAL *rows[2], *e, *da, *dc, *dG, *dh; /* two rows (n + 1); (n), (m), (n), (r, m), (r, wide) */
    int64_t first, width;                  /* of the diagonals */
} NAMED(Band);

static int64_t NAMED(carve_band)(NAMED(Band) *b, char *room, const NAMED(Scan) *s)
{
    int64_t at = 0, n = s->n;
    b->rows[0] = NAMED(vector)(room, &at, n + 1);
    b->rows[1] = NAMED(vector)(room, &at, n + 1);
    b->e = NAMED(vector)(room, &at, n);
    b->da = NAMED(vector)(room, &at, s->m);
    b->dc = NAMED(vector)(room, &at, n);
    b->dG = NAMED(vector)(room, &at, s->r * s->m);
    b->dh = NAMED(vector)(room, &at, s->r * s->wide);
    return at;
}

/* Columns low .. high - 1 of one row of a band: two pieces, where it passes the last column. */
#define LDR_PIECES(b, n, i)                                                                                      \
    for (int64_t low = ((b)->first + (i)) % (n), left = (b)->width, high = 0;                                    \
         left > 0 && (high = low + left < (n) ? low + left : (n)) > 0; left -= high - low, low = 0)

/* Columns j .. j + count - 1 of row i; `before` is the entry up and to the left of the first. */
static void NAMED(down_piece)(const NAMED(Scan) *s, NAMED(Band) *b, int64_t i, int64_t j, int64_t count,
                              const REAL *before, REAL *M)
{
    int64_t m = s->m, n = s->wide, r = s->r, whole = count / LANES * LANES, k = 0;
    const REAL *g = s->G + i;
    if (r > 4) {
        memset(b->e + j, 0, (size_t)count * sizeof(REAL));
        for (; k + 4 <= r; k += 4)
            NAMED(add_four)(count, g + k * m, m, s->h + k * n + j, n, b->e + j);
        for (; k < r; k++)
            NAMED(add_one)(count, g[k * m], s->h + k * n + j, b->e + j);
    }
    for (int64_t at = 0, step; at < count; at += step) {
        step = at == 0 && whole ? whole : whole ? LANES : count;
        at = at == 0 ? 0 : count - step; /* the last lanes again, where that makes them whole */
#define LDR_ARGUMENTS step, s->a[i], s->c + j + at, before + at, g, m, s->h + j + at, n, b->e + j + at, M + at
        if (r == 1)
            NAMED(down_one)(LDR_ARGUMENTS);
        else if (r == 2)
            NAMED(down_two)(LDR_ARGUMENTS);
        else if (r == 3)
            NAMED(down_three)(LDR_ARGUMENTS);
        else if (r == 4)
            NAMED(down_four)(LDR_ARGUMENTS);
        else
            NAMED(down_e)(LDR_ARGUMENTS);
#undef LDR_ARGUMENTS
    }
}

/* E_ij */
static REAL NAMED(source)(const NAMED(Scan) *s, int64_t i, int64_t j)
{
    REAL e = 0;
    for (int64_t k = 0; k < s->r; k++)
        e += s->G[k * s->m + i] * s->h[k * s->wide + j];
    return e;
}

/* All rows of a band from row -1, `before`; into M, or into two rows in turn. Gives the last one. */
static const REAL *NAMED(sweep_down)(const NAMED(Scan) *s, NAMED(Band) *b, const REAL *before, REAL *M)
{
    int64_t n = s->n;
    for (int64_t i = 0; i < s->m; i++) {
        REAL *row = M ? M + i * n : b->rows[i % 2];
        if (b->width == n && n >= LANES && (!M || (i > 1 && i < s->m - 1))) { /* whole lanes: reads and writes rows beside it */
            NAMED(down_piece)(s, b, i, 0, s->wide, before - 1, row);
            row[0] = s->a[i] * s->c[0] * before[n - 1] + NAMED(source)(s, i, 0);
            before = row;
            continue;
        }
        LDR_PIECES(b, n, i)
        {
            int64_t start = low;
            if (low == 0) {
                NAMED(down_piece)(s, b, i, 0, 1, before + n - 1, row);
                start = 1;
            }
            if (start < high)
                NAMED(down_piece)(s, b, i, start, high - start, before + start - 1, row + start);
        }
        before = row;
    }
    return before;
}

typedef struct {
    int graded, sums; /* what is summed: for operators too; for G and H */
} NAMED(Want);

/* Columns j .. j + count - 1 of row i, which `D` and Z begin with; `after` is down and to the right of the first. */
static void NAMED(up_piece)(const NAMED(Scan) *s, NAMED(Band) *b, NAMED(Want) want, int64_t i, int64_t j, int64_t count,
                            const REAL *c, const REAL *D, const REAL *after, const REAL *before, REAL *Z)
{
    int64_t m = s->m, n = s->wide, whole = count / LANES * LANES, k = 1;
    for (int64_t at = 0, step; at < count; at += step) {
        int64_t begin = at;
        step = at == 0 && whole ? whole : whole ? LANES : count;
        at = at == 0 ? 0 : count - step; /* the last lanes again, without their sums */
#define LDR_ARGUMENTS                                                                                            \
    step, D + at, s->a[i + 1], s->c + j + at + 1, after + at, Z + at, s->a[i], c + at, before + at, b->da + i, \
        b->dc + j + at, s->G[i], s->h + j + at, b->dG + i, b->dh + j + at
        if (begin == at) {
            if (want.graded)
                NAMED(up_graded)(LDR_ARGUMENTS);
            else if (want.sums)
                NAMED(up_summed)(LDR_ARGUMENTS);
            else
                NAMED(up_alone)(LDR_ARGUMENTS);
        } else {
            int64_t skip = begin - at;
            if (want.graded)
                NAMED(up_graded_last)(skip, LDR_ARGUMENTS);
            else if (want.sums)
                NAMED(up_summed_last)(skip, LDR_ARGUMENTS);
            else
                NAMED(up_alone)(LDR_ARGUMENTS);
        }
#undef LDR_ARGUMENTS
    }
    if (!want.sums)
        return;
    const REAL *g = s->G + i, *h = s->h + j;
    REAL *dg = b->dG + i, *dh = b->dh + j;
    for (; k + 2 <= s->r; k += 2)
        NAMED(collect_two)(count, Z, g[k * m], g[(k + 1) * m], h + k * n, h + (k + 1) * n, dg + k * m, dg + (k + 1) * m,
                           dh + k * n, dh + (k + 1) * n);
    if (k < s->r)
        NAMED(collect_one)(count, Z, g[k * m], h + k * n, dg + k * m, dh + k * n);
}

/* D_j - f q_{j+m} D_{j+m}. */
static void NAMED(damp_row)(const NAMED(Scan) *s, const REAL *D, REAL *to)
{
    int64_t m = s->m, n = s->n;
    for (int64_t j = 0; j < n - m; j++)
        to[j] = D[j] - s->around[j + m] * D[j + m];
    for (int64_t j = n - m; j < n; j++)
        to[j] = D[j] - s->around[j + m - n] * D[j + m - n];
}

/* All rows of a band from row m, `after` (n + 1), up to row 0, which it gives. */
static const REAL *NAMED(sweep_up)(const NAMED(Scan) *s, NAMED(Band) *b, NAMED(Want) want, int damped, const REAL *after,
                                   const REAL *D, const REAL *M)
{
    int64_t m = s->m, n = s->n;
    for (int64_t j = n; j <= s->wide; j++) /* what is beside a row is finite */
        b->rows[0][j] = b->rows[1][j] = b->e[j] = 0;
    for (int64_t i = m - 1; i >= 0; i--) {
        const REAL *given = D + i * n, *before = want.graded ? M + (i ? i - 1 : m - 1) * n : given;
        REAL *row = b->rows[i % 2];
        if (damped)
            NAMED(damp_row)(s, given, b->e), given = b->e;
        if (b->width == n && n >= LANES && i > 1 && i < m - 1) { /* whole lanes: what is beside a row weighs nothing */
            REAL *dc = b->dc, sum = dc[0];
            NAMED(up_piece)(s, b, want, i, 0, s->wide, s->inner, given, after + 1, before - 1, row);
            if (want.graded) {
                REAL w = row[0] * before[n - 1];
                b->da[i] += w * s->c[0];
                dc[0] = sum + s->a[i] * w;
            }
            row[n] = row[0];
            after = row;
            continue;
        }
        LDR_PIECES(b, n, i)
        {
            int64_t start = low;
            if (low == 0) {
                NAMED(up_piece)(s, b, want, i, 0, 1, s->c, given, after + 1, before + n - 1, row);
                start = 1;
            }
            if (start < high)
                NAMED(up_piece)(s, b, want, i, start, high - start, s->c + start, given + start, after + start + 1,
                                before + start - 1, row + start);
        }
        row[n] = row[0];
        after = row;
    }
    return after;
}

/* What enters the last row, (n + 1), where `first` is l_0, what comes to row 0 of each diagonal from its own rows.
 * With `graded` paths go around for ever, Z_0 = l_0 + f q_{j+m} Z_0 at j + m, solved along each cycle; else once. */
static void NAMED(turn_up)(NAMED(Scan) *s, const REAL *first, int graded)
{
    int64_t n = s->n, m = s->m, length = 1;
    memmove(s->last, first, (size_t)n * sizeof(REAL));
    for (int64_t k = m % n; graded && k; k = (k + m) % n)
        length++;
    for (int64_t begin = 0; graded && begin < n / length; begin++) {
        double sum = 0, weight = 1;
        int64_t k = begin;
        for (int64_t step = 0; step < length; step++) {
            sum += weight * (double)first[k];
            k = k + m < n ? k + m : k + m - n;
            weight *= (double)s->around[k];
        }
        sum /= 1 - weight; /* of `begin`, where k is again */
        for (int64_t step = 0; step < length; step++) {
            s->last[k] = (REAL)sum;
            sum *= (double)s->around[k];
            k = k < m ? k - m + n : k - m;
            sum += (double)first[k];
        }
    }
    s->last[n] = s->last[0];
}

/* Sums of all bands, to the tensors. */
static void NAMED(finish)(NAMED(Scan) *s, char *room, int64_t bands, REAL *dG, REAL *dH, REAL *dca, REAL *dla,
                          REAL *dcc, REAL *dlc)
{
    int64_t r = s->r, m = s->m, n = s->n;
    NAMED(Band) first, other;
    int64_t each = NAMED(carve_band)(&first, room, s);
    for (int64_t k = 1; k < bands && s->is->regime != GENERAL; k++) {
        NAMED(carve_band)(&other, room + k * each, s);
        for (int64_t i = 0; i < r * m; i++)
            first.dG[i] += other.dG[i];
        for (int64_t j = 0; j < r * s->wide; j++)
            first.dh[j] += other.dh[j];
        for (int64_t i = 0; dca && i < m; i++)
            first.da[i] += other.da[i];
        for (int64_t j = 0; dca && j < n; j++)
            first.dc[j] += other.dc[j];
    }
    memcpy(dG, first.dG, (size_t)(r * m) * sizeof(REAL));
    for (int64_t k = 0; k < r; k++)
        memcpy(dH + k * n, first.dh + k * s->wide, (size_t)n * sizeof(REAL));
    if (dca == NULL)
        return;
    if (s->is->regime != GENERAL) {
        for (int64_t i = 0; i < m; i++)
            s->da[i] = (double)first.da[i];
        for (int64_t j = 0; j < n; j++)
            s->dc[j] = (double)first.dc[j];
        NAMED(rounds)(s, first.dh);
    }
    for (int64_t k = 0; k < r && s->is->regime == ROUND; k++)
        for (int64_t j = 0; j < n; j++) {
            int64_t source = j + m < n ? j + m : j + m - n;
            dH[k * n + j] -= s->around[source] * first.dh[k * s->wide + source];
        }
    int64_t steps = m > 1; /* one row has no step into it */
    dca[0] = steps ? (REAL)s->da[0] : 0, dcc[0] = steps ? (REAL)s->dc[0] : 0;
    for (int64_t i = 1; i < m; i++)
        dla[i - 1] = (REAL)s->da[i];
    for (int64_t j = 1; j < n; j++)
        dlc[j - 1] = steps ? (REAL)s->dc[j] : 0;
}

typedef struct {
    int64_t bands, r, m, n;
    const REAL *G, *H, *ca, *la, *cc, *lc;
    int64_t ka, kc;
    char *room;
} NAMED(Given);

/* Where matrix or band k of a phase works. `made` says whether another phase has made the matrix ready. */
static void NAMED(find)(NAMED(Scan) *s, NAMED(Band) *b, const NAMED(Given) *of, int64_t phase, int64_t k,
                        int64_t *matrix, char **bands)
{
    int64_t r = of->r, m = of->m, n = of->n, parted = phase == AROUND || phase == MAIN;
    int64_t size = NAMED(carve)(s, NULL, r, m, n), each = NAMED(carve_band)(b, NULL, s);
    int64_t band = parted ? k % of->bands : 0;
    *matrix = parted ? k / of->bands : k;
    char *room = of->room + (phase == ALL ? 0 : *matrix * (size + of->bands * each));
    NAMED(carve)(s, room, r, m, n);
    *bands = room + size;
    NAMED(carve_band)(b, *bands + band * each, s);
    b->first = n * band / of->bands, b->width = n * (band + 1) / of->bands - b->first;
    s->G = of->G + *matrix * r * m, s->H = of->H + *matrix * r * n;
}

/* Operators made ready. */
static void NAMED(prepare)(NAMED(Scan) *s, const NAMED(Given) *of, int64_t matrix, int graded)
{
    int64_t m = s->m, n = s->n;
    if (of->la) {
        s->a[0] = of->ca[matrix], s->c[0] = of->cc[matrix];
        memcpy(s->a + 1, of->la + matrix * (m - 1), (size_t)(m - 1) * sizeof(REAL));
        memcpy(s->c + 1, of->lc + matrix * (n - 1), (size_t)(n - 1) * sizeof(REAL));
    } else {
        s->a[0] = (REAL)of->ka, s->c[0] = (REAL)of->kc;
        for (int64_t i = 1; i < m; i++)
            s->a[i] = 1;
        for (int64_t j = 1; j < n; j++)
            s->c[j] = 1;
    }
    s->a[m] = s->a[0], s->c[n] = s->c[0];
    size_t beyond = (size_t)(s->wide - n) * sizeof(REAL);
    memset(s->c + n + 1, 0, beyond);
    memcpy(s->inner, s->c, (size_t)n * sizeof(REAL));
    memset(s->inner + n, 0, beyond);
    s->inner[0] = 0;
    memset(s->last, 0, (size_t)(s->wide + 1) * sizeof(REAL));
    for (int64_t k = 0; k < s->r; k++) {
        memcpy(s->h + k * s->wide, s->H + k * n, (size_t)n * sizeof(REAL));
        memset(s->h + k * s->wide + n, 0, beyond);
    }
    NAMED(weigh)(s, graded);
}

/* A band's part of a row into the row that bands share. */
static void NAMED(share)(const NAMED(Band) *b, int64_t n, int64_t i, const REAL *row, REAL *to)
{
    LDR_PIECES(b, n, i)
        memcpy(to + low, row + low, (size_t)(high - low) * sizeof(REAL));
}
#undef LDR_PIECES

/* The interface. Phase ALL: matrices start .. stop - 1 one after the other, in the room of one, each as one band. Else
 * one phase of those, or of bands start .. stop - 1 of all matrices (AROUND and MAIN), with room for each matrix. */

LDR_API void NAMED(scan_room)(int64_t bands, int64_t r, int64_t m, int64_t n, int64_t *bytes)
{
    NAMED(Scan) s;
    NAMED(Band) b;
    *bytes = NAMED(carve)(&s, NULL, r, m, n);
    *bytes += bands * NAMED(carve_band)(&b, NULL, &s);
}

LDR_API void NAMED(scan_fill)(int64_t phase, int64_t start, int64_t stop, int64_t bands, int64_t r, int64_t m,
                              int64_t n, const REAL *G, const REAL *H, const REAL *ca, const REAL *la, const REAL *cc,
                              const REAL *lc, int64_t ka, int64_t kc, char *room, REAL *M)
{
    const NAMED(Given) of = {bands, r, m, n, G, H, ca, la, cc, lc, ka, kc, room};
    ldr_mode mode = ldr_flush();
    for (int64_t k = start; k < stop; k++) {
        NAMED(Scan) s;
        NAMED(Band) b;
        int64_t matrix;
        char *unused;
        NAMED(find)(&s, &b, &of, phase, k, &matrix, &unused);
        REAL *to = M + matrix * m * n;
        int all = phase == ALL;
        if (all || phase == PREPARE)
            NAMED(prepare)(&s, &of, matrix, 0);
        int around = s.is->regime == ROUND;
        if (around && (all || phase == AROUND))
            NAMED(share)(&b, n, m - 1, NAMED(sweep_down)(&s, &b, s.last, NULL), s.shared);
        if (around && (all || phase == TURN)) {
            memcpy(s.last, s.shared, (size_t)n * sizeof(REAL));
            NAMED(damp)(&s);
        }
        if (!all && phase != MAIN)
            continue;
        if (s.is->regime != GENERAL)
            NAMED(sweep_down)(&s, &b, s.last, to);
        else if (b.first == 0)
            NAMED(general_fill)(&s, to);
    }
    ldr_restore(mode);
}

LDR_API void NAMED(scan_gradients)(int64_t phase, int64_t start, int64_t stop, int64_t bands, int64_t r, int64_t m,
                                   int64_t n, const REAL *D, const REAL *M, const REAL *G, const REAL *H,
                                   const REAL *ca, const REAL *la, const REAL *cc, const REAL *lc, int64_t ka,
                                   int64_t kc, char *room, REAL *dG, REAL *dH, REAL *dca, REAL *dla, REAL *dcc,
                                   REAL *dlc)
{
    const NAMED(Given) of = {bands, r, m, n, G, H, ca, la, cc, lc, ka, kc, room};
    const NAMED(Want) nothing = {0, 0}, want = {dca != NULL, 1};
    ldr_mode mode = ldr_flush();
    for (int64_t k = start; k < stop; k++) {
        NAMED(Scan) s;
        NAMED(Band) b;
        int64_t matrix;
        char *all_bands;
        NAMED(find)(&s, &b, &of, phase, k, &matrix, &all_bands);
        const REAL *given = D + matrix * m * n, *made = M + matrix * m * n;
        int all = phase == ALL;
        if (all || phase == PREPARE)
            NAMED(prepare)(&s, &of, matrix, want.graded);
        int around = s.is->regime == ROUND;
        if (around && (all || phase == AROUND))
            NAMED(share)(&b, n, 0, NAMED(sweep_up)(&s, &b, nothing, 0, s.last, given, made), s.shared);
        if (around && (all || phase == TURN)) {
            NAMED(turn_up)(&s, s.shared, want.graded);
            if (want.graded)
                NAMED(damp)(&s);
        }
        if (all || phase == MAIN) {
            memset(b.da, 0, (size_t)m * sizeof(REAL));
            memset(b.dc, 0, (size_t)n * sizeof(REAL));
            memset(b.dG, 0, (size_t)(r * m) * sizeof(REAL));
            memset(b.dh, 0, (size_t)(r * s.wide) * sizeof(REAL));
            if (s.is->regime != GENERAL) {
                NAMED(sweep_up)(&s, &b, want, around && !want.graded, s.last, given, made);
            } else if (b.first == 0) {
                memset(s.da, 0, (size_t)m * sizeof(double));
                memset(s.dc, 0, (size_t)n * sizeof(double));
                NAMED(general_gradients)(&s, given, want.graded, b.dG, b.dh, s.da, s.dc);
            }
        }
        if (all || phase == FINISH)
            NAMED(finish)(&s, all_bands, bands, dG + matrix * r * m, dH + matrix * r * n, want.graded ? dca + matrix : NULL,
                          want.graded ? dla + matrix * (m - 1) : NULL, want.graded ? dcc + matrix : NULL,
                          want.graded ? dlc + matrix * (n - 1) : NULL);
    }
    ldr_restore(mode);
}
