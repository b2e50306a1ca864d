"""Fast functions as operators that torch sees, and the one way to call them.

A fast function leaves torch (C on a CPU, CUDA kernels), so torch must be told what it computes. An `Operator`
registers it with `torch.library`, with its gradient as a second operator, and comes with the same function in
plain torch operations, for everything that kernels do not know:

    eager                       the kernel, through an autograd.Function with rules for vmap and forward mode
    torch.compile               torch.ops.torchldr.NAME, one node; its gradient is one node too
    torch.export, and torch.func under a compiler: the plain form
    tensors of other classes    the plain form (DTensor, nested tensors)
    no kernel for the tensors   the plain form, inside of the operator

`register_autograd` alone would not do: torch.func.grad raises with it and forward mode gives zeros. Nor would
the autograd.Function alone: compilers look inside of it. Derivatives of the gradient go through the plain
form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..torch_private import (
    apply_alone,
    are_plain,
    as_eager,
    autocasts_anything,
    forward_mode,
    has_memory,
    has_modes,
    has_transforms,
    in_forward_mode,
    is_exporting,
    register_autograd,
)

Arguments = Sequence[Any]
Samples = Callable[[], Iterator[tuple[Any, ...]]]

OPERATORS: dict[str, Operator] = {}
"""Every operator of the package, by name."""


class Operator:
    """A fast function of tensors, as `torch.ops.torchldr.NAME`.

    Args:
        name: of the operator.
        arguments: their schema, such as "Tensor x, Tensor? corner, int k".
        plain: the function in plain torch operations: the arguments to the result. It holds under every
            transformation and is right for every value.
        kernel: the arguments to the result, or to a tuple of the result and what the gradient needs again.
        fake: the arguments to empty tensors of the same kind; the shapes of all that `kernel` returns.
        gradient: (grad, arguments, saved, wanted) to a list with the gradient of each tensor among the
            arguments; None where it is not wanted, which `wanted` says for each. `saved` is what `kernel`
            returned beside the result, or the result if it returned nothing else.
        serves: whether the kernel takes these arguments; called with real tensors, never by a compiler.
        batched: for vmap, (info, dims, apply, arguments) to (results, dims). By default the axis goes in
            front of every tensor: kernels take leading axes.
        samples: yields arguments for tests.

    Shapes, dtypes and devices are those of the arguments; conversion and autocast stay around the call.
    """

    def __init__(
        self,
        name: str,
        arguments: str,
        *,
        plain: Callable[..., Tensor],
        kernel: Callable[..., Any],
        fake: Callable[..., Any],
        gradient: Callable[[Tensor, Arguments, Sequence[Tensor], Sequence[bool]], Sequence[Tensor | None]],
        serves: Callable[..., bool],
        samples: Samples,
        batched: Callable[..., Any] | None = None,
    ) -> None:
        self.name, self.plain, self.samples = name, plain, samples
        self._kernel, self._fake, self._gradient_kernel, self._serves = kernel, fake, gradient, serves
        self._batched = batched
        kinds = [argument.split()[0] for argument in arguments.split(", ")]
        self._tensors = [i for i, kind in enumerate(kinds) if kind.startswith("Tensor")]
        self._count = len(kinds)
        self._function = _function(self)
        self._op = self._define(arguments)
        OPERATORS[name] = self

    def __call__(self, *arguments: Any) -> Tensor:
        if torch.compiler.is_compiling():
            if is_exporting() or has_transforms() or in_forward_mode():
                return self.plain(*arguments)
            return _first(self._op(*arguments))
        tensors = self._present(arguments)
        if not are_plain(tensors):
            return self.plain(*arguments)
        if has_modes():
            if has_transforms() or in_forward_mode():
                return self.plain(*arguments)
            return _first(self._op(*arguments))
        if has_transforms():
            return _first(self._function.apply(*arguments))
        if tensors[0].is_meta:
            return _first(_tuple(self._fake(*arguments)))
        if in_forward_mode() or (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
            return _first(apply_alone(self._function, *arguments))
        return self.run(*arguments)[0]

    def run(self, *arguments: Any) -> tuple[Tensor, ...]:
        """The kernel, or the plain form where it does not serve: the result and what the gradient needs."""
        with _without_autocast(arguments):
            if self._serves(*arguments):
                return _tuple(self._kernel(*arguments))
            with torch.no_grad():
                y = self.plain(*arguments).clone(memory_format=torch.contiguous_format)
            return y, *(torch.zeros_like(t) for t in _tuple(self._fake(*arguments))[1:])

    def run_gradient(
        self, grad: Tensor, arguments: Arguments, saved: Sequence[Tensor], wanted: Sequence[bool]
    ) -> list[Tensor]:
        """Gradients of all tensors among the arguments; of no entries where none is wanted."""
        saved = [t.contiguous() for t in saved]  # hooks may have given them back in another layout
        with _without_autocast(arguments):
            if self._serves(*arguments):
                found = self._gradient_kernel(grad, arguments, saved, wanted)
            else:
                given = [t for t in (arguments[i] for i in self._tensors) if t is not None]
                each = iter(_vjp(self._closed(arguments), given, grad))
                found = [None if arguments[i] is None else next(each) for i in self._tensors]
        return [
            grad.new_empty(0) if t is None or not wish else _alone(t)
            for t, wish in zip(found, wanted, strict=True)
        ]

    def _present(self, arguments: Arguments) -> list[Tensor]:
        return [arguments[i] for i in self._tensors if arguments[i] is not None]

    def _closed(self, arguments: Arguments) -> Callable[..., Tensor]:
        """The plain form as a function of the tensors that are there."""
        places = [i for i in self._tensors if arguments[i] is not None]

        def closed(*tensors: Tensor) -> Tensor:
            filled = list(arguments)
            for i, t in zip(places, tensors, strict=True):
                filled[i] = t
            return self.plain(*filled)

        return closed

    def _saved(self, outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        return outputs[1:] or outputs

    def _wanted(self, needs: Sequence[bool]) -> list[bool]:
        return [bool(needs[i]) for i in self._tensors]

    def _spread(self, found: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor | None]:
        """Gradients of the tensors in the places of all arguments."""
        spread: list[Tensor | None] = [None] * self._count
        for i, t, wish in zip(self._tensors, found, wanted, strict=True):
            spread[i] = t if wish else None
        return spread

    # torch.library.

    def _define(self, arguments: str) -> Any:
        name, lib = f"torchldr::{self.name}", torch.library
        outputs = "(Tensor, Tensor[])"
        lib.define(name, f"({arguments}) -> {outputs}")
        lib.define(
            f"{name}_gradient", f"(Tensor grad, {arguments}, Tensor[] saved, bool[] wanted) -> Tensor[]"
        )

        def run(*given: Any) -> tuple[Tensor, list[Tensor]]:
            with as_eager(), torch.no_grad():
                y, *saved = self.run(*given)
            # CUDA graphs have no place for what an eager call keeps on the CPU.
            return y, [t.to(y.device, non_blocking=True) for t in saved]

        def fake(*given: Any) -> tuple[Tensor, list[Tensor]]:
            y, *saved = _tuple(self._fake(*given))
            return y, saved

        def run_gradient(grad: Tensor, *rest: Any) -> list[Tensor]:
            *given, saved, wanted = rest
            with as_eager(), torch.no_grad():
                return self.run_gradient(grad, given, saved, wanted)

        def fake_gradient(grad: Tensor, *rest: Any) -> list[Tensor]:
            *given, _, wanted = rest
            like = [given[i] for i in self._tensors]
            return [
                torch.empty_like(t, memory_format=torch.contiguous_format) if wish else grad.new_empty(0)
                for t, wish in zip(like, wanted, strict=True)
            ]

        def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, list[Tensor]]) -> None:
            y, saved = output
            ctx.mark_non_differentiable(*saved)
            self._save(ctx, inputs, saved or [y])

        def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
            given, saved = self._restored(ctx)
            wanted = self._wanted(ctx.needs_input_grad)
            found = gradient(grad, *given, list(saved), wanted)
            return tuple(self._spread(found, wanted))

        def setup_again(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            grad, *given, saved, ctx.wanted = inputs
            ctx.count = len(saved)
            self._save(ctx, given, (grad,))

        def backward_again(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
            given, (grad,) = self._restored(ctx)
            dgrad, spread = self._second(grad, given, ctx.wanted, grads)
            return dgrad, *spread, [None] * ctx.count, None

        for suffix, function, shapes in (("", run, fake), ("_gradient", run_gradient, fake_gradient)):
            lib.impl(name + suffix, "CompositeExplicitAutograd", function)
            lib.register_fake(name + suffix, shapes)
        register_autograd(name, backward, setup)
        register_autograd(f"{name}_gradient", backward_again, setup_again)
        gradient = getattr(torch.ops.torchldr, f"{self.name}_gradient").default
        return getattr(torch.ops.torchldr, self.name).default

    def _save(self, ctx: Any, arguments: Arguments, saved: Sequence[Tensor]) -> None:
        ctx.there = [i for i in self._tensors if arguments[i] is not None]
        tensors = [arguments[i] for i in ctx.there]
        ctx.others = list(arguments)
        for i in ctx.there:
            ctx.others[i] = None
        ctx.save_for_backward(*tensors, *saved)
        if hasattr(ctx, "save_for_forward"):
            ctx.save_for_forward(*tensors, *saved)

    def _restored(self, ctx: Any) -> tuple[list[Any], Sequence[Tensor]]:
        tensors, arguments = ctx.saved_tensors, list(ctx.others)  # once: a second reading is an error
        for i, t in zip(ctx.there, tensors, strict=False):
            arguments[i] = t
        return arguments, tensors[len(ctx.there) :]

    def _second(
        self, grad: Tensor, arguments: Arguments, wanted: Sequence[bool], grads: Sequence[Tensor | None]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The gradient of the gradient, in `grad` and in all arguments, by the plain form."""
        given = self._present(arguments)
        there = [i for i in self._tensors if arguments[i] is not None]
        wish = dict(zip(self._tensors, wanted, strict=True))
        above = dict(zip(self._tensors, grads, strict=True))
        function = partial(_vjp, self._closed(arguments))

        def chosen(*leaves: Tensor) -> tuple[Tensor, ...]:
            return tuple(t for i, t in zip(there, function(leaves[1:], leaves[0]), strict=True) if wish[i])

        outputs, pull = torch.func.vjp(chosen, grad, *given)
        cotangents = [above[i] for i in there if wish[i]]
        filled = tuple(
            torch.zeros_like(t) if g is None else g for t, g in zip(outputs, cotangents, strict=True)
        )
        dgrad, *rest = pull(filled)
        spread: list[Tensor | None] = [None] * self._count
        for i, t in zip(there, rest, strict=True):
            spread[i] = t
        return dgrad, spread


def _function(operator: Operator) -> Any:
    """The eager form of an operator, whose backward is the eager form of its gradient."""

    class Gradient(torch.autograd.Function):
        """(grad, arguments, saved, number of arguments, wanted) to the gradients of the tensors."""

        @staticmethod
        def forward(wanted: tuple[bool, ...], grad: Tensor, *rest: Any) -> tuple[Tensor, ...]:
            given, saved = rest[: operator._count], rest[operator._count :]
            return tuple(operator.run_gradient(grad, given, saved, wanted))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.wanted, grad, *rest = inputs
            ctx.extra = len(rest) - operator._count
            operator._save(ctx, rest[: operator._count], (grad,))

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
            given, (grad,) = operator._restored(ctx)
            dgrad, spread = operator._second(grad, given, ctx.wanted, grads)
            return None, dgrad, *spread, *[None] * ctx.extra

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
            given, (grad,) = operator._restored(ctx)
            there = [i for i in operator._tensors if given[i] is not None]
            wish = dict(zip(operator._tensors, ctx.wanted, strict=True))
            closed = operator._closed(given)
            function = lambda g, *tensors: _vjp(closed, tensors, g)
            moved = [tangents[1], *(tangents[2 + i] for i in there)]
            found = iter(_jvp(function, [grad, *(given[i] for i in there)], moved))
            results = [next(found) if given[i] is not None else None for i in operator._tensors]
            return tuple(
                t if wish[i] and t is not None else grad.new_zeros(0)
                for i, t in zip(operator._tensors, results, strict=True)
            )

        @staticmethod
        def vmap(info: Any, dims: tuple[Any, ...], wanted: tuple[bool, ...], *rest: Any) -> Any:
            found = Gradient.apply(wanted, *_in_front(info.batch_size, dims[1:], rest))
            return found, tuple(0 if wish else None for wish in wanted)

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> tuple[Tensor, ...]:
            return operator.run(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.mark_non_differentiable(*output[1:])
            ctx.set_materialize_grads(False)
            ctx.outputs = len(output)
            operator._save(ctx, inputs, operator._saved(output))

        @staticmethod
        def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Any, ...]:
            if grad is None:
                return (None,) * operator._count
            given, saved = operator._restored(ctx)
            wanted = tuple(operator._wanted(ctx.needs_input_grad))
            # Batched gradients and duals have no memory of their own.
            if not are_plain((grad,)) or not (has_transforms() or has_memory(grad)):
                each = iter(_vjp(operator._closed(given), operator._present(given), grad))
                every = [next(each) if given[i] is not None else grad for i in operator._tensors]
                return tuple(operator._spread(every, wanted))
            if torch.is_grad_enabled() or has_transforms():
                found = Gradient.apply(wanted, grad, *given, *saved)
            else:
                found = operator.run_gradient(grad, given, saved, wanted)
            return tuple(operator._spread(found, wanted))

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
            given, _ = operator._restored(ctx)
            there = [i for i in operator._tensors if given[i] is not None]
            moved = [tangents[i] for i in there]
            y = _jvp(operator._closed(given), [given[i] for i in there], moved)
            return y, *[None] * (ctx.outputs - 1)

        @staticmethod
        def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> Any:
            if operator._batched is not None:
                return operator._batched(info, dims, Forward.apply, arguments)
            found = Forward.apply(*_in_front(info.batch_size, dims, arguments))
            return found, tuple(0 for _ in found)

    return Forward


def _in_front(size: int, dims: Sequence[int | None], arguments: Arguments) -> list[Any]:
    """The arguments of a function that vmap maps, with its axis in front of every tensor."""
    return [
        t if not isinstance(t, Tensor) else t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(arguments, dims, strict=True)
    ]


def _vjp(plain: Callable[..., Any], inputs: Sequence[Tensor], grad: Any) -> tuple[Tensor, ...]:
    """Gradients of a plain function, themselves differentiable."""
    with torch.enable_grad():
        return torch.func.vjp(plain, *inputs)[1](grad)


def _jvp(plain: Callable[..., Any], inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> Any:
    """The tangent of a plain function: the transpose of its transposed derivative.

    Reverse mode twice, because forward mode cannot be entered again inside of a rule for it.
    """
    filled = tuple(torch.zeros_like(x) if t is None else t for x, t in zip(inputs, tangents, strict=True))
    with forward_mode(True), torch.enable_grad():  # a rule would forget the tangents of levels around it
        primals = [forward_ad.unpack_dual(x).primal for x in inputs]
        output, pullback = torch.func.vjp(plain, *primals)[:2]
        zeros = (
            tuple(map(torch.zeros_like, output)) if isinstance(output, tuple) else torch.zeros_like(output)
        )
        found = torch.func.vjp(pullback, zeros)[1](filled)[0]
        if isinstance(found, tuple):
            return tuple(t.contiguous() for t in found)
        return found.contiguous()  # as the results of kernels are


def _without_autocast(arguments: Arguments) -> AbstractContextManager[Any]:
    if not autocasts_anything():
        return _NOTHING
    device = next(t.device.type for t in arguments if isinstance(t, Tensor))
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return _NOTHING


_NOTHING = nullcontext()


def _alone(t: Tensor) -> Tensor:
    """Contiguous, in memory of its own: compilers want alignment, users gradients that share nothing."""
    t = (t.detach() if t.requires_grad else t).contiguous()
    return t if t.untyped_storage().nbytes() == t.numel() * t.itemsize else t.clone()


def _tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _first(outputs: Any) -> Tensor:
    y: Tensor = outputs[0]
    return y
