"""Products as C functions: of one matrix (x, y, work), and of a recurrent layer step after step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from ...core import rules
from ...core.storage import Rounded
from ...matrices import StructuredMatrix
from ...nn import MatrixStack
from ...nn.quantize import stored_weight, weights_of
from .writer import Source, Writer


class Product(NamedTuple):
    """A function of C, how it multiplies, what it takes."""

    name: str
    shape: tuple[int, int]
    form: str
    flash: int
    scratch: int
    multiplications: float


def structured_product(source: Source, layer: Any, *index: int) -> Product:
    """The product of a structured layer's matrix, or of one in a stack."""
    M: StructuredMatrix = layer.matrix()[index] if index else layer.matrix()
    stored = {}
    if source.weights == "int8":
        for weight in weights_of(layer):
            made = stored_weight(layer, weight.name)
            stored[weight.name] = Rounded(made.scale[index], made.integers[index], made.offset)
    return write_product(source, M, stored)


def write_product(source: Source, M: StructuredMatrix, stored: Mapping[str, Rounded]) -> Product:
    """Write the product of a matrix whose tensors are stored so; others are floats.

    A class without C multiplies by its dense matrix, in float32.
    """
    tensors = {name: t.detach().cpu() for name, t in M.tensors.items()}
    tensors |= {name: made.value().detach().cpu() for name, made in stored.items()}
    M = M.with_tensors(tensors).to(tensors[M.scaled[0]].float().dtype)
    name = source.new_name("product")
    c = Writer(source, name, M, stored)
    rule, floats = rules.of_product("c", type(M)), source.weights == "int8" and not stored
    if rule is None or floats:
        form = "floats" if rule is not None else "dense matrix in float32: the class has no C"
        m, n = M.shape
        c.use("dense_float")
        weight = c.constant("weight", M.double().to_dense().float().numpy())
        c.call(f"dense_float({weight}, {m}, {n}, x, y);")
        c.multiplications = m * n
    else:
        form = rule(M, c)
    body = "".join(f"    {line}\n" for line in c.calls)
    source.products.append(
        f"\nstatic void {name}(const float *x, float *y, float *work)\n{{\n    (void)work;\n{body}}}\n"
    )
    return Product(name, (M.out_features, M.in_features), form, c.flash, c.scratch, c.multiplications)


# Recurrent layers: all layers and directions as one function.


def _gates(source: Source, layer: Any, name: str) -> list[Product]:
    """The products with all gates' matrices: one a gate, or one for all where they are dense."""
    part = getattr(layer, name)
    if isinstance(part, MatrixStack):
        return [structured_product(source, part, i) for i in range(part.leading[0])]
    assert isinstance(part, Tensor)
    stored = {"weight": stored_weight(layer, name)} if source.weights == "int8" else {}
    return [write_product(source, rules.apply("linear_map", part.detach()), stored)]


def write_recurrent(source: Source, layer: Any, steps: int) -> Product:
    """Write `name(x, y, h, c, work)`, or without c for a GRU: states begin at 0 and end in h and c."""
    name, n, lstm = source.new_name("recurrent"), layer.hidden_size, len(layer.state_names) == 2
    gates, directions = len(layer.gates) * n, 2 if layer.bidirectional else 1
    width = directions * n
    source.use("zero", "copy", "lstm_step" if lstm else "gru_step")
    lines, forms, flash, scratch, multiplications = [], [], 0, 0, 0.0
    rest = 2 * gates + 2 * steps * width  # gates, hidden, two sequences between layers
    index = 0
    for number in range(layer.num_layers):
        before = "x" if number == 0 else f"sequence_{(number - 1) % 2}"
        size = layer.input_size if number == 0 else width
        after = "y" if number == layer.num_layers - 1 else f"sequence_{number % 2}"
        for direction, suffix in enumerate(layer._suffixes(number)):
            lines += [f"for (int t = 0; t < {steps}; t++) {{"]
            lines += [f"    int at_step = {f'{steps - 1} - t' if direction else 't'};"]
            state = f"h + {index * n}"
            for side, place, given in (
                ("ih", "gates", f"{before} + at_step * {size}"),
                ("hh", "hidden", state),
            ):
                offset = 0
                for made in _gates(source, layer, f"weight_{side}{suffix}"):
                    lines += [f"    {made.name}({given}, {place} + {offset}, rest);"]
                    offset += made.shape[0]
                    flash, scratch = flash + made.flash, max(scratch, made.scratch)
                    multiplications += steps * made.multiplications
                    forms.append(made.form)
                if layer.bias:
                    values = getattr(layer, f"bias_{side}{suffix}")
                    symbol = source.bias(source.new_name("bias"), values)
                    flash += 4 * values.numel()
                    lines += [f"    add_bias({place}, {symbol}, {gates}, 1);"]
            cell = f"c + {index * n}, " if lstm else ""
            lines += [f"    {'lstm' if lstm else 'gru'}_step(gates, hidden, {state}, {cell}{n});"]
            lines += [f"    copy({state}, {after} + at_step * {width} + {direction * n}, {n});", "}"]
            index += 1
    declared = [f"float *gates = work, *hidden = work + {gates}, *rest = work + {rest};"]
    if layer.num_layers > 1:
        declared += [f"float *sequence_0 = work + {2 * gates};"]
    if layer.num_layers > 2:
        declared += [f"float *sequence_1 = work + {2 * gates + steps * width};"]
    declared += [f"zero({state}, {index * n});" for state in ("h", "c")[: 1 + lstm]]
    body = "".join(f"    {line}\n" for line in (*declared, *lines))
    states = "float *h, float *c" if lstm else "float *h"
    source.products.append(
        f"\nstatic void {name}(const float *x, float *y, {states}, float *work)\n{{\n{body}}}\n"
    )
    form = " or ".join(dict.fromkeys(forms))
    return Product(name, (width, layer.input_size), form, flash, rest + scratch, multiplications)
