"""Products as single operators, for torch.compile and torch.jit.trace.

The fast products of LDR-SD and LDR-TD look at values (a guard) or leave torch (a compiled stencil), so a
compiler can only trace their plain form: hundreds of small steps that take minutes to compile and run
slower than the eager product. Instead it is shown one operator, `torchldr::product`, that chooses a route and
runs it, with a second one for its gradient. torch.export still traces the plain form, so that an exported
program needs nothing of this package.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

from .products import Matrix, is_jit_tracing
from .registry import CLASSES

_AUTOCAST = reduce(
    or_,
    (
        torch._C.DispatchKeySet(key)
        for name, key in torch._C.DispatchKey.__members__.items()
        if name.startswith("Autocast")
    ),
)


def as_compilers_see(M: Matrix, x: Tensor, *, transposed: bool) -> Tensor:
    """M x, or M^T x, for a compiler or an exporter: one operator, or the first route of the class.

    torch.jit.trace is shown the operator always. It would take what is computed from shapes for tensors, and
    what leaves torch for constants.
    """
    if is_jit_tracing() or (M.opaque and not torch.compiler.is_exporting()):
        return product(M, x, transposed=transposed)
    return M.ROUTES[0].run(M, x, transposed)


def product(M: Matrix, x: Tensor, *, transposed: bool) -> Tensor:
    """M x, or M^T x, as one operator: (b, in) to (b, out)."""
    m, n = M.shape
    names = ",".join(M.tensors)
    options = ",".join([f"{key!r}:{value!r}" for key, value in M.options.items()])
    return torch.ops.torchldr.product(
        x, list(M.tensors.values()), names, type(M).key, f"{{{options}}}", m, n, transposed
    )


def as_eager() -> AbstractContextManager[None]:
    """For the code of an operator: vmap, lazy conjugation and autograd as anywhere else.

    torch 2.13 excludes them in the first call of a compiled function: vmap fails then, and conjugation is
    forgotten. Autocast, which torch switches off in the same way, stays as it is.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:  # those of a transformation around this
        return nullcontext()
    included, excluded = (
        torch._C._dispatch_tls_local_include_set(),
        torch._C._dispatch_tls_local_exclude_set(),
    )
    return torch._C._ForceDispatchKeyGuard(included, excluded & _AUTOCAST)


def _run(
    x: Tensor,
    tensors: Sequence[Tensor],
    names: str,
    structure: str,
    options: str,
    m: int,
    n: int,
    transposed: bool,
) -> Tensor:
    named = dict(zip(names.split(","), tensors, strict=True))
    M = CLASSES[structure].unchecked(m, n, named, ast.literal_eval(options))
    return M.multiply(x, transposed=transposed)


def _product(*arguments: Any) -> Tensor:
    with as_eager():
        return _run(*arguments).contiguous()


def _gradient(grad: Tensor, x: Tensor, tensors: Sequence[Tensor], *rest: Any) -> list[Tensor]:
    with torch.enable_grad(), as_eager():
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in (x, *tensors)]
        return [g.contiguous() for g in _differentiated(grad, leaves, rest)]


def _differentiated(
    grad: Tensor, leaves: Sequence[Tensor], rest: Sequence[Any], again: bool = False
) -> list[Tensor]:
    """The gradients of <grad, M x> in x and in the tensors of M."""
    x, *tensors = leaves
    found = _gradients([_run(x, tensors, *rest)], leaves, [grad], again)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


def _gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor], again: bool
) -> list[Tensor | None]:
    """`torch.autograd.grad`; None for what is not differentiated. `again`: the result can be, too."""
    wanted = [t for t in inputs if t.requires_grad]
    found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=again, allow_unused=True))
    return [next(found) if t.requires_grad else None for t in inputs]


def _register() -> None:
    arguments = "Tensor x, Tensor[] tensors, str names, str structure, str options, int m, int n"
    arguments += ", bool transposed"
    torch.library.define("torchldr::product", f"({arguments}) -> Tensor")
    torch.library.define("torchldr::product_gradient", f"(Tensor grad, {arguments}) -> Tensor[]")
    torch.library.impl("torchldr::product", "CompositeExplicitAutograd", _product)
    torch.library.impl("torchldr::product_gradient", "CompositeExplicitAutograd", _gradient)

    def fake(
        x: Tensor, tensors: Any, names: str, structure: str, options: str, m: int, n: int, transposed: bool
    ) -> Tensor:
        return x.new_empty(x.shape[0], n if transposed else m)

    def fake_gradient(grad: Tensor, x: Tensor, tensors: Any, *rest: Any) -> list[Tensor]:
        return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, *tensors)]

    torch.library.register_fake("torchldr::product", fake)
    torch.library.register_fake("torchldr::product_gradient", fake_gradient)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, tensors, *ctx.rest = inputs
        ctx.save_for_backward(x, *tensors)

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, *tensors = ctx.saved_tensors
        dx, *found = torch.ops.torchldr.product_gradient(grad, x, tensors, *ctx.rest)
        kept = [g if t.is_floating_point() else None for g, t in zip(found, tensors, strict=True)]
        return dx, kept, *[None] * len(ctx.rest)

    torch.library.register_autograd("torchldr::product", backward, setup_context=setup_context)

    def setup_again(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        grad, x, tensors, *ctx.rest = inputs
        ctx.save_for_backward(grad, x, *tensors)

    def backward_again(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            at = [t.view_as(t) for t in ctx.saved_tensors]  # apart from what they were computed from
            found = zip(_differentiated(at[0], at[1:], ctx.rest, again=True), grads, strict=True)
            pairs = [(f, g) for f, g in found if f.requires_grad and g is not None]
            dgrad, dx, *rest = _gradients([f for f, _ in pairs], at, [g for _, g in pairs], again)
        return dgrad, dx, rest, *[None] * len(ctx.rest)

    torch.library.register_autograd("torchldr::product_gradient", backward_again, setup_context=setup_again)

    def stacked(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, tensors: Sequence[Tensor], *rest: Any
    ) -> tuple[Tensor, int]:
        x_dim, dims, *_ = in_dims
        outputs = [
            torch.ops.torchldr.product(
                x if x_dim is None else x.select(x_dim, i),
                [t if d is None else t.select(d, i) for t, d in zip(tensors, dims, strict=True)],
                *rest,
            )
            for i in range(info.batch_size)
        ]
        return torch.stack(outputs), 0

    torch.library.register_vmap("torchldr::product", stacked)


_register()
