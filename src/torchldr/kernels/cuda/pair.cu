// A thread has numbers of a complex row of H in registers: those of its butterflies in the first pass of a
// transform, or in the last one. Between two passes they lie in shared memory. Spectra stay in the order in
// which the last pass leaves them, `order` in pair.py. ANALYSIS is the list of passes, from the whole row to
// its smallest parts, SYNTHESIS the same from its end.

struct __align__(8) Z { float re, im; };
#define INLINE __device__ __forceinline__
INLINE Z plus(Z a, Z b) { return {a.re + b.re, a.im + b.im}; }
INLINE Z minus(Z a, Z b) { return {a.re - b.re, a.im - b.im}; }
INLINE Z times(Z a, Z b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
INLINE Z back(Z a, Z b) { return {a.re * b.re + a.im * b.im, a.im * b.re - a.re * b.im}; }  // a conj(b)
template <bool BACK> INLINE Z turned(Z a, Z b) { return BACK ? back(a, b) : times(a, b); }

// What is known when this is compiled: e^{-2 pi i k / R}, and, for k of the FIRST butterfly, of
// j = b + k H / FIRST, the part of k in e^{i pi j / n} and in 2^{j / n}.
template <int R> INLINE Z root(int k);
#define ROOT(R) template <> INLINE Z root<R>(int k) { const Z them[] = {ROOTS##R}; return them[k % R]; }
ROOT(3) ROOT(5) ROOT(7) ROOT(8) ROOT(16) ROOT(32)
INLINE Z tilt(int k) { const Z them[] = {TILTS}; return them[k]; }
INLINE float growth(int k) { const float them[] = {GROWTHS}; return them[k]; }

// The DFT of R numbers that stand S apart, or its conjugate.
template <int R, int S, bool BACK> struct Dft {
    static INLINE void of(Z* v) {
        Z sum[R];
        #pragma unroll
        for (int k = 0; k < R; k++) {
            sum[k] = v[0];
            #pragma unroll
            for (int j = 1; j < R; j++) sum[k] = plus(sum[k], turned<BACK>(v[j * S], root<R>(j * k)));
        }
        #pragma unroll
        for (int k = 0; k < R; k++) v[k * S] = sum[k];
    }
};
template <int S, bool BACK> struct Dft<1, S, BACK> { static INLINE void of(Z*) {} };
template <int S, bool BACK> struct Dft<2, S, BACK> {
    static INLINE void of(Z* v) { Z a = v[0], b = v[S]; v[0] = plus(a, b); v[S] = minus(a, b); }
};
template <int S, bool BACK> struct Dft<4, S, BACK> {
    static INLINE void of(Z* v) {
        Z a = plus(v[0], v[2 * S]), b = minus(v[0], v[2 * S]);
        Z c = plus(v[S], v[3 * S]), d = minus(v[S], v[3 * S]);
        d = BACK ? Z{-d.im, d.re} : Z{d.im, -d.re};
        v[0] = plus(a, c); v[S] = plus(b, d); v[2 * S] = minus(a, c); v[3 * S] = minus(b, d);
    }
};
template <int A, int B, int S, bool BACK> struct Composed {
    static INLINE void of(Z* v) {
        Z out[A * B];
        #pragma unroll
        for (int b = 0; b < B; b++) {
            Dft<A, B * S, BACK>::of(v + b * S);
            #pragma unroll
            for (int a = 1; a < A; a++)
                if (b) v[(a * B + b) * S] = turned<BACK>(v[(a * B + b) * S], root<A * B>(a * b));
        }
        #pragma unroll
        for (int a = 0; a < A; a++) {
            Dft<B, S, BACK>::of(v + a * B * S);
            #pragma unroll
            for (int b = 0; b < B; b++) out[a + A * b] = v[(a * B + b) * S];
        }
        #pragma unroll
        for (int k = 0; k < A * B; k++) v[k * S] = out[k];
    }
};
template <int S, bool BACK> struct Dft<8, S, BACK> : Composed<4, 2, S, BACK> {};
template <int S, bool BACK> struct Dft<16, S, BACK> : Composed<4, 4, S, BACK> {};
template <int S, bool BACK> struct Dft<32, S, BACK> : Composed<4, 8, S, BACK> {};

// A thread's butterflies: f(e, b) for butterfly b of the H / R of a pass, its e-th.
template <int R, class F> INLINE void butterflies(F f) {
    const int count = H / R;
    #pragma unroll
    for (int e = 0; e < (count + THREADS - 1) / THREADS; e++) {
        int b = threadIdx.x + e * THREADS;
        if (count % THREADS == 0 || b < count) f(e, b);
    }
}
// Their numbers: f(i, j, k) for number k of a butterfly, in register i of each row and at place j of it.
template <int R, class F> INLINE void numbers(F f) {
    butterflies<R>([&](int e, int b) {
        #pragma unroll
        for (int k = 0; k < R; k++) f(e * R + k, b + k * (H / R), k);
    });
}
template <class F> INLINE void places(F f) { numbers<FIRST>(f); }
template <class F> INLINE void frequencies(F f) { numbers<LAST>(f); }

typedef Z Row[MOST];

// The butterflies of a pass on parts of N numbers, and the twiddles w^k after it, or before it where BACK,
// by w, w^4 and w^16 at place AT of the tables. The factor e^{i pi j / n} is split where N is H: the part of
// b joins the twiddles, that of k is known.
template <int R, int N, int AT, bool BACK> INLINE void twiddle(Row& v, const Z* tables, int e, int b) {
    if (N == R && N < H) return;
    const int count = N / R;
    const Z *own = tables + AT + b % count, one = own[0], two = times(one, one), three = times(two, one);
    const Z first = N == H ? tables[b] : Z{1, 0}, four = own[count];
    Z leap = first;
    #pragma unroll
    for (int k = 0; k < R; k++) {
        if (k == 16) leap = times(first, own[2 * count]);
        else if (k && k % 4 == 0) leap = times(leap, four);
        Z by = k % 4 == 0 ? leap : times(leap, k % 4 == 1 ? one : k % 4 == 2 ? two : three);
        v[e * R + k] = turned<BACK>(v[e * R + k], by);
    }
}
template <int R, int N, int AT, bool BACK> INLINE void pass(Row& v, const Z* tables) {
    butterflies<R>([&](int e, int b) {
        if (BACK) twiddle<R, N, AT, true>(v, tables, e, b);
        Z* u = v + e * R;
        #pragma unroll
        for (int k = 1; k < R; k++) if (N == H && !BACK) u[k] = times(u[k], tilt(k));
        Dft<R, 1, BACK>::of(u);
        #pragma unroll
        for (int k = 1; k < R; k++) if (N == H && BACK) u[k] = back(u[k], tilt(k));
        if (!BACK) twiddle<R, N, AT, false>(v, tables, e, b);
    });
}

// Where the numbers of a pass lie, f(number in a register, number in memory). Gaps keep threads of a warp
// in different banks.
template <int R, int N, class F> INLINE void exchange(Row& v, Z* shared, F f) {
    const int stride = N / R;
    butterflies<R>([&](int e, int b) {
        int first = b / stride * N + b % stride;
        #pragma unroll
        for (int k = 0; k < R; k++) {
            int at = stride % GAP ? (first + k * stride) + (first + k * stride) / GAP
                                  : first + first / GAP + k * (stride + stride / GAP);
            f(v[e * R + k], shared[at]);
        }
    });
}
// A thread writes where it has read, so that it waits for others only between two passes.
template <int R, int N> INLINE void leave(Row& v, Z* shared) {
    exchange<R, N>(v, shared, [](Z& number, Z& place) { place = number; });
    __syncthreads();
}
template <int R, int N> INLINE void take(Row& v, Z* shared) {
    exchange<R, N>(v, shared, [](Z& number, Z& place) { number = place; });
}

// The spectrum modulo X^n + 1, and H times what has a spectrum.
INLINE void analyse(Row& v, Z* shared, const Z* tables) { ANALYSIS }
INLINE void synthesise(Row& v, Z* shared, const Z* tables) { SYNTHESIS }

// Times D = diag(2^{j / n}), or over it.
template <bool OVER> INLINE void grow(Row& v, const Z* tables) {
    butterflies<FIRST>([&](int e, int b) {
        const Z part = tables[(OVER ? 2 : 1) * (H / FIRST) + b];
        #pragma unroll
        for (int k = 0; k < FIRST; k++) {
            float by = OVER ? 1 / growth(k) : growth(k);
            v[e * FIRST + k].re *= part.re * by;
            v[e * FIRST + k].im *= part.im * by;
        }
    });
}

// A row of numbers times a diagonal.
INLINE void load(Row& v, const X* x, const float* scale) {
    places([&](int i, int j, int) { v[i] = {read(x + j) * scale[j], read(x + j + H) * scale[j + H]}; });
}
// D v + z, times a diagonal.
INLINE void finish(Row& v, X* y, const Z* z, const float* scale, const Z* tables) {
    grow<false>(v, tables);
    places([&](int i, int j, int) {
        Z sum = plus(v[i], z[j]);
        v[i] = {sum.re * scale[j], sum.im * scale[j + H]};
    });
    places([&](int i, int j, int) { write(y + j, v[i].re); write(y + j + H, v[i].im); });
}
// With the spectra a and b: v a, v conj(a) or a conj(b).
INLINE void multiply(Row& v, const Z* a) { frequencies([&](int i, int j, int) { v[i] = times(v[i], a[j]); }); }
INLINE void correlate(Row& v, const Z* a) { frequencies([&](int i, int j, int) { v[i] = back(v[i], a[j]); }); }
INLINE void correlate(Row& v, const Z* a, const Z* b) {
    frequencies([&](int i, int j, int) { v[i] = back(a[j], b[j]); });
}
INLINE void add(Row& v, const Z* a) { frequencies([&](int i, int j, int) { v[i] = plus(v[i], a[j]); }); }
INLINE void keep(const Row& v, Z* a) { frequencies([&](int i, int j, int) { a[j] = v[i]; }); }

#define CONSTANTS const float* __restrict__ beside, const float* __restrict__ aside, \
    const Z* __restrict__ given, const Z* __restrict__ right, const Z* __restrict__ left
#define BEGIN \
    extern __shared__ Z shared[]; \
    for (int i = threadIdx.x; i < TABLES; i += THREADS) shared[ROOM + i] = given[i]; \
    if (TABLES) __syncthreads(); \
    const Z* tables = TABLES ? shared + ROOM : given; \
    Row v;
#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)

#if MAKE_pair
// Of the ranks, a block takes part, part + parts, .. from the last one on; rank r stands for what is left over.
KERNEL pair(
    const X* __restrict__ x, CONSTANTS, Z* __restrict__ memory, X* __restrict__ y, int r, int rows, int parts
) {
    BEGIN
    const int part = blockIdx.y, top = r - (r - part) % parts;
    Z *U = memory + ((i64)blockIdx.x * parts + part) * 3 * H, *sum = U + H, *z = sum + H;
    for (i64 p = blockIdx.x; p < rows; p += gridDim.x) {
        for (int i = top;; i -= parts) {
            if (i == top || i + parts == r) load(v, x + p * 2 * H, beside);  // enter x, then beside x
            if (i == top) grow<false>(v, tables);
            analyse(v, shared, tables);
            if (i == top) {
                keep(v, U);
                correlate(v, right + (i64)i * H);
            } else {
                multiply(v, left + (i64)(i + parts) * H);
                if (i + parts < top) add(v, sum);
                if (i >= 0 || parts > 1) keep(v, sum);
                if (i >= 0) correlate(v, U, right + (i64)i * H);
                else if (parts > 1) break;
            }
            synthesise(v, shared, tables);
            if (i == r) places([&](int at, int j, int) { z[j] = v[at]; });
            else if (i >= 0) grow<true>(v, tables);
            else break;
        }
        if (parts == 1) finish(v, y + p * 2 * H, z, aside, tables);
    }
}
#endif

#if MAKE_join
// The last transform of a row, of the sum over all its parts.
KERNEL join(
    const X* __restrict__ x, CONSTANTS, Z* __restrict__ memory, X* __restrict__ y, int r, int rows, int parts
) {
    BEGIN
    const Z *own = memory + (i64)blockIdx.x * parts * 3 * H, *z = own + (3 * (r % parts) + 2) * H;
    frequencies([&](int i, int j, int) { v[i] = {0, 0}; });
    #pragma unroll 1
    for (int part = 0; part < parts; part++) add(v, own + (3 * part + 1) * H);
    synthesise(v, shared, tables);
    finish(v, y + (i64)blockIdx.x * 2 * H, z, aside, tables);
}
#endif

#if MAKE_gradients
#define STAGE 8
// sum += other conj(v), and v = other conj(factor), or v factor. Some are read before the first is written: a
// write may change what is read after it, for all that a compiler knows, so that every read would wait.
template <bool TO_LEFT> INLINE void accumulate(Row& v, const Z* other, const Z* factor, Z* sum, bool first) {
    butterflies<LAST>([&](int e, int b) {
        #pragma unroll
        for (int from = 0; from < LAST; from += STAGE) {
            Z total[STAGE];
            #pragma unroll
            for (int k = from; k < LAST && k < from + STAGE; k++) {
                const int i = e * LAST + k, j = b + k * (H / LAST);
                const Z by = other[j];
                total[k - from] = first ? back(by, v[i]) : plus(sum[j], back(by, v[i]));
                v[i] = TO_LEFT ? back(by, factor[j]) : times(v[i], factor[j]);
            }
            #pragma unroll
            for (int k = from; k < LAST && k < from + STAGE; k++) sum[b + k * (H / LAST)] = total[k - from];
        }
    });
}

// Gradients, the transposes of these steps: of x in every row, and of left and right in sums over the rows
// of a block. Step by step, with F for analyse and F* for synthesise:
//
//     0         dQ = F(leave dy),             beyond = F*(left_r* dQ)
//     1         F(beside x),                  dleft_r
//     2         U = F(enter x)
//     2i + 3    F(between F*(right_i* U)),    dleft_i
//     2i + 4    F(between F*(left_i* dQ)),    dright_i and dU
//     2r + 3    F(aside dy),                  dright_r and dU,    dx = enter F*(dU) + beside beyond
KERNEL gradients(
    const X* __restrict__ x, const X* __restrict__ dy, CONSTANTS, Z* __restrict__ memory, Z* __restrict__ sums,
    X* __restrict__ dx, int r, int rows
) {
    BEGIN
    Z *dQ = memory + (i64)blockIdx.x * 4 * H, *U = dQ + H, *dU = U + H, *beyond = dU + H;
    Z *dleft = sums + (i64)blockIdx.x * 2 * (r + 1) * H, *dright = dleft + (i64)(r + 1) * H;
    const int end = 2 * r + 3;
    for (i64 p = blockIdx.x; p < rows; p += gridDim.x) {
        const bool first = p < gridDim.x;
        for (int step = 0; step <= end; step++) {
            if (step == 0 || step == end) load(v, dy + p * 2 * H, aside);
            if (step == 1 || step == 2) load(v, x + p * 2 * H, beside);
            if (step == 0 || step == 2) grow<false>(v, tables);
            analyse(v, shared, tables);
            const i64 own = (i64)(step == 1 ? r : (step - 3) / 2) * H;
            if (step == 0 || step == 2) {
                keep(v, step ? U : dQ);
                correlate(v, step ? right : left + (i64)r * H);
            } else if (step % 2 && step < end) accumulate<true>(v, dQ, left + own, dleft + own, first);
            else {
                accumulate<false>(v, U, right + own, dright + own, first);
                if (step > 4) add(v, dU);
                if (step < end) keep(v, dU);
                if (step < end - 1) correlate(v, U, right + own + H);
            }
            if (step == 1 || step == end - 1) { __syncthreads(); continue; }
            synthesise(v, shared, tables);
            if (step == 0) places([&](int at, int j, int) { beyond[j] = v[at]; });
            else if (step < end) grow<true>(v, tables);
        }
        finish(v, dx + p * 2 * H, beyond, beside, tables);
    }
}
#endif

#if MAKE_dots
// Column sums over a block's share of the rows: of a b, and of c d.
struct __align__(2 * sizeof(X)) Pair { X low, high; };
extern "C" __global__ void dots(
    const Pair* __restrict__ a, const Pair* __restrict__ b, const Pair* __restrict__ c, const Pair* __restrict__ d,
    Z* __restrict__ sums, int rows
) {
    const int j = blockIdx.x * COLUMNS + threadIdx.x;
    if (j >= H) return;
    const Pair *left = blockIdx.z ? c : a, *right = blockIdx.z ? d : b;
    Z sum = {0, 0};
    #pragma unroll 8
    for (i64 p = blockIdx.y; p < rows; p += gridDim.y) {
        const Pair u = left[p * H + j], v = right[p * H + j];
        sum = plus(sum, {read(&u.low) * read(&v.low), read(&u.high) * read(&v.high)});
    }
    sums[((i64)blockIdx.z * gridDim.y + blockIdx.y) * H + j] = sum;
}
#endif
