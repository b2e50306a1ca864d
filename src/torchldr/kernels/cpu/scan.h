/* M = sum_{t < m} A^t E (C^t)^T for E = G^T H and two subdiagonal operators with corners, m <= n.
 *
 * A diagonal s has the entries (i, s + i), columns modulo n. All vectors go by s: row i of them lies in
 * columns s + i, so that a step to the next row is one multiplication for each s, and loops have no shifts. What is
 * read by columns has a copy that goes round (index s + i < n + m).
 *
 * With w_i = a_i c_{s+i}, f the product of all a (the corner among them) and q_j that of c_j c_{j-1} .. (m of them),
 *
 *     M - A M C^T = E - A^m E (C^m)^T = G^T H',   H'_j = H_j - f q_j H_{j-m}.
 *
 * So rows follow from each other, M_i = w_i M_{i-1} + (G^T H')_i, and the first from the last one, which a pass of
 * its own finds from E (only where A's corner is not 0). Nothing is divided. What cancels is a path that has gone
 * round once: it weighs f q_j of itself, and `MOST` bounds that. Backward, with D the gradient of M,
 *
 *     Z_i = D_i + w_{i+1} Z_{i+1}, around in the same way,   dG = Z H'^T,   dH' = G Z,   dw_i = Z_i M_{i-1},
 *
 * and what f and q have of dH' is a matter of r n numbers. A's corner needs no pass while it is 0.
 * Where a round may weigh more, `general` follows `functional.scan` in float64, without any cancellation.
 */

typedef struct {
    int64_t r, m, n, ext;
    const REAL *G, *H;
    REAL *regime, *a, *c, *h;         /* a (m + 1), c (ext), h (r, ext): corners first, going round */
    REAL *x[2], *y[2];                /* states of the pass around and of the main one */
    REAL *damping;                    /* f q_j of what is subtracted, for each column j */
    double *q, *ones, *numbers, *sums; /* see `weigh` and `finish` */
} NAMED(Scan);

typedef struct {
    REAL *da, *dc, *dG, *dh; /* (m), (ext), (r, m), (r, ext) */
    REAL *tile, *second, *rows;
} NAMED(Band);

/* Cut a piece off the room; with a room of NULL only count. */
LDR_INLINE void *NAMED(cut)(char *room, int64_t *at, int64_t bytes)
{
    char *piece = room ? room + *at : NULL;
    *at += (bytes + 63) / 64 * 64;
    return piece;
}

LDR_INLINE int64_t NAMED(carve)(NAMED(Scan) *s, char *room, int64_t r, int64_t m, int64_t n)
{
    int64_t at = 0, real = (int64_t)sizeof(REAL), ext = n + m + PAD;
    s->r = r, s->m = m, s->n = n, s->ext = ext;
    s->regime = NAMED(cut)(room, &at, 64);
    s->numbers = NAMED(cut)(room, &at, 64);
    s->sums = NAMED(cut)(room, &at, (m + n) * 8);
    s->a = NAMED(cut)(room, &at, (m + 1) * real);
    s->c = NAMED(cut)(room, &at, ext * real);
    s->h = NAMED(cut)(room, &at, r * ext * real);
    for (int k = 0; k < 2; k++) {
        s->x[k] = NAMED(cut)(room, &at, (n + PAD) * real);
        s->y[k] = NAMED(cut)(room, &at, (n + PAD) * real);
    }
    s->damping = NAMED(cut)(room, &at, n * real);
    s->q = NAMED(cut)(room, &at, n * 8);
    s->ones = NAMED(cut)(room, &at, 5 * (n + m) * 8);
    return at;
}

LDR_INLINE int64_t NAMED(carve_band)(NAMED(Band) *b, char *room, int64_t r, int64_t m, int64_t n)
{
    int64_t at = 0, real = (int64_t)sizeof(REAL), ext = n + m + PAD;
    b->tile = NAMED(cut)(room, &at, ROWS * WIDTH * real);
    b->second = NAMED(cut)(room, &at, ROWS * WIDTH * real);
    b->da = NAMED(cut)(room, &at, m * real);
    b->dG = NAMED(cut)(room, &at, r * m * real);
    b->dc = NAMED(cut)(room, &at, ext * real);
    b->dh = NAMED(cut)(room, &at, r * ext * real);
    b->rows = NAMED(cut)(room, &at, ROWS * (n + PAD) * real);
    return at;
}

/* q_j = c_j c_{j-1} .. (m of them) without division, from the ends of blocks of m; zeros count as 1 with `skip`.
 * Gives the largest absolute one, and the growth within a window. */
static double NAMED(windows)(NAMED(Scan) *s, double mu, int skip, double *growth)
{
    int64_t m = s->m, n = s->n, all = n + m - 1; /* index k is column k - (m - 1) */
    double *back = s->ones, *forth = s->ones + n + m, run = 1, most = 0;
    *growth = 1;
    for (int64_t k = 0; k < all; k++) {
        int64_t j = k - (m - 1);
        double c = (double)s->c[j < 0 ? j + n : j] * mu;
        c = skip && c == 0 ? 1 : c;
        forth[k] = k % m ? forth[k - 1] * c : c;
        back[k] = c;
        run = (run > 1 ? run : 1) * fabs(c);
        *growth = run > *growth ? run : *growth;
    }
    for (int64_t k = all - 2; k >= 0; k--)
        back[k] *= (k + 1) % m ? back[k + 1] : 1;
    for (int64_t j = 0; j < n; j++) {
        s->q[j] = j % m == 0 ? back[j] : back[j] * forth[j + m - 1];
        most = fabs(s->q[j]) > most ? fabs(s->q[j]) : most;
    }
    return most;
}

/* What the operators of one matrix weigh: q_j, f and mu, in float64, with the scale mu taken from A and put to C. */
static void NAMED(weigh)(NAMED(Scan) *s)
{
    int64_t m = s->m, n = s->n, exponents = 0, count = 0;
    double mantissa = 1;
    for (int64_t i = 1; i < m; i++) {
        int exponent;
        if (s->a[i] == 0)
            continue;
        mantissa = frexp(mantissa * fabs((double)s->a[i]), &exponent);
        exponents += exponent, count++;
    }
    double mu = count ? exp((log(mantissa) + (double)exponents * 0.69314718055994530942) / (double)count) : 1;
    double under = 1 / mu, product = 1, rest = 1, longest = 1, run = 1;
    for (int64_t i = 1; i < m; i++) {
        double a = fabs((double)s->a[i] * under);
        product *= (double)s->a[i] * under;
        rest *= a == 0 ? 1 : a;
        run = (run > 1 ? run : 1) * a;
        longest = run > longest ? run : longest;
    }
    /* How heavy a round is without its zeros: what is divided by none of them cancels too. */
    int64_t zeros = 0;
    for (int64_t j = 0; j < n; j++)
        zeros += s->c[j] == 0;
    double growth, heavy = NAMED(windows)(s, mu, 1, &growth), most = heavy;
    if (zeros)
        most = NAMED(windows)(s, mu, 0, &growth);
    s->numbers[0] = mu;
    s->numbers[1] = product;                             /* of A's subdiagonal */
    s->numbers[2] = product * (double)s->a[0] * under;   /* f */
    s->numbers[3] = rest * heavy;                        /* a round, but for A's corner and zeros */
    s->numbers[4] = longest * growth;                    /* at most this within one */
    s->numbers[5] = fabs(s->numbers[2]) * most;          /* a round */
}

static void NAMED(go_round)(REAL *to, const REAL *from, int64_t n, int64_t ext)
{
    for (int64_t at = 0; at < ext; at += n)
        memcpy(to + at, from, (size_t)(ext - at < n ? ext - at : n) * sizeof(REAL));
}

/* Operators, G and H made ready: what phase PREPARE does. `graded`: 1 for gradients of operators too. */
static void NAMED(prepare)(NAMED(Scan) *s, const REAL *ca, const REAL *la, const REAL *cc, const REAL *lc,
                               int64_t ka, int64_t kc, int64_t graded)
{
    int64_t r = s->r, m = s->m, n = s->n, ext = s->ext;
    s->a[0] = s->a[m] = la ? ca[0] : (REAL)ka;
    s->c[0] = la ? cc[0] : (REAL)kc;
    for (int64_t i = 1; i < m; i++)
        s->a[i] = la ? la[i - 1] : 1;
    for (int64_t j = 1; j < n; j++)
        s->c[j] = la ? lc[j - 1] : 1;
    int64_t turns = s->a[0] != 0, regime = turns ? ROUND : PLAIN;
    for (int64_t at = n; at < ext; at += n)
        memcpy(s->c + at, s->c, (size_t)(ext - at < n ? ext - at : n) * sizeof(REAL));
    if (turns || graded) {
        NAMED(weigh)(s);
        int64_t fits = graded ? s->numbers[3] * s->numbers[4] <= GROWTH && s->numbers[5] <= SHRINKS
                              : s->numbers[5] <= MOST;
        regime = fits ? regime : GENERAL;
    }
    s->regime[0] = (REAL)regime;
    if (regime == ROUND)
        for (int64_t j = 0; j < n; j++)
            s->damping[j] = (REAL)(s->numbers[2] * s->q[j]);
    for (int64_t k = 0; k < r; k++)
        NAMED(go_round)(s->h + k * ext, s->H + k * n, n, ext);
}

/* H' instead of H. */
static void NAMED(damp)(NAMED(Scan) *s)
{
    for (int64_t k = 0; k < s->r; k++) {
        const REAL *H = s->H + k * s->n;
        REAL *h = s->h + k * s->ext;
        for (int64_t j = 0; j < s->n; j++)
            h[j] = H[j] - s->damping[j] * H[j < s->m ? j - s->m + s->n : j - s->m];
        for (int64_t at = s->n; at < s->ext; at += s->n)
            memcpy(h + at, h, (size_t)(s->ext - at < s->n ? s->ext - at : s->n) * sizeof(REAL));
    }
}

/* Forward: rows of M from the first to the last. */

LDR_INLINE void NAMED(down)(int rows, int one, int64_t count, const REAL *x, REAL *y, const REAL *a, const REAL *c,
                            const REAL *e, int64_t step, const REAL *g, REAL *M, int64_t n)
{
    const REAL a0 = a[0], a1 = rows > 1 ? a[1] : 0, a2 = rows > 1 ? a[2] : 0, a3 = rows > 1 ? a[3] : 0;
    const REAL g0 = g[0], g1 = rows > 1 ? g[1] : 0, g2 = rows > 1 ? g[2] : 0, g3 = rows > 1 ? g[3] : 0;
    const REAL *e1 = e + step, *e2 = e1 + step, *e3 = e2 + step;
    REAL *M1 = M + n + 1, *M2 = M1 + n + 1, *M3 = M2 + n + 1;
#pragma omp simd
    for (int64_t s = 0; s < count; s++) {
        REAL v = a0 * c[s] * x[s] + (one ? g0 * e[s] : e[s]);
        M[s] = v;
        if (rows > 1) {
            v = a1 * c[s + 1] * v + (one ? g1 * e1[s] : e1[s]);
            M1[s] = v;
            v = a2 * c[s + 2] * v + (one ? g2 * e2[s] : e2[s]);
            M2[s] = v;
            v = a3 * c[s + 3] * v + (one ? g3 * e3[s] : e3[s]);
            M3[s] = v;
        }
        y[s] = v;
    }
}

#define LDR_DOWN(name, rows, one)                                                                                \
    static LDR_CLONES void NAMED(name)(int64_t count, const REAL *x, REAL *y, const REAL *a, const REAL *c,       \
                                       const REAL *e, int64_t step, const REAL *g, REAL *M, int64_t n)           \
    {                                                                                                            \
        NAMED(down)(rows, one, count, x, y, a, c, e, step, g, M, n);                                             \
    }
LDR_DOWN(down_tile_of_one, ROWS, 1)
LDR_DOWN(down_tile_of_e, ROWS, 0)
LDR_DOWN(down_row_of_one, 1, 1)
LDR_DOWN(down_row_of_e, 1, 0)
#undef LDR_DOWN

/* The same for diagonals from .. to - 1, none of which passes the last column: `j` is the column of diagonal 0. */
static void NAMED(down_piece)(int rows, int one, int64_t from, int64_t to, const REAL *x, REAL *y, const REAL *a,
                              const REAL *c, const REAL *e, int64_t step, const REAL *g, REAL *M, int64_t n)
{
    int64_t whole = (to - from) / LANES * LANES;
    for (int64_t s = from; s < to;) { /* the last lanes are taken again where that makes them whole: x is not y */
        int64_t count = s == from && whole ? whole : whole ? LANES : to - from;
        s = s == from ? s : to - count;
#define LDR_ARGUMENTS count, x + s, y + s, a, c + s, e + s, step, g, M + s, n
        if (rows > 1 && one)
            NAMED(down_tile_of_one)(LDR_ARGUMENTS);
        else if (rows > 1)
            NAMED(down_tile_of_e)(LDR_ARGUMENTS);
        else if (one)
            NAMED(down_row_of_one)(LDR_ARGUMENTS);
        else
            NAMED(down_row_of_e)(LDR_ARGUMENTS);
#undef LDR_ARGUMENTS
        s += count;
    }
}

/* A tile of E: row k of it from its own diagonal on, in columns. */
static LDR_CLONES void NAMED(sources)(NAMED(Scan) *s, int rows, int64_t i, int64_t column, int64_t count, REAL *e)
{
    int64_t m = s->m, k = 0;
    for (; k + 2 <= s->r; k += 2) {
        const REAL *g = s->G + k * m + i, *h0 = s->h + k * s->ext + column, *h1 = h0 + s->ext;
        const REAL p0 = g[0], p1 = rows > 1 ? g[1] : 0, p2 = rows > 1 ? g[2] : 0, p3 = rows > 1 ? g[3] : 0;
        g += m;
        const REAL q0 = g[0], q1 = rows > 1 ? g[1] : 0, q2 = rows > 1 ? g[2] : 0, q3 = rows > 1 ? g[3] : 0;
        REAL *e1 = e + WIDTH, *e2 = e1 + WIDTH, *e3 = e2 + WIDTH;
        if (k == 0) {
#pragma omp simd
            for (int64_t j = 0; j < count; j++) {
                e[j] = p0 * h0[j] + q0 * h1[j];
                if (rows > 1) {
                    e1[j] = p1 * h0[j] + q1 * h1[j];
                    e2[j] = p2 * h0[j] + q2 * h1[j];
                    e3[j] = p3 * h0[j] + q3 * h1[j];
                }
            }
        } else {
#pragma omp simd
            for (int64_t j = 0; j < count; j++) {
                e[j] += p0 * h0[j] + q0 * h1[j];
                if (rows > 1) {
                    e1[j] += p1 * h0[j] + q1 * h1[j];
                    e2[j] += p2 * h0[j] + q2 * h1[j];
                    e3[j] += p3 * h0[j] + q3 * h1[j];
                }
            }
        }
    }
    if (k < s->r) {
        const REAL *h = s->h + k * s->ext + column;
        for (int row = 0; row < rows; row++) {
            const REAL g = s->G[k * m + i + row];
            REAL *to = e + row * WIDTH;
#pragma omp simd
            for (int64_t j = 0; j < count; j++)
                to[j] += g * h[j];
        }
    }
}

static void NAMED(down_tile)(NAMED(Scan) *s, int rows, int64_t i, int64_t from, int64_t to, const REAL *x, REAL *y,
                                 REAL *tile, REAL *M)
{
    int64_t n = s->n, step;
    const REAL *c = s->c + i, *g = s->G + i, *e;
    int one = s->r == 1;
    if (one) {
        e = s->h + i, step = 1;
    } else {
        NAMED(sources)(s, rows, i, i + from, (to - from + rows - 1 + LANES - 1) / LANES * LANES, tile);
        e = tile - from, step = WIDTH + 1;
    }
    int64_t wraps = n - i - (rows - 1), all = n - i; /* from here on rows pass the last column: some, all */
    int64_t first = to < wraps ? to : wraps, second = from > all ? from : all;
    const REAL *a = s->a + i;
    if (M) {
        REAL *left = M + i * n + i;
        NAMED(down_piece)(rows, one, from, first, x, y, a, c, e, step, g, left, n);
        NAMED(down_piece)(rows, one, second, to, x, y, a, c, e, step, g, left - n, n);
    } else { /* rows that nobody wants go to one place */
        NAMED(down_piece)(rows, one, from, to, x, y, a, c, e, step, g, tile + ROWS * WIDTH - from, -1);
        return;
    }
    for (int64_t k = from > wraps ? from : wraps; k < to && k < all; k++) {
        REAL v = x[k];
        for (int row = 0; row < rows; row++) {
            int64_t column = k + i + row;
            const REAL *from_e = e + k + row * step;
            v = s->a[i + row] * c[k + row] * v + (one ? g[row] * *from_e : *from_e);
            M[(i + row) * n + (column < n ? column : column - n)] = v;
        }
        y[k] = v;
    }
}

/* Rows of one band of diagonals; the state is in state[0] at first. Gives where it is in the end. */
static int NAMED(sweep_down)(NAMED(Scan) *s, NAMED(Band) *b, REAL **state, int64_t start, int64_t stop, REAL *M)
{
    int at = 0;
    for (int64_t i = 0; i < s->m; at = !at) {
        int rows = i + ROWS <= s->m ? ROWS : 1;
        for (int64_t from = start; from < stop; from += STRIP) {
            int64_t to = from + STRIP < stop ? from + STRIP : stop;
            NAMED(down_tile)(s, rows, i, from, to, state[at], state[!at], b->tile, M);
        }
        i += rows;
    }
    return at;
}

/* Backward: rows of D from the last to the first. Tiles get l_i, and l_i M_{i-1} where there is an M. */

LDR_INLINE void NAMED(up)(int rows, int graded, int64_t count, const REAL *x, REAL *y, const REAL *a, const REAL *c,
                          const REAL *D, const REAL *first, const REAL *M, int64_t n, REAL *l, REAL *u)
{
    const REAL a1 = a[1], a2 = rows > 1 ? a[2] : 0, a3 = rows > 1 ? a[3] : 0, a4 = rows > 1 ? a[4] : 0;
    const REAL *D1 = D + n + 1, *D2 = D1 + n + 1, *D3 = D2 + n + 1;
    const REAL *M1 = M + n + 1, *M2 = M1 + n + 1, *M3 = M2 + n + 1;
    REAL *l1 = l + WIDTH + 1, *l2 = l1 + WIDTH + 1, *l3 = l2 + WIDTH + 1;
    REAL *u1 = u + WIDTH + 1, *u2 = u1 + WIDTH + 1, *u3 = u2 + WIDTH + 1;
#pragma omp simd
    for (int64_t s = 0; s < count; s++) {
        REAL v = x[s];
        if (rows > 1) {
            v = a4 * c[s + 4] * v + D3[s];
            l3[s] = v;
            if (graded)
                u3[s] = v * M3[s];
            v = a3 * c[s + 3] * v + D2[s];
            l2[s] = v;
            if (graded)
                u2[s] = v * M2[s];
            v = a2 * c[s + 2] * v + D1[s];
            l1[s] = v;
            if (graded)
                u1[s] = v * M1[s];
        }
        v = a1 * c[s + 1] * v + D[s];
        l[s] = v;
        if (graded)
            u[s] = v * first[s];
        y[s] = v;
    }
}

#define LDR_UP(name, rows, graded)                                                                               \
    static LDR_CLONES void NAMED(name)(int64_t count, const REAL *x, REAL *y, const REAL *a, const REAL *c,       \
                                       const REAL *D, const REAL *first, const REAL *M, int64_t n, REAL *l,      \
                                       REAL *u)                                                                  \
    {                                                                                                            \
        NAMED(up)(rows, graded, count, x, y, a, c, D, first, M, n, l, u);                                        \
    }
LDR_UP(up_tile_with_m, ROWS, 1)
LDR_UP(up_tile_alone, ROWS, 0)
LDR_UP(up_row_with_m, 1, 1)
LDR_UP(up_row_alone, 1, 0)
#undef LDR_UP

static void NAMED(up_piece)(int rows, int graded, int64_t from, int64_t to, const REAL *x, REAL *y, const REAL *a,
                            const REAL *c, const REAL *D, const REAL *first, const REAL *M, int64_t n, REAL *l, REAL *u)
{
    int64_t whole = (to - from) / LANES * LANES;
    for (int64_t s = from; s < to;) {
        int64_t count = s == from && whole ? whole : whole ? LANES : to - from;
        s = s == from ? s : to - count;
#define LDR_ARGUMENTS count, x + s, y + s, a, c + s, D + s, first + s, M + s, n, l + s, u + s
        if (rows > 1 && graded)
            NAMED(up_tile_with_m)(LDR_ARGUMENTS);
        else if (rows > 1)
            NAMED(up_tile_alone)(LDR_ARGUMENTS);
        else if (graded)
            NAMED(up_row_with_m)(LDR_ARGUMENTS);
        else
            NAMED(up_row_alone)(LDR_ARGUMENTS);
#undef LDR_ARGUMENTS
        s += count;
    }
}

/* D holds row i first, M the whole matrix (NULL where operators have no gradients). */
static void NAMED(up_tile)(NAMED(Scan) *s, int rows, int64_t i, int64_t from, int64_t to, const REAL *x, REAL *y,
                               const REAL *D, const REAL *M, REAL *l, REAL *u)
{
    int64_t n = s->n, some = n - i - (rows - 1), all = n - i + 1, low = from + (i == 0 && from == 0);
    int64_t first = to < some ? to : some, second = from > all ? from : all;
    const REAL *c = s->c + i, *a = s->a + i, *before = M ? M + ((i ? i : s->m) - 1) * n : NULL;
    l -= from, u -= from;
    if (M) {
        const REAL *M0 = M + i * n + i - n - 1, *left = before + i - 1;
        NAMED(up_piece)(rows, 1, low, first, x, y, a, c, D + i, left, M0, n, l, u);
        NAMED(up_piece)(rows, 1, second, to, x, y, a, c, D + i - n, left - n, M0 - n, n, l, u);
    } else {
        NAMED(up_piece)(rows, 0, low, first, x, y, a, c, D + i, D, D, n, l, u);
        NAMED(up_piece)(rows, 0, second, to, x, y, a, c, D + i - n, D, D, n, l, u);
    }
    for (int64_t k = from; k < to; k++) {
        if (k >= low && k < first)
            k = first;
        if (k >= to || k >= second)
            return;
        REAL v = x[k];
        for (int row = rows - 1; row >= 0; row--) {
            int64_t column = k + i + row, left = (column - 1 + n) % n;
            v = a[row + 1] * c[k + row + 1] * v + D[row * n + column % n];
            l[k + row * (WIDTH + 1)] = v;
            if (M)
                u[k + row * (WIDTH + 1)] = v * (row ? M[(i + row - 1) * n + left] : before[left]);
        }
        y[k] = v;
    }
}

/* Sums over a tile of `count` columns from `column` on: gradients of A and C, and of one or two rows of G and H. */

LDR_INLINE void NAMED(collect)(int rows, int graded, int ranks, int64_t count, const REAL *l, const REAL *u,
                               const REAL *c, REAL *dc, const REAL *h, REAL *dh, int64_t ext, const REAL *a,
                               const REAL *g, int64_t m, REAL *da, REAL *dg)
{
    REAL s0 = 0, s1 = 0, s2 = 0, s3 = 0, p0 = 0, p1 = 0, p2 = 0, p3 = 0, q0 = 0, q1 = 0, q2 = 0, q3 = 0;
    const REAL a0 = a[0], a1 = rows > 1 ? a[1] : 0, a2 = rows > 1 ? a[2] : 0, a3 = rows > 1 ? a[3] : 0;
    const REAL g0 = g[0], g1 = rows > 1 ? g[1] : 0, g2 = rows > 1 ? g[2] : 0, g3 = rows > 1 ? g[3] : 0;
    const REAL *o = ranks > 1 ? g + m : g, *h2 = ranks > 1 ? h + ext : h;
    const REAL o0 = o[0], o1 = rows > 1 ? o[1] : 0, o2 = rows > 1 ? o[2] : 0, o3 = rows > 1 ? o[3] : 0;
    REAL *dh2 = ranks > 1 ? dh + ext : dh;
    const REAL *l1 = l + WIDTH, *l2 = l1 + WIDTH, *l3 = l2 + WIDTH, *u1 = u + WIDTH, *u2 = u1 + WIDTH, *u3 = u2 + WIDTH;
#pragma omp simd reduction(+ : s0, s1, s2, s3, p0, p1, p2, p3, q0, q1, q2, q3)
    for (int64_t j = 0; j < count; j++) {
        if (graded) {
            REAL x = c[j], v = u[j], sum = a0 * v;
            s0 += v * x;
            if (rows > 1) {
                v = u1[j], sum += a1 * v, s1 += v * x;
                v = u2[j], sum += a2 * v, s2 += v * x;
                v = u3[j], sum += a3 * v, s3 += v * x;
            }
            dc[j] += sum;
        }
        REAL x = h[j], v = l[j], sum = g0 * v, y = ranks > 1 ? h2[j] : 0, also = ranks > 1 ? o0 * v : 0;
        p0 += v * x;
        if (ranks > 1)
            q0 += v * y;
        if (rows > 1) {
            v = l1[j], sum += g1 * v, p1 += v * x;
            if (ranks > 1)
                also += o1 * v, q1 += v * y;
            v = l2[j], sum += g2 * v, p2 += v * x;
            if (ranks > 1)
                also += o2 * v, q2 += v * y;
            v = l3[j], sum += g3 * v, p3 += v * x;
            if (ranks > 1)
                also += o3 * v, q3 += v * y;
        }
        dh[j] += sum;
        if (ranks > 1)
            dh2[j] += also;
    }
    if (graded)
        da[0] += s0;
    dg[0] += p0;
    if (ranks > 1)
        dg[m] += q0;
    if (rows > 1) {
        if (graded)
            da[1] += s1, da[2] += s2, da[3] += s3;
        dg[1] += p1, dg[2] += p2, dg[3] += p3;
        if (ranks > 1)
            dg[m + 1] += q1, dg[m + 2] += q2, dg[m + 3] += q3;
    }
}

#define LDR_COLLECT(name, rows, graded, ranks)                                                                   \
    static LDR_CLONES void NAMED(name)(int64_t count, const REAL *l, const REAL *u, const REAL *c, REAL *dc,      \
                                       const REAL *h, REAL *dh, int64_t ext, const REAL *a, const REAL *g,       \
                                       int64_t m, REAL *da, REAL *dg)                                            \
    {                                                                                                            \
        NAMED(collect)(rows, graded, ranks, count, l, u, c, dc, h, dh, ext, a, g, m, da, dg);                     \
    }
LDR_COLLECT(collect_tile_with_operators, ROWS, 1, 1)
LDR_COLLECT(collect_tile_of_two, ROWS, 0, 2)
LDR_COLLECT(collect_tile_of_one, ROWS, 0, 1)
LDR_COLLECT(collect_row_with_operators, 1, 1, 1)
LDR_COLLECT(collect_row_of_two, 1, 0, 2)
LDR_COLLECT(collect_row_of_one, 1, 0, 1)
#undef LDR_COLLECT

/* Clear what a tile does not fill at both ends of its rows. */
static void NAMED(frame)(REAL *tile, int rows, int64_t length, int64_t count)
{
    for (int row = 0; row < rows; row++) {
        REAL *cells = tile + row * WIDTH;
        for (int64_t j = 0; j < row; j++)
            cells[j] = 0;
        for (int64_t j = row + length; j < count; j++)
            cells[j] = 0;
    }
}

static void NAMED(collect_tile)(NAMED(Scan) *s, NAMED(Band) *b, int rows, int graded, int64_t i, int64_t from,
                                    int64_t to)
{
    int64_t m = s->m, ext = s->ext, at = i + from, k = 0;
    int64_t count = (to - from + rows - 1 + LANES - 1) / LANES * LANES;
    const REAL *c = s->c + at, *h = s->h + at, *g = s->G + i, *a = s->a + i;
    REAL *l = b->tile, *u = b->second, *dc = b->dc + at, *dh = b->dh + at, *da = b->da + i, *dg = b->dG + i;
    NAMED(frame)(l, rows, to - from, count);
#define LDR_ARGUMENTS count, l, u, c, dc, h + k * ext, dh + k * ext, ext, a, g + k * m, m, da, dg + k * m
    if (graded) {
        NAMED(frame)(u, rows, to - from, count);
        if (rows > 1)
            NAMED(collect_tile_with_operators)(LDR_ARGUMENTS);
        else
            NAMED(collect_row_with_operators)(LDR_ARGUMENTS);
        k = 1;
    }
    for (; k + 2 <= s->r; k += 2)
        if (rows > 1)
            NAMED(collect_tile_of_two)(LDR_ARGUMENTS);
        else
            NAMED(collect_row_of_two)(LDR_ARGUMENTS);
    if (k < s->r && rows > 1)
        NAMED(collect_tile_of_one)(LDR_ARGUMENTS);
    else if (k < s->r)
        NAMED(collect_row_of_one)(LDR_ARGUMENTS);
#undef LDR_ARGUMENTS
}

/* D_j - f q_{j+m} D_{j+m} for some rows. */
static void NAMED(damp_rows)(NAMED(Scan) *s, int rows, const REAL *D, REAL *to)
{
    int64_t m = s->m, n = s->n;
    for (int row = 0; row < rows; row++, D += n, to += n) {
        for (int64_t j = 0; j < n - m; j++)
            to[j] = D[j] - s->damping[j + m] * D[j + m];
        for (int64_t j = n - m; j < n; j++)
            to[j] = D[j] - s->damping[j + m - n] * D[j + m - n];
    }
}

/* What the MAIN pass does with the tiles: 0 nothing, 1 sums for G and H, of damped rows, 2 for operators too. */
static int NAMED(sweep_up)(NAMED(Scan) *s, NAMED(Band) *b, REAL **state, int64_t start, int64_t stop,
                               const REAL *D, const REAL *M, int sums, int damped)
{
    int at = 0;
    int64_t n = s->n;
    for (int64_t i = s->m; i > 0; at = !at) {
        int rows = i % ROWS == 0 ? ROWS : 1;
        i -= rows;
        const REAL *source = D + i * n;
        if (damped)
            NAMED(damp_rows)(s, rows, source, b->rows), source = b->rows;
        for (int64_t from = start; from < stop; from += STRIP) {
            int64_t to = from + STRIP < stop ? from + STRIP : stop;
            NAMED(up_tile)(s, rows, i, from, to, state[at], state[!at], source, M, b->tile, b->second);
            if (sums)
                NAMED(collect_tile)(s, b, rows, M != NULL, i, from, to);
        }
    }
    return at;
}

/* Between both passes forward: the main one starts where the last row leaves off. */
static void NAMED(turn_down)(NAMED(Scan) *s, const REAL *last)
{
    int64_t n = s->n, m = s->m;
    for (int64_t k = 0; k < n; k++)
        s->y[0][k] = last[k < m ? k - m + n : k - m];
    NAMED(damp)(s);
}

/* Backward: from l_0 of each diagonal to what enters its last row. With `graded` a path goes around for ever,
 * Z_0(s) = l_0(s) + f q_{s+m} Z_0(s + m): solved along each cycle. Else paths of m steps alone: l_0 itself. */
static void NAMED(turn_up)(NAMED(Scan) *s, const REAL *first, int graded)
{
    int64_t n = s->n, m = s->m, length = 0;
    REAL *z = s->y[1];
    if (!graded) {
        for (int64_t k = 0; k < n; k++)
            s->y[0][k] = first[(k + m) % n];
        return;
    }
    do
        length++;
    while (length * m % n);
    for (int64_t begin = 0; begin < n / length; begin++) {
        double sum = 0, weight = 1;
        int64_t k = begin;
        for (int64_t step = 0; step < length; step++) {
            sum += weight * (double)first[k];
            k = (k + m) % n;
            weight *= (double)s->damping[k];
        }
        sum /= 1 - weight;
        z[k] = (REAL)sum;
        for (int64_t step = 1; step < length; step++) {
            double next = (double)s->damping[k] * sum;
            k = (k - m + n) % n;
            sum = (double)first[k] + next;
            z[k] = (REAL)sum;
        }
    }
    for (int64_t k = 0; k < n; k++)
        s->y[0][k] = z[(k + m) % n];
    NAMED(damp)(s);
}

/* What f and q_j have of the gradient of H' = H - f q_j H_{j-m}: into da and dc, in float64. */
static void NAMED(rounds)(NAMED(Scan) *s, const REAL *dh, double *da, double *dc)
{
    int64_t m = s->m, n = s->n, all = n + m - 1;
    double mu = s->numbers[0], under = 1 / mu, f = s->numbers[2], df = 0, product = 1;
    double *back = s->ones, *forth = back + n + m, *y = forth + n + m, *dback = y + n + m, *dforth = dback + n + m;
    for (int64_t j = 0; j < n; j++)
        y[j] = 0;
    for (int64_t k = 0; k < s->r; k++)
        for (int64_t j = 0; j < n; j++)
            y[j] += (double)dh[k * s->ext + j] * (double)s->H[k * n + (j < m ? j - m + n : j - m)];
    for (int64_t j = 0; j < n; j++)
        df -= s->q[j] * y[j];
    for (int64_t i = 0; i < m; i++)
        dforth[i] = product, product *= (double)s->a[i] * under;
    product = 1;
    for (int64_t i = m - 1; i >= 0; i--)
        da[i] += df * dforth[i] * product * under, product *= (double)s->a[i] * under;
    if (f == 0)
        return;
    for (int64_t k = 0; k < all; k++)
        dback[k] = dforth[k] = 0;
    for (int64_t j = 0; j < n; j++) {
        double dq = -f * y[j];
        if (j % m == 0) {
            dback[j] += dq;
        } else {
            dback[j] += dq * forth[j + m - 1];
            dforth[j + m - 1] += dq * back[j];
        }
    }
    for (int64_t k = all - 1; k >= 0; k--) {
        int64_t j = (k - (m - 1) + n) % n, start = k % m == 0;
        dc[j] += mu * dforth[k] * (start ? 1 : forth[k - 1]);
        if (!start)
            dforth[k - 1] += dforth[k] * mu * (double)s->c[j];
    }
    for (int64_t k = 0; k < all; k++) {
        int64_t j = (k - (m - 1) + n) % n, stop = k == all - 1 || (k + 1) % m == 0;
        dc[j] += mu * dback[k] * (stop ? 1 : back[k + 1]);
        if (!stop)
            dback[k + 1] += dback[k] * mu * (double)s->c[j];
    }
}

/* Sums of the bands, to the tensors. Works in the first band and in room that MAIN has left. */
static void NAMED(finish)(NAMED(Scan) *s, char *room, int64_t bands, int graded, REAL *dG, REAL *dH, REAL *dca,
                              REAL *dla, REAL *dcc, REAL *dlc)
{
    int64_t r = s->r, m = s->m, n = s->n, ext = s->ext;
    NAMED(Band) first, other, *b = &first;
    int64_t each = NAMED(carve_band)(b, room, r, m, n);
    for (int64_t k = 1; k < bands; k++) {
        NAMED(carve_band)(&other, room + k * each, r, m, n);
        for (int64_t i = 0; i < r * m; i++)
            b->dG[i] += other.dG[i];
        for (int64_t j = 0; j < r * ext; j++)
            b->dh[j] += other.dh[j];
        for (int64_t i = 0; graded && i < m; i++)
            b->da[i] += other.da[i];
        for (int64_t j = 0; graded && j < ext; j++)
            b->dc[j] += other.dc[j];
    }
    memcpy(dG, b->dG, (size_t)(r * m) * sizeof(REAL));
    for (int64_t k = 0; k < r; k++) {
        REAL *dh = b->dh + k * ext, *to = dH + k * n;
        for (int64_t at = n; at < ext; at += n)
            for (int64_t j = 0; j < n && j < ext - at; j++)
                dh[j] += dh[at + j];
        memcpy(to, dh, (size_t)n * sizeof(REAL));
        if (graded && s->regime[0] == ROUND)
            for (int64_t j = 0; j < n; j++)
                to[j] -= s->damping[(j + m) % n] * dh[(j + m) % n];
    }
    if (!graded)
        return;
    double *da = s->sums, *dc = da + m;
    for (int64_t i = 0; i < m; i++)
        da[i] = (double)b->da[i];
    for (int64_t at = n; at < ext; at += n)
        for (int64_t j = 0; j < n && j < ext - at; j++)
            b->dc[j] += b->dc[at + j];
    for (int64_t j = 0; j < n; j++)
        dc[j] = (double)b->dc[j];
    if (s->regime[0] != GENERAL)
        NAMED(rounds)(s, b->dh, da, dc);
    for (int64_t k = 0; m == 1 && k < 1 + n; k++)
        da[k] = 0; /* one row: no step from any other */
    dca[0] = (REAL)da[0], dcc[0] = (REAL)dc[0];
    for (int64_t i = 1; i < m; i++)
        dla[i - 1] = (REAL)da[i];
    for (int64_t j = 1; j < n; j++)
        dlc[j - 1] = (REAL)dc[j];
}

/* The general form, in float64: names as in `functional.scan`, P_i = W_i k and Q_i = k B_i. */

LDR_INLINE void NAMED(source_row)(NAMED(Scan) *s, int64_t i, double *e)
{
    for (int64_t j = 0; j < s->n; j++)
        e[j] = 0;
    for (int64_t k = 0; k < s->r; k++) {
        const double g = (double)s->G[k * s->m + i];
        const REAL *h = s->h + k * s->ext + i;
#pragma omp simd
        for (int64_t j = 0; j < s->n; j++)
            e[j] += g * (double)h[j];
    }
}

static LDR_CLONES void NAMED(general_fill)(NAMED(Scan) *s, REAL *M)
{
    int64_t m = s->m, n = s->n;
    double *x = malloc((size_t)(3 * n) * sizeof(double)), *P = x + n, *e = P + n;
    for (int64_t k = 0; x == NULL && k < m * n; k++)
        M[k] = (REAL)NAN;
    if (x == NULL)
        return;
    for (int64_t k = 0; k < n; k++)
        x[k] = 0, P[k] = 1;
    for (int64_t i = m - 1; i >= 0; i--) { /* S, on the diagonal that continues it */
        const REAL *c = s->c + i, a = s->a[i];
        NAMED(source_row)(s, i, e);
        for (int64_t k = 0; k < n; k++)
            M[i * n + (k + m + i) % n] = (REAL)x[k];
#pragma omp simd
        for (int64_t k = 0; k < n; k++) {
            x[k] += P[k] * e[k];
            P[k] *= (double)(a * c[k]);
        }
    }
    for (int64_t k = 0; k < n; k++)
        x[k] = 0, P[k] = 1;
    for (int64_t i = 0; i < m; i++) {
        const REAL *c = s->c + i, a = s->a[i];
        REAL *row = M + i * n;
        NAMED(source_row)(s, i, e);
        for (int64_t piece = 0; piece < 2; piece++) {
            int64_t from = piece ? n - i : 0, to = piece ? n : n - i;
            REAL *at = row + (piece ? i - n : i);
#pragma omp simd
            for (int64_t k = from; k < to; k++) {
                const double w = (double)(a * c[k]);
                x[k] = w * x[k] + e[k];
                P[k] *= w;
                at[k] = (REAL)(x[k] + P[k] * (double)at[k]);
            }
        }
    }
    free(x);
}

LDR_INLINE void NAMED(general_down)(NAMED(Scan) *s, const REAL *D, int64_t first, int64_t last, double *state,
                                    double *e, double *moved, double *kept)
{
    int64_t m = s->m, n = s->n;
    double *x = state, *P = x + n, *r = P + n, *Q = r + n;
    for (int64_t i = first; i < last; i++) {
        const REAL *c = s->c + i, a = s->a[i];
        for (int64_t k = 0; k < n; k++)
            moved[k] = Q[(k + m) % n];
        if (kept) {
            double *to = kept + 4 * (i - first) * n;
            memcpy(to, state, (size_t)(3 * n) * sizeof(double));
            memcpy(to + 3 * n, moved, (size_t)n * sizeof(double));
        }
        NAMED(source_row)(s, i, e);
        for (int64_t piece = 0; piece < 2; piece++) {
            int64_t from = piece ? n - i : 0, to = piece ? n : n - i;
            const REAL *at = D + i * n + (piece ? i - n : i);
#pragma omp simd
            for (int64_t k = from; k < to; k++) {
                const double w = (double)(a * c[k]);
                x[k] = w * x[k] + e[k];
                r[k] = w * r[k] + e[k] * moved[k];
                P[k] *= w;
                Q[k] += (double)at[k] * P[k];
            }
        }
    }
}

static LDR_CLONES void NAMED(general_gradients)(NAMED(Scan) *s, NAMED(Band) *b, const REAL *D, int graded)
{
    int64_t m = s->m, n = s->n, blocks = (m + KEPT - 1) / KEPT;
    size_t state = (size_t)(4 * n) * sizeof(double);
    double *all = malloc((size_t)(blocks + 2 + KEPT + 2) * state);
    if (all == NULL) { /* no memory: nothing is right */
        b->dG[0] = b->dh[0] = b->da[0] = (REAL)NAN;
        return;
    }
    double *down = all + blocks * 4 * n, *S = down + 4 * n, *V = S + n, *wl = V + n, *wt = wl + n;
    double *kept = S + 4 * n, *e = kept + KEPT * 4 * n, *moved = e + n, *before = moved + n, *dw = before + n;
    double *de = dw + n;
    for (int64_t k = 0; k < n; k++) {
        down[k] = down[2 * n + k] = down[3 * n + k] = S[k] = wl[k] = wt[k] = 0;
        down[n + k] = V[k] = 1;
    }
    for (int64_t block = 0; block < blocks; block++) {
        memcpy(all + block * 4 * n, down, state);
        int64_t last = (block + 1) * KEPT < m ? (block + 1) * KEPT : m;
        NAMED(general_down)(s, D, block * KEPT, last, down, e, moved, NULL);
    }
    for (int64_t block = blocks - 1; block >= 0; block--) {
        int64_t last = (block + 1) * KEPT < m ? (block + 1) * KEPT : m;
        NAMED(general_down)(s, D, block * KEPT, last, all + block * 4 * n, e, moved, kept);
        for (int64_t i = last - 1; i >= block * KEPT; i--) {
            const double *x = kept + 4 * (i - block * KEPT) * n, *P = x + n, *r = P + n, *Q = r + n;
            const REAL *c = s->c + i, a = s->a[i];
            REAL *dc = b->dc + i;
            double sum = 0;
            NAMED(source_row)(s, i, e);
            for (int64_t k = 0; k < n; k++)
                before[k] = S[(k - m + n) % n];
            for (int64_t piece = 0; piece < 2; piece++) {
                int64_t from = piece ? n - i : 0, to = piece ? n : n - i;
                const REAL *at = D + i * n + (piece ? i - n : i);
#pragma omp simd
                for (int64_t k = from; k < to; k++) {
                    const double w = (double)(a * c[k]), v = V[k], d = (double)at[k];
                    const double here = wl[k] + d, through = wt[k] + d * before[k];
                    de[k] = here + v * Q[k];
                    dw[k] = here * x[k] + P[k] * through + v * r[k];
                    S[k] += v * e[k];
                    V[k] = v * w;
                    wl[k] = w * here;
                    wt[k] = w * through;
                }
            }
            if (graded) {
#pragma omp simd reduction(+ : sum)
                for (int64_t k = 0; k < n; k++) {
                    sum += dw[k] * (double)c[k];
                    dc[k] += (REAL)(dw[k] * (double)a);
                }
                b->da[i] += (REAL)sum;
            }
            for (int64_t rank = 0; rank < s->r; rank++) {
                const REAL *h = s->h + rank * s->ext + i, g = s->G[rank * m + i];
                REAL *dh = b->dh + rank * s->ext + i;
                sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t k = 0; k < n; k++) {
                    sum += de[k] * (double)h[k];
                    dh[k] += (REAL)(de[k] * (double)g);
                }
                b->dG[rank * m + i] += (REAL)sum;
            }
        }
    }
    free(all);
}

/* The interface. Matrices start .. stop - 1 where phase is ALL, and one band of each; else one phase of those, or of
 * the bands start .. stop - 1 (AROUND and MAIN), with room for every matrix. */

LDR_API void NAMED(scan_room)(int64_t bands, int64_t r, int64_t m, int64_t n, int64_t *bytes)
{
    NAMED(Scan) s;
    NAMED(Band) b;
    *bytes = NAMED(carve)(&s, NULL, r, m, n) + bands * NAMED(carve_band)(&b, NULL, r, m, n);
}

LDR_API void NAMED(scan_fill)(int64_t phase, int64_t start, int64_t stop, int64_t bands, int64_t r,
                                         int64_t m, int64_t n, const REAL *G, const REAL *H, const REAL *ca,
                                         const REAL *la, const REAL *cc, const REAL *lc, int64_t ka, int64_t kc,
                                         char *room, REAL *M)
{
    ldr_mode mode = ldr_flush();
    int64_t bytes;
    NAMED(scan_room)(bands, r, m, n, &bytes);
    for (int64_t k = start; k < stop; k++) {
        int64_t banded = phase == AROUND || phase == MAIN, matrix = banded ? k / bands : k;
        int64_t band = banded ? k % bands : 0, low = n * band / bands, high = n * (band + 1) / bands;
        char *own = phase == ALL ? room : room + matrix * bytes;
        NAMED(Scan) s;
        NAMED(Band) b;
        own += NAMED(carve)(&s, own, r, m, n);
        NAMED(carve_band)(&b, own + band * NAMED(carve_band)(&b, NULL, r, m, n), r, m, n);
        s.G = G + matrix * r * m, s.H = H + matrix * r * n;
        REAL *to = M + matrix * m * n;
        if (phase == PREPARE || phase == ALL) {
            NAMED(prepare)(&s, la ? ca + matrix : NULL, la ? la + matrix * (m - 1) : NULL, la ? cc + matrix : NULL,
                           la ? lc + matrix * (n - 1) : NULL, ka, kc, 0);
            memset(s.x[0], 0, (size_t)n * sizeof(REAL));
            memset(s.y[0], 0, (size_t)n * sizeof(REAL));
        }
        if (s.regime[0] == GENERAL) {
            if ((phase == MAIN || phase == ALL) && band == 0)
                NAMED(general_fill)(&s, to);
            continue;
        }
        int around = s.regime[0] == ROUND;
        if (around && (phase == AROUND || phase == ALL))
            NAMED(sweep_down)(&s, &b, s.x, low, high, NULL);
        if (around && (phase == TURN || phase == ALL))
            NAMED(turn_down)(&s, s.x[(m / ROWS + m % ROWS) % 2]);
        if (phase == MAIN || phase == ALL)
            NAMED(sweep_down)(&s, &b, s.y, low, high, to);
    }
    ldr_restore(mode);
}

LDR_API void NAMED(scan_gradients)(int64_t phase, int64_t start, int64_t stop, int64_t bands, int64_t r,
                                              int64_t m, int64_t n, const REAL *D, const REAL *M, const REAL *G,
                                              const REAL *H, const REAL *ca, const REAL *la, const REAL *cc,
                                              const REAL *lc, int64_t ka, int64_t kc, char *room, REAL *dG, REAL *dH,
                                              REAL *dca, REAL *dla, REAL *dcc, REAL *dlc)
{
    ldr_mode mode = ldr_flush();
    int64_t bytes;
    int graded = dca != NULL;
    NAMED(scan_room)(bands, r, m, n, &bytes);
    for (int64_t k = start; k < stop; k++) {
        int64_t banded = phase == AROUND || phase == MAIN, matrix = banded ? k / bands : k;
        int64_t band = banded ? k % bands : 0, low = n * band / bands, high = n * (band + 1) / bands;
        char *own = phase == ALL ? room : room + matrix * bytes;
        NAMED(Scan) s;
        NAMED(Band) b;
        own += NAMED(carve)(&s, own, r, m, n);
        int64_t each = NAMED(carve_band)(&b, NULL, r, m, n);
        NAMED(carve_band)(&b, own + band * each, r, m, n);
        s.G = G + matrix * r * m, s.H = H + matrix * r * n;
        const REAL *given = D + matrix * m * n, *made = graded ? M + matrix * m * n : NULL;
        if (phase == PREPARE || phase == ALL) {
            NAMED(prepare)(&s, la ? ca + matrix : NULL, la ? la + matrix * (m - 1) : NULL, la ? cc + matrix : NULL,
                           la ? lc + matrix * (n - 1) : NULL, ka, kc, graded);
            memset(s.x[0], 0, (size_t)n * sizeof(REAL));
            memset(s.y[0], 0, (size_t)n * sizeof(REAL));
        }
        int general = s.regime[0] == GENERAL, around = s.regime[0] == ROUND;
        if (around && (phase == AROUND || phase == ALL))
            NAMED(sweep_up)(&s, &b, s.x, low, high, given, NULL, 0, 0);
        if (around && (phase == TURN || phase == ALL))
            NAMED(turn_up)(&s, s.x[(m / ROWS + m % ROWS) % 2], graded);
        if (phase == MAIN || phase == ALL) {
            memset(b.da, 0, (size_t)m * sizeof(REAL));
            memset(b.dG, 0, (size_t)(r * m) * sizeof(REAL));
            memset(b.dc, 0, (size_t)s.ext * sizeof(REAL));
            memset(b.dh, 0, (size_t)(r * s.ext) * sizeof(REAL));
            if (!general)
                NAMED(sweep_up)(&s, &b, s.y, low, high, given, made, 1, around && !graded);
            else if (band == 0)
                NAMED(general_gradients)(&s, &b, given, graded);
        }
        if (phase == FINISH || phase == ALL)
            NAMED(finish)(&s, own, bands, graded, dG + matrix * r * m, dH + matrix * r * n,
                          graded ? dca + matrix : NULL, graded ? dla + matrix * (m - 1) : NULL,
                          graded ? dcc + matrix : NULL, graded ? dlc + matrix * (n - 1) : NULL);
    }
    ldr_restore(mode);
}
