"""Both Krylov products of an LDR-SD layer as one compiled function, with a hand-written backward; on a CPU.

    y = sum_i K_k(A, g_i) K_k(C, h_i)^T x

by the convolutions of `convolution`, in the ring of `kernels.cpu.fft` with 2N >= m + k - 1 of either
operator: 2r + 2 complex FFTs of length N a vector forward and as many backward, everything between them
while it is in cache, rows of the batch in as many threads as torch uses. The gradients are correlations,
summed over the batch as spectra. Derivatives of derivatives, forward mode and stacked operators go
through the dense matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...kernels.cpu.arrays import as_array
from ...kernels.cpu.compiled import Loops, numbers, wide
from ...kernels.cpu.threads import in_parts
from .. import stencil
from .._twin import applied, plain_backward, plain_jvp, product_vmap
from ..doubling import shifted_sum
from ..reference import krylov_of_side_reference
from .guard import Scales, Side, sample_side, scales


class Joint(NamedTuple):
    """A product for which everything that does not depend on the input is done."""

    k: int
    A: tuple[Any, Any, Any]  # P (m,), f = corner P_{m-1}, spectra of g_i / P (r, 2N)
    C: tuple[Any, Any, Any]
    tables: tuple[Any, Any]  # of the FFT


def product(A: Side, C: Side, x: Tensor, P: Scales) -> Tensor:
    """`convolution.product` by the compiled function; arguments and result as there."""
    dtype = P.dtype
    converted = (t if t.dtype is dtype else t.to(dtype) for t in (*A, *C, x, *P))
    return applied(_Joint, *converted)[0].to(x.dtype)


def lower(side: Side) -> Tensor:
    """The corner, then the subdiagonal, (m,)."""
    s, corner, _ = side
    return torch.cat((corner.reshape(1), s))


def prepare(A: Side, C: Side, P: Scales, spectra: Sequence[Tensor] = ()) -> Joint:
    """The constants of the product, for `matmul`; `spectra` are those of g_i / P and h_i / P where known."""
    from ...kernels.cpu import convolution as compiled_kernels
    from ...kernels.cpu import fft as compiled_fft

    (r, m), n, dtype = A[2].shape, C[2].shape[-1], P.dtype
    k = min(m, n)
    N = max(compiled_fft.SMALLEST, 1 << ((max(m, n) + k - 2) // 2).bit_length())
    tables = compiled_fft.tables(N, str(dtype).removeprefix("torch."))
    P_A, P_C = map(as_array, P)
    hats = [t.numpy() for t in spectra] or [np.empty((r, 2 * N), P_A.dtype) for _ in P]
    if not spectra:
        G, H = (as_array((V if V.dtype is dtype else V.to(dtype)).contiguous()) for V in (A[2], C[2]))
        compiled_kernels.generator_spectra(G, P_A, hats[0], H, P_C, hats[1], *tables)
    f, e = P_A.dtype.type(A[1].item()) * P_A[-1], P_C.dtype.type(C[1].item()) * P_C[-1]
    return Joint(k, (P_A, f, hats[0]), (P_C, e, hats[1]), tables)


def matmul(K: Joint, x: Tensor, saved: Sequence[Tensor] = ()) -> Tensor:
    """The product for prepared constants: (b, n) to (b, m), in the dtype of `x`.

    `saved` are the three arrays that `layer_forward` fills for a backward.
    """
    from ...kernels.cpu.convolution import layer_forward

    P, _, hats = K.A
    dtype = torch.float64 if P.dtype == np.float64 else torch.float32
    source = as_array((x if x.dtype is dtype else x.to(dtype)).contiguous())
    y = np.empty((len(source), len(P)), P.dtype)
    kept = [t.numpy() for t in saved] or [np.empty((0,) * axes, P.dtype) for axes in (2, 3, 2)]

    def rows(start: int, stop: int) -> None:
        part = slice(start, stop)
        arrays = tuple(t[part] for t in kept)
        layer_forward(source[part], y[part], K.k, K.A, K.C, arrays, *K.tables)

    in_parts(len(source), hats.size, rows)
    result = torch.from_numpy(y)
    return result if x.dtype is dtype else result.to(x.dtype)


def _plain(
    s_A: Tensor, corner_A: Tensor, G: Tensor, s_C: Tensor, corner_C: Tensor, H: Tensor, x: Tensor
) -> Tensor:
    a, c = lower((s_A, corner_A, G)), lower((s_C, corner_C, H))
    return x @ shifted_sum(G.mT @ H, a, c, min(G.shape[-1], H.shape[-1])).mT


class _Joint(torch.autograd.Function):
    """(A, C, x, P_A, P_C) to y, followed by what the backward needs again."""

    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        s_A, corner_A, G, s_C, corner_C, H, x, P_A, P_C = inputs
        K = prepare((s_A, corner_A, G), (s_C, corner_C, H), Scales(P_A, P_C))
        (r, size), b = K.A[2].shape, len(x)
        saved = x.new_empty(b, size), x.new_empty(b, r, size), x.new_empty(b, K.k)
        y, spectra = matmul(K, x, saved), (torch.from_numpy(of[2]) for of in (K.A, K.C))
        return y, y.clone(), *saved, *spectra  # what follows may change y in place, and the backward needs it

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.save_for_forward(*inputs[:7])

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if u is None:
            return (None,) * 9
        # Once: a second reading is an error under checkpointing. Hooks may give them back in another layout.
        saved = [t.contiguous() for t in ctx.saved_tensors]
        inputs, outputs = saved[:9], saved[9:]
        if torch.is_grad_enabled() or not stencil.is_plain(u):
            return *plain_backward(_plain, inputs[:7], u), None, None
        return *_gradients(inputs, outputs, u), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        return plain_jvp(_plain, ctx.saved_tensors[:7], tangents[:7]), *[None] * 6

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        product = lambda *given: applied(_Joint, *given, *inputs[7:])[0]
        y = product_vmap(_plain, product, in_dims[:7], inputs[:7])
        return (y, *[y.new_zeros(0)] * 6), (0, *[None] * 6)


def _gradients(inputs: Sequence[Tensor], outputs: Sequence[Tensor], u: Tensor) -> tuple[Tensor, ...]:
    """Of s, corner and V of A, of those of C, and of x."""
    if not BACKWARD.serves(u):
        return plain_backward(_plain, inputs[:7], u)
    return _compiled_gradients(inputs, outputs, u)


def _compiled_gradients(inputs: Sequence[Tensor], outputs: Sequence[Tensor], u: Tensor) -> tuple[Tensor, ...]:
    from ...kernels.cpu.convolution import layer_backward, side_gradients

    s_A, corner_A, G, s_C, corner_C, H, x, *P = inputs
    A, C = (s_A, corner_A, G), (s_C, corner_C, H)
    K = prepare(A, C, Scales(*P), outputs[4:])
    y, *saved = (t.numpy() for t in outputs[:4])
    batch = *(as_array(t.contiguous()) for t in (u, x)), y, np.empty(x.shape, y.dtype)
    parts: dict[int, Any] = {}

    def rows(start: int, stop: int) -> None:
        part = slice(start, stop)
        shapes = [(hats.shape, P.shape, (K.k,)) for P, _, hats in (K.A, K.C)]
        sums = tuple(tuple(np.zeros(shape, y.dtype) for shape in side) for side in shapes)
        kept = tuple(t[part] for t in saved)
        layer_backward(*(t[part] for t in batch), K.k, K.A, K.C, kept, sums, *K.tables)
        parts[start] = sums

    in_parts(len(x), K.A[2].size, rows)
    # In the order of the rows, so that sums do not depend on the clock.
    first, *others = (parts[i] for i in sorted(parts))
    for other in others:
        for total, more in zip(first[0] + first[1], other[0] + other[1], strict=True):
            total += more
    known, found = [], []
    for (s, corner, V), (P, _, _) in ((A, K.A), (C, K.C)):
        known.append((as_array(s.contiguous()), corner.item(), as_array(V.contiguous()), P))
        found.append((np.empty(s.shape, y.dtype), np.empty(V.shape, y.dtype)))
    corners = side_gradients(*known, K.k, first, *found, *K.tables)
    results = []
    for (ds, dV), dc, corner in zip(found, corners, (corner_A, corner_C), strict=True):
        results += [torch.from_numpy(ds), torch.full_like(corner, dc), torch.from_numpy(dV)]
    return *results, torch.from_numpy(batch[3])


def _tiny(dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The inputs of `_Joint`, the first seven in float64, and the product by the definition."""
    A, C, x = sample_side(21, dtype), sample_side(13, dtype), numbers(2, 13, dtype=dtype)
    copies = [wide(t).requires_grad_() for t in (*A, *C, x)]
    K_A, K_C = (krylov_of_side_reference(side, 13) for side in (copies[:3], copies[3:6]))
    right = torch.einsum("imk,ink,bn->bm", K_A, K_C, copies[6])
    return [*A, *C, x, scales(A[0]), scales(C[0])], copies, right


def _check_forward(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    inputs, _, right = _tiny(dtype)
    yield _Joint.forward(*inputs)[0], right


def _check_backward(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    inputs, copies, right = _tiny(dtype)
    u = numbers(*right.shape, dtype=dtype)
    found = _compiled_gradients(inputs, _Joint.forward(*inputs)[1:], u)
    yield from zip(found, torch.autograd.grad((right * wide(u)).sum(), copies), strict=True)


FORWARD = Loops("the convolutions of LDR-SD", _check_forward)
BACKWARD = Loops("the gradients of LDR-SD's convolutions", _check_backward)
