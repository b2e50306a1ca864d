"""`Operator` by a toy: a sum along rows whose kernel leaves torch, under all that torch may do to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from torchldr.functional.operator import OPERATORS, Operator

CALLS: list[str] = []


def plain(x: Tensor, w: Tensor, shift: Tensor | None, k: int) -> Tensor:
    CALLS.append("plain")
    y = (x * w.exp()).cumsum(-1) * k
    return y if shift is None else y + shift


def kernel(x: Tensor, w: Tensor, shift: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """By numpy, which sees memory alone; e^w is saved for the gradient."""
    CALLS.append("kernel")
    e = w.detach().exp()
    y = torch.from_numpy((x.detach() * e).contiguous().numpy().cumsum(-1) * k)
    return y if shift is None else torch.from_numpy(y.numpy() + shift.detach().numpy()), e


def gradient(grad: Tensor, arguments: Any, saved: Any, wanted: Any) -> list[Tensor | None]:
    CALLS.append("gradient")
    (x, w, shift, k), (e,) = arguments, saved
    found = grad.detach().contiguous().numpy()[..., ::-1].cumsum(-1)[..., ::-1] * k
    back = torch.from_numpy(found.copy())
    return [
        back * e if wanted[0] else None,
        (back * e * x).sum_to_size(w.shape) if wanted[1] else None,
        grad.clone() if wanted[2] and shift is not None else None,
    ]


def serves(x: Tensor, *rest: Any) -> bool:
    return x.dtype == torch.float64


def samples() -> Iterator[tuple[Any, ...]]:
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)
    yield draw(3, 4), draw(3, 4), draw(3, 4), 2
    yield draw(2, 3, 4), draw(2, 3, 4), None, 1


TOY = Operator(
    "test_toy",
    "Tensor x, Tensor w, Tensor? shift, int k",
    plain=plain,
    kernel=kernel,
    fake=lambda x, w, shift, k: (torch.empty_like(x), torch.empty_like(w)),
    gradient=gradient,
    serves=serves,
    samples=samples,
)
KNOWN = OPERATORS.pop("test_toy")  # tests of all operators are not about this one


def given(*shape: int, shift: bool = True, dtype: torch.dtype = torch.float64) -> list[Any]:
    g = torch.Generator().manual_seed(0)
    x, w, s = (torch.randn(*(shape or (3, 4)), dtype=dtype, generator=g) for _ in range(3))
    return [x, w, s if shift else None, 2]


def leaves(arguments: list[Any]) -> list[Tensor]:
    return [t.requires_grad_() for t in arguments if isinstance(t, Tensor)]


def definition(x: Tensor, w: Tensor, shift: Tensor | None, k: int) -> Tensor:
    y = (x * w.exp()) @ torch.ones(x.shape[-1], x.shape[-1], dtype=x.dtype).triu() * k
    return y if shift is None else y + shift


def called(function: Any, *arguments: Any, **more: Any) -> tuple[Any, list[str]]:
    """The result, and what ran."""
    CALLS.clear()
    result = function(*arguments, **more)
    return result, list(CALLS)


def gradients(function: Any, arguments: list[Any]) -> tuple[Tensor, ...]:
    inputs = leaves(arguments)
    return torch.autograd.grad(function(*arguments).sin().sum(), inputs)


def same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted)


with_and_without = pytest.mark.parametrize("shift", [True, False])


def test_it_is_known_by_its_name():
    assert KNOWN is TOY
    assert torch.ops.torchldr.test_toy.default is not None
    assert torch.ops.torchldr.test_toy_gradient.default is not None


# Eager.


@with_and_without
def test_the_kernel_runs_and_its_gradient_does_not_run_it_again(shift):
    arguments = given(shift=shift)
    y, ran = called(TOY, *arguments)
    same(y, definition(*arguments))
    assert ran == ["kernel"]
    wanted = gradients(definition, given(shift=shift))
    found, ran = called(gradients, TOY, arguments)
    same(found, wanted)
    assert ran == ["kernel", "gradient"]


@with_and_without
@pytest.mark.parametrize("place", [0, 1])
def test_gradients_of_some(shift, place):
    arguments = given(shift=shift)
    one = arguments[place].requires_grad_()
    (found,) = torch.autograd.grad(TOY(*arguments).square().sum(), one)
    same(found, torch.autograd.grad(definition(*arguments).square().sum(), one)[0])


def test_no_gradient_is_made_where_none_is_needed():
    arguments = given()
    leaves(arguments)
    with torch.no_grad():
        assert not TOY(*arguments).requires_grad
    y = TOY(*(t.detach() if isinstance(t, Tensor) else t for t in arguments))
    assert not y.requires_grad


@with_and_without
def test_derivatives_of_any_order(shift):
    arguments = given(2, 3, shift=shift)
    inputs = leaves(arguments)
    product = lambda *t: TOY(*t, *[None] * (3 - len(t)), 2)
    assert torch.autograd.gradcheck(product, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(product, inputs)
    third = lambda f: torch.func.jacrev(
        torch.func.jacrev(torch.func.jacrev(lambda w: f(arguments[0], w, None, 2).sum()))
    )
    same(third(TOY)(arguments[1]), third(definition)(arguments[1]))


def test_rows_that_are_not_contiguous_or_were_conjugated():
    x, w, shift, k = given(4, 4)
    z = torch.randn(4, 4, dtype=torch.complex128)
    for rows in (x.mT, x.expand(2, 4, 4)[0], torch.stack((x, x), -1)[..., 0], z.conj().imag):
        same(TOY(rows, w, shift, k), definition(rows, w, shift, k))
        rows = rows.detach().requires_grad_()
        y = TOY(rows, w, shift, k)
        u = torch.randn(4, 4, dtype=torch.float64).mT
        same(torch.autograd.grad(y, rows, u), torch.autograd.grad(definition(rows, w, shift, k), rows, u))


# torch.func.


def test_grad_vmap_and_their_compositions():
    x, w, shift, k = given(5, 3, 4)
    per_row = lambda f: torch.func.grad(lambda w, x: f(x, w, None, k).sin().sum())
    same(per_row(TOY)(w, x), per_row(definition)(w, x))
    found, ran = called(torch.vmap(lambda x, w: TOY(x, w, None, k)), x, w)
    same(found, definition(x, w, None, k))
    assert ran == ["kernel"]  # one call for all: kernels take leading axes
    same(torch.vmap(per_row(TOY))(w, x), torch.vmap(per_row(definition))(w, x))
    shared = torch.vmap(lambda x: TOY(x, w[0], shift[0], k), in_dims=1, out_dims=1)(
        x.mT.contiguous().mT.transpose(0, 1)
    )
    same(shared, definition(x, w[0], shift[0], k).transpose(0, 1))
    twice = torch.vmap(torch.vmap(lambda x, w: TOY(x, w, None, k)), in_dims=(0, None))(x, w[0])
    same(twice, definition(x, w[0], None, k))


@pytest.mark.parametrize(
    "transform", ["jacrev", "jacfwd", "hessian", "forward over forward", "reverse over forward"]
)
def test_jacobians(transform):
    x, w, shift, k = given(2, 3)
    of = {
        "jacrev": torch.func.jacrev,
        "jacfwd": torch.func.jacfwd,
        "hessian": torch.func.hessian,
        "forward over forward": lambda f: torch.func.jacfwd(torch.func.jacfwd(f)),
        "reverse over forward": lambda f: torch.func.jacrev(torch.func.jacfwd(f)),
    }[transform]
    function = lambda f: lambda w: f(x, w, shift, k).sin().sum(0)
    same(of(function(TOY))(w), of(function(definition))(w))


def test_forward_mode():
    arguments = given()
    tangents = [torch.randn_like(t) for t in arguments[:3]]
    for moved in ((0,), (1,), (2,), (0, 1, 2)):
        with forward_ad.dual_level():
            dual = [
                forward_ad.make_dual(t, d) if i in moved else t
                for i, (t, d) in enumerate(zip(arguments[:3], tangents, strict=True))
            ]
            found = forward_ad.unpack_dual(TOY(*dual, 2)).tangent
            wanted = forward_ad.unpack_dual(definition(*dual, 2)).tangent
        same(found, wanted)
    function = lambda f: lambda *t: f(*t, 2)
    same(torch.func.linearize(function(TOY), *arguments[:3])[1](*tangents), wanted)


@pytest.mark.parametrize("kind", ["batched", "dual"])
def test_what_comes_back_may_have_no_memory(kind):
    arguments = given()
    inputs = leaves(arguments)
    u = torch.randn(2, 3, 4, dtype=torch.float64)

    def found(f):
        y = f(*arguments)
        if kind == "batched":
            return torch.autograd.grad(y, inputs, u, is_grads_batched=True)
        with forward_ad.dual_level():
            grads = torch.autograd.grad(y, inputs, forward_ad.make_dual(*u))
            return [forward_ad.unpack_dual(g).tangent for g in grads]

    same(found(TOY), found(definition))


# Compilers.


def nodes(backend_graphs: list[torch.fx.GraphModule]) -> list[str]:
    return [
        str(node.target)
        for graph in backend_graphs
        for node in graph.graph.nodes
        if node.op == "call_function"
    ]


def recorded(
    function: Any, **more: Any
) -> tuple[Any, list[torch.fx.GraphModule], list[torch.fx.GraphModule]]:
    """The compiled function, and the graphs of its forward and backward."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch.compiler.reset()
    forward, backward = [], []
    keep = lambda graphs: lambda graph, _: graphs.append(graph) or make_boxed_func(graph.forward)
    backend = aot_autograd(fw_compiler=keep(forward), bw_compiler=keep(backward))
    return torch.compile(function, backend=backend, fullgraph=True, **more), forward, backward


@with_and_without
def test_a_compiler_sees_one_node_and_one_for_the_gradient(shift):
    compiled, forward, backward = recorded(lambda *t: TOY(*t))
    for size in (3, 5, 7):  # sizes become dynamic: two graphs, no more
        arguments = given(size, 4, shift=shift)
        y, ran = called(compiled, *arguments)
        same(y, definition(*arguments))
        found, ran = called(gradients, compiled, arguments)
        same(found, gradients(definition, given(size, 4, shift=shift)))
        assert "gradient" in ran
        assert ran.count("kernel") == 1
    assert sum("test_toy.default" in name for name in nodes(forward)) == len(forward)
    assert not any("cumsum" in name for name in nodes(forward + backward))
    assert sum("test_toy_gradient.default" in name for name in nodes(backward)) == len(backward) > 0


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap", "vmap of grad", "hessian"])
def test_torch_func_under_a_compiler(transform):
    torch.compiler.reset()
    x, w, _, k = given(2, 3)

    def of(f):
        scalar = lambda w, x: f(x, w, None, k).sin().sum()
        return {
            "grad": lambda w, x: torch.func.grad(scalar)(w, x),
            "jvp": lambda w, x: torch.func.jvp(lambda w: f(x, w, None, k), (w,), (x,))[1],
            "vmap": lambda w, x: torch.vmap(lambda w, x: f(x, w, None, k))(w, x),
            "vmap of grad": lambda w, x: torch.vmap(torch.func.grad(scalar))(w, x),
            "hessian": lambda w, x: torch.func.hessian(scalar)(w, x),
        }[transform]

    compiled = torch.compile(of(TOY), backend="aot_eager", fullgraph=True)
    same(compiled(w, x), of(definition)(w, x))


def test_duals_that_come_into_a_compiled_function():
    torch.compiler.reset()
    compiled = torch.compile(lambda x, w: TOY(x, w, None, 2), backend="aot_eager", fullgraph=True)
    x, w, u, _ = given()
    same(compiled(x, w), definition(x, w, None, 2))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(w, u)
        found, wanted = (
            forward_ad.unpack_dual(y).tangent for y in (compiled(x, dual), definition(x, dual, None, 2))
        )
    same(found, wanted)


@with_and_without
def test_export_has_plain_operations(shift):
    class Module(torch.nn.Module):
        def forward(self, x, w, shift):
            return TOY(x, w, shift, 2)

    *arguments, _ = given(shift=shift)
    rows = {0: torch.export.Dim("rows")}
    axes = {"x": rows, "w": rows, "shift": rows if shift else None}
    program = torch.export.export(Module(), tuple(arguments), dynamic_shapes=axes)
    assert not any("test_toy" in name for name in nodes([program.graph_module]))
    for size in (2, 5):
        *arguments, k = given(size, 4, shift=shift)
        same(program.module()(*arguments), definition(*arguments, k))


def test_tracers_and_fake_tensors():
    arguments = given()
    graph = make_fx(lambda x, w, shift: TOY(x, w, shift, 2))(*arguments[:3])
    other = [2 * t for t in arguments[:3]]
    same(graph(*other), definition(*other, 2))
    with FakeTensorMode() as mode:
        y, ran = called(TOY, *(mode.from_tensor(t) for t in arguments[:3]), 2)
    assert y.shape == (3, 4)
    assert "kernel" not in ran


def test_meta_tensors():
    arguments = [t.to("meta") if isinstance(t, Tensor) else t for t in given()]
    y, ran = called(TOY, *arguments)
    assert (y.is_meta, y.shape, ran) == (True, (3, 4), [])


@pytest.mark.parametrize("index", [0, 1])
def test_opcheck(index):
    arguments = list(samples())[index]
    torch.library.opcheck(torch.ops.torchldr.test_toy, arguments)
    differentiable = tuple(t.requires_grad_() if isinstance(t, Tensor) else t for t in list(samples())[index])
    torch.library.opcheck(torch.ops.torchldr.test_toy, differentiable)


# Where kernels do not serve.


@with_and_without
@pytest.mark.parametrize("compiled", [False, True])
def test_without_a_kernel_the_plain_form_runs_inside(shift, compiled):
    product = recorded(lambda *t: TOY(*t))[0] if compiled else TOY
    arguments = given(shift=shift, dtype=torch.float32)
    y, ran = called(product, *arguments)
    same(y, definition(*arguments))
    assert "kernel" not in ran
    found, ran = called(gradients, product, arguments)
    same(found, gradients(definition, given(shift=shift, dtype=torch.float32)))
    assert "gradient" not in ran


class Watching(torch.Tensor):
    """A tensor that sees the operations it takes part in."""

    seen: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensors_of_other_classes_take_the_plain_form():
    arguments = given()
    Watching.seen.clear()
    y, ran = called(TOY, arguments[0].as_subclass(Watching), *arguments[1:])
    assert ran == ["plain"]
    assert "cumsum" in Watching.seen
    same(y.as_subclass(Tensor), definition(*arguments))
    arguments[0].requires_grad_()
    y = TOY(*arguments)
    u = torch.randn(3, 4, dtype=torch.float64)
    (found,) = torch.autograd.grad(y, arguments[0], u.as_subclass(Watching))
    same(found.as_subclass(Tensor), torch.autograd.grad(definition(*arguments), arguments[0], u)[0])


class Named(torch.nn.Parameter):
    """A parameter with attributes of its own, as loaders make them."""


def test_parameters_that_only_add_attributes_take_the_kernel():
    x, w, shift, k = given()
    y, ran = called(TOY, x, Named(w), shift, k)
    assert ran == ["kernel"]
    same(y, definition(x, w, shift, k))


# Around a call.


def test_autocast_does_not_reach_inside():
    arguments = given(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = TOY(*arguments)
        found = gradients(TOY, arguments)
    assert y.dtype == torch.float32
    same(y, definition(*arguments))
    same(found, gradients(definition, given(dtype=torch.float32)))


def test_checkpoints_and_hooks_on_saved_tensors():
    wanted = gradients(definition, given())
    same(gradients(lambda *t: checkpoint(TOY, *t, use_reentrant=False), given()), wanted)
    spread = lambda t: t.repeat_interleave(2, -1)[..., ::2]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, spread):
        same(gradients(TOY, given()), wanted)


def test_an_edit_between_forward_and_backward_is_torch_s_error():
    arguments = given()
    leaves(arguments)
    y = TOY(*arguments)
    with torch.no_grad():
        arguments[0].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_are_tensors_of_their_own():
    arguments = given()
    for product in (TOY, recorded(lambda *t: TOY(*t))[0]):
        y = product(*arguments)
        assert y.is_contiguous()
        assert y.untyped_storage().nbytes() == y.nbytes
