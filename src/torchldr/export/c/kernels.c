/* What several classes and layers share: see kernels.py. A line with four strokes begins a piece,
   "//// name: what it stands on", or is a note for the reader of this file. */

//// coefficients
/* Entries of an operator; without data all are the offset. */
typedef struct {
    const coefficient *data;
    float step, offset;
} coefficients;

static float at(const coefficients *c, int i)
{
    return c->data ? c->offset + c->step * (float)c->data[i] : c->offset;
}

//// zero
static void zero(float *y, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = 0.0f;
}

//// dot
static float dot(const weight *w, const float *x, int n)
{
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum += (float)w[i] * x[i];
    return sum;
}

//// dense: dot
static void dense(const weight *w, const float *scale, int m, int n, const float *x, float *y)
{
    for (int i = 0; i < m; i++, w += n)
        y[i] = SCALE(scale, i) * dot(w, x, n);
}

//// fft
////   In place and without reordering: frequencies come out in the order of their digits, which products do
////   not mind, and the inverse takes them so.
/* A complex Fourier transform: its length, the factors of it, and sin(pi j / 2 length), j = 0 .. length. */
typedef struct {
    int length, stages;
    const unsigned char *factors;
    const float *sines;
} transform;

/* exp(2 pi i k / 4 length), 0 <= k < 4 length */
static void root(const transform *f, int k, float *re, float *im)
{
    const float *s = f->sines;
    int n = f->length, half = k >= 2 * n;
    k -= half ? 2 * n : 0;
    if (k < n) {
        *re = s[n - k], *im = s[k];
    } else {
        *re = -s[k - n], *im = s[2 * n - k];
    }
    if (half)
        *re = -*re, *im = -*im;
}

static void turn(float *z, float re, float im)
{
    float x = z[0];
    z[0] = x * re - z[1] * im;
    z[1] = x * im + z[1] * re;
}

/* The transform of p complex numbers; w has the p-th roots of unity where p is odd. */
static void butterfly(float *a, int p, const float *w)
{
    float out[14];
    if (p == 2) {
        for (int i = 0; i < 2; i++) {
            float difference = a[i] - a[2 + i];
            a[i] += a[2 + i];
            a[2 + i] = difference;
        }
        return;
    }
    if (p == 4) {
        float s0 = a[0] + a[4], s1 = a[1] + a[5], d0 = a[0] - a[4], d1 = a[1] - a[5];
        float t0 = a[2] + a[6], t1 = a[3] + a[7], e0 = a[2] - a[6], e1 = a[3] - a[7];
        a[0] = s0 + t0, a[1] = s1 + t1, a[4] = s0 - t0, a[5] = s1 - t1;
        a[2] = d0 + e1, a[3] = d1 - e0, a[6] = d0 - e1, a[7] = d1 + e0;
        return;
    }
    out[0] = a[0], out[1] = a[1];
    for (int t = 1; t < p; t++)
        out[0] += a[2 * t], out[1] += a[2 * t + 1];
    for (int t = 1; 2 * t < p; t++) {
        float even0 = a[0], even1 = a[1], odd0 = 0.0f, odd1 = 0.0f;
        for (int q = 1; 2 * q < p; q++) {
            const float *b = a + 2 * q, *c = a + 2 * (p - q), *v = w + 2 * (q * t % p);
            even0 += v[0] * (b[0] + c[0]), even1 += v[0] * (b[1] + c[1]);
            odd0 += v[1] * (b[1] - c[1]), odd1 -= v[1] * (b[0] - c[0]);
        }
        out[2 * t] = even0 + odd0, out[2 * t + 1] = even1 + odd1;
        out[2 * (p - t)] = even0 - odd0, out[2 * (p - t) + 1] = even1 - odd1;
    }
    for (int t = 0; t < 2 * p; t++)
        a[t] = out[t];
}

/* One stage: blocks of `size`, each p transforms of size / p after, or before, it. */
static void stage(const transform *f, int size, int p, int inverse, float *z)
{
    int n = f->length, step = size / p, apart = 4 * n / size;
    float a[14], w[14], units[14];
    for (int t = 0; t < p; t++)
        root(f, 4 * n / p * t, &units[2 * t], &units[2 * t + 1]);
    for (int j = 0; j < step; j++) {
        for (int t = 0; t < p; t++)
            root(f, apart * j * t, &w[2 * t], &w[2 * t + 1]);
        for (int start = j; start < n; start += size) {
            for (int t = 0; t < p; t++) {
                float *from = z + 2 * (start + t * step);
                a[2 * t] = from[0], a[2 * t + 1] = from[1];
                if (inverse) {
                    turn(a + 2 * t, w[2 * t], w[2 * t + 1]);
                    a[2 * t + 1] = -a[2 * t + 1];
                }
            }
            butterfly(a, p, units);
            for (int t = 0; t < p; t++) {
                float *to = z + 2 * (start + t * step);
                if (inverse)
                    a[2 * t + 1] = -a[2 * t + 1];
                else
                    turn(a + 2 * t, w[2 * t], -w[2 * t + 1]);
                to[0] = a[2 * t], to[1] = a[2 * t + 1];
            }
        }
    }
}

static void fft(const transform *f, float *z)
{
    int size = f->length;
    for (int i = 0; i < f->stages; size /= f->factors[i], i++)
        stage(f, size, f->factors[i], 0, z);
}

/* Not divided by the length. */
static void inverse_fft(const transform *f, float *z)
{
    int size = 1;
    for (int i = f->stages - 1; i >= 0; i--) {
        size *= f->factors[i];
        stage(f, size, f->factors[i], 1, z);
    }
}

//// convolution: fft
////   A real polynomial modulo X^2n + 1, as a complex one modulo X^n - i: no spectrum is redundant.
/* Where number i of a real sequence of twice the length stands. */
static int place(const transform *f, int i)
{
    return i < f->length ? 2 * i : 2 * (i - f->length) + 1;
}

static void analyse(const transform *f, float *z)
{
    for (int j = 0; j < f->length; j++)
        turn(z + 2 * j, f->sines[f->length - j], f->sines[j]);
    fft(f, z);
}

static void synthesise(const transform *f, float *z)
{
    float scale = 1.0f / (float)f->length;
    inverse_fft(f, z);
    for (int j = 0; j < f->length; j++)
        turn(z + 2 * j, scale * f->sines[f->length - j], -scale * f->sines[j]);
}

/* sum += a b */
static void add_products(int length, const float *a, const float *b, float *sum)
{
    for (int i = 0; i < 2 * length; i += 2) {
        sum[i] += a[i] * b[i] - a[i + 1] * b[i + 1];
        sum[i + 1] += a[i] * b[i + 1] + a[i + 1] * b[i];
    }
}

//// pair: coefficients zero convolution
////   sum_i K(A, g_i) K(C, h_i)^T x for subdiagonal operators with a corner.
/* A subdiagonal operator and its start vectors. */
typedef struct {
    int size;
    const weight *vectors;
    const float *scale;
    coefficients below;
    float corner;
} side;

/* The transform of a start vector over the products of the subdiagonal. */
static void start(const side *v, int index, const transform *f, float *z)
{
    float scale = SCALE(v->scale, index), product = 1.0f;
    const weight *w = v->vectors + index * v->size;
    zero(z, 2 * f->length);
    for (int i = 0; i < v->size; i++) {
        product *= i ? at(&v->below, i - 1) : 1.0f;
        z[place(f, i)] = scale * (float)w[i] / product;
    }
    analyse(f, z);
}

/* work: four times twice the length */
static void pair(const side *A, const side *C, int rank, const transform *f, const float *x, float *y,
                 float *work)
{
    int m = A->size, n = C->size, k = m < n ? m : n, full = 2 * f->length;
    float *u = work, *sum = u + full, *a = sum + full, *b = a + full, product = 1.0f, around;
    zero(u, full);
    zero(sum, full);
    for (int i = 0; i < n; i++) {
        product *= i ? at(&C->below, i - 1) : 1.0f;
        u[place(f, i)] = product * x[i];
    }
    around = C->corner * product;
    for (int i = 0; i + 1 < k && around != 0.0f; i++)
        u[place(f, n + i)] = around * u[place(f, i)];
    analyse(f, u);
    for (int r = 0; r < rank; r++) {
        start(C, r, f, b);
        for (int i = 1; i < full; i += 2)
            b[i] = -b[i];
        zero(a, full);
        add_products(f->length, u, b, a);
        synthesise(f, a);
        for (int i = k; i < full; i++)
            a[place(f, i)] = 0.0f;
        analyse(f, a);
        start(A, r, f, b);
        add_products(f->length, a, b, sum);
    }
    synthesise(f, sum);
    product = 1.0f;
    for (int i = 0; i < m; i++) {
        product *= i ? at(&A->below, i - 1) : 1.0f;
        y[i] = product * sum[place(f, i)];
    }
    around = A->corner * product;
    product = 1.0f;
    for (int i = 0; i + 1 < k && around != 0.0f; i++) {
        product *= i ? at(&A->below, i - 1) : 1.0f;
        y[i] += product * around * sum[place(f, m + i)];
    }
}

//// krylov: coefficients zero
////   The same for tridiagonal operators with two corners, column by column of the Krylov matrices.
/* A tridiagonal operator with corners (top right, bottom left), times a gain, and its start vectors. */
typedef struct {
    int size, tridiagonal;
    const weight *vectors;
    const float *scale;
    coefficients below, diagonal, above;
    float corner, other_corner, gain;
} ring;

/* Write a start vector and behind it what a place takes from the one before it, itself, the one behind. */
static float *unpack(const ring *A, int index, float *a)
{
    int m = A->size;
    float *lower = a + m, *own = lower + m, *upper = own + m;
    for (int i = 0; i < m; i++) {
        a[i] = SCALE(A->scale, index) * (float)A->vectors[index * m + i];
        lower[i] = A->gain * (i ? at(&A->below, i - 1) : A->corner);
        if (A->tridiagonal) {
            own[i] = A->gain * at(&A->diagonal, i);
            upper[i] = A->gain * (i + 1 < m ? at(&A->above, i) : A->other_corner);
        }
    }
    return A->tridiagonal ? upper + m : own;
}

/* The sum of a x; a becomes A a. */
static float project(const ring *A, float *a, const float *x)
{
    int m = A->size;
    const float *lower = a + m, *own = lower + m, *upper = own + m;
    float first = a[0], last = a[m - 1], here = last, sum = 0.0f;
    if (!A->tridiagonal) {
        for (int i = m - 1; i > 0; i--) {
            sum += here * x[i];
            here = a[i - 1];
            a[i] = lower[i] * here;
        }
        a[0] = lower[0] * last;
        return sum + here * x[0];
    }
    here = first;
    for (int i = 0; i < m; i++) {
        float next = i + 1 < m ? a[i + 1] : first;
        sum += here * x[i];
        a[i] = lower[i] * last + own[i] * here + upper[i] * next;
        last = here;
        here = next;
    }
    return sum;
}

/* y += z a; a becomes A a. */
static void expand(const ring *A, float *a, float z, float *y)
{
    int m = A->size;
    const float *lower = a + m, *own = lower + m, *upper = own + m;
    float first = a[0], last = a[m - 1], here = last;
    if (!A->tridiagonal) {
        for (int i = m - 1; i > 0; i--) {
            y[i] += z * here;
            here = a[i - 1];
            a[i] = lower[i] * here;
        }
        a[0] = lower[0] * last;
        y[0] += z * here;
        return;
    }
    here = first;
    for (int i = 0; i < m; i++) {
        float next = i + 1 < m ? a[i + 1] : first;
        y[i] += z * here;
        a[i] = lower[i] * last + own[i] * here + upper[i] * next;
        last = here;
        here = next;
    }
}

/* work: for each operator twice its size, four times where it is tridiagonal */
static void krylov(const ring *A, const ring *C, int rank, const float *x, float *y, float *work)
{
    int m = A->size, n = C->size, k = m < n ? m : n;
    zero(y, m);
    for (int r = 0; r < rank; r++) {
        float *a = work, *c = unpack(A, r, a);
        unpack(C, r, c);
        for (int l = 0; l < k; l++)
            expand(A, a, project(C, c, x), y);
    }
}

//// window
/* A convolution or pooling: channels, height and width before and after, and how the kernel moves. */
typedef struct {
    int channels, height, width, out_channels, out_height, out_width;
    int kernel[2], stride[2], padding[2], dilation[2], groups;
} window;

//// conv2d: window
static void conv2d(const window *s, const weight *w, const float *scale, const float *x, float *y)
{
    int inner = s->channels / s->groups, each = s->out_channels / s->groups;
    int size = inner * s->kernel[0] * s->kernel[1];
    for (int o = 0; o < s->out_channels; o++, w += size) {
        const float *group = x + o / each * inner * s->height * s->width;
        for (int i = 0; i < s->out_height; i++)
            for (int j = 0; j < s->out_width; j++) {
                const weight *v = w;
                float sum = 0.0f;
                for (int c = 0; c < inner; c++)
                    for (int p = 0; p < s->kernel[0]; p++) {
                        int row = i * s->stride[0] - s->padding[0] + p * s->dilation[0];
                        const float *line = group + (c * s->height + row) * s->width;
                        int inside = row >= 0 && row < s->height;
                        for (int q = 0; q < s->kernel[1]; q++, v++) {
                            int column = j * s->stride[1] - s->padding[1] + q * s->dilation[1];
                            if (inside && column >= 0 && column < s->width)
                                sum += (float)*v * line[column];
                        }
                    }
                *y++ = SCALE(scale, o) * sum;
            }
    }
}

//// larger
/* The larger number, or NaN where one is: fmaxf would drop it. */
static float larger(float a, float b)
{
    return b > a || b != b ? b : a;
}

//// has_nan
static int has_nan(const float *x, int n)
{
    for (int i = 0; i < n; i++)
        if (x[i] != x[i])
            return 1;
    return 0;
}

//// max_pool2d: window larger
static void max_pool2d(const window *s, const float *x, float *y)
{
    for (int c = 0; c < s->channels; c++, x += s->height * s->width)
        for (int i = 0; i < s->out_height; i++)
            for (int j = 0; j < s->out_width; j++) {
                float largest = -INFINITY;
                for (int p = 0; p < s->kernel[0]; p++)
                    for (int q = 0; q < s->kernel[1]; q++) {
                        int row = i * s->stride[0] - s->padding[0] + p * s->dilation[0];
                        int column = j * s->stride[1] - s->padding[1] + q * s->dilation[1];
                        if (row >= 0 && row < s->height && column >= 0 && column < s->width)
                            largest = larger(largest, x[row * s->width + column]);
                    }
                *y++ = largest;
            }
}

//// bias
static void add_bias(float *y, const float *bias, int channels, int each)
{
    for (int i = 0; i < channels; i++)
        for (int j = 0; j < each; j++)
            *y++ += bias[i];
}

//// add
static void add(const float *a, const float *b, float *y, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

//// add_rows
/* One number of b for each row of a; y may be a. */
static void add_rows(const float *a, const float *b, float sign, float *y, int rows, int n)
{
    for (int i = 0; i < rows; i++) {
        float value = sign * b[i];
        for (int j = i * n; j < i * n + n; j++)
            y[j] = a[j] + value;
    }
}

//// mean
static void mean(const float *x, float *y, int rows, int n)
{
    for (int i = 0; i < rows; i++) {
        float sum = 0.0f;
        for (int j = 0; j < n; j++)
            sum += x[i * n + j];
        y[i] = sum / (float)n;
    }
}

//// clip
static void clip(const float *x, float *y, int n, float low, float high)
{
    for (int i = 0; i < n; i++)
        y[i] = x[i] < low ? low : x[i] > high ? high : x[i];
}

//// affine
static void affine(const float *x, float *y, int n, float factor, float shift)
{
    for (int i = 0; i < n; i++)
        y[i] = factor * x[i] + shift;
}

//// logistic
static float logistic(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

//// softmax: larger
static void softmax(const float *x, float *y, int rows, int n)
{
    for (; rows > 0; rows--, x += n, y += n) {
        float largest = x[0], sum = 0.0f;
        for (int i = 1; i < n; i++)
            largest = larger(largest, x[i]);
        for (int i = 0; i < n; i++)
            sum += y[i] = expf(x[i] - largest);
        for (int i = 0; i < n; i++)
            y[i] /= sum;
    }
}

//// lstm_step: logistic
////   Gates: the input products with their bias; hidden: those of the state.
static void lstm_step(const float *gates, const float *hidden, float *h, float *c, int n)
{
    for (int i = 0; i < n; i++) {
        float in = logistic(gates[i] + hidden[i]), forget = logistic(gates[n + i] + hidden[n + i]);
        float new = tanhf(gates[2 * n + i] + hidden[2 * n + i]);
        float out = logistic(gates[3 * n + i] + hidden[3 * n + i]);
        c[i] = forget * c[i] + in * new;
        h[i] = out * tanhf(c[i]);
    }
}

//// gru_step: logistic
static void gru_step(const float *gates, const float *hidden, float *h, int n)
{
    for (int i = 0; i < n; i++) {
        float reset = logistic(gates[i] + hidden[i]), keep = logistic(gates[n + i] + hidden[n + i]);
        float new = tanhf(gates[2 * n + i] + reset * hidden[2 * n + i]);
        h[i] = new + keep * (h[i] - new);
    }
}
