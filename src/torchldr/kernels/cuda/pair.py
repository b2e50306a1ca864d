"""The circulant pair of `functional.subdiagonal.pair` as kernels: products, and all their gradients.

A row of n numbers is one complex row of h = n / 2. What a block of threads transforms lies in its shared
memory, everything else of a row in global memory: 3 complex rows a block for products, and 2r + 8 for
gradients, most of them sums over the rows that the block takes one after the other.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .numbers import NAMES
from .numbers import SOURCE as NUMBERS

READ = torch.float32, torch.bfloat16
_MOST_THREADS = 1024
_EACH = 8  # places of a thread, where there are threads enough
_WAVES = 2048  # threads that a multiprocessor holds
_LONG = 4096  # places whose transform takes as long as the launch of a kernel

SOURCE = r"""
struct __align__(8) Z { float re, im; };
__device__ __forceinline__ Z times(Z a, Z b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ __forceinline__ Z plus(Z a, Z b) { return {a.re + b.re, a.im + b.im}; }
__device__ __forceinline__ Z minus(Z a, Z b) { return {a.re - b.re, a.im - b.im}; }
__device__ __forceinline__ Z scaled(Z a, float low, float high) { return {a.re * low, a.im * high}; }
__device__ __forceinline__ Z down(Z a) { return {a.im, -a.re}; }        // times -i
__device__ __forceinline__ Z swapped(Z a) { return {a.im, a.re}; }      // F^{-1} v is F of v swapped, swapped
__device__ __forceinline__ Z back(Z a, Z b) { return times(a, {b.re, -b.im}); }

// The DFT of R numbers; `root` is e^{-2 pi i j / H}.
__device__ __forceinline__ void two(Z& a, Z& b) { Z t = minus(a, b); a = plus(a, b); b = t; }
__device__ __forceinline__ void four(Z& a, Z& b, Z& c, Z& d) {
    two(a, c);
    two(b, d);
    d = down(d);
    two(a, b);
    two(c, d);
    Z t = b; b = c; c = t;
}
template <int R> __device__ __forceinline__ void dft(Z* v, const Z* __restrict__ root) {
    if constexpr (R == 2) two(v[0], v[1]);
    else if constexpr (R == 4) four(v[0], v[1], v[2], v[3]);
    else if constexpr (R == 8) {
        const float c = 0.70710678118654752f;
        four(v[0], v[2], v[4], v[6]);
        four(v[1], v[3], v[5], v[7]);
        v[3] = times(v[3], {c, -c});
        v[5] = down(v[5]);
        v[7] = times(v[7], {-c, -c});
        Z even[4] = {v[0], v[2], v[4], v[6]}, odd[4] = {v[1], v[3], v[5], v[7]};
        #pragma unroll
        for (int k = 0; k < 4; k++) { v[k] = plus(even[k], odd[k]); v[k + 4] = minus(even[k], odd[k]); }
    } else {
        Z sum[R];
        #pragma unroll
        for (int k = 0; k < R; k++) {
            sum[k] = v[0];
            #pragma unroll
            for (int j = 1; j < R; j++) sum[k] = plus(sum[k], times(v[j], root[j * k % R * (H / R)]));
        }
        #pragma unroll
        for (int k = 0; k < R; k++) v[k] = sum[k];
    }
}

// Places of a row lie a little apart, so that threads which write far from each other meet different banks.
#define AT(i) row[(i) + ((i) >> 4)]
#define PLACES for (int j = threadIdx.x; j < H; j += THREADS)

// One pass of the transform: numbers H / R apart, S of these transforms interleaved. Stockham's: each pass
// leaves the row in the order that the next one reads.
template <int R, int S> __device__ __forceinline__ void pass(Z* row, const Z* __restrict__ root) {
    const int count = H / R, each = (count + THREADS - 1) / THREADS;
    Z v[each][R];
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < each; e++) {
        int b = threadIdx.x + e * THREADS;
        #pragma unroll
        for (int j = 0; j < R; j++) if (b < count) v[e][j] = AT(b + j * count);
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < each; e++) {
        int b = threadIdx.x + e * THREADS, q = b % S, first = (b - q) * R + q;
        if (b >= count) continue;
        dft<R>(v[e], root);
        Z step = root[b - q], turn = step;
        AT(first) = v[e][0];
        #pragma unroll
        for (int k = 1; k < R; k++) {
            AT(first + k * S) = S * R == H ? v[e][k] : times(v[e][k], turn);
            turn = times(turn, step);
        }
    }
}

__device__ __noinline__ void transform(Z* row, const Z* __restrict__ root) {
    PASSES
    __syncthreads();
}

#define CONSTANTS const float* __restrict__ enter, const float* __restrict__ beside, \
    const float* __restrict__ between, const float* __restrict__ leave, const float* __restrict__ aside, \
    const Z* __restrict__ turn, const Z* __restrict__ right, const Z* __restrict__ left, \
    const Z* __restrict__ root
#define THEM enter, beside, between, leave, aside, turn, right, left, root
#define ARGUMENTS const X* __restrict__ x, const P* __restrict__ bias, CONSTANTS, Z* memory, \
    Y* __restrict__ out, int r, int rows, int parts
#define GIVEN x, bias, THEM, memory, out, r, rows, parts

// A block's memory: z_{r+1}, then of each part U and its sum.
#define Z_OF(block) (memory + (i64)(block) * (2 * parts + 1) * H)
#define U_OF(block, part) (Z_OF(block) + (2 * (part) + 1) * H)

template <class V>
__device__ __forceinline__ void load(Z* row, const V* x, const float* scale, const Z* turn) {
    PLACES {
        Z given = {(float)read(x + j), (float)read(x + j + H)};
        AT(j) = times(scaled(given, scale[j], scale[j + H]), turn[j]);
    }
}

__device__ __forceinline__ void store(Y* out, const P* bias, int j, float value) {
    if (REVERSED) j = 2 * H - 1 - j;
    write(out + j, bias ? value + read(bias + j) : value);
}

// The last transform, of the sum over all parts.
__device__ __forceinline__ void finish(Z* row, i64 p, i64 block, ARGUMENTS) {
    PLACES {
        Z sum = {0, 0};
        for (int part = 0; part < parts; part++) sum = plus(sum, U_OF(block, part)[H + j]);
        AT(j) = swapped(sum);
    }
    transform(row, root);
    PLACES {
        Z y = back(swapped(AT(j)), turn[j]), z = Z_OF(block)[j];
        store(out + p * 2 * H, bias, j, y.re * leave[j] + z.re * aside[j]);
        store(out + p * 2 * H, bias, j + H, y.im * leave[j + H] + z.im * aside[j + H]);
    }
}

// Rows p, p + gridDim.x, .., and of the ranks part, part + parts, ..; rank r stands for what is left over.
extern "C" __global__ void __launch_bounds__(THREADS) pair(ARGUMENTS) {
    extern __shared__ Z row[];
    const int part = blockIdx.y;
    Z *z = Z_OF(blockIdx.x), *U = U_OF(blockIdx.x, part), *sum = U + H;
    for (i64 p = blockIdx.x; p < rows; p += gridDim.x) {
        load(row, x + p * 2 * H, enter, turn);
        transform(row, root);
        PLACES { U[j] = AT(j); sum[j] = {0, 0}; }
        for (int i = part; i <= r; i += parts) {
            PLACES AT(j) = swapped(back(U[j], right[(i64)i * H + j]));
            transform(row, root);
            PLACES {
                Z plain = back(swapped(AT(j)), turn[j]);
                if (i == r) z[j] = plain;
                else AT(j) = times(scaled(plain, between[j], between[j + H]), turn[j]);
            }
            if (i == r) load(row, x + p * 2 * H, beside, turn);
            transform(row, root);
            PLACES sum[j] = plus(sum[j], times(AT(j), left[(i64)i * H + j]));
        }
        if (parts == 1) finish(row, p, blockIdx.x, GIVEN);
    }
}

// What parts of a row have in common, where there are several.
extern "C" __global__ void __launch_bounds__(THREADS) join(ARGUMENTS) {
    extern __shared__ Z row[];
    finish(row, blockIdx.x, blockIdx.x, GIVEN);
}

// Gradients, the transposes of these steps from the last to the first: of x in every row; of left, of right
// and, entry by entry and where y is given, dy y and x dx in sums over the rows of a block.
#define TURNED(scale) times(scaled(back(swapped(AT(j)), turn[j]), scale[j], scale[j + H]), turn[j])

__device__ __forceinline__ void add(Z* sum, Z a, bool first) { *sum = first ? a : plus(*sum, a); }

extern "C" __global__ void __launch_bounds__(THREADS) gradients(
    const X* __restrict__ x, const X* __restrict__ y, const X* __restrict__ dy, CONSTANTS, Z* memory,
    X* __restrict__ dx, int r, int rows
) {
    extern __shared__ Z row[];
    Z *dleft = memory + (i64)blockIdx.x * (2 * r + 8) * H, *dright = dleft + (i64)(r + 1) * H;
    Z *to = dright + (i64)(r + 1) * H, *from = to + H;
    Z *U = from + H, *dU = U + H, *dQ = dU + H, *beyond = dQ + H;
    bool first = true;
    for (i64 p = blockIdx.x; p < rows; p += gridDim.x, first = false) {
        const X *in = x + p * 2 * H, *out = y + p * 2 * H, *d = dy + p * 2 * H;
        load(row, d, leave, turn);
        transform(row, root);
        PLACES dQ[j] = AT(j);
        load(row, in, beside, turn);
        transform(row, root);
        PLACES {
            add(dleft + (i64)r * H + j, back(dQ[j], AT(j)), first);
            AT(j) = swapped(back(dQ[j], left[(i64)r * H + j]));
        }
        transform(row, root);
        PLACES beyond[j] = scaled(back(swapped(AT(j)), turn[j]), beside[j], beside[j + H]);
        load(row, in, enter, turn);
        transform(row, root);
        PLACES U[j] = AT(j);
        load(row, d, aside, turn);
        for (int i = r;; i--) {
            const Z *own = right + (i64)i * H, *next = own - H, *factor = left + (i64)(i - 1) * H;
            transform(row, root);
            PLACES {
                add(dright + (i64)i * H + j, back(U[j], AT(j)), first);
                add(dU + j, times(AT(j), own[j]), i == r);
                if (i > 0) AT(j) = swapped(back(U[j], next[j]));
            }
            if (i == 0) break;
            transform(row, root);
            PLACES AT(j) = TURNED(between);
            transform(row, root);
            PLACES {
                add(dleft + (i64)(i - 1) * H + j, back(dQ[j], AT(j)), first);
                AT(j) = swapped(back(dQ[j], factor[j]));
            }
            transform(row, root);
            PLACES AT(j) = TURNED(between);
        }
        PLACES AT(j) = swapped(dU[j]);
        transform(row, root);
        PLACES {
            Z plain = back(swapped(AT(j)), turn[j]);
            Z result = plus(scaled(plain, enter[j], enter[j + H]), beyond[j]);
            write(dx + p * 2 * H + j, result.re);
            write(dx + p * 2 * H + j + H, result.im);
            if (!y) continue;
            add(from + j, scaled(result, read(in + j), read(in + j + H)), first);
            add(to + j, {read(d + j) * read(out + j), read(d + j + H) * read(out + j + H)}, first);
        }
    }
}
"""


class Constants(NamedTuple):
    """M prepared, in float32 and complex64."""

    enter: Tensor  # P_C D, (n,)
    beside: Tensor  # P_C
    between: Tensor  # D^{-1}
    leave: Tensor  # P_A
    aside: Tensor  # P_A D^{-1}
    turn: Tensor  # e^{i pi j / n}, (h,)
    right: Tensor  # (r + 1, h): spectra over h
    left: Tensor
    root: Tensor  # e^{-2 pi i j / h}, (h,)


class Form(NamedTuple):
    """What kernels are compiled for."""

    h: int  # complex numbers of a row
    given: torch.dtype = torch.float32
    wanted: torch.dtype = torch.float32
    bias: torch.dtype = torch.float32
    reversed: bool = False


class Gradients(NamedTuple):
    """Of the vectors, in their dtype, and sums over all rows."""

    x: Tensor
    spectra: Tensor  # (2, r + 1, h): of left and of right
    products: Tensor | None  # (2, n): dy y and x dx


def multiply(K: Constants, x: Tensor, bias: Tensor | None, out: Tensor, reversed: bool) -> None:
    """Write M x + bias for rows of x, (b, n), all contiguous and of a dtype that is read."""
    (b, n), ranks, device = x.shape, K.right.shape[0], x.device
    types = x.dtype, out.dtype, out.dtype if bias is None else bias.dtype
    kernels, blocks, parts = _launches(Form(n // 2, *types, reversed), ranks, b, device)
    memory = K.turn.new_empty(blocks, 2 * parts + 1, n // 2)
    kernels.queue(device, [x, 0 if bias is None else bias, *K, memory, out, ranks - 1, b, parts])


def gradients(K: Constants, x: Tensor, y: Tensor | None, dy: Tensor) -> Gradients:
    """Those of sum(dy * y) for y = M x, all of one dtype that is read and contiguous.

    Products are made where y is given.
    """
    (b, n), ranks, device = x.shape, K.right.shape[0], x.device
    h, dx = n // 2, torch.empty_like(x)
    blocks = min(b, _blocks(h, device))
    memory = K.turn.new_empty(blocks, 2 * ranks + 6, h)
    kernels = _gradient_kernel(Form(h, x.dtype, x.dtype, x.dtype), blocks)
    kernels.queue(device, [x, 0 if y is None else y, dy, *K, memory, dx, ranks - 1, b])
    sums = memory[:, : 2 * ranks + (0 if y is None else 2)].sum(0)
    spectra, products = sums[: 2 * ranks].view(2, ranks, h), sums[2 * ranks :]
    return Gradients(dx, spectra, None if y is None else torch.cat((products.real, products.imag), -1))


@lru_cache(maxsize=1024)
def _launches(form: Form, ranks: int, rows: int, device: torch.device) -> tuple[nvrtc.Kernels, int, int]:
    """The kernels for so many rows, their blocks, and in how many parts a row's ranks are cut.

    Parts run side by side where rows leave multiprocessors idle.
    """
    h = form.h
    threads, idle = _threads(h), _blocks(h, device) // rows
    parts = max(1, min(ranks, idle)) if _worth_parting(h, ranks) else 1
    blocks = min(rows, _blocks(h, device)) if parts == 1 else rows
    launches = [("pair", (blocks, parts, 1), threads), ("join", (blocks, 1, 1), threads)]
    return nvrtc.Kernels(source(form), launches[: min(parts, 2)], shared_bytes(h)), blocks, parts


@lru_cache(maxsize=1024)
def _gradient_kernel(form: Form, blocks: int) -> nvrtc.Kernels:
    launch = "gradients", (blocks, 1, 1), _threads(form.h)
    return nvrtc.Kernels(source(form), [launch], shared_bytes(form.h))


def _worth_parting(h: int, ranks: int) -> bool:
    """Whether the transforms that parts save take longer than the second kernel that they cost."""
    return ranks > 2 or h >= _LONG


@cache
def source(form: Form) -> str:
    passes, interleaved = [], 1
    for radix in radices(form.h):
        passes.append(f"pass<{radix}, {interleaved}>(row, root);")
        interleaved *= radix
    known: dict[str, Any] = {"H": form.h, "THREADS": _threads(form.h), "PASSES": " ".join(passes)}
    known |= {"X": NAMES[form.given], "Y": NAMES[form.wanted], "P": NAMES[form.bias]}
    known["REVERSED"] = int(form.reversed)
    return "".join(f"#define {key} {value}\n" for key, value in known.items()) + NUMBERS + SOURCE


def radices(h: int) -> list[int]:
    """Factors of h, each of 2, 3, 4, 5, 7 or 8.

    >>> radices(8192), radices(30)
    ([8, 8, 8, 8, 2], [5, 3, 2])
    """
    found = []
    for radix in (7, 5, 3, 8, 4, 2):
        while h % radix == 0:
            found.append(radix)
            h //= radix
    return found


def _threads(h: int) -> int:
    """Of a block: some places each, whole warps."""
    return min(_MOST_THREADS, -(-h // (32 * _EACH)) * 32)


def shared_bytes(h: int) -> int:
    return 8 * (h + h // 16 + 1)


@cache
def shared_most(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 << 10))


@cache
def _blocks(h: int, device: torch.device) -> int:
    """As many as the device runs at once."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count * (_WAVES // _threads(h)))
