"""From a traced model to steps of C, node by node."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.export.graph_signature import OutputKind
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ...core import rules
from ...core.storage import INT8, Rounded, rounded
from ..check import ExportError
from .nodes import layer_name, refused, shape_of
from .products import Product, structured_product, write_product, write_recurrent
from .rows import PAIRS, add_rows, mean, subtract
from .steps import Buffer, LayerRow, Step, Steps, Value
from .writer import Source, literal


class Tracer:
    """The steps of a traced model, with everything that they need in `source`."""

    handlers: ClassVar[Mapping[str, Callable[..., Any]]]  # below

    def __init__(self, source: Source, layers: Sequence[Any]) -> None:
        self.source, self.layers, self.made = source, layers, Steps()
        self.values: dict[Any, Any] = {}  # of nodes: Value, Tensor for constants, or tuples of them

    def run(self, program: torch.export.ExportedProgram) -> Steps:
        signature = program.graph_signature
        known = {**program.state_dict, **program.constants}
        lifted = {spec.arg.name: known.get(spec.target) for spec in signature.input_specs}
        if signature.buffers_to_mutate:
            name = next(iter(signature.buffers_to_mutate.values()))
            raise ExportError(f"to_c: the model changes its buffer {name!r}; C keeps nothing between calls.")
        for node in program.graph.nodes:
            if node.op == "placeholder":
                if (constant := lifted.get(node.name)) is not None:
                    self.values[node] = constant.detach()
                else:
                    shape = shape_of(node)
                    self.made.input_size = math.prod(shape)
                    self.values[node] = Value(Buffer(math.prod(shape), "x"), shape)
            elif node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "output":
                for found, spec in zip(node.args[0], signature.output_specs, strict=True):
                    if spec.kind is not OutputKind.USER_OUTPUT:
                        continue  # an input that the model changes: x is the caller's
                    value = self.values.get(found)
                    if not isinstance(value, Value):
                        raise ExportError(f"to_c: the output {found} is a constant.")
                    self.made.outputs.append(value)
        return self.made

    def _call(self, node: torch.fx.Node) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), self.values.__getitem__)
        known = not any(isinstance(part, Value) for part in pytree.tree_leaves((args, kwargs)))
        if known or node.target is operator.getitem:
            return node.target(*args, **kwargs)  # type: ignore[operator]
        target = str(node.target)
        handler = self.handlers.get(target.removesuffix(".default"))
        if handler is None:
            raise refused(
                node,
                f"of {layer_name(node) or 'the model'} has no C. There is C for structured layers, linear "
                "layers, 2d convolutions, max-pooling, ReLU, clamps, sigmoid, tanh, softmax, sums, factors "
                "and views.",
            )
        return handler(self, node, *args, **kwargs)

    def step(self, text: str, reads: list[Value], shape: Sequence[int], **options: Any) -> Value:
        made = Value(Buffer(math.prod(shape)), tuple(shape))
        self.made.steps.append(Step(text, reads, [made], **options))
        return made

    def row(
        self, node: Any, kind: str, form: str, flash: int, floats: int, multiplications: float, name: str = ""
    ) -> None:
        name = name or layer_name(node) or node.name
        self.made.rows.append(LayerRow(name, kind, form, flash, 4 * floats, round(multiplications)))

    def product(
        self, node: Any, x: Value, made: Product, bias: Tensor | None, kind: str, name: str = ""
    ) -> Value:
        """A product of every vector along the last axis, and its bias."""
        m, n = made.shape
        rows = x.size // n
        loop, given, into = "", "{0}", "{y}"
        if rows > 1:
            loop = f"for (int i = 0; i < {rows}; i++)\n    "
            given, into = f"{given} + i * {n}", f"{into} + i * {m}"
        lines, flash = [f"{loop}{made.name}({given}, {into}, {{work}});"], made.flash
        if bias is not None:
            symbol = self.source.bias(self.source.new_name("bias"), bias)
            lines.append(f"{loop}add_bias({into}, {symbol}, {m}, 1);")
            flash += 4 * bias.numel()
        shape = (*x.shape[:-1], m)
        size = math.prod(shape) + made.scratch
        self.row(node, kind, made.form, flash, size, rows * made.multiplications, name)
        return self.step("\n".join(lines), [x], shape, scratch=made.scratch)


# Nodes.


def _layer(t: Tracer, node: Any, x: Value, index: int, features: int) -> Value:
    name, module = t.layers[index]
    made, bias = structured_product(t.source, module), module.bias
    rank = "" if module.rank is None else f", rank {module.rank}"
    kind = f"{module.structure.name} {module.out_features} x {module.in_features}{rank}"
    return t.product(node, x, made, None if bias is None else bias.detach(), kind, name)


def _recurrent(
    t: Tracer, node: Any, x: Value, index: int, shapes: list[int], states: list[int], count: int
) -> Any:
    name, module = t.layers[index]
    made = write_recurrent(t.source, module, math.prod(shapes[:-1]))
    written = [Value(Buffer(math.prod(shape)), tuple(shape)) for shape in (shapes, *[states] * count)]
    pointers = ", ".join(["{y}", "{y1}", "{y2}"][: 1 + count])
    t.made.steps.append(Step(f"{made.name}({{0}}, {pointers}, {{work}});", [x], written, made.scratch))
    size = sum(value.size for value in written) + made.scratch
    kind = f"{type(module).__name__.removeprefix('Parametrized')} {module.input_size} -> {module.hidden_size}"
    t.row(node, kind, made.form, made.flash, size, made.multiplications, name)
    return tuple(written)


def _linear(t: Tracer, node: Any, x: Any, weight: Any, bias: Any = None) -> Value:
    if not isinstance(x, Value) or not isinstance(weight, Tensor):
        raise refused(node, "has a weight that is computed from the input.")
    M = rules.apply("linear_map", weight.float())
    found = {"weight": exact} if (exact := _exactly(weight, t.source)) is not None else {}
    made = write_product(t.source, M, found)
    m, n = weight.shape
    return t.product(node, x, made, bias, f"linear {m} x {n}")


def _exactly(weight: Tensor, source: Source) -> Rounded | None:
    """A weight in int8 where that is what it is already; None keeps floats."""
    if source.weights != "int8":
        return None
    made = rounded(weight, INT8)
    return made if bool(((made.value() - weight).abs() <= 1e-4 * made.scale).all()) else None


def _conv2d(
    t: Tracer,
    node: Any,
    x: Value,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
) -> Value:
    shape, kernel = image_of(node, x.shape), tuple(weight.shape[2:])
    dilation = two(dilation)
    if isinstance(padding, str):
        padding = [
            d * (k - 1) // 2 if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)
        ]
    out = image_of(node, shape_of(node))
    window = window_of(shape, out, (kernel, stride, padding, dilation), groups)
    made = _exactly(weight, t.source)
    symbol, floats = t.source.new_name("conv"), made is None and t.source.weights == "int8"
    t.source.use("conv2d_float" if floats else "conv2d")
    flash = 4 * weight.numel()
    if made is not None:
        data = t.source.constant(symbol, made.integers.numpy(), "int8")
        scale = t.source.constant(f"{symbol}_scale", made.scale.float().numpy())
        flash = weight.numel() + 4 * len(weight)
    else:
        data, scale = t.source.constant(symbol, weight.float().numpy()), "0"
    named = t.source.object("window", f"{symbol}_window", window)
    given = "" if floats else f"{scale}, "
    lines = [f"conv2d{'_float' if floats else ''}(&{named}, {data}, {given}{{0}}, {{y}});"]
    if bias is not None:
        added = t.source.bias(f"{symbol}_bias", bias)
        lines.append(f"add_bias({{y}}, {added}, {out[0]}, {out[1] * out[2]});")
        flash += 4 * bias.numel()
    made_shape = shape_of(node)
    kind = f"conv2d {shape[0]} -> {out[0]}, {kernel[0]} x {kernel[1]}"
    multiplications = math.prod(made_shape) * weight[0].numel()
    t.row(node, kind, "windows", flash, math.prod(made_shape), multiplications)
    return t.step("\n".join(lines), [x], made_shape)


def _max_pool2d(
    t: Tracer,
    node: Any,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Value:
    out = shape_of(node)
    kernel, pairs = two(kernel), (kernel, stride or kernel, padding, dilation)
    window = window_of(image_of(node, x.shape), image_of(node, out), pairs, 1)
    t.source.use("max_pool2d")
    named = t.source.object("window", t.source.new_name("pool"), window)
    t.row(node, f"max_pool2d {kernel[0]} x {kernel[1]}", "windows", 0, math.prod(out), 0)
    return t.step(f"max_pool2d(&{named}, {{0}}, {{y}});", [x], out)


def two(value: Any) -> tuple[int, int]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return (values[0], values[-1])


def image_of(node: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Channels, height and width of one image."""
    if len(shape) == 4 and shape[0] != 1:
        raise refused(node, f"sees a batch of {shape[0]}; export a batch of 1.")
    return shape[-3:]


def window_of(before: tuple[int, ...], after: tuple[int, ...], pairs: Sequence[Any], groups: int) -> str:
    """The fields of `window` in C; the pairs are kernel, stride, padding and dilation."""
    sizes = ", ".join(map(str, (*before, *after)))
    texts = ", ".join(f"{{{a}, {b}}}" for a, b in map(two, pairs))
    return f"{{{sizes}, {texts}, {groups}}}"


def _elementwise(function: str, kernel: str) -> Callable[..., Value]:
    def handler(t: Tracer, node: Any, x: Value) -> Value:
        t.source.use(kernel)
        return t.step(f"{function}({{0}}, {{y}}, {x.size});", [x], x.shape, elementwise=True)

    return handler


CLAMPS: dict[str, tuple[float, float]] = {  # and their bounds, where the node gives none
    "clamp": (-math.inf, math.inf),
    "clamp_min": (-math.inf, math.inf),
    "clamp_max": (-math.inf, math.inf),
    "hardtanh": (-1.0, 1.0),
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
}


def bounds(node: torch.fx.Node) -> tuple[float, float] | None:
    """What a node cuts its input to; None where it is no such node."""
    name = str(node.target).removeprefix("aten.").removesuffix(".default")
    if name not in CLAMPS or any(isinstance(part, torch.fx.Node) for part in node.args[1:]):
        return None
    given: dict[str, Any] = dict(zip(("min", "max"), node.args[1:], strict=False)) | dict(node.kwargs)
    if name == "clamp_max":
        given = {"max": node.args[1]}
    low, high = (given.get(key, given.get(f"{key}_val")) for key in ("min", "max"))
    least, most = CLAMPS[name]
    return least if low is None else float(low), most if high is None else float(high)


def _clamp(t: Tracer, node: Any, x: Value, *rest: Any, **options: Any) -> Value:
    found = bounds(node)
    if found is None:
        raise refused(node, "has bounds that are tensors.")
    t.source.use("clip")
    low, high = (f"{'-' if v < 0 else ''}INFINITY" if math.isinf(v) else literal(v) for v in found)
    text = f"clip({{0}}, {{y}}, {x.size}, {low}, {high});"
    return t.step(text, [x], x.shape, elementwise=True)


def _softmax(t: Tracer, node: Any, x: Value, dim: int, *rest: Any) -> Value:
    shape = x.shape or (1,)
    if math.prod(shape[dim:][1:] if dim != -1 else ()) != 1:
        raise refused(node, "must be over the last axis.")
    t.source.use("softmax")
    n = shape[dim]
    return t.step(f"softmax({{0}}, {{y}}, {x.size // n}, {n});", [x], x.shape, elementwise=True)


def _affine(factor_of: Callable[[Any], Any], shift_of: Callable[[Any], Any]) -> Callable[..., Value]:
    def handler(t: Tracer, node: Any, a: Any, b: Any, *, alpha: float = 1) -> Value:
        x, other = (a, b) if isinstance(a, Value) else (b, a)
        if isinstance(other, Tensor) and other.numel() == 1:
            other = other.item()
        plain = isinstance(other, int | float) and alpha == 1
        if isinstance(other, Value) and factor_of(2.0) == 1.0 and alpha == 1:
            if x.shape != other.shape:
                return add_rows(t, node, a, b)
            t.source.use("add")
            return t.step(f"add({{0}}, {{1}}, {{y}}, {x.size});", [x, other], x.shape, elementwise=True)
        if not plain or (x is b and factor_of is _reciprocal):
            raise refused(node, f"{PAIRS}.")
        factor, shift = factor_of(other), shift_of(other)
        if not torch.tensor([factor, shift], dtype=torch.float32).isfinite().all():
            raise refused(node, "has a number that is not finite.")
        t.source.use("affine")
        numbers = f"{literal(factor)}, {literal(shift)}"
        return t.step(f"affine({{0}}, {{y}}, {x.size}, {numbers});", [x], shape_of(node), elementwise=True)

    return handler


def _reciprocal(number: Any) -> float:
    return 1 / number if number else math.inf


def _view(t: Tracer, node: Any, x: Value, *rest: Any, **options: Any) -> Value:
    shape, dtype = shape_of(node), node.meta["val"].dtype
    if dtype != torch.float32:
        raise refused(node, f"makes {dtype}; C computes in float32.")
    if math.prod(shape) != x.size:
        raise refused(node, "changes the number of entries.")
    return replace(x, shape=shape)


def _permute(t: Tracer, node: Any, x: Value, *dims: Any) -> Value:
    order = list(range(len(x.shape)))
    if str(node.target) == "aten.permute.default":
        order = [d % len(order) for d in dims[0]]
    else:
        a, b = (d % len(order) for d in dims)
        order[a], order[b] = order[b], order[a]
    moved = [d for d in order if x.shape[d] != 1]
    if moved != sorted(moved):
        raise refused(node, "moves entries; there is no C for that.")
    return _view(t, node, x)


def _part(t: Tracer, node: Any, x: Value, dim: int = 0, start: Any = 0, *rest: Any) -> Value:
    dim %= len(x.shape)
    one = str(node.target) == "aten.select.int"
    if math.prod(x.shape[:dim]) != 1 or (not one and len(rest) > 1 and rest[1] != 1):
        raise refused(node, "takes entries that are apart.")
    first = (start or 0) + (x.shape[dim] if (start or 0) < 0 else 0)
    return replace(x, shape=shape_of(node), offset=x.offset + max(0, first) * math.prod(x.shape[dim + 1 :]))


_VIEWS = (
    "view", "reshape", "flatten.using_ints", "unflatten.int", "squeeze", "squeeze.dim", "squeeze.dims",
    "unsqueeze", "contiguous", "clone", "alias", "detach", "_unsafe_view",
    "expand", "to.dtype", "_to_copy", "lift_fresh_copy", "view_as",
)  # fmt: skip
VIEWS: dict[str, Callable[..., Any]] = {
    "aten.permute": _permute,
    "aten.transpose.int": _permute,
    "aten.select.int": _part,
    "aten.slice.Tensor": _part,
    "aten._assert_tensor_metadata": lambda *given, **options: None,  # a check of the tracer's
    **{f"aten.{name}": _view for name in _VIEWS},
}
Tracer.handlers = VIEWS | {
    "torchldr.c_layer": _layer,
    "torchldr.c_recurrent": _recurrent,
    "aten.linear": _linear,
    "aten.conv2d": _conv2d,
    "aten.conv2d.padding": _conv2d,
    "aten.max_pool2d": _max_pool2d,
    "aten.relu": _elementwise("relu", "relu"),
    **{f"aten.{name}": _clamp for name in CLAMPS if name != "relu"},
    "aten.sigmoid": _elementwise("sigmoid", "sigmoid"),
    "aten.tanh": _elementwise("hyperbolic", "tanh"),
    "aten.softmax.int": _softmax,
    "aten._softmax": _softmax,
    "aten.add.Tensor": _affine(lambda b: 1.0, lambda b: b),
    "aten.sub.Tensor": subtract,
    "aten.mean.dim": mean,
    "aten.mul.Tensor": _affine(lambda b: b, lambda b: 0.0),
    "aten.div.Tensor": _affine(_reciprocal, lambda b: 0.0),
}
