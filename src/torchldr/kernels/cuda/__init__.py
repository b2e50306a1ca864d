"""CUDA kernels, compiled at run time by NVRTC, which comes with torch.

    krylov_columns, krylov_adjoint    the stencil of LDR-TD, see `krylov`
    contract                          sum_i a[b, i, f] g[i, f] of spectra, without an intermediate

`unavailable` says why the kernels cannot be used; the plain forms are then taken, and are the oracles in the
tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...torch_private import has_modes
from . import krylov, nvrtc
from .krylov import krylov_adjoint, krylov_columns
from .nvrtc import unavailable

__all__ = [
    "contract",
    "contracts",
    "krylov_adjoint",
    "krylov_columns",
    "reads",
    "serves",
    "unavailable",
]

_CONTRACT = r"""
struct __align__(8) C { float x, y; };

extern "C" __global__ void contract(const C* a, const C* g, C* out, int r, int f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= f) return;
    a += (long long)blockIdx.y * r * f + i;
    float x = 0, y = 0;
    for (int j = 0; j < r; j++) {
        C p = a[(long long)j * f], q = g[(long long)j * f + i];
        x += p.x * q.x - p.y * q.y;
        y += p.x * q.y + p.y * q.x;
    }
    out[(long long)blockIdx.y * f + i] = C{x, y};
}
"""


def reads(t: Tensor) -> bool:
    """Whether kernels may read a tensor: on a GPU, with memory, and no tracer would miss what they do."""
    if not t.is_cuda or torch.compiler.is_compiling() or has_modes():
        return False
    return type(t).__torch_dispatch__ is Tensor.__torch_dispatch__ and unavailable() is None


def serves(entries: int, *tensors: Tensor) -> bool:
    """Whether the stencil kernels take these tensors, and Krylov matrices of so many entries can be held."""
    first = tensors[0]
    if not reads(first) or first.dtype not in (torch.float32, torch.float64):
        return False
    same = all(t.dtype == first.dtype and t.device == first.device for t in tensors)
    return same and entries <= krylov.most()


def contracts(a: Tensor) -> bool:
    """Whether `contract` takes these spectra: plain ones on a GPU, not a tracer's or vmap's."""
    if a.ndim != 3 or a.dtype != torch.complex64 or not reads(a):
        return False
    try:
        return a.data_ptr() != 0 or a.numel() == 0
    except RuntimeError:  # no storage of its own
        return False


def contract(a: Tensor, g: Tensor) -> Tensor:
    """sum_i a[b, i, f] g[i, f] for complex64 spectra, contiguous: (b, r, f) and (r, f) to (b, f)."""
    b, r, f = a.shape
    out = a.new_empty(b, f)
    nvrtc.launch(_CONTRACT, "contract", a.device, (-(-f // 256), b, 1), 256, [a, g, out, r, f])
    return out
