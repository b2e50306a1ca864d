"""Both Krylov products of an LDR-SD layer in one call of C, with a hand-written backward; on a CPU.

    y = sum_i K_k(A, g_i) K_k(C, h_i)^T x

by the convolutions of `convolution`, in the ring of `kernels/cpu/spectrum.h` with 2N >= m + k - 1 of either
operator: 2r + 2 complex FFTs of length N a vector forward and as many backward, everything between them
while it is in cache, rows of the batch in as many threads as torch uses. The gradients are correlations,
summed over the batch as spectra.

`forward`, `backward`, `prepare` and `apply` are functions of tensors, for one matrix or a stack, whose axes
come first:

    operators   G (.., r, m), H (.., r, n), corner_a (.., 1), lower_a (.., m - 1), corner_c (.., 1),
                lower_c (.., n - 1); both lowers None for shifts, whose corners are constants
    vectors     x (.., b, n), y (.., b, m)

`product` is one matrix for autograd: derivatives of derivatives, forward mode and stacked operators go
through the dense matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels.cpu import convolution
from ...kernels.cpu.convolution import Saved
from .. import stencil
from .._twin import applied, in_memory, plain_backward, plain_jvp, product_vmap
from ..doubling import shifted_sum
from .guard import Scales, Side, precision


class Operators(NamedTuple):
    G: Tensor
    H: Tensor
    corner_a: Tensor
    lower_a: Tensor | None
    corner_c: Tensor
    lower_c: Tensor | None


class Constants(NamedTuple):
    """All of a product that does not depend on the vectors, in the dtype that it computes in."""

    A: Tensor  # profiles, (.., m + 2) and (.., n + 2)
    C: Tensor
    left: Tensor  # spectra of g_i / P, (.., r, 2N)
    right: Tensor  # those of h_i / P


def prepare(*operators: Tensor | None, dtype: torch.dtype | None = None) -> Constants | str:
    """The constants of a product, or the reason why it would lose too many digits, see `guard`.

    Args:
        operators: those of `Operators`.
        dtype: to compute in, whatever the operators' range; by default the guard decides.
    """
    of = _ready(operators)
    m, n = of.G.shape[-1], of.H.shape[-1]
    *profiles, ranges, _ = convolution.profiles(of.corner_a, of.lower_a, of.corner_c, of.lower_c, m, n)
    found = dtype or precision(ranges.max().item(), of.G.dtype)
    if isinstance(found, str):
        return found
    A, C, G, H = (t.to(found) for t in (*profiles, of.G, of.H))
    sizes = min(m, n), max(m, n)
    return Constants(A, C, convolution.hats(G, A, *sizes), convolution.hats(H, C, *sizes))


def apply(K: Constants, x: Tensor, *, transposed: bool = False) -> Tensor:
    """M x for prepared constants, (.., b, n) to (.., b, m), or M^T x, in the dtype of `x`; no gradient."""
    A, C, left, right = K
    source = in_memory(x.to(A.dtype))
    if transposed:
        A, C, left, right = C, A, right, left
    return convolution.product(A, C, left, right, source).to(x.dtype)


def forward(
    *inputs: Tensor | None, dtype: torch.dtype | None = None
) -> tuple[Tensor, Constants, Saved] | str:
    """M x for operators and x, and what `backward` needs again; or the reason of `prepare`."""
    *operators, x = inputs
    assert x is not None
    K = prepare(*operators, dtype=dtype)
    if isinstance(K, str):
        return K
    y, saved = convolution.forward(*K, in_memory(x.to(K.A.dtype)))
    return y.to(x.dtype), K, saved


def backward(
    u: Tensor, inputs: Sequence[Tensor | None], K: Constants, saved: Saved
) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs of `forward`, given that of y; None for shifts.

    Constants and saved tensors are contiguous, and tensors of their own.
    """
    *operators, x = inputs
    assert x is not None
    wide = K.A.dtype
    G, H, *rest = _ready([None if t is None else t.to(wide) for t in operators])
    found = convolution.backward(*(in_memory(t.to(wide)) for t in (u, x)), *K, saved, G, H, *rest)
    dx, *of_operators = (None if t is None else t.to(x.dtype) for t in found)
    return *of_operators, dx


def _ready(operators: Sequence[Tensor | None]) -> Operators:
    return Operators(*(None if t is None else in_memory(t) for t in operators))  # type: ignore[arg-type]


# One matrix, for autograd.


def product(A: Side, C: Side, x: Tensor, P: Scales) -> Tensor:
    """`convolution.product` by the compiled function; arguments and result as there."""
    dtype = P.dtype
    converted = (t if t.dtype is dtype else t.to(dtype) for t in (*A, *C, x))
    return applied(_Joint, *converted)[0].to(x.dtype)


def constants(A: Side, C: Side, P: Scales) -> Constants:
    """Those of a product, given what the guard found."""
    found = prepare(A[2], C[2], A[1], A[0], C[1], C[0], dtype=P.dtype)
    assert isinstance(found, Constants)
    return found


def lower(side: Side) -> Tensor:
    """The corner, then the subdiagonal, (m,)."""
    s, corner, _ = side
    return torch.cat((corner.reshape(1), s))


def _plain(
    s_A: Tensor, corner_A: Tensor, G: Tensor, s_C: Tensor, corner_C: Tensor, H: Tensor, x: Tensor
) -> Tensor:
    a, c = lower((s_A, corner_A, G)), lower((s_C, corner_C, H))
    return x @ shifted_sum(G.mT @ H, a, c, min(G.shape[-1], H.shape[-1])).mT


class _Joint(torch.autograd.Function):
    """(A, C, x) to y, followed by what the backward needs again."""

    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        s_A, corner_A, G, s_C, corner_C, H, x = inputs
        found = forward(G, H, corner_A, s_A, corner_C, s_C, x, dtype=x.dtype)
        assert not isinstance(found, str)
        y, K, saved = found
        return y, *K, *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if u is None:
            return (None,) * 7
        # Once: a second reading is an error under checkpointing. Hooks may give them back in another layout.
        saved = [t.contiguous() for t in ctx.saved_tensors]
        inputs, outputs = saved[:7], saved[7:]
        if torch.is_grad_enabled() or not stencil.is_plain(u):
            return plain_backward(_plain, inputs, u)
        s_A, corner_A, G, s_C, corner_C, H, x = inputs
        given = G, H, corner_A, s_A, corner_C, s_C, x
        dG, dH, da, ds_A, dc, ds_C, dx = backward(u, given, Constants(*outputs[:4]), Saved(*outputs[4:]))
        return ds_A, da, dG, ds_C, dc, dH, dx

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        return plain_jvp(_plain, ctx.saved_tensors[:7], tangents), *[None] * 7

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor) -> Any:
        y = product_vmap(_plain, lambda *given: applied(_Joint, *given)[0], in_dims, inputs)
        return (y, *[y.new_zeros(0)] * 7), (0, *[None] * 7)
