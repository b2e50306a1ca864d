"""A stage of the CNN for all replicas: convolution, ReLU and 2 x 2 max-pooling, as one CUDA kernel each way.

Libraries do a convolution with a group a replica one group after the other, and every layer of a stage
passes its images through memory. Here a block has one image of one replica in shared memory. Going forward,
a thread makes a square of four outputs for a few channels and keeps their largest. Going back, at most one
output of the four has a gradient, and which one is all that is remembered: the image's gradient is the
convolution of what is there with the filters turned round, by the same loop, and the filters' gradient is a
sum over the outputs that have one. No sum depends on the order of threads.

Elsewhere, and where an image is too large for a block, a stage is torch's operations one after the other,
which a test holds the kernels to, run as C++.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, max_pool2d, relu

from torchldr.kernels.cuda import nvrtc, unavailable

_MOST_THREADS = 512
_SPLIT_THREADS = 192  # for the filters' gradient

# Sizes are macros: C channels in, O out, H x W pixels, filters of Q x Q; GROUP of O and GROUP_BACK of C are
# what one thread makes. DEAD marks a square of outputs without a gradient.
SOURCE = r"""
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
"""


def stage(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve with every replica's filters, keeping the size; ReLU; the largest of every 2 x 2 pixels.

    Args:
        x: shape (R, b, c, h, w), or (1, b, c, h, w) for images common to all replicas.
        weight: shape (R, o, c, q, q), q odd.
        bias: shape (R, o).

    Returns:
        Shape (R, b, o, h // 2, w // 2).
    """
    if _serves(x, weight, bias):
        y: Tensor = _Stage.apply(x, weight, bias)
        return y
    return plain_stage(x, weight, bias)


def _serves(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether the kernels take these tensors. What is wrong with others, the plain form says."""
    if not x.is_cuda or x.dtype not in _NAMES or unavailable() is not None:
        return False
    alike = all(t.dtype == x.dtype and t.device == x.device for t in (weight, bias))
    whole = len(x) in (1, len(weight)) and x.shape[1] > 0 and weight.shape[-1] % 2 == 1
    properties = torch.cuda.get_device_properties(x.device)
    block = getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block)
    return alike and whole and Sizes.of(x, weight).fit(block // x.element_size(), back=x.requires_grad)


def plain_stage(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What `stage` computes, by torch's operations on the replicas' channels side by side."""
    R, half = len(weight), weight.shape[-1] // 2
    y = conv2d(
        x.transpose(0, 1).flatten(1, 2), weight.flatten(0, 1), bias.flatten(), padding=half, groups=len(x)
    )
    return max_pool2d(relu(y), 2).unflatten(1, (R, -1)).transpose(0, 1)


class Sizes(NamedTuple):
    """What the kernels are compiled for."""

    C: int
    O: int  # noqa: E741 -- as in the source
    H: int
    W: int
    Q: int

    @classmethod
    def of(cls, x: Tensor, weight: Tensor) -> Sizes:
        """Those of such images and filters."""
        _, _, c, h, w = x.shape
        return cls(c, weight.shape[1], h, w, weight.shape[-1])

    @property
    def _area(self) -> int:
        return (self.H + self.Q) * (self.W + self.Q)

    @property
    def _filters(self) -> int:
        return self.O * self.C * self.Q**2

    @property
    def splits(self) -> int:
        """Among how many threads the pixels of a filter's gradient are shared."""
        return max(1, _SPLIT_THREADS // (self.O * self.C))

    @property
    def shared(self) -> dict[str, int]:
        """Numbers in shared memory by kernel."""
        return {
            "stage_forward": self.C * self._area + self._filters,
            "stage_image": self.O * self._area + self._filters,
            "stage_filters": self.C * self._area + self.splits * (self._filters + self.O * self.C),
        }

    @property
    def threads(self) -> dict[str, int]:
        """Threads of a block by kernel."""
        H, W = self.H, self.W
        forward = self.O // _group(self.O) * (H // 2) * (W // 2)
        back = self.C // _group(self.C) * ((H + 1) // 2) * ((W + 1) // 2)
        return {
            "stage_forward": min(_MOST_THREADS, 32 * math.ceil(forward / 32)),
            "stage_image": min(_MOST_THREADS, 32 * math.ceil(back / 32)),
            "stage_filters": self.splits * self.O * self.C,
        }

    def fit(self, numbers: int, *, back: bool) -> bool:
        """Whether blocks of so many numbers in shared memory hold them; `back`: the image's gradient too."""
        most = max(count for name, count in self.shared.items() if back or name != "stage_image")
        return most <= numbers and self.O * self.C <= _MOST_THREADS and min(self.H, self.W) >= 2

    def source(self, dtype: torch.dtype) -> str:
        """The kernels of these sizes."""
        groups = {"GROUP": _group(self.O), "GROUP_BACK": _group(self.C)}
        macros = {**self._asdict(), **groups, "Real": _NAMES[dtype], "MOST_THREADS": _MOST_THREADS}
        return "".join(f"#define {name} {value}\n" for name, value in macros.items()) + SOURCE


class _Stage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        ctx.sizes = sizes = Sizes.of(x, weight)
        y = x.new_empty(len(weight), x.shape[1], sizes.O, sizes.H // 2, sizes.W // 2)
        at = torch.empty_like(y, dtype=torch.uint8)
        _launch("stage_forward", sizes, y, [x, weight, bias, y, at, int(len(x) > 1)])
        ctx.save_for_backward(x, weight, at)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, at = ctx.saved_tensors
        sizes, u, dx = ctx.sizes, u.contiguous(), None
        R, b, taps = *u.shape[:2], sizes.Q**2
        if ctx.needs_input_grad[0]:
            dx = x.new_empty(R, *x.shape[1:])
            _launch("stage_image", sizes, u, [u, at, weight, dx])
            dx = dx.sum(0, keepdim=True) if len(x) < R else dx
        each = x.new_empty(R, b, sizes.O, sizes.C, taps + 1)
        _launch("stage_filters", sizes, u, [x, u, at, each, int(len(x) > 1), sizes.splits])
        both = each.sum(1)
        return dx, both[..., :taps].reshape(weight.shape), both[:, :, 0, taps]


_NAMES = {torch.float32: "float", torch.float64: "double"}


def _group(channels: int) -> int:
    """How many channels a thread makes: they share what it reads, and it has registers for four."""
    return next(size for size in (4, 3, 2, 1) if channels % size == 0)


@cache
def _source(sizes: Sizes, dtype: torch.dtype) -> str:
    return sizes.source(dtype)


def _launch(name: str, sizes: Sizes, like: Tensor, arguments: list[Any]) -> None:
    grid = like.shape[1], like.shape[0], 1
    shared = sizes.shared[name] * like.element_size()
    nvrtc.launch(_source(sizes, like.dtype), name, like.device, grid, sizes.threads[name], arguments, shared)
