/* One matrix of a scan: its memory, and what paths weigh that go around once.
 *
 * f is the product of all a, A's corner a_0 among them, and q_j that of the m entries c_j, c_{j-1}, .. of C, columns
 * modulo n: A^m E (C^m)^T has the entries f q_j E[i, j - m]. A common scale mu is taken from A and put to C, so that
 * f and q_j are numbers that float64 holds.
 */

typedef struct {
    int64_t r, m, n, wide; /* wide: n up to whole lanes */
    const REAL *G, *H;
    REAL *a, *c, *inner, *around; /* (m + 1) and (n + 1), corners at both ends; c without any (n); f q_j (n) */
    REAL *last, *shared;     /* what comes before the first row; one that bands share (n + 1) */
    REAL *h;                      /* H, or H' where paths go around: (r, wide) */
    double *q, *ends, *da, *dc;   /* (n), five times (n + m), (m), (n) */
    struct {
        double regime, mu, f, once;
    } *is; /* once: the product of all a but the corner */
} NAMED(Scan);

static char *NAMED(cut)(char *room, int64_t *at, int64_t bytes)
{
    char *piece = room ? room + *at : NULL; /* without room pieces are only counted */
    *at += (bytes + 63) / 64 * 64;
    return piece;
}

/* A vector that begins a line of the cache, with room for one entry before it and for whole lanes. */
static REAL *NAMED(vector)(char *room, int64_t *at, int64_t size)
{
    char *piece = NAMED(cut)(room, at, 64 + (size + LANES) * (int64_t)sizeof(REAL));
    return piece ? (REAL *)(piece + 64) : NULL;
}

static int64_t NAMED(carve)(NAMED(Scan) *s, char *room, int64_t r, int64_t m, int64_t n)
{
    int64_t at = 0;
    s->r = r, s->m = m, s->n = n, s->wide = (n + LANES - 1) / LANES * LANES;
    s->is = (void *)NAMED(cut)(room, &at, sizeof(*s->is));
    s->a = NAMED(vector)(room, &at, m + 1);
    s->c = NAMED(vector)(room, &at, n + 1);
    s->inner = NAMED(vector)(room, &at, n);
    s->around = NAMED(vector)(room, &at, n);
    s->last = NAMED(vector)(room, &at, n + 1);
    s->shared = NAMED(vector)(room, &at, n);
    s->h = NAMED(vector)(room, &at, r * s->wide);
    s->q = (double *)NAMED(cut)(room, &at, n * 8);
    s->ends = (double *)NAMED(cut)(room, &at, 5 * (n + m) * 8);
    s->da = (double *)NAMED(cut)(room, &at, m * 8);
    s->dc = (double *)NAMED(cut)(room, &at, n * 8);
    return at;
}

/* The geometric mean of |a_1|, .., |a_{m-1}| without zeros. */
static double NAMED(scale)(const NAMED(Scan) *s)
{
    double mantissa = 1;
    int64_t exponents = 0, count = 0;
    for (int64_t i = 1; i < s->m; i++) {
        int exponent;
        if (s->a[i] == 0)
            continue;
        mantissa *= fabs((double)s->a[i]);
        count++;
        if (sizeof(REAL) == 4 && i % 4)
            continue; /* four floats cannot leave the range */
        mantissa = frexp(mantissa, &exponent);
        exponents += exponent;
    }
    if (count == 0)
        return 1;
    return exp((log(mantissa) + (double)exponents * 0.69314718055994530942) / (double)count);
}

/* q_j without division: from products to the ends of blocks of m, `back` to the block's last and `forth` from its
 * first; index k is column k - (m - 1). Zeros count as 1 with `skip`. Gives the largest absolute q_j. */
static double NAMED(windows)(NAMED(Scan) *s, int skip)
{
    int64_t m = s->m, n = s->n, all = n + m - 1;
    double *back = s->ends, *forth = back + n + m, mu = s->is->mu, most = 0;
    for (int64_t first = 0; first < all; first += m) {
        int64_t stop = first + m < all ? first + m : all;
        double product = 1;
        for (int64_t k = first; k < stop; k++) {
            double c = (double)s->c[k < m - 1 ? k - (m - 1) + n : k - (m - 1)] * mu;
            back[k] = c = skip && c == 0 ? 1 : c;
            forth[k] = product *= c;
        }
        for (int64_t k = stop - 2; k >= first; k--)
            back[k] *= back[k + 1];
    }
    for (int64_t j = 0, next = 0; j < n; j++) {
        s->q[j] = j == next ? back[j] : back[j] * forth[j + m - 1];
        next += j == next ? m : 0;
        most = fabs(s->q[j]) > most ? fabs(s->q[j]) : most;
    }
    return most;
}

/* How much a path grows at most on its way: the largest product of neighbours in A times that in C. */
static double NAMED(growth)(const NAMED(Scan) *s)
{
    double mu = s->is->mu, under = 1 / mu, longest = 1, most = 1, run = 1;
    for (int64_t i = 1; i < s->m; i++) {
        run = (run > 1 ? run : 1) * fabs((double)s->a[i] * under);
        longest = run > longest ? run : longest;
    }
    run = 1;
    for (int64_t j = 0; j < s->n + s->m - 1; j++) {
        run = (run > 1 ? run : 1) * fabs((double)s->c[j < s->n ? j : j - s->n] * mu);
        most = run > most ? run : most;
    }
    return longest * most;
}

/* f, q and the regime. `graded`: for the gradients of operators. */
static int NAMED(weigh)(NAMED(Scan) *s, int graded)
{
    int64_t zeros = 0;
    int turns = s->a[0] != 0;
    s->is->regime = PLAIN, s->is->f = 0, s->is->once = 0;
    if (!turns && (!graded || (s->m == s->n && s->c[0] == 0))) {
        memset(s->q, 0, (size_t)s->n * sizeof(double));
        return PLAIN; /* no path goes around at all */
    }
    double mu = s->is->mu = NAMED(scale)(s), under = 1 / mu, once = 1, rest = 1, most, heavy;
    double least = fabs((double)s->a[0] * under), other = HUGE_VAL; /* of A and of C, corners too, but for zeros */
    for (int64_t i = 1; i < s->m; i++) {
        double a = (double)s->a[i] * under;
        once *= a;
        rest *= a == 0 ? 1 : fabs(a);
        least = a != 0 && fabs(a) < least ? fabs(a) : least;
    }
    s->is->once = once;
    s->is->f = once * (double)s->a[0] * under;
    for (int64_t j = 0; j < s->n; j++) {
        double c = fabs((double)s->c[j] * mu);
        zeros += c == 0;
        other = c != 0 && c < other ? c : other;
    }
    heavy = turns && zeros ? NAMED(windows)(s, 1) : 0;
    most = NAMED(windows)(s, 0);
    double round = fabs(s->is->f) * most;
    int fits = round <= MOST;
    if (graded) { /* paths around for ever weigh 1 / (1 - f q) for a square */
        double left = s->m == s->n ? fabs(1 - s->is->f * s->q[0]) : 1 - round;
        fits = fits && left * MOST >= 1;
        fits = fits && round <= MOST * MOST * least * other; /* without the step whose gradient it is */
        /* zeros cancel nothing, but for the gradients of zeros themselves */
        fits = fits && (turns ? rest * (zeros ? heavy : most) : fabs(once) * most) * NAMED(growth)(s) <= GROWTH;
    }
    s->is->regime = fits ? turns ? ROUND : PLAIN : GENERAL;
    for (int64_t j = 0; fits && turns && j < s->n; j++)
        s->around[j] = (REAL)(s->is->f * s->q[j]);
    return (int)s->is->regime;
}

/* H' = H - f q_j H_{j-m}. */
static void NAMED(damp)(NAMED(Scan) *s)
{
    int64_t m = s->m, n = s->n;
    for (int64_t k = 0; k < s->r; k++) {
        const REAL *H = s->H + k * n;
        REAL *h = s->h + k * s->wide;
        for (int64_t j = 0; j < m; j++)
            h[j] = H[j] - s->around[j] * H[j - m + n];
        for (int64_t j = m; j < n; j++)
            h[j] = H[j] - s->around[j] * H[j - m];
    }
}

/* Given dH', the gradients of f and q_j: added to da and dc. */
static void NAMED(rounds)(NAMED(Scan) *s, const REAL *dh)
{
    int64_t m = s->m, n = s->n, all = n + m - 1;
    double mu = s->is->mu, under = 1 / mu, df = 0, product = 1, *back = s->ends, *forth = back + n + m;
    double *y = forth + n + m, *dback = y + n + m, *dforth = dback + n + m;
    if (s->is->regime == PLAIN && s->is->once == 0)
        return;
    memset(y, 0, (size_t)n * sizeof(double));
    for (int64_t k = 0; k < s->r; k++)
        for (int64_t j = 0; j < n; j++)
            y[j] += (double)dh[k * s->wide + j] * (double)s->H[k * n + (j < m ? j - m + n : j - m)];
    for (int64_t j = 0; j < n; j++)
        df -= s->q[j] * y[j];
    df *= under;
    s->da[0] += df * s->is->once;
    if (s->is->regime == PLAIN)
        return;
    for (int64_t i = 0; i < m; i++)
        dforth[i] = product, product *= (double)s->a[i] * under;
    product = 1;
    for (int64_t i = m - 1; i > 0; i--)
        s->da[i] += df * dforth[i] * product, product *= (double)s->a[i] * under;
    memset(dback, 0, (size_t)all * sizeof(double));
    memset(dforth, 0, (size_t)all * sizeof(double));
    for (int64_t j = 0; j < n; j++) {
        double dq = -s->is->f * y[j];
        if (j % m == 0) {
            dback[j] += dq;
        } else {
            dback[j] += dq * forth[j + m - 1];
            dforth[j + m - 1] += dq * back[j];
        }
    }
    for (int64_t first = 0; first < all; first += m) {
        int64_t stop = first + m < all ? first + m : all;
        for (int64_t k = stop - 1; k >= first; k--) {
            int64_t j = k < m - 1 ? k - (m - 1) + n : k - (m - 1);
            s->dc[j] += mu * dforth[k] * (k == first ? 1 : forth[k - 1]);
            if (k > first)
                dforth[k - 1] += dforth[k] * mu * (double)s->c[j];
        }
        for (int64_t k = first; k < stop; k++) {
            int64_t j = k < m - 1 ? k - (m - 1) + n : k - (m - 1);
            s->dc[j] += mu * dback[k] * (k == stop - 1 ? 1 : back[k + 1]);
            if (k < stop - 1)
                dback[k + 1] += dback[k] * mu * (double)s->c[j];
        }
    }
}
