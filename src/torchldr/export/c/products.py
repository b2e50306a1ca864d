"""The product of one matrix as a C function (x, y, work)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from ...core import rules
from ...core.storage import FLOAT, INT8, Rounded
from ...matrices import StructuredMatrix
from ...nn.quantize import stored_weight
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
        for name in layer._learned:
            storage = layer.structure.stored.get(name, INT8)
            if storage != FLOAT:
                made = stored_weight(layer, name, storage, len(index))
                stored[name] = Rounded(made.scale[index], made.integers[index], made.offset)
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


def is_plain(module: nn.Module, cls: type[nn.Module]) -> bool:
    """Whether a module computes what its class computes."""
    return isinstance(module, cls) and type(module).forward is cls.forward
