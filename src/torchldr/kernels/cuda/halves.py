"""Numbers of float32 as sums of two of bfloat16, which a GPU multiplies many times as fast."""

from __future__ import annotations

import torch
from torch import Tensor

from . import nvrtc
from .numbers import SOURCE as NUMBERS

THREADS, EACH = 256, 4

SOURCE = (
    NUMBERS
    + r"""
struct alignas(16) In { float v[4]; };
struct alignas(8) Out { bf16 v[4]; };

extern "C" __global__ void halves(const float* x, bf16* high, bf16* low, i64 count) {
    i64 first = 4 * ((i64)blockIdx.x * blockDim.x + threadIdx.x);
    if (first + 4 <= count) {
        In in = *reinterpret_cast<const In*>(x + first);
        Out a, b;
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            write(a.v + e, in.v[e]);
            write(b.v + e, in.v[e] - read(a.v + e));
        }
        *reinterpret_cast<Out*>(high + first) = a;
        *reinterpret_cast<Out*>(low + first) = b;
    } else for (; first < count; first++) {
        write(high + first, x[first]);
        write(low + first, x[first] - read(high + first));
    }
}
"""
)


def split(t: Tensor) -> Tensor:
    """The rounded numbers of a float32 tensor and what is left: (2, ...), their sum right to 2^-17."""
    t = t.contiguous().resolve_neg()
    if t.data_ptr() % 16:
        t = t.clone()
    count = t.numel()
    room = -(-count // EACH) * EACH  # the second half begins where four numbers may be written together
    both = torch.empty(2, room, dtype=torch.bfloat16, device=t.device)
    if count:
        launch(t, both, count, room)
    return both[:, :count].view(2, *t.shape)


def launch(t: Tensor, both: Tensor, count: int, room: int) -> None:
    high, blocks = both.data_ptr(), -(-room // (THREADS * EACH))
    nvrtc.launch(SOURCE, "halves", t.device, (blocks, 1, 1), THREADS, [t, high, high + 2 * room, count])
