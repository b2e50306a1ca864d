"""The kernels of `scan`, which has their formulas: sums of segments, a chain of them, then every entry.

A block has THREADS diagonals and the rows of one segment, a parallelogram of the matrix E = G^T H. It is
made in registers and lies in shared memory; E itself is nowhere. Matrices that come or go (M, its
gradient D and that of E) may have fewer digits than the numbers that are computed with.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import nvrtc
from .numbers import NAMES
from .numbers import SOURCE as NUMBERS

SOURCE = r"""
// Numbers of a segment, arrays of shape (.., matrices, segments, n). What `sums` finds: the product of its
// weights, x at its end, and where GRADED sum D W and r, with W and B counted from the segment's first row.
enum { PRODUCT_, END_X, SUM_DW, END_R };
// What `chain` makes of it, taken over from above and from below; l and t already times the weight between.
enum { X, W_, S_, V_, B_, R_, L_, T_ };

#define RANKS 16
#define IN(type) const type* __restrict__
#define OUT(type) type* __restrict__
#define OPERATORS IN(P) ka, IN(P) a, IN(P) kc, IN(P) c, int fa, int fc
#define SOURCES IN(P) G, IN(P) H, IN(O) e, int r
// What every kernel gets: matrices that come (D) and go (M, or the gradient dE of E), and memory in between.
#define ARGUMENTS OPERATORS, SOURCES, IN(O) D, OUT(O) M, OUT(P) weights, \
    OUT(T) sum, OUT(T) state, OUT(T) rows, OUT(T) columns, int m, int n, int segments
#define SLOT(diagonal) ((matrix * segments + segment) * n + (diagonal))
#define BEFORE(s) (SQUARE || STRAIGHT ? (s) : ((s) + n - m % n) % n)
#define AFTER(s) (SQUARE || STRAIGHT ? (s) : ((s) + m) % n)

// The operators' weights: shifts have a corner fa and fc, straight scans no corner and nodes c.
#define A(i) (SHIFTS ? ((i) ? (T)1 : (T)fa) : (T)read((i) ? a + matrix * (m - 1) + (i) - 1 : ka + matrix))
#define C(j) (STRAIGHT ? (T)read(c + matrix * n + (j)) : \
    SHIFTS ? ((j) ? (T)1 : (T)fc) : (T)read((j) ? c + matrix * (n - 1) + (j) - 1 : kc + matrix))

// A thread has diagonal s and the rows from `begin` to `end` of one segment. All threads meet at each tile.
#define THREAD \
    int lane = threadIdx.x, first = blockIdx.x * THREADS, s = first + lane, segment = blockIdx.y; \
    bool active = s < n; \
    if (!active) s = 0; \
    i64 matrix = blockIdx.z, size = (i64)m * n, all = (i64)gridDim.z * segments * n; \
    int begin = segment * SEGMENT, end = begin + SEGMENT < m ? begin + SEGMENT : m;

// Where row begin + h of a diagonal lies, whose column in row `begin` is `start`. Where BACK, matrices are
// read and written from their other end.
__device__ int place(int start, int begin, int h, int m, int n) {
    int column = STRAIGHT ? start : start + h;
    if (!STRAIGHT && column >= n) column -= n;
    int at = (begin + h) * n + column;
    return BACK ? m * n - 1 - at : at;
}

// column % n, where that is rarely more than one step back.
__device__ int wrapped(int column, int n) {
    if (column >= n) column -= n;
    return column < n ? column : column % n;
}

__device__ int start_of(int diagonal, int begin, int n) {
    return STRAIGHT ? diagonal : (diagonal + begin) % n;
}

// A segment of a diagonal of D: all reads are under way before the first is needed.
__device__ void take(T* d, IN(O) D, int start, int begin, int end, int m, int n) {
    int last = end - begin - 1;
    #pragma unroll
    for (int h = 0; h < SEGMENT; h++) {
        T value = read(D + place(start, begin, h < last ? h : last, m, n));
        d[h] = h <= last ? value : (T)0;
    }
}

// The weights of steps into a block's entries: row h of the segment, and the columns that its diagonals meet.
struct Steps {
    T row[SEGMENT], column[WIDTH];
    __device__ void take(i64 matrix, int first, int begin, int m, int n, OPERATORS) {
        int start = start_of(first, begin, n);
        for (int h = threadIdx.x; h < SEGMENT; h += THREADS)
            row[h] = STRAIGHT || begin + h >= m ? (T)1 : A(begin + h);
        for (int w = threadIdx.x; w < WIDTH; w += THREADS) column[w] = C(wrapped(start + w, n));
    }
    // There is none into the first row. Rows behind the last change nothing: sources are 0 there.
    __device__ T into(int begin, int end, int h, int lane) const {
        T weight = row[h] * column[STRAIGHT ? lane : lane + h];
        return (h || begin) && begin + h < end ? weight : (T)1;
    }
};

// The entries of E on the block's diagonals, those of `lane` at (h, lane + h). The stride keeps banks apart.
struct Tile {
    T at[SEGMENT][WIDTH];
    __device__ T& own(int h, int lane) { return at[h][STRAIGHT ? lane : lane + h]; }
};

// A warp makes ROWS rows of a tile at a time, and each of its threads every 32nd column of them. So a factor
// of G, which all threads read at once and four at a time, serves some columns, as one of H serves some rows.
#define ROWS 8
#define COLUMNS (((STRAIGHT ? THREADS : WIDTH) + 31) / 32)
struct __align__(16) Four { T at[4]; };

__device__ void make(Tile& tile, i64 matrix, int first, int begin, int m, int n, SOURCES) {
    __shared__ Four g[RANKS * SEGMENT / 4];
    int start = start_of(first, begin, n), lane = threadIdx.x % 32, last = m * n - 1;
    if (!PRODUCT) e += matrix * m * n;
    for (int k = 0; k < (PRODUCT ? r : 1); k += RANKS) {
        int count = r - k < RANKS ? r - k : RANKS;
        for (int i = threadIdx.x; PRODUCT && i < count * SEGMENT; i += THREADS) {
            int q = i / SEGMENT, h = i % SEGMENT;
            g[i / 4].at[i % 4] = begin + h < m ? (T)read(G + (matrix * r + k + q) * m + begin + h) : (T)0;
        }
        __syncthreads();
        for (int from = threadIdx.x / 32 * ROWS; from < SEGMENT; from += THREADS / 32 * ROWS) {
            T entry[ROWS][COLUMNS];
            int column[COLUMNS];
            #pragma unroll
            for (int w = 0; w < COLUMNS; w++) {
                int place = lane + 32 * w;
                column[w] = wrapped(start + place, n);
                #pragma unroll
                for (int h = 0; h < ROWS; h++) {
                    int row = begin + from + h, at = row * n + column[w];
                    if (PRODUCT) entry[h][w] = k && place < WIDTH ? tile.at[from + h][place] : (T)0;
                    else entry[h][w] = row < m ? (T)read(e + (BACK ? last - at : at)) : (T)0;
                }
            }
            #pragma unroll 4
            for (int q = 0; PRODUCT && q < count; q++) {
                T factor[COLUMNS];
                #pragma unroll
                for (int w = 0; w < COLUMNS; w++) factor[w] = read(H + (matrix * r + k + q) * n + column[w]);
                #pragma unroll
                for (int h = 0; h < ROWS; h++) {
                    Four some = g[(q * SEGMENT + from + h) / 4];
                    #pragma unroll
                    for (int w = 0; w < COLUMNS; w++) entry[h][w] += some.at[h % 4] * factor[w];
                }
            }
            #pragma unroll
            for (int w = 0; w < COLUMNS; w++)
                #pragma unroll
                for (int h = 0; h < ROWS; h++)
                    if (lane + 32 * w < WIDTH) tile.at[from + h][lane + 32 * w] = entry[h][w];
        }
        __syncthreads();
    }
}

extern "C" __global__ void sums(ARGUMENTS) {
    __shared__ Tile tile;
    __shared__ Steps steps, steps_after;
    THREAD
    T d[SEGMENT], d_after[SEGMENT];
    if (GRADED) take(d, D + matrix * size, start_of(s, begin, n), begin, end, m, n);
    if (GRADED && !SQUARE) take(d_after, D + matrix * size, start_of(AFTER(s), begin, n), begin, end, m, n);
    steps.take(matrix, first, begin, m, n, ka, a, kc, c, fa, fc);
    if (GRADED && !SQUARE) steps_after.take(matrix, AFTER(first), begin, m, n, ka, a, kc, c, fa, fc);
    make(tile, matrix, first, begin, m, n, G, H, e, r);
    if (!active) return;
    T p = 1, x = 0, dw = 0, rest = 0, W = 1, B = 0;
    #pragma unroll
    for (int h = 0; h < SEGMENT; h++) {
        T w = steps.into(begin, end, h, lane), source = tile.own(h, lane);
        x = w * x + source;
        p *= w;
        if (GRADED) {
            rest = w * rest + source * (SQUARE ? dw : B);
            dw += d[h] * p;
            if (!SQUARE) {
                W *= steps_after.into(begin, end, h, lane);
                B += d_after[h] * W;
            }
        }
    }
    sum += SLOT(s);
    sum[PRODUCT_ * all] = p;
    sum[END_X * all] = x;
    if (GRADED) { sum[SUM_DW * all] = dw; sum[END_R * all] = rest; }
}

// What a chain reads of GROUP segments, in its own order, all at once: they are far away.
struct Group {
    T product[GROUP], x[GROUP], dw[GROUP], r[GROUP];
    __device__ void take(IN(T) sum, int s, int from, int step, i64 matrix, i64 all, int n, int segments) {
        #pragma unroll
        for (int q = 0; q < GROUP; q++) {
            int segment = from + q * step;
            if (segment < 0 || segment >= segments) continue;
            i64 at = SLOT(s);
            product[q] = sum[at + PRODUCT_ * all];
            x[q] = sum[at + END_X * all];
            if (GRADED) { dw[q] = sum[at + SUM_DW * all]; r[q] = sum[at + END_R * all]; }
        }
    }
};

__device__ void from_below(
    IN(T) sum, OUT(T) state, int s, i64 matrix, i64 all, int m, int n, int segments
) {
    T V = 1, S = 0, l = 0, t = 0, V_before = 1, S_before = 0;
    for (int from = segments - 1; from >= 0; from -= GROUP) {
        Group own, before;
        own.take(sum, s, from, -1, matrix, all, n, segments);
        if (GRADED && !SQUARE) before.take(sum, BEFORE(s), from, -1, matrix, all, n, segments);
        const Group& other = SQUARE ? own : before;
        #pragma unroll
        for (int q = 0; q < GROUP; q++) {
            int segment = from - q;
            if (segment < 0) continue;
            i64 at = SLOT(s);
            T p = own.product[q];
            state[at + S_ * all] = S;
            state[at + V_ * all] = V;
            if (GRADED) {
                state[at + L_ * all] = l;
                state[at + T_ * all] = t;
                l = own.dw[q] + p * l;
                t = S_before * own.dw[q] + V_before * other.r[q] + p * t;
                S_before += other.x[q] * V_before;
                V_before *= other.product[q];
            }
            S += own.x[q] * V;
            V *= p;
        }
    }
}

extern "C" __global__ void chain(ARGUMENTS) {
    int s = blockIdx.x * CHAIN_THREADS + threadIdx.x;
    if (s >= n) return;
    i64 matrix = blockIdx.z, all = (i64)gridDim.z * segments * n;
    if (blockIdx.y) { from_below(sum, state, s, matrix, all, m, n, segments); return; }
    T x = 0, W = 1, B = 0, rest = 0, W_after = 1, B_after = 0;
    for (int from = 0; from < segments; from += GROUP) {
        Group own, after;
        own.take(sum, s, from, 1, matrix, all, n, segments);
        if (GRADED && !SQUARE) after.take(sum, AFTER(s), from, 1, matrix, all, n, segments);
        const Group& other = SQUARE ? own : after;
        #pragma unroll
        for (int q = 0; q < GROUP; q++) {
            int segment = from + q;
            if (segment >= segments) continue;
            i64 at = SLOT(s);
            T p = own.product[q];
            state[at + X * all] = x;
            state[at + W_ * all] = W;
            if (GRADED) {
                state[at + B_ * all] = B;
                state[at + R_ * all] = rest;
                rest = p * rest + B_after * own.x[q] + W_after * own.r[q];
                B += W * own.dw[q];
                B_after += W_after * other.dw[q];
                W_after *= other.product[q];
            }
            x = p * x + own.x[q];
            W *= p;
        }
    }
}

extern "C" __global__ void fill(ARGUMENTS) {
    __shared__ Tile tile;
    __shared__ Steps steps, steps_before;
    THREAD
    T through[SEGMENT];
    i64 slot = SLOT(s), slot_before = SLOT(BEFORE(s));
    T S = STRAIGHT ? 0 : state[slot_before + S_ * all], V = STRAIGHT ? 0 : state[slot_before + V_ * all];
    T x = state[slot + X * all], W = state[slot + W_ * all];
    steps.take(matrix, first, begin, m, n, ka, a, kc, c, fa, fc);
    if (!STRAIGHT) {
        if (!SQUARE) steps_before.take(matrix, BEFORE(first), begin, m, n, ka, a, kc, c, fa, fc);
        make(tile, matrix, BEFORE(first), begin, m, n, G, H, e, r);
        T corner = A(0) * C(s);
        #pragma unroll
        for (int h = SEGMENT - 1; h >= 0; h--) {
            through[h] = corner * S;
            S += tile.own(h, lane) * V;
            V *= (SQUARE ? steps : steps_before).into(begin, end, h, lane);
        }
    }
    if (!SQUARE || STRAIGHT) {
        __syncthreads();
        make(tile, matrix, first, begin, m, n, G, H, e, r);
    }
    if (!active) return;
    int start = start_of(s, begin, n);
    M += matrix * size;
    #pragma unroll
    for (int h = 0; h < SEGMENT; h++) {
        T w = steps.into(begin, end, h, lane);
        x = w * x + tile.own(h, lane);
        W *= w;
        if (begin + h < end) write(M + place(start, begin, h, m, n), STRAIGHT ? x : x + W * through[h]);
    }
}

// The gradient of E, and sums of those of the weights over rows and columns of each parallelogram.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) gradients(ARGUMENTS) {
    __shared__ Tile tile;
    __shared__ Steps steps, steps_before, steps_after;
    THREAD
    D += matrix * size;
    O* dE = M + matrix * size;
    int start = start_of(s, begin, n);
    T d[SEGMENT];
    take(d, D, start, begin, end, m, n);
    i64 slot = SLOT(s), slot_before = SLOT(BEFORE(s)), slot_after = SLOT(AFTER(s));
    T l = state[slot + L_ * all], t = state[slot + T_ * all], V = state[slot + V_ * all];
    T S = state[slot_before + S_ * all], V_before = state[slot_before + V_ * all];
    T x = state[slot + X * all], W = state[slot + W_ * all], rest = state[slot + R_ * all];
    T W_after = state[slot_after + W_ * all], B = state[slot_after + B_ * all];
    steps.take(matrix, first, begin, m, n, ka, a, kc, c, fa, fc);
    if (!SQUARE) steps_before.take(matrix, BEFORE(first), begin, m, n, ka, a, kc, c, fa, fc);
    if (!SQUARE) steps_after.take(matrix, AFTER(first), begin, m, n, ka, a, kc, c, fa, fc);
    T corner = A(0) * C(s), corner_after = A(0) * C(AFTER(s));
    T ls[SEGMENT], ts[SEGMENT], Vs[SEGMENT];
    make(tile, matrix, BEFORE(first), begin, m, n, G, H, e, r);
    #pragma unroll
    for (int h = SEGMENT - 1; h >= 0; h--) {
        T w = steps.into(begin, end, h, lane);
        l += d[h];
        t += d[h] * S;
        ls[h] = l;
        ts[h] = t;
        Vs[h] = V * corner_after;
        S += tile.own(h, lane) * (SQUARE ? V : V_before);
        l *= w;
        t *= w;
        V *= w;
        if (!SQUARE) V_before *= steps_before.into(begin, end, h, lane);
    }
    if (!SQUARE) {
        take(d, D, start_of(AFTER(s), begin, n), begin, end, m, n);
        __syncthreads();
        make(tile, matrix, first, begin, m, n, G, H, e, r);
    }
    #pragma unroll
    for (int h = 0; h < SEGMENT; h++) {
        bool there = active && begin + h < end;
        T w = steps.into(begin, end, h, lane), source = tile.own(h, lane), passing = Vs[h];
        if (there) write(dE + place(start, begin, h, m, n), ls[h] + passing * B);
        T dw = h || begin ? ls[h] * x + W * corner * ts[h] + passing * rest : ts[h];
        tile.own(h, lane) = there ? dw : (T)0;
        x = w * x + source;
        rest = w * rest + source * B;
        W *= w;
        if (!SQUARE) W_after *= steps_after.into(begin, end, h, lane);
        B += d[h] * (SQUARE ? W : W_after);
    }
    __syncthreads();
    int h = lane % SEGMENT, part = lane / SEGMENT;
    T total = 0;
    #pragma unroll 8
    for (int q = part; q < THREADS; q += PARTS) total += tile.own(h, q) * steps.column[q + h];
    if (begin + h < end) rows[((matrix * gridDim.x + blockIdx.x) * PARTS + part) * m + begin + h] = total;
    columns += ((matrix * segments + segment) * gridDim.x + blockIdx.x) * WIDTH;
    for (int w = lane; w < WIDTH; w += THREADS) {
        total = 0;
        #pragma unroll
        for (int h = 0; h < SEGMENT; h++)
            if (w >= h && w - h < THREADS) total += tile.at[h][w] * steps.row[h];
        columns[w] = total;
    }
}

// Sums over all blocks: SHARES threads have one weight of A or, after them, of C.
extern "C" __global__ void totals(ARGUMENTS) {
    __shared__ T sums[SHARES][ENTRIES];
    int share = threadIdx.x / ENTRIES, i = blockIdx.x * ENTRIES + threadIdx.x % ENTRIES, j = i - m;
    int blocks = (n + THREADS - 1) / THREADS;
    i64 matrix = blockIdx.z;
    T total = 0;
    if (i < m)
        for (int q = share; q < blocks * PARTS; q += SHARES)
            total += rows[(matrix * blocks * PARTS + q) * m + i];
    else if (j < n)
        for (int segment = share; segment < segments; segment += SHARES) {
            int place = j - segment * SEGMENT % n;
            for (int u = place < 0 ? place + n : place; u < blocks * THREADS + SEGMENT; u += n) {
                int last = u / THREADS < blocks ? u / THREADS : blocks - 1;
                for (int b = last; b >= 0 && u - b * THREADS < WIDTH; b--)
                    total += columns[((matrix * segments + segment) * blocks + b) * WIDTH + u - b * THREADS];
            }
        }
    sums[share][threadIdx.x % ENTRIES] = total;
    __syncthreads();
    if (share || j >= n) return;
    for (int q = 1; q < SHARES; q++) total += sums[q][threadIdx.x];
    write(weights + matrix * (m + n) + i, total);
}
"""


class Form(NamedTuple):
    """A variant of the recurrences; kernels are compiled for each."""

    square: bool = False
    shifts: bool = False  # the operators are shifts with corners 1 or -1
    product: bool = False  # the sources are G^T H, else a matrix
    back: bool = False  # matrices are read and written from their other end
    straight: bool = False  # along columns instead of diagonals
    graded: bool = False  # also what the gradients need
    given: torch.dtype = torch.float32  # of the operators, G and H
    dense: torch.dtype = torch.float32  # of matrices

    @property
    def dtype(self) -> torch.dtype:
        """Of what is computed."""
        return torch.promote_types(self.given, torch.float32)

    @property
    def segment(self) -> int:
        """Rows of a segment: a thread keeps a few numbers of each."""
        return 128 // self.dtype.itemsize

    @property
    def blocks(self) -> int:
        """Blocks of `gradients` that a multiprocessor should have registers for: more would spill many."""
        return (12 if self.square else 8) // self.dtype.itemsize


THREADS = 128  # diagonals of a block
CHAIN_THREADS, GROUP = 32, 16  # diagonals of a block of `chain`, and segments that it reads at once
SHARES, ENTRIES = 8, 32  # threads of a block of `totals`
_LARGEST = (1 << 31) - 1  # entries of a matrix
MOST = 65535  # matrices: the last axis of a grid


def width(form: Form) -> int:
    """Columns that a block's parallelogram spans, and one more."""
    return THREADS + form.segment


def shares_of_rows(form: Form) -> int:
    """Threads of a block that sum up one row."""
    return max(THREADS // form.segment, 1)


@cache
def source(form: Form) -> str:
    known: dict[str, object] = {"T": NAMES[form.dtype], "P": NAMES[form.given], "O": NAMES[form.dense]}
    known |= {name.upper(): int(flag) for name, flag in form._asdict().items() if isinstance(flag, bool)}
    known |= {"SEGMENT": form.segment, "THREADS": THREADS, "BLOCKS": form.blocks}
    known |= {"PARTS": shares_of_rows(form), "WIDTH": width(form)}
    known |= {"CHAIN_THREADS": CHAIN_THREADS, "GROUP": GROUP, "SHARES": SHARES, "ENTRIES": ENTRIES}
    return "".join(f"#define {key} {value}\n" for key, value in known.items()) + NUMBERS + SOURCE


class Passes(NamedTuple):
    """The kernels for stacked matrices of one size, and the memory that they need in between."""

    kernels: nvrtc.Kernels
    dtype: torch.dtype
    length: int  # numbers in that memory
    offsets: tuple[int, ...]  # bytes at which `sum`, `state`, `rows` and `columns` begin there
    m: int
    n: int
    segments: int  # of a diagonal


@lru_cache(maxsize=1024)
def passes(form: Form, matrices: int, m: int, n: int, *, sums_alone: bool = False) -> Passes:
    """What `run` runs for this form, or the first kernel alone."""
    R = matrices
    if m * n > _LARGEST or R > MOST:
        raise ValueError(f"scan: {R} matrices of {m} x {n} are too many or too large for the kernels.")
    segments, blocks = -(-m // form.segment), -(-n // THREADS)
    count, each = 4 if form.graded else 2, R * segments * n
    lengths = [count * each] if sums_alone else [count * each, 2 * count * each]
    if form.graded:
        lengths += [R * blocks * shares_of_rows(form) * m, R * segments * blocks * width(form)]
    *starts, length = accumulate(lengths, initial=0)
    starts += [0] * (4 - len(starts))
    grid = blocks, segments, R
    launches = {
        "sums": (grid, THREADS),
        "chain": ((-(-n // CHAIN_THREADS), 2, R), CHAIN_THREADS),
        "fill": (grid, THREADS),
        "gradients": (grid, THREADS),
        "totals": ((-(-(m + n) // ENTRIES), 1, R), SHARES * ENTRIES),
    }
    last = ("gradients", "totals") if form.graded else ("fill",)
    wanted = [(name, *launches[name]) for name in (("sums",) if sums_alone else ("sums", "chain", *last))]
    offsets = tuple(form.dtype.itemsize * start for start in starts)
    return Passes(nvrtc.Kernels(source(form), wanted), form.dtype, length, offsets, m, n, segments)


def run(of: Passes, device: torch.device, arguments: list[Any]) -> Tensor:
    """Queue the kernels.

    Args:
        of: which, and for which sizes.
        device: where.
        arguments: the operators, G, H, E and the rank; the gradient D that comes; where the matrix is written
            or the gradient of E; where those of the operators' weights are, (.., m + n). 0 for what is not.

    Returns:
        The memory that they have in between.
    """
    memory = torch.empty(of.length, dtype=of.dtype, device=device)
    first = memory.data_ptr()
    places = [first + offset for offset in of.offsets]
    of.kernels.queue(device, [*arguments, *places, of.m, of.n, of.segments])
    return memory


def parts(matrices: int) -> list[slice]:
    """A stack in as many parts as it takes launches."""
    return [slice(first, first + MOST) for first in range(0, matrices, MOST)]
