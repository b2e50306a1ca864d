"""Products as ONNX nodes.

torch's exporter takes about a tenth of a second for every operation, and folds constants that should stay
small. So it sees each product as one placeholder, and the product's module runs here on symbols that
write nodes: `Symbol` knows the few operations that the modules of this package use.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partialmethod
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from .check import ExportError
from .layers import DOMAIN, Held

_LAST = np.iinfo(np.int64).max
_FLOAT, _DOUBLE = 1, 11  # of onnx.TensorProto
Size = int | None  # None where it changes from call to call


class Builder:
    """Nodes and initializers of one file; equal ones are written once.

    For the body of a loop, whose inputs are `own`, `outer` is the builder of the graph around it: that gets
    the initializers and all nodes that do not depend on the step. Names that are in use are `taken`.
    """

    def __init__(
        self, opset: int, taken: Iterable[str], outer: Builder | None = None, own: Iterable[str] = ()
    ) -> None:
        self.opset, self.nodes, self.initializers = opset, [], []  # type: ignore[var-annotated]
        self._taken, self._count = set(taken), itertools.count()
        self._outer, self._own = outer, set(own)
        self._known: dict[Any, str] = {}

    def constant(self, values: Any) -> str:
        """The name of an initializer with these values."""
        from onnx import numpy_helper

        if self._outer is not None:
            return self._outer.constant(values)
        array = np.ascontiguousarray(values)
        key = array.dtype.str, np.shape(values), array.tobytes()
        if key not in self._known:
            name = self._known[key] = self._name()
            self.initializers.append(numpy_helper.from_array(array.reshape(np.shape(values)), name))
        return self._known[key]

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The name of a node's only output."""
        from onnx import helper

        if self._outer is not None and self._own.isdisjoint(inputs):
            return self._outer.node(operator, *inputs, **attributes)
        key = operator, inputs, tuple(sorted((k, str(v)) for k, v in attributes.items()))
        if key not in self._known:
            name = self._known[key] = self._name()
            self.add(helper.make_node(operator, list(inputs), [name], **attributes))
        return self._known[key]

    def add(self, node: Any) -> None:
        """A node as it is."""
        self.nodes.append(node)
        self._own.update(node.output)

    def _name(self) -> str:
        if self._outer is not None:
            return self._outer._name()
        return next(name for name in (f"t{i}" for i in self._count) if name not in self._taken)


class Symbol:
    """A tensor of the graph, with the interface of torch's as far as products use it."""

    def __init__(self, builder: Builder, name: str, shape: Sequence[Size]) -> None:
        self.builder, self.name, self.shape = builder, name, tuple(shape)

    ndim = property(lambda self: len(self.shape))

    def _new(self, shape: Sequence[Size], operator: str, *inputs: Any, **attributes: Any) -> Symbol:
        return Symbol(self.builder, self.builder.node(operator, *inputs, **attributes), shape)

    def _integers(self, *values: int) -> str:
        return self.builder.constant(np.array(values, dtype=np.int64))

    def _axis(self, axis: int) -> int:
        return axis % len(self.shape)

    def _shape(self, axis: int, *sizes: Size) -> tuple[Size, ...]:
        """The shape with these sizes in the place of one."""
        return *self.shape[:axis], *sizes, *self.shape[axis + 1 :]

    # Elementwise operations and products.

    def _with(self, operator: str, other: Any) -> Symbol:
        if not isinstance(other, Symbol):
            raise ExportError(f"to_onnx: a form combines a tensor with {other!r}; make that a buffer.")
        return self._new(_broadcast(self.shape, other.shape), operator, self.name, other.name)

    __mul__, __truediv__ = partialmethod(_with, "Mul"), partialmethod(_with, "Div")
    __add__, __sub__ = partialmethod(_with, "Add"), partialmethod(_with, "Sub")

    def __neg__(self) -> Symbol:
        return self._new(self.shape, "Neg", self.name)

    def remainder(self, divisor: int) -> Symbol:
        return self._new(self.shape, "Mod", self.name, self._integers(divisor))

    def double(self) -> Symbol:
        return self._new(self.shape, "Cast", self.name, to=_DOUBLE)

    def float(self) -> Symbol:
        return self._new(self.shape, "Cast", self.name, to=_FLOAT)

    def __matmul__(self, other: Symbol) -> Symbol:
        lead = _broadcast(self.shape[:-2], other.shape[:-2])
        shape = (*lead, self.shape[-2], other.shape[-1])
        return self._new(shape, "MatMul", self.name, other.name)

    def sum(self, axis: int, keepdim: bool = False) -> Symbol:
        axis = self._axis(axis)
        shape = self._shape(axis, 1) if keepdim else self._shape(axis)
        return self._new(shape, "ReduceSum", self.name, self._integers(axis), keepdims=int(keepdim))

    # Shapes.

    def unsqueeze(self, axis: int) -> Symbol:
        axis = axis % (len(self.shape) + 1)
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        return self._new(shape, "Unsqueeze", self.name, self._integers(axis))

    def squeeze(self, axis: int) -> Symbol:
        axis = self._axis(axis)
        return self._new(self._shape(axis), "Squeeze", self.name, self._integers(axis))

    def reshape(self, *shape: Any) -> Symbol:
        sizes = list(shape[0]) if isinstance(shape[0], tuple) else list(shape)
        found: list[Size] = [None if size == -1 else size for size in sizes]
        return self._new(found, "Reshape", self.name, self._integers(*sizes))

    def flatten(self, first: int) -> Symbol:
        sizes = [size for size in self.shape[first:] if size is not None]
        return self.reshape(*[-1] * first, int(np.prod(sizes)))

    def permute(self, *axes: int) -> Symbol:
        return self._new([self.shape[a] for a in axes], "Transpose", self.name, perm=list(axes))

    def transpose(self, a: int, b: int) -> Symbol:
        axes = list(range(len(self.shape)))
        a, b = self._axis(a), self._axis(b)
        axes[a], axes[b] = b, a
        return self.permute(*axes)

    mT = property(lambda self: self.transpose(-1, -2))  # noqa: N815 - torch's name

    def contiguous(self) -> Symbol:
        return self

    # Parts.

    def _slice(self, axis: int, start: int, end: int, step: int, size: Size) -> Symbol:
        bounds = [self._integers(v) for v in (start, end, axis, step)]
        return self._new(self._shape(axis, size), "Slice", self.name, *bounds)

    def flip(self, axis: int) -> Symbol:
        axis = self._axis(axis)
        return self._slice(axis, -1, -_LAST, -1, self.shape[axis])

    def index_select(self, axis: int, index: Symbol) -> Symbol:
        axis = self._axis(axis)
        return self._new(self._shape(axis, *index.shape), "Gather", self.name, index.name, axis=axis)

    def __getitem__(self, index: Any) -> Symbol:
        parts = index if isinstance(index, tuple) else (index,)
        if Ellipsis in parts:
            place = parts.index(Ellipsis)
            missing = len(self.shape) - len(parts) + 1
            parts = (*parts[:place], *[slice(None)] * missing, *parts[place + 1 :])
        made, axis = self, 0
        for part in parts:
            size = made.shape[axis]
            if isinstance(part, int):
                scalar = self.builder.constant(np.array(part % size if size else part, dtype=np.int64))
                made = made._new(made._shape(axis), "Gather", made.name, scalar, axis=axis)
                continue
            if part != slice(None):
                assert size is not None
                start, end, step = part.indices(size)
                if (start, end) != (0, size):
                    made = made._slice(axis, start, end, step, end - start)
            axis += 1
        return made

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function not in _FUNCTIONS:
            name = getattr(function, "__name__", function)
            raise ExportError(f"to_onnx: a form uses {name}, which cannot be written to ONNX.")
        return _FUNCTIONS[function](*args, **(kwargs or {}))


def _broadcast(a: Sequence[Size], b: Sequence[Size]) -> tuple[Size, ...]:
    pairs = itertools.zip_longest(reversed(a), reversed(b), fillvalue=1)
    return tuple(reversed([x if y == 1 else y for x, y in pairs]))


def _cat(parts: Sequence[Symbol], axis: int = 0) -> Symbol:
    first = parts[0]
    axis = first._axis(axis)
    total = sum(part.shape[axis] or 0 for part in parts)
    return first._new(first._shape(axis, total), "Concat", *(part.name for part in parts), axis=axis)


def _pad(x: Symbol, widths: Sequence[int], *_: Any, **__: Any) -> Symbol:
    """Zeros behind the last axes; widths (0, behind) from the last axis back, as torch has them."""
    behind = [0] * len(x.shape)
    for i, width in enumerate(widths[1::2]):
        behind[len(x.shape) - 1 - i] = width
    if not any(behind):
        return x
    shape = [None if size is None else size + width for size, width in zip(x.shape, behind, strict=True)]
    return x._new(shape, "Pad", x.name, x._integers(*[0] * len(behind), *behind))


def _dft(x: Symbol, inverse: int) -> Symbol:
    axis = len(x.shape) - 1
    if x.builder.opset < 20:
        name = x.builder.node("DFT", x.name, axis=axis, inverse=inverse)
    else:
        place = x.builder.constant(np.array(axis, dtype=np.int64))
        name = x.builder.node("DFT", x.name, "", place, inverse=inverse)
    return Symbol(x.builder, name, x.shape)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.cat: _cat,
    torch.stack: lambda parts, axis=0: _cat([part.unsqueeze(axis) for part in parts], axis),
    functional.pad: _pad,
    # A complex tensor is one of pairs, whose last axis its shape does not have.
    torch.view_as_complex: lambda x: Symbol(x.builder, x.name, x.shape[:-1]),
    torch.view_as_real: lambda x: Symbol(x.builder, x.name, (*x.shape, 2)),
    torch.fft.fft: lambda x: _dft(x, 0),
    torch.fft.ifft: lambda x: _dft(x, 1),
    functional.embedding: lambda index, x, **_: x.index_select(0, index),
}


def write(product: nn.Module, x: Symbol) -> Symbol:
    """The nodes of a product's module for the input x (None, in_features)."""
    kept = [(part, part._buffers) for part in product.modules()]
    try:
        for part, buffers in kept:
            symbols: dict[str, Any] = {}
            for name, t in buffers.items():
                known = None if t is None else x.builder.constant(t.detach().cpu().numpy())
                symbols[name] = None if t is None else Symbol(x.builder, str(known), t.shape)
            part._buffers = symbols
        return product(x)
    finally:
        for part, buffers in kept:
            part._buffers = buffers


def expand(model: Any, held: Held, opset: int) -> None:
    """Replace the placeholders of an onnx.ModelProto by the nodes of the products that are held, in place."""
    taken = {value.name for value in model.graph.initializer}
    for graph in graphs(model.graph):
        taken |= {value.name for value in graph.input}
        taken |= {name for node in graph.node for name in (*node.input, *node.output)}
    builder = Builder(opset, taken)
    _expand(model.graph, builder, held)
    model.graph.initializer.extend(builder.initializers)
    for imported in [each for each in model.opset_import if each.domain == DOMAIN]:
        model.opset_import.remove(imported)


def graphs(graph: Any) -> Iterator[Any]:
    """A graph and those in its nodes: the bodies of loops."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def bodies(node: Any) -> list[Any]:
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def _expand(graph: Any, builder: Builder, held: Held) -> None:
    from onnx import helper

    for node in graph.node:
        if node.domain != DOMAIN:
            for body in bodies(node):
                inner = Builder(builder.opset, (), builder, (value.name for value in body.input))
                _expand(body, inner, held)
            builder.add(node)
            continue
        product, size = held[node.attribute[0].i]
        made = write(product, Symbol(builder, node.input[0], (None, size)))
        builder.add(helper.make_node("Identity", [made.name], [node.output[0]]))
    nodes = list(builder.nodes)
    del graph.node[:]
    graph.node.extend(nodes)
