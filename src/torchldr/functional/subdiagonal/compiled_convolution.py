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


def prepare(A: Side, C: Side, P: Scales) -> Joint:
    """The constants of the product, for `matmul`."""
    from ...kernels.cpu import convolution as compiled_kernels
    from ...kernels.cpu import fft as compiled_fft

    m, n = A[2].shape[-1], C[2].shape[-1]
    k = min(m, n)
    N = max(compiled_fft.SMALLEST, 1 << ((max(m, n) + k - 2) // 2).bit_length())
    dtype = P.dtype
    tables = compiled_fft.tables(N, str(dtype).removeprefix("torch."))
    sides = []
    for (_, corner, V), scale in ((A, P.A), (C, P.C)):
        starts, factors = as_array(V.to(dtype).contiguous()), as_array(scale.to(dtype))
        hats = np.empty((len(starts), 2 * N), factors.dtype)
        compiled_kernels.generator_spectra(starts, factors, hats, *tables)
        sides.append((factors, factors.dtype.type(corner.item()) * factors[-1], hats))
    return Joint(k, sides[0], sides[1], tables)


def matmul(K: Joint, x: Tensor, saved: Sequence[Tensor] = ()) -> Tensor:
    """The product for prepared constants: (b, n) to (b, m), in the dtype of `x`.

    `saved` are the three arrays that `layer_forward` fills for a backward.
    """
    from ...kernels.cpu.convolution import layer_forward

    P, _, hats = K.A
    source = as_array(x.to(torch.float64 if P.dtype == np.float64 else torch.float32).contiguous())
    y = np.empty((len(source), len(P)), P.dtype)
    kept = [t.numpy() for t in saved] or [np.empty((0,) * axes, P.dtype) for axes in (2, 3, 2)]

    def rows(start: int, stop: int) -> None:
        part = slice(start, stop)
        arrays = tuple(t[part] for t in kept)
        layer_forward(source[part], y[part], K.k, K.A, K.C, arrays, *K.tables)

    in_parts(len(source), hats.size, rows)
    return torch.from_numpy(y).to(x.dtype)


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
        y = matmul(K, x, saved)
        return y, y.clone(), *saved  # what follows may change y in place, and the backward needs it

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
        saved = ctx.saved_tensors  # once: a second reading is an error under activation checkpointing
        inputs, outputs = saved[:9], saved[9:]
        if torch.is_grad_enabled() or not stencil.is_plain(u):
            return *plain_backward(_plain, inputs[:7], u), None, None
        return *_gradients(inputs, outputs, u), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        return plain_jvp(_plain, ctx.saved_tensors[:7], tangents[:7]), *[None] * 4

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        product = lambda *given: applied(_Joint, *given, *inputs[7:])[0]
        y = product_vmap(_plain, product, in_dims[:7], inputs[:7])
        return (y, *[y.new_zeros(0)] * 4), (0, *[None] * 4)


def _gradients(inputs: Sequence[Tensor], outputs: Sequence[Tensor], u: Tensor) -> tuple[Tensor, ...]:
    """Of s, corner and V of A, of those of C, and of x."""
    if not BACKWARD.serves(u):
        return plain_backward(_plain, inputs[:7], u)
    return _compiled_gradients(inputs, outputs, u)


def _compiled_gradients(inputs: Sequence[Tensor], outputs: Sequence[Tensor], u: Tensor) -> tuple[Tensor, ...]:
    from ...kernels.cpu.convolution import layer_backward, side_gradients

    s_A, corner_A, G, s_C, corner_C, H, x, P_A, P_C = (t.detach().contiguous() for t in inputs)
    A, C = (s_A, corner_A, G), (s_C, corner_C, H)
    K = prepare(A, C, Scales(P_A, P_C))
    dx = torch.empty_like(x)
    y, *saved = map(as_array, outputs)
    batch = as_array(u.contiguous()), as_array(x), y, dx.numpy()
    parts: dict[int, Any] = {}

    def rows(start: int, stop: int) -> None:
        part = slice(start, stop)
        shapes = [(K.A[2].shape, P.shape, (K.k,)) for P in (P_A, P_C)]
        sums = tuple(tuple(np.zeros(shape, y.dtype) for shape in side) for side in shapes)
        kept = tuple(t[part] for t in saved)
        layer_backward(*(t[part] for t in batch), K.k, K.A, K.C, kept, sums, *K.tables)
        parts[start] = sums

    in_parts(len(x), K.A[2].size, rows)
    found = []
    for side, ((s, corner, V), P) in enumerate(((A, P_A), (C, P_C))):
        # In the order of the rows, so that sums do not depend on the clock.
        sums = tuple(sum(arrays) for arrays in zip(*(parts[i][side] for i in sorted(parts)), strict=True))
        ds, dV = torch.empty_like(s), torch.empty_like(V)
        known = as_array(s), corner.item(), as_array(V), as_array(P), K.k, sums
        dc = side_gradients(*known, ds.numpy(), dV.numpy(), *K.tables)
        found += [ds, torch.full_like(corner, dc), dV]
    return *found, dx


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
