"""Numbers in kernels: those of bfloat16 are read and written, and computed with in float32 or wider."""

from __future__ import annotations

import torch

NAMES = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "bf16"}

SOURCE = r"""
typedef long long i64;

struct bf16 { unsigned short bits; };
union Bits { unsigned u; float f; };
__device__ double read(const double* p) { return *p; }
__device__ float read(const float* p) { return *p; }
__device__ float read(const bf16* p) { Bits b; b.u = (unsigned)p->bits << 16; return b.f; }
template <class V> __device__ void write(double* p, V value) { *p = value; }
template <class V> __device__ void write(float* p, V value) { *p = value; }
// to the nearest, ties to even
template <class V> __device__ void write(bf16* p, V value) {
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(p->bits) : "f"((float)value));
#else
    Bits b; b.f = value;
    p->bits = value != value ? 0x7fff : (b.u + 0x7fff + (b.u >> 16 & 1)) >> 16;
#endif
}
"""
