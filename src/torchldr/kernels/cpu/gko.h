/* The body of gko.c: for real numbers (PARTS 1) and for complex ones, whose real parts come first (PARTS 2).
 *
 * functional/gko has the formulas. All loops run over tiles of one row of G, H or B at a time, so that the row of
 * the factor in the making stays in the nearest cache. A matrix V is (PARTS, r, n), a vector (PARTS, n).
 */

#if PARTS == 2
#define IM(...) __VA_ARGS__
#else
#define IM(...)
#endif

/* out[i] = (out[i] + weights . V[:, i]) / (nodes[i] - node) for `count` numbers and rows of V known beforehand. */
LDR_INLINE void NAMED(group)(double *restrict out, const double *restrict V, const double *restrict weights,
                             const double *restrict nodes, const double *node, int64_t n, int64_t r, int64_t count,
                             const int rows, const int begins, const int ends)
{
    double re = node[0] IM(, im = node[1]);
    (void)r;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        double x = begins ? 0 : out[i] IM(, y = begins ? 0 : out[n + i]);
        for (int q = 0; q < rows; q++) {
#if PARTS == 2
            double a = V[q * n + i], b = V[(r + q) * n + i];
            x += weights[q] * a - weights[r + q] * b;
            y += weights[q] * b + weights[r + q] * a;
#else
            x += weights[q] * V[q * n + i];
#endif
        }
        if (ends) {
#if PARTS == 2
            double c = nodes[i] - re, d = nodes[n + i] - im, size = 1 / (c * c + d * d), u = x;
            x = (u * c + y * d) * size;
            y = (y * c - u * d) * size;
#else
            x /= nodes[i] - re;
#endif
        }
        out[i] = x;
        IM(out[n + i] = y;)
    }
}

/* out[i] = weights . V[:, i] / (nodes[i] - node) for a <= i < e. */
static LDR_CLONES void NAMED(divided)(double *out, const double *V, const double *weights, const double *nodes,
                                      const double *node, int64_t n, int64_t r, int64_t a, int64_t e)
{
    int64_t q = 0, count = e - a;
    for (; r - q > 4; q += 4)
        if (q == 0)
            NAMED(group)(out + a, V + a, weights, nodes + a, node, n, r, count, 4, 1, 0);
        else
            NAMED(group)(out + a, V + q * n + a, weights + q, nodes + a, node, n, r, count, 4, 0, 0);
#define LAST(rows)                                                                                     \
    if (r - q == rows) {                                                                               \
        if (q == 0)                                                                                    \
            NAMED(group)(out + a, V + a, weights, nodes + a, node, n, r, count, rows, 1, 1);           \
        else                                                                                           \
            NAMED(group)(out + a, V + q * n + a, weights + q, nodes + a, node, n, r, count, rows, 0, 1); \
    }
    LAST(1)
    LAST(2)
    LAST(3)
    LAST(4)
#undef LAST
}

/* V[q, a:e] += weights[q] line[a:e] */
static LDR_CLONES void NAMED(add)(double *V, const double *weights, const double *line, int64_t n, int64_t r,
                                  int64_t a, int64_t e)
{
    const double *restrict u = line + a;
    for (int64_t q = 0; q < r; q++) {
        double *restrict x = V + q * n + a, w = weights[q];
#if PARTS == 2
        double *restrict y = x + r * n, v = weights[r + q];
#pragma omp simd
        for (int64_t i = 0; i < e - a; i++) {
            x[i] += w * u[i] - v * u[n + i];
            y[i] += w * u[n + i] + v * u[i];
        }
#else
#pragma omp simd
        for (int64_t i = 0; i < e - a; i++)
            x[i] += w * u[i];
#endif
    }
}

/* out = factor V[:, k], or V[:, k] * sign / d where d is given. */
LDR_INLINE void NAMED(column)(const double *V, int64_t n, int64_t r, int64_t k, double sign, const double *d,
                              double *out)
{
    double re = sign IM(, im = 0);
    if (d) {
#if PARTS == 2
        double size = sign / (d[0] * d[0] + d[1] * d[1]);
        re = d[0] * size, im = -d[1] * size;
#else
        re = sign / d[0];
#endif
    }
    for (int64_t q = 0; q < r; q++) {
#if PARTS == 2
        double a = V[q * n + k], b = V[(r + q) * n + k];
        out[q] = a * re - b * im;
        out[r + q] = a * im + b * re;
#else
        out[q] = V[q * n + k] * re;
#endif
    }
}

LDR_INLINE void NAMED(swap)(double *V, int64_t n, int64_t rows, int64_t i, int64_t j)
{
    for (int64_t q = 0; q < PARTS * rows; q++) {
        double x = V[q * n + i];
        V[q * n + i] = V[q * n + j];
        V[q * n + j] = x;
    }
}

/* The index from `first` on of the entry with the largest |re| + |im|. */
static LDR_CLONES int64_t NAMED(largest)(const double *line, int64_t n, int64_t first)
{
    double best = -1;
    int64_t where = first;
#define SIZE(i) (magnitude(line[i]) IM(+magnitude(line[n + (i)])))
    for (int64_t a = first; a < n; a += TILE) {
        int64_t e = a + TILE < n ? a + TILE : n;
        double top = 0;
#pragma omp simd reduction(max : top)
        for (int64_t i = a; i < e; i++) {
            double size = SIZE(i);
            top = size > top ? size : top;
        }
        if (top > best) {
            best = top;
            for (where = a; where < e - 1 && SIZE(where) != top;)
                where++;
        }
    }
#undef SIZE
    return where;
}

#define EACH_TILE(first) for (int64_t a = (first), e; e = a + TILE < n ? a + TILE : n, a < n; a = e)
#define AT(vector, k) {(vector)[k] IM(, (vector)[n + (k)])}

/* Gaussian elimination on generators G, H (r, n) with right-hand sides B (p, n), everything in place.
 *
 * order: the row that each pivot came from; places: where each row is now. d: pivots. ties: (n, q) tables of the
 * rows, and of the columns, that share a node with each; kept: where their entries of L d and U go, (PARTS, n, q).
 * done: becomes 0 where a pivot is zero, else 1. scratch: PARTS (n + 2 r + p) numbers. */
LDR_API void NAMED(ldr_eliminate)(double *s, const double *t, double *G, double *H, double *B, int64_t *order,
                                  double *d, const int64_t *row_ties, const int64_t *column_ties, double *row_kept,
                                  double *column_kept, int64_t *places, int64_t *done, double *scratch, int64_t n,
                                  int64_t r, int64_t p, int64_t row_q, int64_t column_q)
{
    ldr_mode before = ldr_flush();
    double *line = scratch, *g = line + PARTS * n, *h = g + PARTS * r, *b = h + PARTS * r;
    *done = 0;
    for (int64_t k = 0; k < n; k++) {
        double node[2] = AT(t, k);
        NAMED(column)(H, n, r, k, 1, 0, h);
        EACH_TILE(k) NAMED(divided)(line, G, h, s, node, n, r, a, e);
        int64_t pivot = NAMED(largest)(line, n, k);
        if (line[pivot] == 0 IM(&&line[n + pivot] == 0)) {
            ldr_restore(before);
            return;
        }
        if (pivot != k) {
            NAMED(swap)(G, n, r, k, pivot);
            NAMED(swap)(B, n, p, k, pivot);
            NAMED(swap)(line, n, 1, k, pivot);
            NAMED(swap)(s, n, 1, k, pivot);
            int64_t row = order[k];
            order[k] = order[pivot], order[pivot] = row;
            places[order[k]] = k, places[order[pivot]] = pivot;
        }
        double found[2] = AT(line, k), row_node[2] = AT(s, k);
        d[k] = found[0];
        IM(d[n + k] = found[1];)
        for (int64_t c = 0; c < row_q; c++) {
            int64_t i = row_ties[order[k] * row_q + c];
            if (i >= 0 && places[i] > k) {
                row_kept[k * row_q + c] = line[places[i]];
                IM(row_kept[(n + k) * row_q + c] = line[n + places[i]];)
            }
        }
        NAMED(column)(G, n, r, k, -1, found, g);
        NAMED(column)(B, n, p, k, -1, found, b);
        EACH_TILE(k + 1) {
            NAMED(add)(G, g, line, n, r, a, e);
            NAMED(add)(B, b, line, n, p, a, e);
        }
        NAMED(column)(G, n, r, k, -1, 0, g);
        NAMED(column)(H, n, r, k, -1, found, h);
        EACH_TILE(k + 1) {
            NAMED(divided)(line, H, g, t, row_node, n, r, a, e); /* -g . h / (t - s) = g . h / (s - t) */
            NAMED(add)(H, h, line, n, r, a, e);
        }
        for (int64_t c = 0; c < column_q; c++) {
            int64_t i = column_ties[k * column_q + c];
            if (i > k) {
                column_kept[k * column_q + c] = line[i];
                IM(column_kept[(n + k) * column_q + c] = line[n + i];)
            }
        }
    }
    *done = 1;
    ldr_restore(before);
}

/* L y = b for every row of B, in place; G (overwritten) as it was at first, H as the pivots left it.
 *
 * scratch: PARTS (n + 2 r + p) numbers. */
LDR_API void NAMED(ldr_eliminate_forward)(const double *s, const double *t, double *G, const double *H,
                                          const double *d, double *B, double *scratch, int64_t n, int64_t r,
                                          int64_t p)
{
    ldr_mode before = ldr_flush();
    double *line = scratch, *h = line + PARTS * n, *g = h + PARTS * r, *b = g + PARTS * r;
    for (int64_t k = 0; k < n; k++) {
        double node[2] = AT(t, k), pivot[2] = AT(d, k);
        NAMED(column)(H, n, r, k, 1, 0, h);
        NAMED(column)(G, n, r, k, -1, pivot, g);
        NAMED(column)(B, n, p, k, -1, pivot, b);
        EACH_TILE(k + 1) {
            NAMED(divided)(line, G, h, s, node, n, r, a, e);
            NAMED(add)(G, g, line, n, r, a, e);
            NAMED(add)(B, b, line, n, p, a, e);
        }
    }
    ldr_restore(before);
}

/* total[q] += line[a:e] . B[q, a:e] */
static LDR_CLONES void NAMED(dots)(const double *B, const double *line, double *totals, int64_t n, int64_t p,
                                   int64_t a, int64_t e)
{
    for (int64_t q = 0; q < p; q++) {
        const double *restrict x = B + q * n;
        double re = 0 IM(, im = 0);
#if PARTS == 2
        const double *restrict y = x + p * n;
#pragma omp simd reduction(+ : re, im)
        for (int64_t i = a; i < e; i++) {
            re += line[i] * x[i] - line[n + i] * y[i];
            im += line[i] * y[i] + line[n + i] * x[i];
        }
        totals[p + q] += im;
#else
#pragma omp simd reduction(+ : re)
        for (int64_t i = a; i < e; i++)
            re += line[i] * x[i];
#endif
        totals[q] += re;
    }
}

/* U x = y for every row of B, in place; G and H (H overwritten) as the pivots left them.
 *
 * Undoing step k needs its row of U, u_j = g_k . h_j / (t_k - t_j) with h_j as it is after the step.
 * scratch: PARTS (n + 2 r + p) numbers. */
LDR_API void NAMED(ldr_eliminate_backward)(const double *t, const double *G, double *H, const double *d,
                                           const int64_t *ties, const double *kept, double *B, double *scratch,
                                           int64_t n, int64_t r, int64_t p, int64_t q)
{
    ldr_mode before = ldr_flush();
    double *line = scratch, *g = line + PARTS * n, *h = g + PARTS * r, *totals = h + PARTS * r;
    for (int64_t k = n - 1; k >= 0; k--) {
        double node[2] = AT(t, k), pivot[2] = AT(d, k);
        NAMED(column)(G, n, r, k, -1, 0, g);
        NAMED(column)(H, n, r, k, 1, pivot, h);
        for (int64_t i = 0; i < PARTS * p; i++)
            totals[i] = 0;
        EACH_TILE(k + 1) {
            NAMED(divided)(line, H, g, t, node, n, r, a, e);
            for (int64_t c = 0; c < q; c++) {
                int64_t i = ties[k * q + c];
                if (a <= i && i < e && i > k) {
                    line[i] = kept[k * q + c];
                    IM(line[n + i] = kept[(n + k) * q + c];)
                }
            }
            NAMED(add)(H, h, line, n, r, a, e);
            NAMED(dots)(B, line, totals, n, p, a, e);
        }
        for (int64_t i = 0; i < p; i++) {
#if PARTS == 2
            double x = B[i * n + k] - totals[i], y = B[(p + i) * n + k] - totals[p + i];
            double size = 1 / (pivot[0] * pivot[0] + pivot[1] * pivot[1]);
            B[i * n + k] = (x * pivot[0] + y * pivot[1]) * size;
            B[(p + i) * n + k] = (y * pivot[0] - x * pivot[1]) * size;
#else
            B[i * n + k] = (B[i * n + k] - totals[i]) / pivot[0];
#endif
        }
    }
    ldr_restore(before);
}

#undef EACH_TILE
#undef AT
#undef IM
