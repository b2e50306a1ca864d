"""From a traced model to steps of C in integers, node by node, and the same steps in torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....core import rules
from ....core.matrix import StructuredMatrix
from ...check import ExportError
from ..graph import CLAMPS, VIEWS, Tracer, bounds, image_of, two, window_of
from ..nodes import layer_name, refused, shape_of
from ..rows import PAIRS
from ..steps import Buffer, Step, Value
from .ranges import moved
from .recurrent import write_recurrent
from .rows import add_rows, mean, subtract, weighed
from .scaling import Format, eight_bits, rescaling, rounded_rows
from .writer import IntegerSource, IntegerWriter, Target, chain

MOST_ERROR = 0.1  # of a matrix in integers, in the Frobenius norm
Compute = Callable[..., Any]
Place = tuple[Buffer, int, int]  # of a value: its buffer, where it begins, its size


class IntegerTracer(Tracer):
    """The steps of a traced model; calibration inputs go through them while they are made.

    Args:
        source, layers: as for `Tracer`.
        ranges: of all nodes, in floating point.
        given: inputs of the calibration, integers (b, size).
        taken: the format of the input.
    """

    source: IntegerSource

    def __init__(
        self,
        source: IntegerSource,
        layers: Sequence[Any],
        ranges: dict[str, tuple[float, float]],
        given: Tensor,
        taken: Format,
    ) -> None:
        super().__init__(source, layers)
        self.ranges, self.given, self.taken = ranges, given, taken
        self.known: dict[Buffer, Tensor] = {}
        self.computed: list[tuple[list[Place], list[Buffer], Compute]] = []
        self.input: Buffer | None = None
        self.scratch16 = self.scratch32 = 0

    def _call(self, node: torch.fx.Node) -> Any:
        if self.input is None:
            (value,) = (v for v in self.values.values() if isinstance(v, Value))
            value.format, self.input = self.taken, value.buffer
            self.known[self.input] = self.given
        return super()._call(node)

    # Values of the calibration.

    def integers(self, x: Value) -> Tensor:
        return self.known[x.buffer][:, x.offset : x.offset + x.size]

    def add(
        self,
        text: str,
        reads: list[Value],
        outs: Sequence[tuple[Sequence[int], Format | None]],
        compute: Compute,
        *,
        scratch: tuple[int, int] = (0, 0),
        elementwise: bool = False,
    ) -> list[Value]:
        """A step: text, what it reads, shapes and formats of what it writes, and the same in torch."""
        made = [Value(Buffer(math.prod(shape)), tuple(shape), format=kind) for shape, kind in outs]
        self.made.steps.append(Step(text, reads, made, elementwise=elementwise))
        self.scratch16 = max(self.scratch16, scratch[0])
        self.scratch32 = max(self.scratch32, scratch[1])
        results = compute(*map(self.integers, reads))
        results = results if isinstance(results, tuple) else (results,)
        for value, result in zip(made, results, strict=True):
            self.known[value.buffer] = result
        places = [(x.buffer, x.offset, x.size) for x in reads]
        self.computed.append((places, [value.buffer for value in made], compute))
        return made

    def reference(self, outputs: Sequence[Place]) -> Callable[[Tensor], Tensor]:
        """The model in torch: integers (b, input) to integers (b, output), as the C computes them."""
        computed, first = list(self.computed), self.input

        def run(q: Tensor) -> Tensor:
            known = {first: q.long()}
            for places, made, compute in computed:
                results = compute(*(known[b][:, start : start + size] for b, start, size in places))
                results = results if isinstance(results, tuple) else (results,)
                known.update(zip(made, results, strict=True))
            return torch.cat([known[b][:, start : start + size] for b, start, size in outputs], 1)

        return run

    # Formats.

    def format_of(self, node: torch.fx.Node) -> Format:
        """The format of a node's output. Where only a clamp follows, the clamp's range counts."""
        while len(node.users) == 1:
            (after,) = node.users
            if bounds(after) is None and str(after.target).removesuffix(".default") not in VIEWS:
                break
            node = after
        low, high = self.ranges.get(node.name, (0.0, 0.0))
        return eight_bits(*moved(f"node {node.name!r} ({layer_name(node) or 'the model'})", low, high))

    # Products.

    def matrix_product(
        self, node: Any, x: Value, M: StructuredMatrix, bias: Tensor | None, kind: str, name: str = ""
    ) -> Value:
        """Multiply every vector along the last axis."""
        (m, n), target = M.shape, Target(self.format_of(node), bias)
        count = x.size // n
        given = self.integers(x).reshape(-1, n) - x.format.zero
        who = name or layer_name(node) or node.name
        made = write_product(self.source, M, given, x.format, target, f"{who}, node {node.name!r}")
        run, zero = chain(made.stages), x.format.zero

        def compute(q: Tensor) -> Tensor:
            return run(q.reshape(-1, n) - zero).reshape(len(q), -1)

        loop, into, out = "", "{0}", "{y}"
        if count > 1:
            loop = f"for (int32_t i = 0; i < {count}; i++)\n    "
            into, out = f"{into} + i * {n}", f"{out} + i * {m}"
        text = f"{loop}{made.name}({into}, {out}, work, sums);"
        shape = (*x.shape[:-1], m)
        scratch = made.scratch16, made.scratch32
        ram = math.prod(shape) + 2 * scratch[0] + 4 * scratch[1]
        self.bytes_row(node, kind, made.form, made.flash, ram, count * made.multiplications, name)
        return self.add(text, [x], [(shape, target.format)], compute, scratch=scratch)[0]

    def bytes_row(
        self, node: Any, kind: str, form: str, flash: int, ram: int, multiplications: float, name: str = ""
    ) -> None:
        self.row(node, kind, form, flash, 0, multiplications, name)
        self.made.rows[-1] = self.made.rows[-1]._replace(ram=ram)


def write_product(
    source: IntegerSource, M: StructuredMatrix, given: Tensor, taken: Format, target: Target, who: str
) -> IntegerWriter:
    """Write the product of a matrix as a function (x, y, work, sums); its `form` says how.

    Args:
        given: inputs of the calibration, integers (b, n), less their zero.
        who: for errors.
    """
    M = M.with_tensors({name: t.detach().cpu() for name, t in M.tensors.items()})
    dense = M.double().to_dense()
    rule, note = rules.of_product("c_integer", type(M)), ""
    if rule is None:
        M, note = rules.apply("linear_map", dense.float()), "dense: the class has no integers"
        rule = rules.of_product("c_integer", type(M))
        assert rule is not None
    c = IntegerWriter(source, source.new_name("product"), M, given, taken, target)
    try:
        form = note or rule(M, c)
    except OverflowError as error:
        raise ExportError(f"to_c: {who} has no C in integers: {error}.") from error
    if note:
        rule(M, c)
    assert c.map is not None
    size = dense.norm().item()
    off = (c.map - dense).norm().item() / size if size else 0.0
    if off > MOST_ERROR:
        raise ExportError(
            f"to_c: {who} has no C in integers: {form} would be off by {100 * off:.3g} % of the matrix."
        )
    c.form = f"{form}; within {100 * off:.2g} %"
    bits = target.format.bits
    body = "".join(f"    {line}\n" for line in c.calls)
    head = f"static void {c.name}(const int8_t *x, int{bits}_t *y, int16_t *work, int32_t *sums)"
    source.products.append(f"\n{head}\n{{\n    (void)work;\n    (void)sums;\n{body}}}\n")
    return c


# Nodes.


def _layer(t: IntegerTracer, node: Any, x: Value, index: int, features: int) -> Value:
    name, module = t.layers[index]
    rank = "" if module.rank is None else f", rank {module.rank}"
    kind = f"{module.structure.name} {module.out_features} x {module.in_features}{rank}"
    bias = None if module.bias is None else module.bias.detach()
    return t.matrix_product(node, x, module.matrix(), bias, kind, name)


def _linear(t: IntegerTracer, node: Any, x: Any, weight: Any, bias: Any = None) -> Value:
    if not isinstance(x, Value) or not isinstance(weight, Tensor):
        raise refused(node, "has a weight that is computed from the input.")
    m, n = weight.shape
    M = rules.apply("linear_map", weight.float())
    return t.matrix_product(node, x, M, bias, f"linear {m} x {n}")


def _recurrent(
    t: IntegerTracer, node: Any, x: Value, index: int, shapes: list[int], states: list[int], count: int
) -> Any:
    if any(user.args[1] == 2 and user.users for user in node.users):
        raise refused(node, "gives its cell state to others, which has no integers of 8 bits.")
    name, module = t.layers[index]
    steps = math.prod(shapes[:-1])
    made = write_recurrent(t.source, write_product, module, name, t.integers(x), x.format, steps)
    buffers = [((size,), None) for size in made.buffers]
    outs = [(shapes, made.out), (states, made.out), *buffers]
    pointers = ", ".join(f"{{y{i or ''}}}" for i in range(len(outs)))
    text = f"{made.name}({{0}}, {pointers}, work, sums);"
    size = sum(math.prod(shape) for shape, _ in outs) + 2 * made.scratch[0] + 4 * made.scratch[1]
    kind = f"{type(module).__name__.removeprefix('Parametrized')} {module.input_size} -> {module.hidden_size}"
    t.bytes_row(node, kind, made.form, made.flash, size, made.multiplications, name)
    found = t.add(text, [x], outs, made.compute, scratch=made.scratch)
    return (*found[:2], None)[: 1 + count]


def _conv2d(
    t: IntegerTracer,
    node: Any,
    x: Value,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
) -> Value:
    shape, out, kernel = image_of(node, x.shape), image_of(node, shape_of(node)), tuple(weight.shape[2:])
    stride, dilation = two(stride), two(dilation)
    if isinstance(padding, str):
        same = [d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True)]
        padding = same if padding == "same" else 0
    padding, target = two(padding), t.format_of(node)
    integers, scale = rounded_rows(weight, bias, x.format.scale)
    unit, added = x.format.scale * scale, None
    if bias is not None:
        added = (bias.double() / unit).round().long()
    largest = max(x.format.high - x.format.zero, x.format.zero - x.format.low)
    bound = largest * integers.abs().flatten(1).sum(1).max().item()
    bound += 0 if added is None else added.abs().max().item()
    try:
        final = rescaling(unit / target.scale, added, target, bound, exact=True)
    except OverflowError as error:
        raise refused(node, f"has no C in integers: {error}.") from error
    symbol = t.source.new_name("conv")
    t.source.use("conv2d")
    data = t.source.constant(symbol, integers.long().numpy(), "int8")
    window = t.source.object(
        "window", f"{symbol}_window", window_of(shape, out, (kernel, stride, padding, dilation), groups)
    )
    after, flash = t.source.rescaling(f"{symbol}_scale", final, added)
    pads: list[int] = []  # before and behind: "same" pads what is left
    for o, i, k, s, d, p in zip(out[1:], shape[1:], kernel, stride, dilation, padding, strict=True):
        pads += [p, max(0, (o - 1) * s + (k - 1) * d + 1 - i - p)]
    zero = x.format.zero

    def compute(q: Tensor) -> Tensor:
        image = torch.nn.functional.pad((q - zero).double().reshape(-1, *shape), (*pads[2:], *pads[:2]))
        sums = torch.nn.functional.conv2d(image, integers, None, stride, 0, dilation, groups)
        sums = sums[..., : out[1], : out[2]].movedim(1, -1)
        return final(sums.round().long()).movedim(-1, 1).flatten(1)

    count = math.prod(out)
    kind = f"conv2d {shape[0]} -> {out[0]}, {kernel[0]} x {kernel[1]}"
    t.bytes_row(node, kind, "windows", flash + weight.numel(), count, count * weight[0].numel())
    text = f"conv2d(&{window}, {data}, {zero}, {after}, {{0}}, {{y}});"
    return t.add(text, [x], [(shape_of(node), target)], compute)[0]


def _max_pool2d(
    t: IntegerTracer,
    node: Any,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Value:
    shape, out = image_of(node, x.shape), shape_of(node)
    pairs = (kernel, stride or kernel, padding, dilation)
    t.source.use("max_pool2d")
    fields = window_of(shape, image_of(node, out), pairs, 1)
    window = t.source.object("window", t.source.new_name("pool"), fields)
    t.bytes_row(node, "max_pool2d {} x {}".format(*two(kernel)), "windows", 0, math.prod(out), 0)

    def compute(q: Tensor) -> Tensor:
        image = q.double().reshape(-1, *shape)
        pooled = torch.nn.functional.max_pool2d(
            image, two(kernel), two(pairs[1]), padding, dilation, ceil_mode
        )
        return pooled.flatten(1).long()

    text = f"max_pool2d(&{window}, {{0}}, {{y}});"
    return t.add(text, [x], [(out, x.format)], compute)[0]


def _clamp(t: IntegerTracer, node: Any, x: Value, *rest: Any, **options: Any) -> Value:
    found = bounds(node)
    if found is None:
        raise refused(node, "has bounds that are tensors.")
    kind = x.format
    low, high = (
        int(min(max(round(bound / kind.scale + kind.zero), kind.low), kind.high))
        if math.isfinite(bound)
        else limit
        for bound, limit in zip(found, (kind.low, kind.high), strict=True)
    )
    if low <= kind.low and high >= kind.high:
        return x
    t.source.use("clip")
    text = f"clip({{0}}, {{y}}, {x.size}, {low}, {high});"
    return t.add(text, [x], [(x.shape, kind)], lambda q: q.clamp(low, high), elementwise=True)[0]


def table(t: IntegerTracer, x: Value, function: Callable[[Tensor], Tensor], out: Format) -> Value:
    """Any function of one number, as a table of 256 values."""
    values = out.integers(function(x.format.values(torch.arange(-128, 128)).double()))
    t.source.use("table")
    name = t.source.constant(t.source.new_name("table"), values.numpy(), "int8")
    t.source.shared += 256
    text = f"table({name}, {{0}}, {{y}}, {x.size});"
    return t.add(text, [x], [(x.shape, out)], lambda q: values[q + 128], elementwise=True)[0]


def _function(function: Callable[[Tensor], Tensor], out: Format) -> Callable[..., Value]:
    return lambda t, node, x: table(t, x, function, out)


def _softmax(t: IntegerTracer, node: Any, x: Value, dim: int, *rest: Any) -> Value:
    shape = x.shape or (1,)
    if math.prod(shape[dim:][1:] if dim != -1 else ()) != 1:
        raise refused(node, "must be over the last axis.")
    n = shape[dim]
    if n > 2**16:
        raise refused(node, "adds more than 65,536 exponentials, which leave 32 bits.")
    exponents = (65535 * (-x.format.scale * torch.arange(256).double()).exp()).round().long()
    t.source.use("softmax")
    t.source.shared += 512
    name = t.source.constant(t.source.new_name("exponents"), exponents.numpy(), "uint16")

    def compute(q: Tensor) -> Tensor:
        rows = q.reshape(-1, n)
        e = exponents[rows.amax(1, keepdim=True) - rows]
        total = e.sum(1, keepdim=True)
        return ((e * 256 + total // 2).div(total, rounding_mode="floor").clamp(max=255) - 128).reshape(
            q.shape
        )

    text = f"softmax({name}, {{0}}, {{y}}, {x.size // n}, {n});"
    return t.add(text, [x], [(x.shape, Format(1 / 256, -128))], compute, elementwise=True)[0]


def _sum(t: IntegerTracer, node: Any, a: Value, b: Value) -> Value:
    final, by, after = weighed(t, node, a, b, 1)
    t.source.use("add")
    text = f"add({after}, {{0}}, {by[0]}, {{1}}, {by[1]}, {{y}}, {a.size});"
    compute = lambda p, q: final(p * by[0] + q * by[1])
    return t.add(text, [a, b], [(a.shape, final.format)], compute, elementwise=True)[0]


def _affine(factor_of: Callable[[Any], Any], shift_of: Callable[[Any], Any]) -> Callable[..., Value]:
    def handler(t: IntegerTracer, node: Any, a: Any, b: Any, *, alpha: float = 1) -> Value:
        x, other = (a, b) if isinstance(a, Value) else (b, a)
        if isinstance(other, Tensor) and other.numel() == 1:
            other = other.item()
        plain = isinstance(other, int | float) and alpha == 1
        if isinstance(other, Value) and factor_of(2.0) == 1.0 and alpha == 1:
            return (_sum if x.shape == other.shape else add_rows)(t, node, a, b)
        if not plain or (x is b and factor_of(2.0) == 0.5):
            raise refused(node, f"{PAIRS}.")
        factor, shift = float(factor_of(other)), float(shift_of(other))
        if not torch.tensor([factor, shift], dtype=torch.float32).isfinite().all():
            raise refused(node, "has a number that is not finite.")
        if shift == 0 and factor > 0:
            return replace(x, shape=shape_of(node), format=x.format._replace(scale=factor * x.format.scale))
        found = table(t, x, lambda v: factor * v + shift, t.format_of(node))
        return replace(found, shape=shape_of(node))

    return handler


IntegerTracer.handlers = VIEWS | {
    "torchldr.c_layer": _layer,
    "torchldr.c_recurrent": _recurrent,
    "aten.linear": _linear,
    "aten.conv2d": _conv2d,
    "aten.conv2d.padding": _conv2d,
    "aten.max_pool2d": _max_pool2d,
    **{f"aten.{name}": _clamp for name in CLAMPS},
    "aten.sigmoid": _function(torch.sigmoid, Format(1 / 256, -128)),
    "aten.tanh": _function(torch.tanh, Format(1 / 128)),
    "aten.softmax.int": _softmax,
    "aten._softmax": _softmax,
    "aten.add.Tensor": _affine(lambda b: 1.0, lambda b: b),
    "aten.sub.Tensor": subtract,
    "aten.mean.dim": mean,
    "aten.mul.Tensor": _affine(lambda b: b, lambda b: 0.0),
    "aten.div.Tensor": _affine(lambda b: 1 / b if b else math.inf, lambda b: 0.0),
}
