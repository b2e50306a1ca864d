/* C99 in integers: see kernels.py of the folder above for the form of this file. */

//// separate
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 8
#define SEPARATE __attribute__((noipa)) /* not inlined: the loop keeps its numbers in registers */
#else
#define SEPARATE
#endif

//// clamp
static int32_t clamp(int32_t value, int32_t low, int32_t high)
{
    value = value < low ? low : value;
    return value > high ? high : value;
}

//// rescaling: separate clamp
/* Rescaling of sums: clamp((sum + bias) * multiplier / 2^shift + zero), rounded once. There is one multiplier for
   all rows, or one for each row: `multipliers` with `shifts`; `factors` of 16 bits with one shift; or `multipliers`
   without `shifts`, a table of 32. Then bits 0 to 4 of bias[row] are the place in the table, bits 5 to 7 are added
   to the shift, and the bias stands above them. */
typedef struct {
    const int32_t *bias, *multipliers;
    const int8_t *shifts;
    const int16_t *factors;
    int32_t multiplier, shift, zero, low, high;
} rescaling;

static SEPARATE int32_t rescale(const rescaling *f, int32_t row, int32_t sum)
{
    int32_t multiplier = f->multiplier, shift = f->shift, bias = f->bias != 0 ? f->bias[row] : 0;
    if (f->factors != 0) {
        multiplier = (int32_t)f->factors[row] * 65536;
    } else if (f->shifts != 0) {
        multiplier = f->multipliers[row];
        shift = f->shifts[row];
    } else if (f->multipliers != 0) {
        multiplier = f->multipliers[(uint32_t)bias & 31u];
        shift += (bias >> 5) & 7;
        bias >>= 8;
    }
    sum += bias;
    if (shift < 33) {
        sum *= (int32_t)1 << (33 - shift);
        shift = 33;
    }
    sum = (int32_t)(((int64_t)sum * multiplier) >> 32) >> (shift - 33);
    return clamp(((sum + 1) >> 1) + f->zero, f->low, f->high);
}

//// dot8: separate
static SEPARATE int32_t dot8(const int8_t *w, const int8_t *x, int32_t n)
{
    int32_t sum = 0;
    if (n <= 0)
        return 0;
    w += n;
    x += n;
    n = -n;
    do {
        sum += w[n] * x[n];
    } while (++n != 0);
    return sum;
}

//// dot16: separate
static SEPARATE int32_t dot16(const int8_t *w, const int16_t *v, int32_t n)
{
    int32_t sum = 0;
    if (n <= 0)
        return 0;
    w += n;
    v += n;
    n = -n;
    do {
        sum += w[n] * v[n];
    } while (++n != 0);
    return sum;
}

//// centre
static void centre(const int8_t *x, int32_t zero, int32_t n, int16_t *v)
{
    for (int32_t i = 0; i < n; i++)
        v[i] = (int16_t)(x[i] - zero);
}

//// copy
static void copy(const int8_t *x, int8_t *y, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i];
}

//// clip: clamp
static void clip(const int8_t *x, int8_t *y, int32_t n, int32_t low, int32_t high)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = (int8_t)clamp(x[i], low, high);
}

//// table
/* A function of one integer: its values at -128 to 127. */
static void table(const int8_t *values, const int8_t *x, int8_t *y, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = values[x[i] + 128];
}

//// add: rescaling
/* The factors bring a and b to one scale. */
static void add(const rescaling *f, const int8_t *a, int32_t a_factor, const int8_t *b, int32_t b_factor,
                int8_t *y, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = (int8_t)rescale(f, 0, a[i] * a_factor + b[i] * b_factor);
}

//// add_rows: rescaling
/* Adds b[i] to every number of row i of a; y may be a. */
static void add_rows(const rescaling *f, const int8_t *a, int32_t a_factor, const int8_t *b, int32_t b_factor,
                     int8_t *y, int32_t rows, int32_t n)
{
    for (int32_t i = 0; i < rows; i++) {
        int32_t value = b[i] * b_factor;
        for (int32_t j = i * n; j < i * n + n; j++)
            y[j] = (int8_t)rescale(f, 0, a[j] * a_factor + value);
    }
}

//// mean: rescaling
static void mean(const rescaling *f, const int8_t *x, int8_t *y, int32_t rows, int32_t n)
{
    for (int32_t i = 0; i < rows; i++) {
        int32_t sum = 0;
        for (int32_t j = 0; j < n; j++)
            sum += x[i * n + j];
        y[i] = (int8_t)rescale(f, 0, sum);
    }
}

//// softmax
/* exponents[i] is exp(-scale i) in 16 bits; y is -128 for 0 and counts by 1/256. */
static void softmax(const uint16_t *exponents, const int8_t *x, int8_t *y, int32_t rows, int32_t n)
{
    for (; rows > 0; rows--, x += n, y += n) {
        int32_t largest = -128;
        uint32_t sum = 0;
        for (int32_t i = 0; i < n; i++)
            largest = x[i] > largest ? x[i] : largest;
        for (int32_t i = 0; i < n; i++)
            sum += exponents[largest - x[i]];
        for (int32_t i = 0; i < n; i++) {
            uint32_t share = ((uint32_t)exponents[largest - x[i]] * 256u + sum / 2u) / sum;
            y[i] = (int8_t)((share > 255u ? 255 : (int32_t)share) - 128);
        }
    }
}

//// window
/* A convolution or pooling: channels, height and width before and after, and how the kernel moves. */
typedef struct {
    int32_t channels, height, width, out_channels, out_height, out_width;
    int32_t kernel[2], stride[2], padding[2], dilation[2], groups;
} window;

//// conv2d: window rescaling
static void conv2d(const window *s, const int8_t *w, int32_t zero, const rescaling *f, const int8_t *x,
                   int8_t *y)
{
    int32_t inner = s->channels / s->groups, each = s->out_channels / s->groups;
    int32_t size = inner * s->kernel[0] * s->kernel[1];
    for (int32_t o = 0; o < s->out_channels; o++, w += size) {
        const int8_t *group = x + o / each * inner * s->height * s->width;
        for (int32_t i = 0; i < s->out_height; i++)
            for (int32_t j = 0; j < s->out_width; j++) {
                const int8_t *v = w;
                int32_t sum = 0;
                for (int32_t c = 0; c < inner; c++)
                    for (int32_t p = 0; p < s->kernel[0]; p++) {
                        int32_t row = i * s->stride[0] - s->padding[0] + p * s->dilation[0];
                        int32_t start = (c * s->height + row) * s->width;
                        int32_t column = j * s->stride[1] - s->padding[1];
                        for (int32_t q = 0; q < s->kernel[1]; q++, v++, column += s->dilation[1])
                            if (row >= 0 && row < s->height && column >= 0 && column < s->width)
                                sum += *v * (group[start + column] - zero);
                    }
                *y++ = (int8_t)rescale(f, o, sum);
            }
    }
}

//// max_pool2d: window
static void max_pool2d(const window *s, const int8_t *x, int8_t *y)
{
    for (int32_t c = 0; c < s->channels; c++, x += s->height * s->width)
        for (int32_t i = 0; i < s->out_height; i++)
            for (int32_t j = 0; j < s->out_width; j++) {
                int8_t largest = -128;
                for (int32_t p = 0; p < s->kernel[0]; p++)
                    for (int32_t q = 0; q < s->kernel[1]; q++) {
                        int32_t row = i * s->stride[0] - s->padding[0] + p * s->dilation[0];
                        int32_t column = j * s->stride[1] - s->padding[1] + q * s->dilation[1];
                        if (row >= 0 && row < s->height && column >= 0 && column < s->width
                            && x[row * s->width + column] > largest)
                            largest = x[row * s->width + column];
                    }
                *y++ = largest;
            }
}

//// two_rows: separate
/* Two rows of weights times x, n > 0; each number of x is read once. */
static SEPARATE int32_t two_rows(const int8_t *w, const int8_t *x, int32_t n, int32_t *second)
{
    const int8_t *u = w + 2 * n;
    int32_t a = 0, b = 0;
    w += n;
    x += n;
    n = -n;
    do {
        int32_t value = x[n];
        a += w[n] * value;
        b += u[n] * value;
    } while (++n != 0);
    *second = b;
    return a;
}

//// dense: rescaling dot8 two_rows
static void dense(const int8_t *w, int32_t m, int32_t n, const rescaling *f, const int8_t *x, OUT *y)
{
    int32_t i = 0;
    for (; i + 1 < m; i += 2, w += 2 * n) {
        int32_t b, a = two_rows(w, x, n, &b);
        y[i] = (OUT)rescale(f, i, a);
        y[i + 1] = (OUT)rescale(f, i + 1, b);
    }
    if (i < m)
        y[i] = (OUT)rescale(f, i, dot8(w, x, n));
}

//// side
/* Vectors that a shift moves: what leaves at the end comes in again at the front, from `around` times sign.
   Where sign is 0, zeros come in. */
typedef struct {
    int32_t size, sign;
    const int8_t *vectors, *around;
} side;

//// pair: side rescaling dot16
/* y = sum_r K(A, g_r) K(C, h_r)^T x, where K(A, g) has the columns g, A g, A^2 g, .. and A and C are shifts. The
   vectors of A are stored backwards. `before` rescales x, unless it is 0. work has n + rank k numbers. */
static void pair(const side *A, const side *C, int32_t rank, const rescaling *before, int32_t zero,
                 const rescaling *between, const rescaling *after, int32_t reversed, const int8_t *x, OUT *y,
                 int16_t *work)
{
    int32_t m = A->size, n = C->size, k = m < n ? m : n;
    int16_t *v = work, *z = work + n;
    for (int32_t j = 0; j < n; j++) {
        int32_t value = x[j] - zero;
        v[j] = (int16_t)(before != 0 ? rescale(before, j, value) : value);
    }
    for (int32_t r = 0; r < rank; r++)
        for (int32_t l = 0; l < k; l++) {
            int32_t sum = dot16(C->vectors + r * n, v + l, n - l);
            if (C->sign != 0)
                sum += C->sign * dot16(C->around + (r + 1) * n - l, v, l);
            z[r * k + l] = (int16_t)rescale(between, r, sum);
        }
    for (int32_t i = 0; i < m; i++) {
        int32_t sum = 0, count = i < k ? i + 1 : k, o = reversed != 0 ? m - 1 - i : i;
        for (int32_t r = 0; r < rank; r++) {
            sum += dot16(A->vectors + (r + 1) * m - 1 - i, z + r * k, count);
            if (A->sign != 0)
                sum += A->sign * dot16(A->around + r * m, z + r * k + count, k - count);
        }
        y[o] = (OUT)rescale(after, o, sum);
    }
}

//// ring
/* An operator with 2^shift for 1, and start vectors, which are multiplied by 2^start. `lower`, `own` and `upper` are
   the entries left of the diagonal, on it and right of it; lower[0] and the last of upper are the corners. */
typedef struct {
    int32_t size, shift, start;
    const int8_t *vectors;
    const int16_t *lower, *own, *upper; /* own and upper are 0 for a subdiagonal operator */
} ring;

static void unpack(const ring *A, int32_t r, int16_t *a)
{
    for (int32_t i = 0; i < A->size; i++)
        a[i] = (int16_t)(A->vectors[r * A->size + i] * ((int32_t)1 << A->start));
}

/* a becomes A a. */
static void apply(const ring *A, int16_t *a)
{
    int32_t m = A->size, half = (int32_t)1 << (A->shift - 1), first = a[0], last = a[m - 1], here = first;
    if (A->own == 0) {
        for (int32_t i = m - 1; i > 0; i--)
            a[i] = (int16_t)((A->lower[i] * a[i - 1] + half) >> A->shift);
        a[0] = (int16_t)((A->lower[0] * last + half) >> A->shift);
        return;
    }
    for (int32_t i = 0; i < m; i++) {
        int32_t next = i + 1 < m ? a[i + 1] : first;
        int32_t sum = A->lower[i] * last + A->own[i] * here + A->upper[i] * next;
        last = here;
        here = next;
        a[i] = (int16_t)((sum + half) >> A->shift);
    }
}

//// krylov: ring rescaling centre
/* y = sum_r K(A, g_r) K(C, h_r)^T x, column by column. work has m + 2 n numbers, sums m. */
static void krylov(const ring *A, const ring *C, int32_t rank, int32_t zero, const rescaling *between,
                   int32_t narrow, const rescaling *after, const int8_t *x, OUT *y, int16_t *work,
                   int32_t *sums)
{
    int32_t m = A->size, n = C->size, k = m < n ? m : n, half = ((int32_t)1 << narrow) >> 1;
    int16_t *a = work, *c = a + m, *v = c + n;
    centre(x, zero, n, v);
    for (int32_t i = 0; i < m; i++)
        sums[i] = 0;
    for (int32_t r = 0; r < rank; r++) {
        unpack(A, r, a);
        unpack(C, r, c);
        for (int32_t l = 0; l < k; l++) {
            int32_t z = 0;
            for (int32_t j = 0; j < n; j++)
                z += c[j] * v[j];
            z = rescale(between, r, z);
            for (int32_t i = 0; i < m; i++)
                sums[i] += ((a[i] + half) >> narrow) * z;
            apply(A, a);
            apply(C, c);
        }
    }
    for (int32_t i = 0; i < m; i++)
        y[i] = (OUT)rescale(after, i, sums[i]);
}

//// gates: rescaling
/* The logistic function of x / 4096 with 32767 for 1, between the table's values at -8, -8 + 1/16, .. 8. */
static int32_t logistic(const int16_t *values, int32_t x)
{
    int32_t at = clamp(x, -32768, 32767) + 32768, i = at >> 8;
    return values[i] + (((values[i + 1] - values[i]) * (at & 255) + 128) >> 8);
}

static int32_t hyperbolic(const int16_t *values, int32_t x)
{
    return clamp(2 * logistic(values, 2 * x) - 32768, -32767, 32767);
}

//// lstm_step: gates
/* gates: what the input gives, with its bias; hidden: what the state gives. Both have 2^(12 - wide) for 1, c has
   2^cell and h has 2^15. */
static void lstm_step(const int16_t *values, int32_t wide, int32_t cell, const rescaling *out,
                      const int16_t *gates, const int16_t *hidden, int16_t *h, int16_t *c, int8_t *h8, int32_t n)
{
    int32_t by = (int32_t)1 << wide;
    for (int32_t i = 0; i < n; i++) {
        int32_t in = logistic(values, (gates[i] + hidden[i]) * by);
        int32_t forget = logistic(values, (gates[n + i] + hidden[n + i]) * by);
        int32_t new = hyperbolic(values, (gates[2 * n + i] + hidden[2 * n + i]) * by);
        int32_t give = logistic(values, (gates[3 * n + i] + hidden[3 * n + i]) * by), sum;
        sum = forget * c[i] + ((in * new) >> (15 - cell));
        c[i] = (int16_t)clamp((sum + 16384) >> 15, -32768, 32767);
        sum = cell < 12 ? c[i] * ((int32_t)1 << (12 - cell)) : c[i] >> (cell - 12);
        h[i] = (int16_t)((give * hyperbolic(values, sum) + 16384) >> 15);
        h8[i] = (int8_t)rescale(out, 0, h[i]);
    }
}

//// gru_step: gates
static void gru_step(const int16_t *values, int32_t wide, const rescaling *out, const int16_t *gates,
                     const int16_t *hidden, int16_t *h, int8_t *h8, int32_t n)
{
    int32_t by = (int32_t)1 << wide;
    for (int32_t i = 0; i < n; i++) {
        int32_t reset = logistic(values, (gates[i] + hidden[i]) * by);
        int32_t keep = logistic(values, (gates[n + i] + hidden[n + i]) * by);
        int32_t sum = gates[2 * n + i] + ((reset * hidden[2 * n + i] + 16384) >> 15);
        int32_t new = hyperbolic(values, sum * by);
        h[i] = (int16_t)(new + ((keep * (h[i] - new)) >> 15));
        h8[i] = (int8_t)rescale(out, 0, h[i]);
    }
}

//// fill
static void fill(int8_t *y, int8_t value, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = value;
}

static void fill16(int16_t *y, int16_t value, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = value;
}
