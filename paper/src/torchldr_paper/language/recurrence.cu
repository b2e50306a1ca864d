// gates (R, T, B, 4, H) in the order o, i, f, g; c and h (R, T + 1, B, H), the state before step t at t.
typedef long long i64;
struct __align__(4 * sizeof(Real)) Four { Real of[4]; };  // a number for each column, or four in a row

__device__ __forceinline__ Real sigmoid(Real x) { return 1 / (1 + exp(-x)); }

__device__ __forceinline__ void add(Real* sum, Real w, const Four& x) {
    #pragma unroll
    for (int b = 0; b < 4; b++) sum[b] += w * x.of[b];
}

// The sums over k of U[k] x[k], U in the two places where a thread keeps it.
__device__ __forceinline__ void multiply(const Real* kept, const Real* shared, const Four* x, Real* sum) {
    #pragma unroll
    for (int k = 0; k < H / 2; k++) add(sum, kept[k], x[k]);
    #pragma unroll 16
    for (int k = 0; k < H / 2; k++) add(sum, shared[k * 4 * H], x[H / 2 + k]);
}

extern "C" __global__ void __launch_bounds__(4 * H) recurrence_forward(
    Real* gates, Real* c, Real* h, const Real* U, int T, int B
) {
    extern __shared__ __align__(32) Real shared[];
    Four* state = (Four*)shared;           // h of the step before, (H,)
    Real* passed = shared + 4 * H;         // the gates of a step, (columns, 4H)
    Real* half = passed + 4 * 4 * H;       // the second half of U's rows, (H / 2, 4H)
    const int j = threadIdx.x, u = j % H, q = j / H;
    const int first = blockIdx.x * 4, own = first + q;
    const bool inside = own < B;
    const i64 r = blockIdx.y, place = (r * (T + 1) * B + own) * H + u, on = (i64)B * H;
    const Four* row = (const Four*)(U + (r * 4 * H + j) * H);
    Real kept[H / 2];
    #pragma unroll
    for (int k = 0; k < H / 8; k++) {
        Four near = row[k], far = row[H / 8 + k];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            kept[4 * k + i] = near.of[i];
            half[(4 * k + i) * 4 * H + j] = far.of[i];
        }
    }
    Real cell = inside ? c[place] : 0;
    state[u].of[q] = inside ? h[place] : 0;
    __syncthreads();
    for (int t = 0; t < T; t++) {
        Real* a = gates + ((r * T + t) * B + first) * 4 * H + j;
        Real given[4], sum[4] = {0, 0, 0, 0};
        #pragma unroll
        for (int b = 0; b < 4; b++) given[b] = first + b < B ? a[b * 4 * H] : 0;
        multiply(kept, half + j, state, sum);
        #pragma unroll
        for (int b = 0; b < 4; b++) {
            Real x = given[b] + sum[b], y = q < 3 ? sigmoid(x) : tanh(x);
            passed[b * 4 * H + j] = y;
            if (first + b < B) a[b * 4 * H] = y;
        }
        __syncthreads();
        const Real* g = passed + q * 4 * H + u;
        cell = g[2 * H] * cell + g[H] * g[3 * H];
        Real out = g[0] * tanh(cell);
        state[u].of[q] = out;
        if (inside) {
            c[place + (t + 1) * on] = cell;
            h[place + (t + 1) * on] = out;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(4 * H) recurrence_backward(
    const Real* gates, const Real* c, const Real* dh, const Real* U, Real* da, int T, int B
) {
    extern __shared__ __align__(32) Real shared[];
    Four* after = (Four*)shared;           // da of the step after, (4H,)
    Real* parts = shared + 4 * 4 * H;      // of U^T da by gate, (columns, 4H)
    Real* half = parts + 4 * 4 * H;        // the second half of each gate's columns of U, (H / 2, 4H)
    const int j = threadIdx.x, u = j % H, q = j / H;
    const int own = blockIdx.x * 4 + q;
    const bool inside = own < B;
    const i64 r = blockIdx.y;
    const Real* column = U + (r * 4 + q) * H * H + u;
    Real kept[H / 2];
    #pragma unroll
    for (int k = 0; k < H / 2; k++) {
        kept[k] = column[k * H];
        half[k * 4 * H + j] = column[(H / 2 + k) * H];
    }
    Real dc = 0;
    for (int t = T - 1; t >= 0; t--) {
        const i64 here = (r * T + t) * B + own, state = ((r * (T + 1) + t) * B + own) * H + u;
        const Real* a = gates + here * 4 * H + u;
        Real o = 0, i = 0, f = 0, g = 0, before = 0, behind = 0, d = 0;
        if (inside) {
            o = a[0]; i = a[H]; f = a[2 * H]; g = a[3 * H];
            before = c[state]; behind = c[state + (i64)B * H];
            d = dh[here * H + u];
        }
        if (t < T - 1) {
            Real sum[4] = {0, 0, 0, 0};
            multiply(kept, half + j, after + q * H, sum);
            #pragma unroll
            for (int b = 0; b < 4; b++) parts[b * 4 * H + j] = sum[b];
            __syncthreads();
            #pragma unroll
            for (int p = 0; p < 4; p++) d += parts[q * 4 * H + p * H + u];
        }
        Real s = tanh(behind), e = dc + d * o * (1 - s * s);
        Real found[4] = {
            d * s * o * (1 - o), e * g * i * (1 - i), e * before * f * (1 - f), e * i * (1 - g * g)
        };
        #pragma unroll
        for (int p = 0; p < 4; p++) {
            after[p * H + u].of[q] = found[p];
            if (inside) da[(here * 4 + p) * H + u] = found[p];
        }
        dc = e * f;
        __syncthreads();
    }
}
