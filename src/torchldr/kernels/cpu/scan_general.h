/* The general form of a scan, in float64: right where paths that go around weigh any number. A row takes ten times as
 * long. Names are as in `functional.scan`, but for P_i = W_i k and Q_i = k B_i: S is what leaves by the last row, from
 * rows below i, V its weight; B the same for D. Vectors go by diagonals: entry k of row i lies in column k + i. */

/* Columns of row i in two pieces: diagonals from .. to - 1 lie in columns from + shift .. */
#define LDR_PIECES(n, i)                                                                                         \
    for (int64_t from = 0, to = (n) - (i), shift = (i), last = (i) == 0; last < 2;                               \
         from = to, to = (n), shift -= (n), last = last == 0 ? 1 : 2)

static LDR_CLONES void NAMED(source_row)(const NAMED(Scan) *s, int64_t i, double *e)
{
    memset(e, 0, (size_t)s->n * sizeof(double));
    for (int64_t k = 0; k < s->r; k++) {
        const double g = (double)s->G[k * s->m + i];
        LDR_PIECES(s->n, i)
        {
            const REAL *h = s->H + k * s->n + shift;
#pragma omp simd
            for (int64_t j = from; j < to; j++)
                e[j] += g * (double)h[j];
        }
    }
}

/* to_k = from_{k + by}, indices modulo n, 0 <= by <= n. */
static void NAMED(turned)(const double *from, int64_t n, int64_t by, double *to)
{
    memcpy(to, from + by, (size_t)(n - by) * sizeof(double));
    memcpy(to + n - by, from, (size_t)by * sizeof(double));
}

static LDR_CLONES void NAMED(general_fill)(const NAMED(Scan) *s, REAL *M)
{
    int64_t m = s->m, n = s->n;
    double *x = malloc((size_t)(3 * n) * sizeof(double)), *P = x + n, *e = P + n;
    if (x == NULL) { /* no memory: no result */
        for (int64_t k = 0; k < m * n; k++)
            M[k] = (REAL)NAN;
        return;
    }
    for (int64_t k = 0; k < n; k++)
        x[k] = 0, P[k] = 1;
    for (int64_t i = m - 1; i >= 0; i--) { /* x and P are S and V; M gets S, on the diagonal that continues it */
        for (int64_t k = 0, j = (i + m) % n; k < n; k++, j = j + 1 < n ? j + 1 : 0)
            M[i * n + j] = (REAL)x[k];
        NAMED(source_row)(s, i, e);
        LDR_PIECES(n, i)
        {
            const REAL *c = s->c + shift, a = s->a[i];
#pragma omp simd
            for (int64_t k = from; k < to; k++) {
                x[k] += P[k] * e[k];
                P[k] *= (double)(a * c[k]);
            }
        }
    }
    for (int64_t k = 0; k < n; k++)
        x[k] = 0, P[k] = 1;
    for (int64_t i = 0; i < m; i++) {
        NAMED(source_row)(s, i, e);
        LDR_PIECES(n, i)
        {
            const REAL *c = s->c + shift, a = s->a[i];
            REAL *row = M + i * n + shift;
#pragma omp simd
            for (int64_t k = from; k < to; k++) {
                const double w = (double)(a * c[k]);
                x[k] = w * x[k] + e[k];
                P[k] *= w;
                row[k] = (REAL)(x[k] + P[k] * (double)row[k]);
            }
        }
    }
    free(x);
}

/* Rows first .. last - 1 from above, by the state x, P, r, Q; `kept` gets x, P, r and Q of diagonal k + m before each. */
static LDR_CLONES void NAMED(general_down)(const NAMED(Scan) *s, const REAL *D, int64_t first, int64_t last, double *state,
                                    double *e, double *next, double *kept)
{
    int64_t n = s->n;
    double *x = state, *P = x + n, *r = P + n, *Q = r + n;
    for (int64_t i = first; i < last; i++) {
        NAMED(turned)(Q, n, s->m, next);
        if (kept) {
            memcpy(kept + 4 * (i - first) * n, state, (size_t)(3 * n) * sizeof(double));
            memcpy(kept + 4 * (i - first) * n + 3 * n, next, (size_t)n * sizeof(double));
        }
        NAMED(source_row)(s, i, e);
        LDR_PIECES(n, i)
        {
            const REAL *c = s->c + shift, *d = D + i * n + shift, a = s->a[i];
#pragma omp simd
            for (int64_t k = from; k < to; k++) {
                const double w = (double)(a * c[k]);
                x[k] = w * x[k] + e[k];
                r[k] = w * r[k] + e[k] * next[k];
                P[k] *= w;
                Q[k] += (double)d[k] * P[k];
            }
        }
    }
}

/* Down once, with a checkpoint at every block of rows; then up, block by block, each again down first. */
static LDR_CLONES void NAMED(general_gradients)(const NAMED(Scan) *s, const REAL *D, int graded, REAL *dG, REAL *dh,
                                                double *da, double *dc)
{
    int64_t m = s->m, n = s->n, blocks = (m + KEPT - 1) / KEPT;
    size_t state = (size_t)(4 * n) * sizeof(double);
    double *checkpoints = malloc((size_t)(blocks + 2 + KEPT + 2) * state);
    if (checkpoints == NULL) { /* no memory: no result */
        for (int64_t k = 0; k < s->r * s->wide; k++)
            dh[k] = (REAL)NAN;
        return;
    }
    double *down = checkpoints + blocks * 4 * n, *S = down + 4 * n, *V = S + n, *wl = V + n, *wt = wl + n;
    double *kept = S + 4 * n, *e = kept + KEPT * 4 * n, *next = e + n, *before = next + n, *dw = before + n, *de = dw + n;
    for (int64_t k = 0; k < n; k++) {
        down[k] = down[2 * n + k] = down[3 * n + k] = S[k] = wl[k] = wt[k] = 0;
        down[n + k] = V[k] = 1;
    }
    for (int64_t block = 0; block < blocks; block++) {
        memcpy(checkpoints + block * 4 * n, down, state);
        int64_t last = (block + 1) * KEPT < m ? (block + 1) * KEPT : m;
        NAMED(general_down)(s, D, block * KEPT, last, down, e, next, NULL);
    }
    for (int64_t block = blocks - 1; block >= 0; block--) {
        int64_t last = (block + 1) * KEPT < m ? (block + 1) * KEPT : m;
        NAMED(general_down)(s, D, block * KEPT, last, checkpoints + block * 4 * n, e, next, kept);
        for (int64_t i = last - 1; i >= block * KEPT; i--) {
            const double *x = kept + 4 * (i - block * KEPT) * n, *P = x + n, *r = P + n, *Q = r + n;
            NAMED(source_row)(s, i, e);
            NAMED(turned)(S, n, n - m, before);
            LDR_PIECES(n, i)
            {
                const REAL *c = s->c + shift, *d = D + i * n + shift, a = s->a[i];
                double sum = 0;
#pragma omp simd
                for (int64_t k = from; k < to; k++) {
                    const double w = (double)(a * c[k]), v = V[k];
                    const double here = wl[k] + (double)d[k], through = wt[k] + (double)d[k] * before[k];
                    de[k] = here + v * Q[k];
                    dw[k] = here * x[k] + P[k] * through + v * r[k];
                    S[k] += v * e[k];
                    V[k] = v * w;
                    wl[k] = w * here;
                    wt[k] = w * through;
                }
                if (graded) {
                    double *to_c = dc + shift;
#pragma omp simd reduction(+ : sum)
                    for (int64_t k = from; k < to; k++) {
                        sum += dw[k] * (double)c[k];
                        to_c[k] += dw[k] * (double)a;
                    }
                    da[i] += sum;
                }
                for (int64_t rank = 0; rank < s->r; rank++) {
                    const REAL *h = s->H + rank * n + shift, g = s->G[rank * m + i];
                    REAL *to_h = dh + rank * s->wide + shift;
                    sum = 0;
#pragma omp simd reduction(+ : sum)
                    for (int64_t k = from; k < to; k++) {
                        sum += de[k] * (double)h[k];
                        to_h[k] += (REAL)(de[k] * (double)g);
                    }
                    dG[rank * m + i] += (REAL)sum;
                }
            }
        }
    }
    free(checkpoints);
}
#undef LDR_PIECES
