typedef long long i64;
struct __align__(16) Eight { unsigned of[4]; };  // numbers in bfloat16, the first in the low half
struct __align__(16) Floats { float of[4]; };

__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ unsigned rounded(float x) {  // to the nearest, to even
    unsigned bits = __float_as_uint(x);
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
__device__ __forceinline__ unsigned joined(float x, float y) { return rounded(x) | rounded(y) << 16; }

// Over the block's threads, for all of them.
template <class F> __device__ __forceinline__ float reduced(float x, float* shared, F f) {
    int i = threadIdx.x;
    for (int d = 16; d > 0; d /= 2) x = f(x, __shfl_down_sync(0xffffffffu, x, d));
    __syncthreads();
    if (i % 32 == 0) shared[i / 32] = x;
    __syncthreads();
    x = shared[0];
    for (int w = 1; w < THREADS / 32; w++) x = f(x, shared[w]);
    return x;
}
struct Larger { __device__ float operator()(float a, float b) { return a > b ? a : b; } };
struct Sum { __device__ float operator()(float a, float b) { return a + b; } };

// A block a row: `vectors` times eight logits, which become softmax - onehot(target).
extern "C" __global__ void __launch_bounds__(THREADS) softmax_gradient(
    Eight* logits, const i64* targets, float* losses, int vectors, int tokens
) {
    extern __shared__ __align__(16) float shared[];  // a number a warp
    Eight* row = logits + (i64)blockIdx.x * vectors;
    const int i = threadIdx.x, target = (int)targets[blockIdx.x % tokens];
    Eight kept[EACH];
    float top = -3e38f, sum = 0, chosen = 0;
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        int at = e * THREADS + i;
        if (at >= vectors) continue;
        kept[e] = row[at];
        #pragma unroll
        for (int p = 0; p < 4; p++) {
            float a = low(kept[e].of[p]), b = high(kept[e].of[p]);
            top = a > top ? a : top;
            top = b > top ? b : top;
        }
    }
    if (i == 0) {
        unsigned pair = row[target / 8].of[target % 8 / 2];
        chosen = target % 2 ? high(pair) : low(pair);
    }
    top = reduced(top, shared, Larger());
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        if (e * THREADS + i >= vectors) continue;
        #pragma unroll
        for (int p = 0; p < 4; p++)
            sum += __expf(low(kept[e].of[p]) - top) + __expf(high(kept[e].of[p]) - top);
    }
    sum = reduced(sum, shared, Sum());
    if (i == 0) losses[blockIdx.x] = top + logf(sum) - chosen;
    const float one = 1 / sum;
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        int at = e * THREADS + i;
        if (at >= vectors) continue;
        #pragma unroll
        for (int p = 0; p < 4; p++) {
            float a = __expf(low(kept[e].of[p]) - top) * one, b = __expf(high(kept[e].of[p]) - top) * one;
            int word = 8 * at + 2 * p;
            if (word == target) a -= 1;
            if (word + 1 == target) b -= 1;
            kept[e].of[p] = joined(a, b);
        }
        row[at] = kept[e];
    }
}

// decoder += scale d, with its copy: a row of blocks a replica of `vectors` times eight numbers.
extern "C" __global__ void update(
    Floats* decoder, Eight* narrow, const Eight* d, const float* scale, int vectors
) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= vectors) return;
    i64 place = (i64)blockIdx.y * vectors + at;
    const float by = scale[blockIdx.y];
    Eight change = d[place], copy;
    #pragma unroll
    for (int p = 0; p < 2; p++) {
        Floats now = decoder[2 * place + p];
        unsigned first = change.of[2 * p], second = change.of[2 * p + 1];
        now.of[0] += by * low(first);
        now.of[1] += by * high(first);
        now.of[2] += by * low(second);
        now.of[3] += by * high(second);
        decoder[2 * place + p] = now;
        copy.of[2 * p] = joined(now.of[0], now.of[1]);
        copy.of[2 * p + 1] = joined(now.of[2], now.of[3]);
    }
    narrow[place] = copy;
}
