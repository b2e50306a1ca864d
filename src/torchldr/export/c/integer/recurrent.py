"""Recurrent layers in integers: gates in 16 bits, one table for sigmoid and tanh.

The table's arguments have 12 bits behind the point, so 16 bits hold -8 to 8. Gates have fewer bits behind the
point if the part from the input or the part from the state is larger on the calibration's inputs. Only the
sum of both may saturate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....core import rules
from ....nn import MatrixStack
from ...check import ExportError
from .ranges import moved
from .scaling import Format, eight_bits, rescaling
from .writer import IntegerSource, Target, chain

POINT = 12  # bits behind the point of the table's numbers
LEAST = 2.0**-15  # of states: 16 bits hold no smaller number
MARGIN = 1.5  # cells may be this many times those of the calibration
LOGISTIC = (32767 * torch.sigmoid(torch.arange(-128, 129).double() / 16)).round().long()


class Made(NamedTuple):
    """A function (x, y, h, buffers.., work, sums), and the same in torch."""

    name: str
    form: str
    flash: int
    scratch: tuple[int, int]
    multiplications: float
    out: Format
    buffers: list[int]
    compute: Callable[[Tensor], tuple[Tensor, ...]]


def logistic(x: Tensor) -> Tensor:
    at = x.clamp(-32768, 32767) + 32768
    i = at >> 8
    return LOGISTIC[i] + (((LOGISTIC[i + 1] - LOGISTIC[i]) * (at & 255) + 128) >> 8)


def hyperbolic(x: Tensor) -> Tensor:
    return (2 * logistic(2 * x) - 32768).clamp(-32767, 32767)


def _lstm(gates: Tensor, hidden: Tensor, h: Tensor, c: Tensor, wide: int, cell: int) -> tuple[Tensor, Tensor]:
    (i, f, g, o) = ((gates + hidden) << wide).chunk(4, -1)
    g = hyperbolic(g)
    total = logistic(f) * c + ((logistic(i) * g) >> (15 - cell))
    c = ((total + 16384) >> 15).clamp(-32768, 32767)
    most = c << (POINT - cell) if cell < POINT else c >> (cell - POINT)
    return (logistic(o) * hyperbolic(most) + 16384) >> 15, c


def _gru(gates: Tensor, hidden: Tensor, h: Tensor, c: Tensor, wide: int, cell: int) -> tuple[Tensor, Tensor]:
    (a, b, g), (p, q, n) = gates.chunk(3, -1), hidden.chunk(3, -1)
    new = hyperbolic((g + ((logistic((a + p) << wide) * n + 16384) >> 15)) << wide)
    return new + ((logistic((b + q) << wide) * (h - new)) >> 15), c


class Part(NamedTuple):
    """A direction of a layer, as C needs it."""

    before: int  # the sequence that it reads
    size: int
    reverse: bool
    products: dict[str, list[Any]]


def _matrices(layer: Any, name: str) -> list[Any]:
    part = getattr(layer, name)
    if isinstance(part, MatrixStack):
        return [part.matrix()[i] for i in range(part.leading[0])]
    return [rules.apply("linear_map", part.detach().float())]


def _float_run(layer: Any, suffix: str, x: Tensor, reverse: bool) -> tuple[Tensor, float, float]:
    """Hidden states (b, steps, n) of one direction in floating point, the largest cell and part of a gate."""
    W, U = (layer.dense_weight(f"weight_{side}{suffix}").detach() for side in ("ih", "hh"))
    b, d = (
        getattr(layer, f"bias_{s}{suffix}").detach() if layer.bias else W.new_zeros(()) for s in ("ih", "hh")
    )
    h = c = x.new_zeros(len(x), layer.hidden_size)
    states: list[Tensor] = []
    largest, gate = 1.0, 0.0
    for t in range(x.shape[1] - 1, -1, -1) if reverse else range(x.shape[1]):
        p, q = x[:, t] @ W.mT + b, h @ U.mT + d
        gate = max(gate, p.abs().max().item(), q.abs().max().item())
        if len(layer.gates) == 4:
            i, f, g, o = (p + q).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h, largest = o.sigmoid() * c.tanh(), max(largest, c.abs().max().item())
        else:
            (a, z, g), (k, y, n) = p.chunk(3, -1), q.chunk(3, -1)
            new = (g + (a + k).sigmoid() * n).tanh()
            h = new + (z + y).sigmoid() * (h - new)
        states.append(h)
    return torch.stack(states[::-1] if reverse else states, 1), largest, gate


@torch.no_grad()
def write_recurrent(
    source: IntegerSource,
    write_product: Callable[..., Any],
    layer: Any,
    name: str,
    given: Tensor,
    taken: Format,
    steps: int,
) -> Made:
    """Write all layers and directions of a recurrent layer as one function; states begin at 0."""
    lstm, n, gates = len(layer.gates) == 4, layer.hidden_size, len(layer.gates) * layer.hidden_size
    directions = 2 if layer.bidirectional else 1
    width, function = directions * n, source.new_name("recurrent")
    # In floating point first: ranges of all hidden states, and of cells.
    x = taken.values(given).reshape(len(given), steps, -1)
    sequences, largest, gate = [x], 1.0, 8.0
    for number in range(layer.num_layers):
        found = [_float_run(layer, s, sequences[-1], i == 1) for i, s in enumerate(layer._suffixes(number))]
        sequences.append(torch.cat([y for y, _, _ in found], -1))
        largest = max(largest, *(size for _, size, _ in found))
        gate = max(gate, *(size for _, _, size in found))
    every = torch.cat([y.flatten() for y in sequences[1:]])
    low, high = moved(f"the states of {name}", every.min().item(), every.max().item())
    if max(-low, high) < LEAST:
        raise ExportError(f"to_c: {name} has no C in integers: its states are below {LEAST:.2g}.")
    out = eight_bits(low * 1.05, high * 1.05)
    cell = 15 - math.ceil(math.log2(MARGIN * largest))
    wide = math.ceil(math.log2(min(gate, 2048.0) / 8))
    of_gates = Format(2.0 ** (wide - POINT), 0, -32768, 32767)
    final = rescaling(torch.tensor([2.0**-15 / out.scale]), None, out, 32768.0)
    after, flash = source.rescaling(f"{function}_out", final, None)
    source.use("lstm_step" if lstm else "gru_step", "fill")
    if "logistic_table" not in source.functions:
        source.functions["logistic_table"] = ""
        source.shared += 2 * len(LOGISTIC)
        source.constant("logistic_table", LOGISTIC.numpy(), "int16")
    parts, forms, scratch16, scratch32, multiplications = [], [], 0, 0, 0.0
    lines: list[str] = []
    for number in range(layer.num_layers):
        kind = taken if number == 0 else out
        size = layer.input_size if number == 0 else width
        before = "x" if number == 0 else f"sequence_{(number - 1) % 2}"
        behind = "y" if number == layer.num_layers - 1 else f"sequence_{number % 2}"
        for direction, suffix in enumerate(layer._suffixes(number)):
            index = number * directions + direction
            state = f"h + {index * n}"
            inputs = {"ih": kind.integers(sequences[number]), "hh": out.integers(sequences[number + 1])}
            inputs["hh"] = inputs["hh"][..., direction * n : (direction + 1) * n]
            lines += [f"fill({state}, {out.zero}, {n});", f"fill16(h16, 0, {n});"]
            lines += [f"fill16(c16, 0, {n});"] if lstm else []
            lines += [f"for (int32_t t = 0; t < {steps}; t++) {{"]
            lines += [f"    int32_t at = {f'{steps - 1} - t' if direction else 't'};"]
            products: dict[str, list[Any]] = {}
            for side, place, given_as, read in (
                ("ih", "gates", kind, f"{before} + at * {size}"),
                ("hh", "hidden", out, state),
            ):
                bias = getattr(layer, f"bias_{side}{suffix}").detach() if layer.bias else None
                offset, products[side] = 0, []
                q = inputs[side].reshape(-1, inputs[side].shape[-1]) - given_as.zero
                for M in _matrices(layer, f"weight_{side}{suffix}"):
                    rows = M.shape[0]
                    target = Target(of_gates, None if bias is None else bias[offset : offset + rows])
                    made = write_product(source, M, q, given_as, target, f"{name}.weight_{side}{suffix}")
                    products[side].append(chain(made.stages))
                    lines += [f"    {made.name}({read}, {place} + {offset}, rest, sums);"]
                    offset, flash = offset + rows, flash + made.flash
                    scratch16, scratch32 = max(scratch16, made.scratch16), max(scratch32, made.scratch32)
                    multiplications += steps * made.multiplications
                    forms.append(made.form.split(";")[0])
            facts = f"{wide}, {cell}, " if lstm else f"{wide}, "
            kept = "h16, c16" if lstm else "h16"
            step = "lstm_step" if lstm else "gru_step"
            lines += [f"    {step}(logistic_table, {facts}{after}, gates, hidden, {kept}, {state}, {n});"]
            lines += [f"    copy({state}, {behind} + at * {width} + {direction * n}, {n});", "}"]
            parts.append(Part(number, size, direction == 1, products))
    source.use("copy")
    buffers = [steps * width] * min(2, layer.num_layers - 1)
    declared = [f"int16_t *gates = work, *hidden = work + {gates}, *h16 = work + {2 * gates};"]
    declared += [f"int16_t *c16 = h16 + {n};"] if lstm else []
    own = 2 * gates + n * (2 if lstm else 1)
    declared += [f"int16_t *rest = work + {own};"]
    names = "".join(f", int8_t *sequence_{i}" for i in range(len(buffers)))
    body = "".join(f"    {line}\n" for line in (*declared, *lines))
    head = (
        f"static void {function}(const int8_t *x, int8_t *y, int8_t *h{names}, int16_t *work, int32_t *sums)"
    )
    source.products.append(f"\n{head}\n{{\n{body}}}\n")
    one_step = _lstm if lstm else _gru

    def compute(q: Tensor) -> tuple[Tensor, ...]:
        found, last = [q.reshape(len(q), steps, -1)], []
        for part in parts:
            x = found[part.before]
            zero = taken.zero if part.before == 0 else out.zero
            h = c = q.new_zeros(len(q), n)
            h8, ys = q.new_full((len(q), n), out.zero), [h] * steps
            for t in range(steps - 1, -1, -1) if part.reverse else range(steps):
                gates = torch.cat([run(x[:, t] - zero) for run in part.products["ih"]], -1)
                hidden = torch.cat([run(h8 - out.zero) for run in part.products["hh"]], -1)
                h, c = one_step(gates, hidden, h, c, wide, cell)
                h8 = final(h)
                ys[t] = h8
            last.append(h8)
            y = torch.stack(ys, 1)
            if part.reverse:
                found[-1] = torch.cat((found[-1], y), -1)
            else:
                found.append(y)
        # Sequences between layers: the last one in each of the two places.
        between: list[Tensor] = []
        for place in range(len(buffers)):
            between.append([y for i, y in enumerate(found[1:-1]) if i % 2 == place][-1].flatten(1))
        return found[-1].flatten(1), torch.cat(last, -1), *between

    form = " or ".join(dict.fromkeys(forms))
    scratch = own + scratch16, scratch32
    return Made(function, form, flash, scratch, multiplications, out, buffers, compute)
