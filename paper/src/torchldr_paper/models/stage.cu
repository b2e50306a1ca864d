// Sizes are macros: C channels in, O out, H x W pixels, filters of Q x Q; GROUP of O and GROUP_BACK of C are
// what one thread makes. DEAD marks a square of outputs without a gradient.
typedef long long i64;
#define PAD (Q / 2)
#define ROWS (H + Q)     // of the image with its border, and one more for a square at an odd end
#define COLUMNS (W + Q)
#define AREA (ROWS * COLUMNS)
#define POOLED (W / 2)   // columns of the pooled image
#define PIXELS ((H / 2) * POOLED)
#define DEAD 4

// The image of one block, channel by channel, with a border of 0.
__device__ void load(Real* image, const Real* x) {
    for (int k = threadIdx.x; k < C * AREA; k += blockDim.x) {
        int c = k / AREA, i = k % AREA / COLUMNS - PAD, j = k % COLUMNS - PAD;
        bool inside = i >= 0 && i < H && j >= 0 && j < W;
        image[k] = inside ? x[(c * H + i) * W + j] : (Real)0;
    }
}

// Adds to sum[k][s] the products of filter k with the image under it, for the square of outputs s = 0..3
// whose first is at `corner`. Filters are (channels, Q Q, all of them); `filters` points at the thread's.
template <int CHANNELS, int ALL, int OWN>
__device__ __forceinline__ void correlate(const Real* corner, const Real* filters, Real (*sum)[4]) {
    for (int c = 0; c < CHANNELS; c++, corner += AREA, filters += Q * Q * ALL) {
        Real window[Q + 1][Q + 1];
        #pragma unroll
        for (int i = 0; i <= Q; i++)
            #pragma unroll
            for (int j = 0; j <= Q; j++) window[i][j] = corner[i * COLUMNS + j];
        #pragma unroll
        for (int i = 0; i < Q; i++)
            #pragma unroll
            for (int j = 0; j < Q; j++)
                #pragma unroll
                for (int k = 0; k < OWN; k++) {
                    Real w = filters[(i * Q + j) * ALL + k];
                    #pragma unroll
                    for (int s = 0; s < 4; s++) sum[k][s] += w * window[i + s / 2][j + s % 2];
                }
    }
}

// x (replicas or 1, images, C, H, W), weight (replicas, O, C, Q, Q), bias (replicas, O) to y and at
// (replicas, images, O, H / 2, W / 2); `several` says that x has more than one replica.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) stage_forward(
    const Real* x, const Real* weight, const Real* bias, Real* y, unsigned char* at, int several
) {
    extern __shared__ __align__(16) Real shared[];
    Real *image = shared, *filters = shared + C * AREA;
    const i64 replica = blockIdx.y, own = (replica * gridDim.x + blockIdx.x) * O * PIXELS;
    load(image, x + ((several ? replica * gridDim.x : 0) + blockIdx.x) * C * H * W);
    weight += replica * O * C * Q * Q;
    for (int k = threadIdx.x; k < O * C * Q * Q; k += blockDim.x)
        filters[k % (C * Q * Q) * O + k / (C * Q * Q)] = weight[k];
    __syncthreads();
    for (int item = threadIdx.x; item < O / GROUP * PIXELS; item += blockDim.x) {
        int first = item / PIXELS * GROUP, pixel = item % PIXELS;
        int i = pixel / POOLED * 2, j = pixel % POOLED * 2;
        Real sum[GROUP][4];
        #pragma unroll
        for (int k = 0; k < GROUP; k++) {
            Real b = bias[replica * O + first + k];
            #pragma unroll
            for (int s = 0; s < 4; s++) sum[k][s] = b;
        }
        correlate<C, O, GROUP>(image + i * COLUMNS + j, filters + first, sum);
        #pragma unroll
        for (int k = 0; k < GROUP; k++) {
            Real best = sum[k][0];
            int where = 0;
            #pragma unroll
            for (int s = 1; s < 4; s++)
                if (sum[k][s] > best || sum[k][s] != sum[k][s]) { best = sum[k][s]; where = s; }
            y[own + (first + k) * PIXELS + pixel] = best < 0 ? 0 : best;  // what is no number stays none
            at[own + (first + k) * PIXELS + pixel] = best <= 0 ? DEAD : where;
        }
    }
}

// The gradient dx (replicas, images, C, H, W) from u, that of y.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) stage_image(
    const Real* u, const unsigned char* at, const Real* weight, Real* dx
) {
    extern __shared__ __align__(16) Real shared[];
    Real *image = shared, *filters = shared + O * AREA;
    const i64 replica = blockIdx.y, block = replica * gridDim.x + blockIdx.x, own = block * O * PIXELS;
    for (int k = threadIdx.x; k < O * AREA; k += blockDim.x) image[k] = 0;
    weight += replica * O * C * Q * Q;
    for (int k = threadIdx.x; k < O * C * Q * Q; k += blockDim.x) {
        int o = k / (C * Q * Q), c = k / (Q * Q) % C, turned = Q * Q - 1 - k % (Q * Q);
        filters[(o * Q * Q + turned) * C + c] = weight[k];
    }
    __syncthreads();
    for (int k = threadIdx.x; k < O * PIXELS; k += blockDim.x) {
        int o = k / PIXELS, pixel = k % PIXELS, s = at[own + k];
        int i = pixel / POOLED * 2 + s / 2 + PAD, j = pixel % POOLED * 2 + s % 2 + PAD;
        if (s != DEAD) image[o * AREA + i * COLUMNS + j] = u[own + k];
    }
    __syncthreads();
    const int across = (W + 1) / 2, squares = (H + 1) / 2 * across;
    for (int item = threadIdx.x; item < C / GROUP_BACK * squares; item += blockDim.x) {
        int first = item / squares * GROUP_BACK, square = item % squares;
        int i = square / across * 2, j = square % across * 2;
        Real sum[GROUP_BACK][4] = {};
        correlate<O, C, GROUP_BACK>(image + i * COLUMNS + j, filters + first, sum);
        #pragma unroll
        for (int k = 0; k < GROUP_BACK; k++)
            #pragma unroll
            for (int s = 0; s < 4; s++)
                if (i + s / 2 < H && j + s % 2 < W)
                    dx[((block * C + first + k) * H + i + s / 2) * W + j + s % 2] = sum[k][s];
    }
}

// The image's part of the gradients, (replicas, images, O C, Q Q + 1): of filter (o, c), and of the bias of o
// behind the filter (o, 0). The block's threads are `splits` times O C, each with a share of the pixels.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) stage_filters(
    const Real* x, const Real* u, const unsigned char* at, Real* each, int several, int splits
) {
    extern __shared__ __align__(16) Real shared[];
    Real *image = shared, *sums = shared + C * AREA;
    const i64 replica = blockIdx.y, block = replica * gridDim.x + blockIdx.x, own = block * O * PIXELS;
    load(image, x + ((several ? replica * gridDim.x : 0) + blockIdx.x) * C * H * W);
    __syncthreads();
    int pair = threadIdx.x % (O * C), o = pair / C, c = pair % C;
    Real sum[Q * Q + 1] = {};
    for (int pixel = threadIdx.x / (O * C); pixel < PIXELS; pixel += splits) {
        int s = at[own + o * PIXELS + pixel];
        if (s == DEAD) continue;
        Real g = u[own + o * PIXELS + pixel];
        const Real* corner = image + c * AREA
            + (pixel / POOLED * 2 + s / 2) * COLUMNS + pixel % POOLED * 2 + s % 2;
        #pragma unroll
        for (int i = 0; i < Q; i++)
            #pragma unroll
            for (int j = 0; j < Q; j++) sum[i * Q + j] += g * corner[i * COLUMNS + j];
        sum[Q * Q] += g;
    }
    #pragma unroll
    for (int k = 0; k <= Q * Q; k++) sums[threadIdx.x * (Q * Q + 1) + k] = sum[k];
    __syncthreads();
    const int size = O * C * (Q * Q + 1);
    for (int k = threadIdx.x; k < size; k += blockDim.x) {
        Real total = 0;
        for (int split = 0; split < splits; split++) total += sums[split * size + k];
        each[block * size + k] = total;
    }
}
