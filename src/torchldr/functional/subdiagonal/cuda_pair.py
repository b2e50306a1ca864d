"""A whole square LDR-SD product for inference on a GPU: the circulant pair in one kernel or two.

As in `compiled_pair` both shifts are Z_{-1} after a scaling by D = diag(2^{j/n}), so that a real row of n
numbers is one complex row of h = n / 2, x_j + i x_{j+h}, and every transform is a complex FFT of length
h:

    U = F T (P_C D x),  S = F T (P_C x)             T the turns e^{i pi j / n}, F the DFT of length h
    z_i = D^{-1} T^{-1} F^{-1} (right_i U)          i = 1 .. r + 1, `right` conjugated spectra
    y = P_A (T^{-1} F^{-1} (sum_{i <= r} left_i F T z_i + left_{r+1} S) + z_{r+1})

2r + 4 of them a row, or 4 where few rows leave room for blocks that take the ranks apart. What a block of
threads transforms lies in its shared memory, U and sums in global memory. No row meets another, so one that
is not finite, or much larger, does not harm the others. The tests hold the kernels, run as C++, to the
definition of M.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.cuda import nvrtc, unavailable
from ...kernels.cuda.numbers import NAMES
from ...kernels.cuda.numbers import SOURCE as NUMBERS
from ..fft import conjugate, is_smooth
from ..kept import KeptProduct, Product
from .circulant_pair import generators
from .guard import Side

_READ = torch.float32, torch.bfloat16  # by the kernels; other numbers are converted before and after
_MOST_THREADS = 1024
_EACH = 8  # places of a thread, where there are threads enough
_WAVES = 2048  # threads that a multiprocessor holds
_LONG = 4096  # places whose transform takes as long as the launch of a kernel

# Seconds on an H200: of one transform, and each place of it; of a place, times log2 of their number, where
# all multiprocessors are busy.
_ALONE, _PLACE, _BUSY = 1.2e-6, 0.7e-9, 0.55e-12

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
__device__ __forceinline__ Z back(Z a, Z turn) { return times(a, {turn.re, -turn.im}); }

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

#define ARGUMENTS const X* __restrict__ x, const P* __restrict__ bias, const float* __restrict__ enter, \
    const float* __restrict__ beside, const float* __restrict__ between, const float* __restrict__ leave, \
    const float* __restrict__ aside, const Z* __restrict__ turn, const Z* __restrict__ right, \
    const Z* __restrict__ left, const Z* __restrict__ root, Z* memory, Y* __restrict__ out, \
    int r, int rows, int parts
#define GIVEN x, bias, enter, beside, between, leave, aside, turn, right, left, root, memory, out, \
    r, rows, parts

// A block's memory: z_{r+1}, then of each part U and its sum.
#define Z_OF(block) (memory + (i64)(block) * (2 * parts + 1) * H)
#define U_OF(block, part) (Z_OF(block) + (2 * (part) + 1) * H)

__device__ __forceinline__ void load(Z* row, const X* x, const float* scale, const Z* turn) {
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
            PLACES AT(j) = swapped(times(U[j], right[(i64)i * H + j]));
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
"""


class CudaPair(NamedTuple):
    """M prepared, in float32 and complex64."""

    enter: Tensor  # P_C D, (n,)
    beside: Tensor  # P_C
    between: Tensor  # D^{-1}
    leave: Tensor  # P_A
    aside: Tensor  # P_A D^{-1}
    turn: Tensor  # e^{i pi j / n}, (h,)
    right: Tensor  # (r + 1, h): conjugated spectra over h
    left: Tensor  # (r + 1, h): spectra over h
    root: Tensor  # e^{-2 pi i j / h}, (h,)


def why_not(A: Side, C: Side) -> str | None:
    """Why a layer with these operators cannot be prepared, or None."""
    n = A[2].shape[-1]
    if not A[2].is_cuda:
        return "for GPUs"
    if (reason := unavailable()) is not None:
        return reason
    if C[2].shape[-1] != n or n % 2 or not is_smooth(n // 2):
        return "for square matrices of an even size that is a product of 2, 3, 5 and 7"
    if _shared_bytes(n // 2) > _shared_most(A[2].device):
        return "a row does not fit in the memory of a block of threads"
    return "for float32 and fewer digits" if A[2].dtype == torch.float64 else None


class KeptPair(KeptProduct):
    """Multiply by M = sum_i K(A, g_i) K(C, h_i)^T in the dtype of x or of autocast, and add a bias.

    Where `reversed`, the product's entries come from the last to the first. Differentiable in both.
    """

    def __init__(self, A: Side, C: Side, *, reversed: bool = False) -> None:
        def prepared(transposed: bool) -> Product:
            if not transposed:
                return partial(matmul, prepare(A, C), reversed=reversed)
            K = prepare(C, A)
            return lambda y: matmul(K, y.flip(-1) if reversed else y)

        super().__init__(prepared)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
        if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
            y = super().__call__(rows.to(dtype))
            y = y if bias is None else (y + bias).to(dtype)
        else:
            y = self._products[False](rows, bias, dtype)
        return y if x.ndim == 2 else y.reshape(x.shape)


def prepare(A: Side, C: Side) -> CudaPair:
    """Prepare M = sum_i K(A, g_i) K(C, h_i)^T."""
    n = A[2].shape[-1]
    P_A, left, P_C, right = generators(A, C, -1.0, -0.5)
    j = torch.arange(n, dtype=torch.float64, device=left.device)
    D, turn = 2.0 ** (j / n), _turns(j[: n // 2] * (math.pi / n))
    right, left = conjugate(_spectra(right / D, turn)), _spectra(left, turn)
    scalings = P_C * D, P_C, 1 / D, P_A, P_A / D
    spectra = turn, right / (n // 2), left / (n // 2), _turns(j[: n // 2] * (-4 * math.pi / n))
    return CudaPair(*(t.float() for t in scalings), *(t.to(torch.complex64) for t in spectra))


def _turns(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


def _spectra(v: Tensor, turn: Tensor) -> Tensor:
    h = turn.shape[0]
    return torch.fft.fft(torch.complex(v[..., :h], v[..., h:]) * turn)


def matmul(
    K: CudaPair,
    x: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    *,
    reversed: bool = False,
) -> Tensor:
    """M x for prepared M, plus a bias: (b, n) to (b, n) in a dtype, by default that of x."""
    (b, n), ranks, device = x.shape, K.right.shape[0], x.device
    dtype = dtype or x.dtype
    x, out = _known(x), torch.empty(b, n, dtype=dtype if dtype in _READ else torch.float32, device=device)
    if b:
        bias = None if bias is None else _known(bias)
        types = x.dtype, out.dtype, out.dtype if bias is None else bias.dtype
        kernels, blocks, parts = _launches(Form(n // 2, *types, reversed), ranks, b, device)
        memory = K.turn.new_empty(blocks, 2 * parts + 1, n // 2)
        kernels.queue(device, [x, 0 if bias is None else bias, *K, memory, out, ranks - 1, b, parts])
    return out if out.dtype is dtype else out.to(dtype)


def _known(t: Tensor) -> Tensor:
    """The same in a dtype that the kernels read, contiguous."""
    return (t if t.dtype in _READ else t.float()).contiguous()


class Form(NamedTuple):
    """What kernels are compiled for."""

    h: int  # complex numbers of a row
    given: torch.dtype = torch.float32
    wanted: torch.dtype = torch.float32
    bias: torch.dtype = torch.float32
    reversed: bool = False


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
    return nvrtc.Kernels(source(form), launches[: min(parts, 2)], _shared_bytes(h)), blocks, parts


def _worth_parting(h: int, ranks: int) -> bool:
    """Whether the transforms that parts save take longer than the second kernel that they cost."""
    return ranks > 2 or h >= _LONG


def seconds(h: int, ranks: int, rows: float) -> float:
    """What the kernels take for rows of h complex numbers, by a simple model."""
    transforms = 2 * ranks + 2
    after_each_other = 4 if _worth_parting(h, ranks) else transforms
    return after_each_other * (_ALONE + h * _PLACE) + rows * transforms * h * math.log2(max(2 * h, 2)) * _BUSY


@cache
def source(form: Form) -> str:
    passes, interleaved = [], 1
    for radix in radices(form.h):
        passes.append(f"pass<{radix}, {interleaved}>(row, root);")
        interleaved *= radix
    known: dict[str, object] = {"H": form.h, "THREADS": _threads(form.h), "PASSES": " ".join(passes)}
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


def _shared_bytes(h: int) -> int:
    return 8 * (h + h // 16 + 1)


@cache
def _shared_most(device: torch.device) -> int:
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 << 10))


@cache
def _blocks(h: int, device: torch.device) -> int:
    """As many as the device runs at once."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count * (_WAVES // _threads(h)))
